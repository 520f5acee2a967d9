//! Estimates of a divergence from the log-probs of sampled tokens.
//!
//! Of John Schulman, "Approximating KL Divergence" (2020), <http://joschu.net/blog/kl-approx.html>. For tokens sampled from
//! q, with p the other distribution and r = p / q, KL(q ‖ p) is estimated by
//!
//! * k1 = −log r: unbiased;
//! * k2 = ½ (log r)²: biased, of low variance;
//! * k3 = r − 1 − log r: unbiased, never negative.
//!
//! As a term of the loss their gradients are not those of the divergence alike: with tokens sampled from the policy, k1's
//! is 0 on average, k2's is the reverse divergence's, k3's is the forward one's (Tang and Munos, "On a few pitfalls in KL
//! divergence gradient estimation for RL", 2025, arXiv:2506.09477). k3 is what GRPO uses (Shao et al., "DeepSeekMath",
//! 2024, arXiv:2402.03300, equation 4).

use tch::{TchError, Tensor};

use super::per_token::LOG_RATIO_MAX;
use crate::settings::KlEstimator;

/// The estimate for each token, `[N]`, of KL(q ‖ p) from tokens sampled from q. With d = `q_logprobs − p_logprobs`:
/// k1 = d, k2 = d² / 2, k3 = e^(−d) − 1 + d.
pub(super) fn estimate(kind: KlEstimator, q_logprobs: &Tensor, p_logprobs: &Tensor) -> Result<Tensor, TchError> {
    let d = q_logprobs.f_sub(p_logprobs)?;
    match kind {
        KlEstimator::K1 => Ok(d),
        KlEstimator::K2 => d.f_square()?.f_div_scalar(2.0),
        KlEstimator::K3 => {
            let log_r = d.f_neg()?;
            // expm1 keeps the digits of r − 1 where the two policies nearly agree, which is where training lives
            log_r.f_clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)?.f_expm1()?.f_add(&d)
        }
    }
}
