//! Importance weights for rollouts that another engine, or older weights, sampled.
//!
//! The inference engine computes the log-probs of the same weights slightly differently (kernels, precision, batching), and
//! an asynchronous rollout is of older weights. With μ the policy that sampled (`logprobs`) and π_old the trainer's own
//! (`old_logprobs`), a token's policy loss is multiplied with a weight w that has no gradient:
//!
//! | level | ρ of token t in its segment of m trained tokens |
//! | --- | --- |
//! | `token` | π_old(t) / μ(t) |
//! | `sequence` | Π π_old / μ over the segment |
//! | `geometric` | (Π π_old / μ)^(1/m) |
//!
//! `truncate`: w = min(max(ρ, lower), upper). `mask`: w = ρ if lower ≤ ρ ≤ upper, else 0. The weights of segments are
//! those of the plan whatever is masked.
//!
//! Sources: the decoupled objective, Hilton, Cobbe and Schulman, "Batch size-invariance for policy optimization", 2021,
//! arXiv:2110.00641; truncated importance sampling, Ionides 2008, for engine mismatch Yao et al., "Your Efficient RL
//! Framework Secretly Brings You Off-Policy RL Training", 2025; masking by token as in IcePop (Ling team, "Small Leak Can
//! Sink a Great Ship", 2025), by sequence Liu et al., "When Speed Kills Stability: Demystifying RL Collapse from the
//! Training-Inference Mismatch", 2025.

use tch::{TchError, Tensor};

use super::per_token::{PerToken, ratio};
use crate::settings::{Correction, RatioBounds, RatioLevel};

/// The weight of each token's policy loss, without gradient.
pub(super) struct Weights {
    /// `[N]`: ρ, before its bounds.
    pub(super) ratio: Tensor,
    /// `[N]`.
    pub(super) weight: Tensor,
    /// `[N]` bool: outside of the bounds.
    pub(super) limited: Tensor,
}

/// The weights; none where nothing is corrected. `old` and `logprobs` are `[N]` without gradient, 0 where a token does
/// not count.
pub(super) fn weights(
    correction: Correction,
    tokens: &PerToken,
    old: &Tensor,
    logprobs: &Tensor,
) -> Result<Option<Weights>, TchError> {
    let (level, bounds, masks) = match correction {
        Correction::None => return Ok(None),
        Correction::Truncate { level, bounds } => (level, bounds, false),
        Correction::Mask { level, bounds } => (level, bounds, true),
    };
    let log_ratio = old.f_sub(logprobs)?;
    let log_ratio = match level {
        RatioLevel::Token => log_ratio,
        RatioLevel::Sequence => tokens.spread(&tokens.segment_sums(&log_ratio)?)?,
        RatioLevel::Geometric => tokens.spread(&tokens.segment_means(&log_ratio)?)?,
    };
    let ratio = ratio(&log_ratio)?;
    let RatioBounds { lower, upper } = bounds;
    let limited = ratio.f_lt(lower)?.f_logical_or(&ratio.f_gt(upper)?)?;
    let weight = if masks { ratio.f_masked_fill(&limited, 0.0)? } else { ratio.f_clamp(lower, upper)? };
    Ok(Some(Weights { ratio, weight, limited }))
}
