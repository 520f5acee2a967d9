//! Tokens of segments made for tests, with the log-probs of everybody who has an opinion about them.

use dressage_trainer::loss::{LossInput, Objective};
use dressage_trainer::settings::{CorrectionSettings, KlSettings, LossSettings};
use tch::{Kind, Tensor};

/// The columns of some tokens and of their segments.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tokens {
    pub(crate) trainer_logprobs: Vec<f64>,
    pub(crate) logprobs: Vec<f64>,
    pub(crate) old_logprobs: Vec<f64>,
    pub(crate) ref_logprobs: Vec<f64>,
    pub(crate) entropy: Vec<f64>,
    pub(crate) loss_mask: Vec<bool>,
    pub(crate) segment_of: Vec<i64>,
    pub(crate) advantages: Vec<f64>,
    pub(crate) loss_weights: Vec<f64>,
}

/// The same as tensors.
pub(crate) struct Tensors {
    pub(crate) trainer_logprobs: Tensor,
    logprobs: Tensor,
    old_logprobs: Tensor,
    ref_logprobs: Tensor,
    pub(crate) entropy: Tensor,
    loss_mask: Tensor,
    segment_of: Tensor,
    advantages: Tensor,
    loss_weights: Tensor,
}

impl Tokens {
    pub(crate) fn n_segments(&self) -> usize {
        self.advantages.len()
    }

    pub(crate) fn tensors(&self) -> Tensors {
        Tensors {
            trainer_logprobs: Tensor::from_slice(&self.trainer_logprobs),
            logprobs: Tensor::from_slice(&self.logprobs),
            old_logprobs: Tensor::from_slice(&self.old_logprobs),
            ref_logprobs: Tensor::from_slice(&self.ref_logprobs),
            entropy: Tensor::from_slice(&self.entropy),
            loss_mask: Tensor::from_slice(&self.loss_mask),
            segment_of: Tensor::from_slice(&self.segment_of),
            advantages: Tensor::from_slice(&self.advantages),
            loss_weights: Tensor::from_slice(&self.loss_weights),
        }
    }

    /// The tokens of some segments, which are numbered anew.
    pub(crate) fn of_segments(&self, chosen: &[usize]) -> Self {
        let mut found = Self::default();
        for (number, segment) in chosen.iter().enumerate() {
            found.advantages.push(self.advantages[*segment]);
            found.loss_weights.push(self.loss_weights[*segment]);
            for at in (0..self.segment_of.len()).filter(|at| self.segment_of[*at] == *segment as i64) {
                found.trainer_logprobs.push(self.trainer_logprobs[at]);
                found.logprobs.push(self.logprobs[at]);
                found.old_logprobs.push(self.old_logprobs[at]);
                found.ref_logprobs.push(self.ref_logprobs[at]);
                found.entropy.push(self.entropy[at]);
                found.loss_mask.push(self.loss_mask[at]);
                found.segment_of.push(number as i64);
            }
        }
        found
    }
}

impl Tensors {
    /// Everything that can be given.
    pub(crate) fn input(&self) -> LossInput<'_> {
        LossInput {
            trainer_logprobs: &self.trainer_logprobs,
            logprobs: Some(&self.logprobs),
            old_logprobs: Some(&self.old_logprobs),
            ref_logprobs: Some(&self.ref_logprobs),
            entropy: Some(&self.entropy),
            loss_mask: Some(&self.loss_mask),
            segment_of: &self.segment_of,
            advantages: &self.advantages,
            loss_weights: &self.loss_weights,
        }
    }
}

/// An objective as a settings file has it.
pub(crate) fn objective(loss: &str, correction: &str, kl: &str) -> Objective {
    let loss: LossSettings = toml::from_str(loss).unwrap();
    let correction: CorrectionSettings = toml::from_str(correction).unwrap();
    let kl: KlSettings = toml::from_str(kl).unwrap();
    Objective::new(loss, correction, kl).unwrap()
}

pub(crate) fn numbers(tensor: &Tensor) -> Vec<f64> {
    Vec::<f64>::try_from(tensor.to_kind(Kind::Double)).unwrap()
}

pub(crate) fn number(tensor: &Tensor) -> f64 {
    tensor.double_value(&[])
}

/// Equal to rounding, relative where the numbers are large.
#[track_caller]
pub(crate) fn close(found: f64, expected: f64, tolerance: f64, what: &str) {
    let distance = (found - expected).abs();
    assert!(distance <= tolerance * expected.abs().max(1.0), "{what}: {found}, expected {expected}");
}

#[track_caller]
pub(crate) fn all_close(found: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        close(*found, *expected, tolerance, &format!("{what}, token {at}"));
    }
}
