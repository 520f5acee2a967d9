//! Every loss, correction and divergence against PyTorch's values (`tests/oracle/losses.py`).

use dressage_trainer::loss::Objective;
use serde::Deserialize;
use serde_json::Value;

use crate::losses::made::{Tokens, all_close, close, number, numbers};

#[derive(Deserialize)]
struct Case {
    name: String,
    settings: Settings,
    segments: Vec<Segment>,
    expected: serde_json::Map<String, Value>,
    gradient: Vec<f64>,
    entropy_gradient: Vec<f64>,
}

#[derive(Deserialize)]
struct Settings {
    loss: Value,
    correction: Value,
    kl: Value,
}

#[derive(Deserialize)]
struct Segment {
    trainer_logprobs: Vec<f64>,
    logprobs: Vec<f64>,
    old_logprobs: Vec<f64>,
    ref_logprobs: Vec<f64>,
    entropy: Vec<f64>,
    loss_mask: Vec<bool>,
    advantage: f64,
    loss_weight: f64,
}

impl Case {
    fn tokens(&self) -> Tokens {
        let mut tokens = Tokens::default();
        for (number, segment) in self.segments.iter().enumerate() {
            tokens.trainer_logprobs.extend(&segment.trainer_logprobs);
            tokens.logprobs.extend(&segment.logprobs);
            tokens.old_logprobs.extend(&segment.old_logprobs);
            tokens.ref_logprobs.extend(&segment.ref_logprobs);
            tokens.entropy.extend(&segment.entropy);
            tokens.loss_mask.extend(&segment.loss_mask);
            tokens.segment_of.resize(tokens.trainer_logprobs.len(), number as i64);
            tokens.advantages.push(segment.advantage);
            tokens.loss_weights.push(segment.loss_weight);
        }
        tokens
    }

    fn objective(&self) -> Objective {
        let Settings { loss, correction, kl } = &self.settings;
        Objective::new(
            serde_json::from_value(loss.clone()).unwrap(),
            serde_json::from_value(correction.clone()).unwrap(),
            serde_json::from_value(kl.clone()).unwrap(),
        )
        .unwrap()
    }
}

#[test]
fn losses_gradients_and_metrics_are_pytorch_s() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("../../fixtures/losses.json")).unwrap();
    assert!(cases.len() >= 20);
    for case in cases {
        let tensors = case.tokens().tensors();
        let mut input = tensors.input();
        if case.settings.kl.as_object().unwrap().is_empty() {
            input.ref_logprobs = None;
        }
        let objective = case.objective();
        let (output, gradients) = objective.evaluate_with_gradients(&input).unwrap();
        close(number(&output.loss), case.expected["loss"].as_f64().unwrap(), 1e-12, &case.name);
        all_close(&numbers(&gradients.trainer_logprobs), &case.gradient, 1e-12, &case.name);
        if let Some(entropy) = &gradients.entropy {
            all_close(&numbers(entropy), &case.entropy_gradient, 1e-12, &case.name);
        } else {
            assert!(case.entropy_gradient.iter().all(|g| *g == 0.0), "{}", case.name);
        }
        let metrics = output.stats.metrics().unwrap();
        for (name, expected) in &case.expected {
            let found = metrics.iter().find(|(metric, _)| metric == name);
            let (_, found) = found.unwrap_or_else(|| panic!("{}: no metric {name}", case.name));
            close(*found, expected.as_f64().unwrap(), 1e-12, &format!("{}: {name}", case.name));
        }
    }
}
