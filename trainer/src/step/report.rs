//! What a train step and its micro-batches give back.

use tch::Tensor;

use super::not_finite::NotFiniteReport;
use crate::loss::LossStats;

/// What became of a micro-batch.
#[derive(Debug)]
pub struct MicroBatchOutcome {
    /// `[N]` f32 on the CPU, without gradient: log-probs of the trained tokens under the weights of this step. Empty where
    /// the micro-batch was not computed, because an earlier one had a number that is none.
    pub trainer_logprobs: Tensor,
    /// The first number of the step that is none: from here on the step will be skipped.
    pub not_finite: Option<NotFiniteReport>,
}

/// What became of a train step.
#[derive(Debug, Clone, PartialEq)]
pub enum TrainStepOutcome {
    /// The weights were updated. A step in which no token was trained leaves them as they were, with a norm of 0.
    Updated {
        /// 2-norm of all gradients, before clipping.
        grad_norm: f64,
        /// Of this step, by the schedule.
        learning_rate: f64,
    },
    /// A number was none: weights and optimiser are as before the step.
    Skipped(NotFiniteReport),
}

/// A train step that is over.
#[derive(Debug)]
pub struct StepReport {
    /// What became of it.
    pub outcome: TrainStepOutcome,
    /// For [`StepMetrics::extend`](crate::metrics::StepMetrics::extend). A skipped step has no loss and no norm, only how
    /// much was skipped.
    pub metrics: Vec<(&'static str, f64)>,
    /// Sums over the micro-batches of this rank; empty for a skipped step.
    pub stats: LossStats,
}

impl StepReport {
    /// The number for which the step was skipped.
    pub fn not_finite(&self) -> Option<&NotFiniteReport> {
        match &self.outcome {
            TrainStepOutcome::Updated { .. } => None,
            TrainStepOutcome::Skipped(report) => Some(report),
        }
    }
}
