//! The loss of a train step does not depend on how it was split into micro-batches.

use dressage_trainer::loss::LossStats;
use proptest::prelude::*;
use tch::Device;

use crate::losses::made::{Tokens, close, number, numbers, objective};

const LOSSES: [(&str, &str, &str); 6] = [
    ("kind = \"ppo_clip\"\nclip_high = 0.28\ndual_clip = 3.0\nentropy_coefficient = 0.01", "", "coefficient = 0.1"),
    ("kind = \"ppo_clip\"", "kind = \"truncate\"\nlevel = \"sequence\"", ""),
    ("kind = \"gspo\"\nclip_low = 0.1\nclip_high = 0.1", "kind = \"mask\"\nlevel = \"geometric\"", ""),
    ("kind = \"cispo\"", "kind = \"mask\"", "coefficient = 0.1\nestimator = \"k2\""),
    ("kind = \"reinforce\"", "kind = \"truncate\"", "coefficient = 0.1\nestimator = \"k1\""),
    ("kind = \"cross_entropy\"", "", ""),
];

/// A token: mask, and log-probs under trainer, old weights, rollout and reference, and entropy.
type Token = (bool, [f64; 4], f64);

fn step() -> impl Strategy<Value = Tokens> {
    let logprob = || -4.0..0.0_f64;
    let token = (prop::bool::weighted(0.8), [logprob(), logprob(), logprob(), logprob()], 0.0..3.0_f64);
    let segment = (prop::collection::vec(token, 1..9), -2.0..2.0_f64, 0.0..0.2_f64);
    prop::collection::vec(segment, 1..9).prop_map(|segments: Vec<(Vec<Token>, f64, f64)>| {
        let mut step = Tokens::default();
        for (number, (tokens, advantage, weight)) in segments.into_iter().enumerate() {
            step.advantages.push(advantage);
            step.loss_weights.push(weight);
            for (mask, [trainer, old, rollout, reference], entropy) in tokens {
                step.trainer_logprobs.push(trainer);
                step.old_logprobs.push(old);
                step.logprobs.push(rollout);
                step.ref_logprobs.push(reference);
                step.entropy.push(entropy);
                step.loss_mask.push(mask);
                step.segment_of.push(number as i64);
            }
        }
        step
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_split_gives_the_same_loss_gradients_and_metrics(
        step in step(),
        places in prop::collection::vec(0..4_usize, 9),
        which in 0..LOSSES.len(),
    ) {
        let (loss, correction, kl) = LOSSES[which];
        let objective = objective(loss, correction, kl);
        let whole = step.tensors();
        let (expected, gradients) = objective.evaluate_with_gradients(&whole.input()).unwrap();
        let gradients = numbers(&gradients.trainer_logprobs);

        let mut sum = 0.0;
        let mut stats = LossStats::none(Device::Cpu).unwrap();
        // one of the four may be empty, as a rank's may be
        for place in 0..4 {
            let chosen: Vec<usize> = (0..step.n_segments()).filter(|s| places[*s] == place).collect();
            let part = step.of_segments(&chosen).tensors();
            let (output, found) = objective.evaluate_with_gradients(&part.input()).unwrap();
            sum += number(&output.loss);
            stats.add(&output.stats).unwrap();
            let of_chosen = (0..step.segment_of.len()).filter(|at| places[step.segment_of[*at] as usize] == place);
            for (found, at) in numbers(&found.trainer_logprobs).into_iter().zip(of_chosen) {
                close(found, gradients[at], 1e-12, "gradient");
            }
        }
        close(sum, number(&expected.loss), 1e-12, "loss");
        let (found, expected) = (stats.metrics().unwrap(), expected.stats.metrics().unwrap());
        prop_assert_eq!(found.len(), expected.len());
        for ((name, found), (same, expected)) in found.into_iter().zip(expected) {
            prop_assert_eq!(name, same);
            close(found, expected, 1e-7, name);
        }
    }
}
