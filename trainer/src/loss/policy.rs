//! The policy losses of a token, before weights. A is the segment's advantage, π the trained policy, π_old what the ratio
//! is over ([`OldLogprobs`](crate::settings::OldLogprobs)), sg(·) has no gradient.
//!
//! | kind | loss of token t |
//! | --- | --- |
//! | `ppo_clip` | −min( r A, clip(r, 1 − ε_low, 1 + ε_high) A ), r = π / π_old |
//! | with `dual_clip` c, A < 0 | min( the above, −c A ) |
//! | `gspo` | as `ppo_clip` with r = sg(s / π) · π, s = (Π π / π_old)^(1/m) over the m trained tokens of the segment |
//! | `cispo` | −sg( clip(r, 1 − ε_low, 1 + ε_high) ) A log π |
//! | `reinforce` | −A log π |
//! | `cross_entropy` | −log π |
//!
//! Sources: PPO, Schulman et al. 2017, arXiv:1707.06347, equation 7. Asymmetric bounds ("clip-higher"): DAPO, Yu et al.
//! 2025, arXiv:2503.14476. Dual clip: Ye et al., "Mastering Complex Control in MOBA Games with Deep
//! Reinforcement Learning", 2020, arXiv:1912.09729. GRPO: Shao et al. 2024, arXiv:2402.03300. GSPO and its token
//! form: Zheng et al., "Group Sequence Policy Optimization", 2025, arXiv:2507.18071. CISPO: MiniMax, "MiniMax-M1", 2025,
//! arXiv:2506.13585. REINFORCE: Williams 1992.

use tch::{Kind, TchError, Tensor};

use super::per_token::{PerToken, ratio};
use crate::settings::Policy;

/// A policy loss of each token.
pub(super) struct PolicyLoss {
    /// `[N]`, with gradient.
    pub(super) loss: Tensor,
    /// What is to be said about its ratio; none for losses without one.
    pub(super) ratio: Option<RatioReport>,
}

/// The ratio of each token and what was done about it, without gradient.
pub(super) struct RatioReport {
    /// `[N]`.
    pub(super) ratio: Tensor,
    /// `[N]` bool: the lower bound took the gradient away (for CISPO: bounded the weight).
    pub(super) clipped_low: Tensor,
    /// `[N]` bool: the upper bound did.
    pub(super) clipped_high: Tensor,
    /// `[N]` bool: the dual clip did.
    pub(super) dual_clipped: Tensor,
}

/// The loss of each token. `logprobs` (with gradient), `old` and `advantages` are `[N]`, 0 where a token does not count.
pub(super) fn loss(
    policy: Policy,
    tokens: &PerToken,
    logprobs: &Tensor,
    old: &Tensor,
    advantages: &Tensor,
) -> Result<PolicyLoss, TchError> {
    match policy {
        Policy::PpoClip { clip_low, clip_high, dual_clip } => {
            clipped(&ratio(&logprobs.f_sub(old)?)?, advantages, (1.0 - clip_low, 1.0 + clip_high), dual_clip)
        }
        Policy::Gspo { clip_low, clip_high } => {
            let log_ratio = sequence_log_ratio(tokens, logprobs, old)?;
            clipped(&ratio(&log_ratio)?, advantages, (1.0 - clip_low, 1.0 + clip_high), None)
        }
        Policy::Cispo { clip_low, clip_high } => {
            let ratio = ratio(&logprobs.f_detach()?.f_sub(old)?)?;
            let (low, high) = (1.0 - clip_low, 1.0 + clip_high);
            let loss = ratio.f_clamp(low, high)?.f_mul(advantages)?.f_mul(logprobs)?.f_neg()?;
            let report = RatioReport {
                clipped_low: ratio.f_lt(low)?,
                clipped_high: ratio.f_gt(high)?,
                dual_clipped: ratio.f_zeros_like()?.f_to_kind(Kind::Bool)?,
                ratio,
            };
            Ok(PolicyLoss { loss, ratio: Some(report) })
        }
        Policy::Reinforce => Ok(PolicyLoss { loss: logprobs.f_mul(advantages)?.f_neg()?, ratio: None }),
        Policy::CrossEntropy => Ok(PolicyLoss { loss: logprobs.f_neg()?, ratio: None }),
    }
}

/// The value of the segment's mean log ratio on each of its tokens, with the gradient of the token's own log-prob
/// (GSPO-token). Summed over the segment this is the gradient of the sequence ratio times m.
fn sequence_log_ratio(tokens: &PerToken, logprobs: &Tensor, old: &Tensor) -> Result<Tensor, TchError> {
    let own = logprobs.f_detach()?;
    let mean = tokens.spread(&tokens.segment_means(&own.f_sub(old)?)?)?;
    mean.f_add(&logprobs.f_sub(&own)?)
}

/// The clipped surrogate: pessimistic, so that a token beyond a bound in the direction of its advantage has no gradient.
fn clipped(
    ratio: &Tensor,
    advantages: &Tensor,
    (low, high): (f64, f64),
    dual_clip: Option<f64>,
) -> Result<PolicyLoss, TchError> {
    let costs = advantages.f_neg()?;
    let mut loss = costs.f_mul(ratio)?.f_maximum(&costs.f_mul(&ratio.f_clamp(low, high)?)?)?;
    let value = ratio.f_detach()?;
    let (gains, loses) = (advantages.f_gt(0.0)?, advantages.f_lt(0.0)?);
    let dual_clipped = match dual_clip {
        Some(c) => {
            let bounded = loss.f_minimum(&costs.f_mul_scalar(c)?)?;
            loss = bounded.f_where_self(&loses, &loss)?;
            value.f_gt(c)?.f_logical_and(&loses)?
        }
        None => loses.f_zeros_like()?,
    };
    let report = RatioReport {
        clipped_low: value.f_lt(low)?.f_logical_and(&loses)?,
        clipped_high: value.f_gt(high)?.f_logical_and(&gains)?,
        dual_clipped,
        ratio: value,
    };
    Ok(PolicyLoss { loss, ratio: Some(report) })
}
