//! How far the caller has come: what a checkpoint keeps for it besides the trainer's own state.

use std::collections::BTreeMap;

use tch::Tensor;

/// The caller's own place in its work.
#[derive(Debug, Default)]
pub struct Progress {
    /// The training run's name.
    pub train_run: String,
    /// The plans of the first epoch, in order.
    pub plans: Vec<String>,
    /// The plan that is being consumed; none where batches come from none.
    pub plan_id: Option<String>,
    /// The cursor: train steps of the plan below this one went into the weights.
    pub next_train_step: i32,
    /// Times that the plans were gone through before.
    pub epoch: u32,
    /// By train step and micro-batch: f32 log-probs `[N]` of micro-batches that are still to be trained on, under the weights
    /// before the first of the `train_steps_per_policy` steps. They cannot be computed again later: those weights are gone.
    pub old_logprobs: BTreeMap<(i32, i32), Tensor>,
}

impl Progress {
    /// The beginning of a run.
    pub fn new(train_run: &str) -> Self {
        Self { train_run: train_run.to_owned(), ..Self::default() }
    }
}

/// How a micro-batch is called among the stored log-probs.
pub(super) fn tensor_name((train_step, micro_batch): (i32, i32)) -> String {
    format!("{train_step}.{micro_batch}")
}

/// Back from [`tensor_name`].
pub(super) fn parse_tensor_name(name: &str) -> Option<(i32, i32)> {
    let (train_step, micro_batch) = name.split_once('.')?;
    Some((train_step.parse().ok()?, micro_batch.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_which_micro_batch_it_is() {
        assert_eq!(parse_tensor_name(&tensor_name((17, 3))), Some((17, 3)));
        for other in ["17", "a.b", "1.2.3", ""] {
            assert_eq!(parse_tensor_name(other), None, "{other}");
        }
    }
}
