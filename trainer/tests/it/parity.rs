//! The same numbers as transformers and torch on the same weights, in f32, within the bounds that the crate promises.

use dressage_trainer::{AdamW, AdamWSettings, ForwardOptions, ScoreOptions, StepOutcome};
use tch::Tensor;

use crate::cases::{CASES, CASES_WITH_EXPERTS, Case, distance, ints, record, relative_distance};

/// As in `make_fixtures.py`.
const STEPS: usize = 5;
const SETTINGS: AdamWSettings = AdamWSettings {
    learning_rate: 1e-3,
    beta1: 0.9,
    beta2: 0.95,
    eps: 1e-5,
    weight_decay: 0.1,
    grad_norm_max: Some(1.0),
};

#[test]
fn logits_are_those_of_transformers() {
    for name in CASES {
        let case = Case::load(name);
        let off = distance(&case.model.logits(&case.row).expect("logits"), &case.expected["logits"]);
        println!("{name}: logits off by {off:.1e}");
        assert!(off <= 1e-4, "{name}: logits off by {off:.1e}");
    }
}

#[test]
fn token_logprobs_entropies_and_every_gradient_are_those_of_transformers() {
    for name in CASES {
        let case = Case::load(name);
        let (logprobs, entropy) = case.run(&case.row, ForwardOptions::default(), ScoreOptions::default());
        let off = distance(&logprobs, &case.expected["logprobs"]);
        let entropy_off = distance(&entropy, &case.expected["entropy"]);
        assert!(off <= 1e-5, "{name}: log-probs off by {off:.1e}");
        assert!(entropy_off <= 1e-5, "{name}: entropies off by {entropy_off:.1e}");
        let mut worst = 0f64;
        for (parameter, gradient) in case.gradients() {
            let off = relative_distance(&gradient, &case.expected_of("gradient", &parameter));
            assert!(off <= 1e-4, "{name}: gradient of {parameter} off by {off:.1e}");
            worst = worst.max(off);
        }
        println!("{name}: log-probs off by {off:.1e}, entropies by {entropy_off:.1e}, gradients by {worst:.1e}");
    }
}

#[test]
fn five_steps_of_adamw_end_at_the_weights_of_torch() {
    for name in CASES {
        let case = Case::load(name);
        let mut optimizer = AdamW::new(&case.model, SETTINGS).expect("optimizer");
        let norms = Vec::<f32>::try_from(&case.expected["grad_norms"]).expect("norms");
        for expected in norms.iter().take(STEPS) {
            let _ = case.run(&case.row, ForwardOptions::default(), ScoreOptions::default());
            let outcome = optimizer.step(&case.model, SETTINGS.learning_rate).expect("step");
            let StepOutcome::Updated { grad_norm } = outcome else { panic!("{outcome:?}") };
            let off = (grad_norm - f64::from(*expected)).abs();
            assert!(off <= 1e-4 * f64::from(*expected), "{name}: norm {grad_norm} for {expected}");
        }
        let mut worst = 0f64;
        for parameter in case.model.parameters() {
            let off = distance(parameter.tensor(), &case.expected_of("step5", parameter.name()));
            assert!(off <= 1e-5, "{name}: {} off by {off:.1e} after {STEPS} steps", parameter.name());
            worst = worst.max(off);
        }
        println!("{name}: weights off by {worst:.1e} after {STEPS} steps");
    }
}

#[test]
fn a_packed_segment_has_the_numbers_that_it_has_alone() {
    for name in CASES {
        let case = Case::load(name);
        let packed = case.model.logits(&case.row).expect("logits");
        let alone: Vec<Tensor> = case.rows_alone().iter().map(|r| case.model.logits(r).expect("logits")).collect();
        let off = distance(&packed, &Tensor::cat(&alone, 0));
        assert!(off <= 1e-5, "{name}: off by {off:.1e}");
    }
}

#[test]
fn gradients_of_a_packed_row_are_the_sum_of_those_of_its_segments() {
    for name in CASES {
        let case = Case::load(name);
        let _ = case.run(&case.row, ForwardOptions::default(), ScoreOptions::default());
        let packed: Vec<Tensor> = case.gradients().into_iter().map(|(_, g)| g.copy()).collect();
        case.model.clear_gradients().expect("clear");
        let weight = &case.expected["loss_weight"];
        let mut start = 0;
        for row in case.rows_alone() {
            let n = row.n_tokens() as i64;
            let part = weight.narrow(0, start, n);
            let _ =
                crate::cases::run_loss(&case.model, &row, &part, ForwardOptions::default(), ScoreOptions::default());
            start += n;
        }
        for ((parameter, alone), packed) in case.gradients().into_iter().zip(packed) {
            let off = relative_distance(&alone, &packed);
            assert!(off <= 1e-5, "{name}: {parameter} off by {off:.1e}");
        }
    }
}

#[test]
fn the_router_chooses_the_experts_of_transformers() {
    for name in CASES_WITH_EXPERTS {
        let case = Case::load(name);
        let config = case.model.config();
        let layers: Vec<usize> = (0..config.n_layers).filter(|l| config.has_experts(*l)).collect();
        let mut first = 0;
        let expected: Vec<Vec<i32>> = layers.iter().map(|l| ints(&case.expected[&format!("routed.{l}")])).collect();
        for (routed, n) in record(&case).into_iter().zip(case.row.lengths()) {
            let routed = routed.expect("recorded");
            for position in 0..n - 1 {
                for (ordinal, expected) in expected.iter().enumerate() {
                    let start = (first + position) * routed.top_k();
                    let mut right = expected[start..start + routed.top_k()].to_vec();
                    let mut found: Vec<i32> = routed.of(position, ordinal).iter().map(|id| i32::from(*id)).collect();
                    // ranks of equal probability may be swapped
                    right.sort_unstable();
                    found.sort_unstable();
                    assert_eq!(found, right, "{name}: token {position}, layer {ordinal}");
                }
            }
            first += n;
        }
    }
}
