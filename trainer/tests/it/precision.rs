//! bf16 models: read, saved, and trained through f32 weights.

use dressage_trainer::{AdamW, AdamWSettings, Folder, ForwardOptions, Model, ModelOptions, ScoreOptions};
use tch::Kind;

use crate::cases::{CASES, Case, distance, relative_distance};

const BF16: ModelOptions = ModelOptions { device: tch::Device::Cpu, kind: Kind::BFloat16, trainable: true };

#[test]
fn bf16_is_near_f32() {
    for name in CASES {
        let case = Case::load_as(name, BF16);
        let off = relative_distance(&case.model.logits(&case.row).expect("logits"), &case.expected["logits"]);
        assert!(off <= 0.02, "{name}: logits off by {off:.1e} of their norm");
        let (logprobs, _) = case.run(&case.row, ForwardOptions::default(), ScoreOptions::default());
        assert_eq!(logprobs.kind(), Kind::Float);
        for (parameter, gradient) in case.gradients() {
            let expected = case.expected_of("gradient", &parameter);
            let error = (gradient.to_kind(Kind::Float) - &expected).norm().double_value(&[]);
            let share = error / expected.norm().double_value(&[]);
            // a router that chooses otherwise in bf16 changes whole experts: the reason for routing replay
            assert!(share <= 0.2 || name.contains("moe"), "{name}: {parameter} off by {share:.1e}");
        }
    }
}

#[test]
fn updates_too_small_for_bf16_are_not_lost() {
    let case = Case::load_as("qwen3", BF16);
    let mut optimizer = AdamW::new(&case.model, AdamWSettings::default()).expect("optimizer");
    let before: Vec<_> = optimizer.weights().iter().map(|w| w.copy()).collect();
    for _ in 0..3 {
        let _ = case.run(&case.row, ForwardOptions::default(), ScoreOptions::default());
        optimizer.step(&case.model, 1e-6).expect("step");
    }
    let moved = optimizer.weights().iter().zip(&before).filter(|(w, b)| distance(w, b) > 1e-6).count();
    assert_eq!(moved, before.len());
    for (weight, parameter) in optimizer.weights().iter().zip(case.model.parameters()) {
        let rounded = weight.to_kind(Kind::BFloat16);
        assert_eq!(distance(&rounded, parameter.tensor()), 0.0, "{}", parameter.name());
    }
}

#[test]
fn bf16_gradients_of_many_micro_batches_are_summed_up_in_f32() {
    let case = Case::load_as("qwen3", BF16);
    let settings = AdamWSettings { grad_norm_max: None, ..AdamWSettings::default() };
    let norm_of = |n: usize| {
        let mut optimizer = AdamW::new(&case.model, settings).expect("optimizer");
        for _ in 0..n {
            let _ = case.run(&case.row, ForwardOptions::default(), ScoreOptions::default());
            optimizer.accumulate(&case.model).expect("accumulate");
        }
        match optimizer.step(&case.model, 0.0).expect("step") {
            dressage_trainer::StepOutcome::Updated { grad_norm } => grad_norm,
            other => panic!("{other:?}"),
        }
    };
    // in bf16 a sum of 300 equal parts stops growing at 256 of them
    let (one, many) = (norm_of(1), norm_of(300));
    assert!((many / one - 300.0).abs() < 0.01, "{many} for 300 times {one}");
}

#[test]
fn a_bf16_model_is_saved_in_either_kind() {
    let case = Case::load_as("qwen3_moe", BF16);
    let expected = case.model.logits(&case.row).expect("logits");
    for (kind, dtype) in [(Kind::BFloat16, "bfloat16"), (Kind::Float, "float32")] {
        let place = tempfile::tempdir().expect("tempdir");
        case.model.save(&mut Folder::at(place.path()), kind, u64::MAX).expect("save");
        let config = std::fs::read_to_string(place.path().join("config.json")).expect("config");
        assert!(config.contains(&format!("\"{dtype}\"")), "{config}");
        let again = Model::load(&Folder::at(place.path()), BF16).expect("load");
        assert_eq!(distance(&again.logits(&case.row).expect("logits"), &expected), 0.0);
    }
}
