//! What a loss is computed from.

use tch::{Kind, Tensor};

use super::error::LossError;
use crate::micro_batch::MicroBatch;

/// N tokens of S segments. Tensors on one device; log-probs of any floating type.
#[derive(Debug, Clone, Copy)]
pub struct LossInput<'a> {
    /// `[N]`: log-probs under the weights that are trained, with their gradient.
    pub trainer_logprobs: &'a Tensor,
    /// `[N]`: log-probs under the policy that sampled; NaN where unknown.
    pub logprobs: Option<&'a Tensor>,
    /// `[N]`: log-probs of the trainer under the weights before the update. None: this is the first update since, so
    /// that they are `trainer_logprobs` without their gradient.
    pub old_logprobs: Option<&'a Tensor>,
    /// `[N]`: log-probs of the reference.
    pub ref_logprobs: Option<&'a Tensor>,
    /// `[N]`: entropies of the trainer's distributions in nats, with their gradient if there is a coefficient.
    pub entropy: Option<&'a Tensor>,
    /// `[N]` bool: tokens that count. None: all do. What the other tensors hold elsewhere does not matter, not even NaN.
    pub loss_mask: Option<&'a Tensor>,
    /// `[N]` int64: the segment of each token, from 0.
    pub segment_of: &'a Tensor,
    /// `[S]`: advantages.
    pub advantages: &'a Tensor,
    /// `[S]`: weights of the summed token losses.
    pub loss_weights: &'a Tensor,
}

impl<'a> LossInput<'a> {
    /// The trained tokens of a micro-batch; `trainer_logprobs` are of these, in their order.
    pub fn of(batch: &'a MicroBatch, trainer_logprobs: &'a Tensor) -> Self {
        Self {
            trainer_logprobs,
            logprobs: batch.trained.logprobs.as_ref(),
            old_logprobs: None,
            ref_logprobs: None,
            entropy: None,
            loss_mask: None,
            segment_of: &batch.trained.segment_of,
            advantages: &batch.numbers.advantages,
            loss_weights: &batch.numbers.loss_weights,
        }
    }

    /// N and S, if all inputs fit them.
    pub(super) fn sizes(&self) -> Result<(i64, i64), LossError> {
        let n_tokens = i64::try_from(self.trainer_logprobs.numel()).unwrap_or(i64::MAX);
        let n_segments = i64::try_from(self.advantages.numel()).unwrap_or(i64::MAX);
        let tokens = [
            ("trainer_logprobs", Some(self.trainer_logprobs)),
            ("logprobs", self.logprobs),
            ("old_logprobs", self.old_logprobs),
            ("ref_logprobs", self.ref_logprobs),
            ("entropy", self.entropy),
            ("loss_mask", self.loss_mask),
            ("segment_of", Some(self.segment_of)),
        ];
        let segments = [("advantages", Some(self.advantages)), ("loss_weights", Some(self.loss_weights))];
        let of = |inputs: &[(&'static str, Option<&Tensor>)], expected: i64| {
            for (what, tensor) in inputs {
                let Some(tensor) = tensor else { continue };
                let found = tensor.size();
                if found != [expected] {
                    return Err(LossError::Shape { what, found, expected });
                }
            }
            Ok(())
        };
        of(&tokens, n_tokens)?;
        of(&segments, n_segments)?;
        Ok((n_tokens, n_segments))
    }

    /// Tokens that do not count, as bool; none where all do.
    pub(super) fn left_out(&self) -> Result<Option<Tensor>, LossError> {
        Ok(match self.loss_mask {
            Some(mask) => Some(mask.f_to_kind(Kind::Bool)?.f_logical_not()?),
            None => None,
        })
    }
}
