//! The tokens of a micro-batch in the types that formulas work on: float64, with 0 where a token does not count.

use tch::{Device, Kind, TchError, Tensor};

use super::error::LossError;
use super::input::LossInput;

/// Log ratios are clamped to ± this before they are exponentiated (e²⁰ ≈ 5 · 10⁸): beyond it a ratio says only that the
/// two policies have nothing to do with each other, and its exponential would overflow into NaN gradients. A clamped
/// ratio has no gradient.
pub const LOG_RATIO_MAX: f64 = 20.0;

/// N tokens of S segments.
pub(super) struct PerToken {
    left_out: Option<Tensor>,
    segment_of: Tensor,
    n_tokens: i64,
    n_segments: i64,
    device: Device,
}

impl PerToken {
    pub(super) fn of(input: &LossInput<'_>) -> Result<Self, LossError> {
        let (n_tokens, n_segments) = input.sizes()?;
        Ok(Self {
            left_out: input.left_out()?,
            segment_of: input.segment_of.f_to_kind(Kind::Int64)?,
            n_tokens,
            n_segments,
            device: input.trainer_logprobs.device(),
        })
    }

    pub(super) fn device(&self) -> Device {
        self.device
    }

    /// As float64, 0 where a token does not count. Filled, not multiplied: 0 · NaN is NaN, in the gradient too.
    pub(super) fn numbers(&self, values: &Tensor) -> Result<Tensor, TchError> {
        let values = values.f_to_kind(Kind::Double)?;
        match &self.left_out {
            Some(left_out) => values.f_masked_fill(left_out, 0.0),
            None => Ok(values),
        }
    }

    /// As bool, false where a token does not count.
    pub(super) fn flags(&self, flags: &Tensor) -> Result<Tensor, TchError> {
        match &self.left_out {
            Some(left_out) => flags.f_masked_fill(left_out, 0_i64),
            None => flags.f_to_kind(Kind::Bool),
        }
    }

    /// 1 for each token that counts.
    pub(super) fn ones(&self) -> Result<Tensor, TchError> {
        self.numbers(&Tensor::f_ones([self.n_tokens], (Kind::Double, self.device))?)
    }

    /// Numbers of segments, one for each of their tokens.
    pub(super) fn spread(&self, of_segments: &Tensor) -> Result<Tensor, TchError> {
        of_segments.f_to_kind(Kind::Double)?.f_index_select(0, &self.segment_of)
    }

    /// Sums over the tokens of each segment, `[S]`.
    pub(super) fn segment_sums(&self, of_tokens: &Tensor) -> Result<Tensor, TchError> {
        let zeros = Tensor::f_zeros([self.n_segments], (Kind::Double, self.device))?;
        zeros.f_index_add(0, &self.segment_of, of_tokens)
    }

    /// Means over the tokens of each segment that count, `[S]`; 0 for a segment of none.
    pub(super) fn segment_means(&self, of_tokens: &Tensor) -> Result<Tensor, TchError> {
        let counts = self.segment_sums(&self.ones()?)?.f_clamp_min(1.0)?;
        self.segment_sums(of_tokens)?.f_div(&counts)
    }
}

/// `exp`, of a log ratio within [`LOG_RATIO_MAX`].
pub(super) fn ratio(log_ratio: &Tensor) -> Result<Tensor, TchError> {
    log_ratio.f_clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)?.f_exp()
}
