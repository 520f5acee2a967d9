//! What is reported, and what is not where it was not computed.

use dressage_trainer::loss::{LossError, Objective};
use dressage_trainer::settings::{CorrectionSettings, KlSettings, LossSettings, SettingsError};

use crate::losses::made::{Tokens, close, objective};

fn tokens() -> Tokens {
    Tokens {
        trainer_logprobs: vec![-1.0, -1.0, -1.0, -1.0],
        old_logprobs: vec![-1.0 - 2.0_f64.ln(), -1.0, -1.0 + 2.0_f64.ln(), -1.0],
        logprobs: vec![-1.0, -1.0, f64::NAN, -1.0 + 4.0_f64.ln()],
        ref_logprobs: vec![-1.0; 4],
        entropy: vec![0.5; 4],
        loss_mask: vec![true; 4],
        segment_of: vec![0, 0, 1, 1],
        advantages: vec![1.0, -1.0, 7.0],
        loss_weights: vec![0.5, 0.5, 0.5],
    }
}

#[test]
fn clips_and_mismatch_are_counted_by_token() {
    let tensors = tokens().tensors();
    let output = objective("kind = \"ppo_clip\"", "", "").evaluate(&tensors.input()).unwrap();
    let metrics = output.stats.metrics().unwrap();
    let of = |name: &str| metrics.iter().find(|(n, _)| *n == name).map(|(_, v)| *v);
    // ratios 2, 1, 1/2, 1; the first is clipped above with A = 1, the third below with A = −1
    close(of("ratio_mean").unwrap(), 4.5 / 4.0, 1e-12, "ratio_mean");
    close(of("ratio_max").unwrap(), 2.0, 1e-12, "ratio_max");
    assert_eq!((of("clip_fraction_high"), of("clip_fraction_low")), (Some(0.25), Some(0.25)));
    // old against rollout: ratios 1/2, 1, unknown, 1/4
    close(of("mismatch_ratio_mean").unwrap(), 1.75 / 3.0, 1e-12, "mismatch_ratio_mean");
    close(of("mismatch_k1").unwrap(), 8.0_f64.ln() / 3.0, 1e-12, "mismatch_k1");
    close(of("mismatch_abs_max").unwrap(), 4.0_f64.ln(), 1e-12, "mismatch_abs_max");
    // the third segment has no token
    assert_eq!((of("trained_segments"), of("trained_tokens")), (Some(2.0), Some(4.0)));
    assert_eq!((of("advantage_mean"), of("advantage_std")), (Some(0.0), Some(1.0)));
    assert_eq!((of("advantage_min"), of("advantage_max")), (Some(-1.0), Some(1.0)));
    assert_eq!((of("entropy"), of("kl")), (Some(0.5), Some(0.0)));
    assert_eq!(of("correction_mean"), None);
}

#[test]
fn what_was_not_computed_is_not_reported() {
    let tensors = tokens().tensors();
    let mut input = tensors.input();
    (input.logprobs, input.old_logprobs, input.ref_logprobs, input.entropy) = (None, None, None, None);
    let output = objective("kind = \"cross_entropy\"", "", "").evaluate(&input).unwrap();
    let names: Vec<&str> = output.stats.metrics().unwrap().into_iter().map(|(name, _)| name).collect();
    for name in ["ratio_mean", "kl", "entropy", "mismatch_k3", "correction_mean", "ratio_max"] {
        assert!(!names.contains(&name), "{name}");
    }
}

#[test]
fn what_a_loss_needs_and_was_not_given_is_named() {
    let tensors = tokens().tensors();
    let mut input = tensors.input();
    (input.logprobs, input.ref_logprobs, input.entropy) = (None, None, None);
    for (loss, correction, kl, words) in [
        ("old_logprobs = \"rollout\"", "", "", "the rollout's logprobs"),
        ("kind = \"reinforce\"", "kind = \"mask\"", "", "the rollout's logprobs"),
        ("", "", "coefficient = 0.1", "the reference's logprobs"),
        ("entropy_coefficient = 0.1", "", "", "entropies"),
    ] {
        let objective = objective(loss, correction, kl);
        let error = objective.evaluate(&input).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        let needs = objective.needs().logprobs || objective.needs_ref_logprobs() || objective.needs_entropy();
        assert!(needs, "{loss} {correction} {kl}");
    }
    let short = tch::Tensor::from_slice(&[0.0, 0.0]);
    input.old_logprobs = Some(&short);
    let error = objective("", "", "").evaluate(&input).unwrap_err();
    assert!(matches!(error, LossError::Shape { what: "old_logprobs", expected: 4, .. }), "{error}");
}

#[test]
fn settings_that_do_not_go_together_are_refused() {
    let correction: CorrectionSettings = toml::from_str("kind = \"truncate\"").unwrap();
    let of = |loss: &str| {
        let loss: LossSettings = toml::from_str(loss).unwrap();
        Objective::new(loss, correction, KlSettings::default())
    };
    assert!(of("kind = \"ppo_clip\"").unwrap().needs().logprobs);
    let error = of("old_logprobs = \"rollout\"").unwrap_err();
    assert!(
        matches!(error, SettingsError::CorrectedTwice { .. }) && error.to_string().contains("recomputed"),
        "{error}"
    );
    let error = of("kind = \"cross_entropy\"").unwrap_err();
    assert!(error.to_string().contains("kind = \"none\""), "{error}");
}
