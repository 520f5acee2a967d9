//! What a step reports about its loss, as sums and maxima that add up over micro-batches and ranks.
//!
//! Two tensors on the device: nothing waits for it until the step is over and [`LossStats::metrics`] reads them. Of
//! several ranks the trainer reduces [`LossStats::sums`] by sum and [`LossStats::maxima`] by maximum, once a step.

use tch::{Device, Kind, TchError, Tensor};

use super::correction::Weights;
use super::error::LossError;
use super::kl;
use super::per_token::{PerToken, ratio};
use super::policy::RatioReport;
use crate::metrics::names;
use crate::settings::KlEstimator;

/// What is summed. The order is that of [`LossStats::sums`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
enum Sum {
    Loss,
    PolicyLoss,
    KlLoss,
    EntropyLoss,
    Tokens,
    Segments,
    RatioTokens,
    Ratio,
    ClippedLow,
    ClippedHigh,
    DualClipped,
    UpdateKl,
    KlTokens,
    Kl,
    EntropyTokens,
    Entropy,
    MismatchTokens,
    MismatchK1,
    MismatchK3,
    MismatchAbs,
    MismatchRatio,
    CorrectedTokens,
    CorrectionRatio,
    CorrectionWeight,
    CorrectionLimited,
    Advantage,
    AdvantageSquared,
}

const N_SUMS: usize = Sum::AdvantageSquared as usize + 1;

/// Of what the maximum is kept. The order is that of [`LossStats::maxima`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
enum Max {
    Ratio,
    MismatchRatio,
    MismatchAbs,
    CorrectionRatio,
    Advantage,
    AdvantageNegated,
}

const N_MAXIMA: usize = Max::AdvantageNegated as usize + 1;

/// Sums and maxima over the tokens and segments seen so far.
#[derive(Debug)]
pub struct LossStats {
    sums: Tensor,
    maxima: Tensor,
}

impl LossStats {
    /// Nothing seen.
    ///
    /// # Errors
    /// libtorch's, where memory runs out.
    pub fn none(device: Device) -> Result<Self, LossError> {
        Ok(Self {
            sums: Tensor::f_zeros([N_SUMS as i64], (Kind::Double, device))?,
            maxima: Tensor::f_full([N_MAXIMA as i64], f64::NEG_INFINITY, (Kind::Double, device))?,
        })
    }

    /// Of sums and maxima that were reduced over ranks.
    pub(crate) fn of(sums: Tensor, maxima: Tensor) -> Self {
        Self { sums, maxima }
    }

    /// What this and the other have seen.
    ///
    /// # Errors
    /// libtorch's.
    pub fn add(&mut self, other: &Self) -> Result<(), LossError> {
        self.sums = self.sums.f_add(&other.sums)?;
        self.maxima = self.maxima.f_maximum(&other.maxima)?;
        Ok(())
    }

    /// `[…]` float64, to be summed over ranks.
    pub fn sums(&self) -> &Tensor {
        &self.sums
    }

    /// `[…]` float64, of which ranks take the maximum.
    pub fn maxima(&self) -> &Tensor {
        &self.maxima
    }

