//! What a trainer is made of has to fit together.

use dressage_schemas::ErrorKind;
use dressage_trainer::settings::WeightKind;
use dressage_trainer::{Error, Trainer};
use serde_json::json;
use tch::Kind;

use crate::training::made::{
    config_json, metric, micro_batch, mixed_config_json, model, model_of, row, settings, step,
};

#[test]
fn a_divergence_that_costs_needs_a_reference_of_the_same_vocabulary() {
    let error = Trainer::new(model(1), None, settings("[kl]\ncoefficient = 0.1")).unwrap_err();
    assert!(matches!(error, Error::NoReference { .. }), "{error}");
    let mut config = config_json();
    config["vocab_size"] = json!(25);
    let error = Trainer::new(model(1), Some(model_of(config, 1, Kind::Float)), settings("")).unwrap_err();
    assert!(error.to_string().contains("25") && error.to_string().contains("24"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[test]
fn a_model_that_was_loaded_otherwise_than_the_settings_say_is_refused() {
    let mut settings = settings("");
    settings.model.kind = WeightKind::Bf16;
    let error = Trainer::new(model(1), None, settings).unwrap_err();
    assert!(error.to_string().contains("kind = bf16"), "{error}");
    settings.model.kind = WeightKind::F32;
    settings.optimizer.beta1 = 2.0;
    let error = Trainer::new(model(1), None, settings).unwrap_err();
    assert!(matches!(error, Error::Settings(_)) && error.to_string().contains("[optimizer] beta1 = 2"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[test]
fn limits_are_those_of_policy_and_reference_together() {
    let mut short = config_json();
    short["max_position_embeddings"] = json!(32);
    let trainer = Trainer::new(model(1), Some(model_of(short, 2, Kind::Float)), settings("")).unwrap();
    assert_eq!((trainer.limits().vocab_size, trainer.limits().positions_max), (24, 32));
    assert_eq!(trainer.limits().router, None);
    let mixed = Trainer::new(model_of(mixed_config_json(), 1, Kind::Float), None, settings("")).unwrap();
    let router = mixed.limits().router.unwrap();
    assert_eq!((router.layers, router.expert_layers, router.top_k, router.n_experts), (2, 1, 2, 4));
}

#[test]
fn a_reference_without_a_coefficient_is_reported_on_and_changes_nothing() {
    let run = |reference| {
        let mut trainer = Trainer::new(model(1), reference, settings("")).unwrap();
        let batch = micro_batch(&trainer, (0, 0), &[row(1, 9, 1.0)]);
        let report = step(&mut trainer, &[(&batch, None)]);
        (trainer, report)
    };
    let (with, report) = run(Some(model(2)));
    let (without, plain) = run(None);
    assert!(metric(&report, "kl") > 0.0);
    assert!(plain.metrics.iter().all(|(name, _)| *name != "kl"));
    crate::training::made::assert_same_weights(&with, &crate::training::made::weights(&without), "weights");
}

#[test]
fn entropy_is_reported_where_it_is_wanted_and_then_changes_nothing_else() {
    let run = |text: &str| {
        let mut trainer = Trainer::new(model(1), None, settings(text)).unwrap();
        let batch = micro_batch(&trainer, (0, 0), &[row(1, 9, 1.0)]);
        let report = step(&mut trainer, &[(&batch, None)]);
        (crate::training::made::weights(&trainer), report)
    };
    let (weights, report) = run("[step]\nreport_entropy = true");
    let (same, silent) = run("");
    assert!((0.1..24_f64.ln()).contains(&metric(&report, "entropy")));
    assert!(silent.metrics.iter().all(|(name, _)| *name != "entropy"));
    assert_eq!(weights, same);
    let (other, reported) = run("[loss]\nentropy_coefficient = 0.1");
    assert_ne!(other, weights);
    assert_eq!(metric(&reported, "entropy"), metric(&report, "entropy"));
}

#[test]
fn the_learning_rate_follows_the_schedule_over_steps_taken() {
    let text = "[schedule]\nshape = \"linear\"\nwarmup_steps = 2\ntotal_steps = 4";
    let mut trainer = Trainer::new(model(1), None, settings(text)).unwrap();
    let batch = micro_batch(&trainer, (0, 0), &[row(1, 9, 1.0)]);
    let rates: Vec<f64> =
        (0..5).map(|_| metric(&step(&mut trainer, &[(&batch, None)]), "learning_rate") / 1e-2).collect();
    assert_eq!(rates, [0.5, 1.0, 1.0, 0.5, 0.0]);
}