    /// The metrics in a fixed order. Those of what was not computed (no ratio, no reference, …) are left out. Waits for the
    /// device.
    ///
    /// # Errors
    /// libtorch's.
    pub fn metrics(&self) -> Result<Vec<(&'static str, f64)>, LossError> {
        let sums = Vec::<f64>::try_from(&self.sums)?;
        let maxima = Vec::<f64>::try_from(&self.maxima)?;
        let sum = |what: Sum| sums[what as usize];
        let max = |what: Max| maxima[what as usize];
        let mut found = vec![
            (names::LOSS, sum(Sum::Loss)),
            (names::POLICY_LOSS, sum(Sum::PolicyLoss)),
            (names::KL_LOSS, sum(Sum::KlLoss)),
            (names::ENTROPY_LOSS, sum(Sum::EntropyLoss)),
            (names::TRAINED_TOKENS, sum(Sum::Tokens)),
            (names::TRAINED_SEGMENTS, sum(Sum::Segments)),
        ];
        let mut means = |count: Sum, of: &[(&'static str, Sum)]| {
            let n = sum(count);
            if n > 0.0 {
                found.extend(of.iter().map(|(name, what)| (*name, sum(*what) / n)));
            }
            n > 0.0
        };
        means(Sum::EntropyTokens, &[(names::ENTROPY, Sum::Entropy)]);
        means(Sum::KlTokens, &[(names::KL, Sum::Kl)]);
        let ratio = [
            (names::RATIO_MEAN, Sum::Ratio),
            (names::CLIP_FRACTION_LOW, Sum::ClippedLow),
            (names::CLIP_FRACTION_HIGH, Sum::ClippedHigh),
            (names::DUAL_CLIP_FRACTION, Sum::DualClipped),
            (names::UPDATE_KL, Sum::UpdateKl),
        ];
        let has_ratio = means(Sum::RatioTokens, &ratio);
        let mismatch = [
            (names::MISMATCH_K1, Sum::MismatchK1),
            (names::MISMATCH_K3, Sum::MismatchK3),
            (names::MISMATCH_ABS_MEAN, Sum::MismatchAbs),
            (names::MISMATCH_RATIO_MEAN, Sum::MismatchRatio),
        ];
        let has_mismatch = means(Sum::MismatchTokens, &mismatch);
        let correction = [
            (names::CORRECTION_RATIO_MEAN, Sum::CorrectionRatio),
            (names::CORRECTION_MEAN, Sum::CorrectionWeight),
            (names::CORRECTION_FRACTION, Sum::CorrectionLimited),
        ];
        let has_correction = means(Sum::CorrectedTokens, &correction);
        if has_ratio {
            found.push((names::RATIO_MAX, max(Max::Ratio)));
        }
        if has_mismatch {
            found.push((names::MISMATCH_RATIO_MAX, max(Max::MismatchRatio)));
            found.push((names::MISMATCH_ABS_MAX, max(Max::MismatchAbs)));
        }
        if has_correction {
            found.push((names::CORRECTION_RATIO_MAX, max(Max::CorrectionRatio)));
        }
        let n_segments = sum(Sum::Segments);
        if n_segments > 0.0 {
            let mean = sum(Sum::Advantage) / n_segments;
            let variance = (sum(Sum::AdvantageSquared) / n_segments - mean * mean).max(0.0);
            found.extend([
                (names::ADVANTAGE_MEAN, mean),
                (names::ADVANTAGE_STD, variance.sqrt()),
                (names::ADVANTAGE_MIN, -max(Max::AdvantageNegated)),
                (names::ADVANTAGE_MAX, max(Max::Advantage)),
            ]);
        }
        Ok(found)
    }
}

/// Collects the sums of one micro-batch.
pub(super) struct Collector<'a> {
    tokens: &'a PerToken,
    sums: Vec<Option<Tensor>>,
    maxima: Vec<Option<Tensor>>,
}

impl<'a> Collector<'a> {
    pub(super) fn new(tokens: &'a PerToken) -> Self {
        Self { tokens, sums: vec_of_none(N_SUMS), maxima: vec_of_none(N_MAXIMA) }
    }

    fn sum(&mut self, what: Sum, values: &Tensor) -> Result<(), TchError> {
        self.sums[what as usize] = Some(self.tokens.numbers(&values.f_detach()?)?.f_sum(Kind::Double)?);
        Ok(())
    }

    fn max(&mut self, what: Max, values: &Tensor) -> Result<(), TchError> {
        if values.numel() > 0 {
            self.maxima[what as usize] = Some(values.f_detach()?.f_to_kind(Kind::Double)?.f_max()?);
        }
        Ok(())
    }

    /// The parts of the loss of each token, weighed.
    pub(super) fn losses(
        &mut self,
        whole: &Tensor,
        policy: &Tensor,
        kl: Option<&Tensor>,
        entropy: Option<&Tensor>,
    ) -> Result<(), TchError> {
        self.sum(Sum::Loss, whole)?;
        self.sum(Sum::PolicyLoss, policy)?;
        kl.map(|kl| self.sum(Sum::KlLoss, kl)).transpose()?;
        entropy.map(|entropy| self.sum(Sum::EntropyLoss, entropy)).transpose()?;
        self.sum(Sum::Tokens, &self.tokens.ones()?)
    }

    /// The advantages of segments with tokens that count.
    pub(super) fn advantages(&mut self, advantages: &Tensor) -> Result<(), TchError> {
        let counts = self.tokens.segment_sums(&self.tokens.ones()?)?.f_gt(0.0)?;
        let advantages = advantages.f_detach()?.f_to_kind(Kind::Double)?;
        let of = |values: &Tensor| values.f_mul(&counts)?.f_sum(Kind::Double);
        self.sums[Sum::Segments as usize] = Some(counts.f_sum(Kind::Double)?);
        self.sums[Sum::Advantage as usize] = Some(of(&advantages)?);
        self.sums[Sum::AdvantageSquared as usize] = Some(of(&advantages.f_square()?)?);
        let nobody = counts.f_logical_not()?;
        self.max(Max::Advantage, &advantages.f_masked_fill(&nobody, f64::NEG_INFINITY)?)?;
        self.max(Max::AdvantageNegated, &advantages.f_neg()?.f_masked_fill(&nobody, f64::NEG_INFINITY)?)
    }

    pub(super) fn entropy(&mut self, entropy: &Tensor) -> Result<(), TchError> {
        self.sum(Sum::EntropyTokens, &self.tokens.ones()?)?;
        self.sum(Sum::Entropy, entropy)
    }

    pub(super) fn kl(&mut self, kl: &Tensor) -> Result<(), TchError> {
        self.sum(Sum::KlTokens, &self.tokens.ones()?)?;
        self.sum(Sum::Kl, kl)
    }

    /// The ratio of the update, and how far the policy went from `old` (k3 of KL(old ‖ new), since `old` sampled).
    pub(super) fn ratio(&mut self, report: &RatioReport, logprobs: &Tensor, old: &Tensor) -> Result<(), TchError> {
        self.sum(Sum::RatioTokens, &self.tokens.ones()?)?;
        self.sum(Sum::Ratio, &report.ratio)?;
        for (what, flags) in [
            (Sum::ClippedLow, &report.clipped_low),
            (Sum::ClippedHigh, &report.clipped_high),
            (Sum::DualClipped, &report.dual_clipped),
        ] {
            self.sum(what, &self.tokens.flags(flags)?)?;
        }
        self.sum(Sum::UpdateKl, &kl::estimate(KlEstimator::K3, old, &logprobs.f_detach()?)?)?;
        self.max(Max::Ratio, &self.tokens.numbers(&report.ratio)?)
    }

    /// How far the trainer's own log-probs (`old`) are from the rollout's, over the tokens of which the rollout's are known.
    pub(super) fn mismatch(&mut self, old: &Tensor, logprobs: &Tensor) -> Result<(), TchError> {
        let known = self.tokens.flags(&logprobs.f_isfinite()?)?;
        let unknown = known.f_logical_not()?;
        let rollout = logprobs.f_to_kind(Kind::Double)?.f_masked_fill(&unknown, 0.0)?;
        let own = old.f_masked_fill(&unknown, 0.0)?;
        let log_ratio = own.f_sub(&rollout)?;
        let ratio = ratio(&log_ratio)?.f_masked_fill(&unknown, 0.0)?;
        let distance = log_ratio.f_abs()?;
        self.sum(Sum::MismatchTokens, &known)?;
        self.sum(Sum::MismatchK1, &kl::estimate(KlEstimator::K1, &rollout, &own)?)?;
        self.sum(Sum::MismatchK3, &kl::estimate(KlEstimator::K3, &rollout, &own)?)?;
        self.sum(Sum::MismatchAbs, &distance)?;
        self.sum(Sum::MismatchRatio, &ratio)?;
        self.max(Max::MismatchRatio, &ratio)?;
        self.max(Max::MismatchAbs, &distance)
    }

    pub(super) fn correction(&mut self, weights: &Weights) -> Result<(), TchError> {
        self.sum(Sum::CorrectedTokens, &self.tokens.ones()?)?;
        self.sum(Sum::CorrectionRatio, &weights.ratio)?;
        self.sum(Sum::CorrectionWeight, &weights.weight)?;
        self.sum(Sum::CorrectionLimited, &self.tokens.flags(&weights.limited)?)?;
        self.max(Max::CorrectionRatio, &self.tokens.numbers(&weights.ratio)?)
    }

    pub(super) fn finish(self) -> Result<LossStats, TchError> {
        let options = (Kind::Double, self.tokens.device());
        let stack = |found: Vec<Option<Tensor>>, otherwise: f64| {
            let none = Tensor::f_full([] as [i64; 0], otherwise, options)?;
            let found: Vec<Tensor> = found.into_iter().map(|f| f.unwrap_or_else(|| none.shallow_clone())).collect();
            Tensor::f_stack(&found, 0)
        };
        Ok(LossStats { sums: stack(self.sums, 0.0)?, maxima: stack(self.maxima, f64::NEG_INFINITY)? })
    }
}

fn vec_of_none(n: usize) -> Vec<Option<Tensor>> {
    (0..n).map(|_| None).collect()
}
