//! What a train step and its micro-batches give back.

use tch::Tensor;

use super::not_finite::NotFiniteReport;
use crate::error::{Error, Result};
use crate::loss::LossStats;
use crate::micro_batch::{MicroBatch, Segment};

/// What became of a micro-batch.
#[derive(Debug)]
pub struct MicroBatchOutcome {
    /// `[N]` f32 on the CPU, without gradient: log-probs of the trained tokens under the weights of this step. Empty where
    /// the micro-batch was not computed, because an earlier one had a number that is none.
    pub trainer_logprobs: Tensor,
    /// The first number of the step that is none: from here on the step will be skipped.
    pub not_finite: Option<NotFiniteReport>,
}

/// Log-probs of the trained tokens of one segment, the rollout's beside the trainer's.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SegmentLogprobs {
    /// The trained tokens, by 0-based place within the segment, ascending.
    pub token_places: Vec<i32>,
    /// The rollout's; none where it recorded none.
    pub logprobs: Option<Vec<f32>>,
    /// The trainer's.
    pub trainer_logprobs: Vec<f32>,
}

impl MicroBatchOutcome {
    /// The log-probs by segment, in the order of the micro-batch's segments.
    ///
    /// # Errors
    ///
    /// [`Error::LengthMismatch`] for another micro-batch, or one that was not computed; [`Error::Torch`] if tensors cannot be
    /// copied.
    pub fn by_segment(&self, batch: &MicroBatch) -> Result<Vec<SegmentLogprobs>> {
        let trainer = Vec::<f32>::try_from(&self.trainer_logprobs)?;
        let rollout = batch.trained.logprobs.as_ref().map(Vec::<f32>::try_from).transpose()?;
        let (expected, found) = (batch.n_trained(), trainer.len());
        if expected != found {
            return Err(Error::LengthMismatch { what: "log-probs of a micro-batch", expected, found });
        }
        let mut first = 0;
        let of_segment = |segment: &Segment| {
            let own = first..first + segment.n_trained;
            first = own.end;
            let rows = &batch.trained_rows()[own.clone()];
            // places within a segment are below its length, which is an i32 column
            let token_places = rows.iter().map(|row| (*row - segment.start as i64) as i32).collect();
            // NaN is how a micro-batch says that nobody recorded it
            let recorded = rollout.as_ref().map(|all| all[own.clone()].to_vec());
            let logprobs = recorded.filter(|all| all.iter().any(|logprob| !logprob.is_nan()));
            SegmentLogprobs { token_places, logprobs, trainer_logprobs: trainer[own].to_vec() }
        };
        Ok(batch.segments().iter().map(of_segment).collect())
    }
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
    /// A number was none: weights and optimiser are as before the step. With `on_not_finite = "stop"` the step does not count
    /// as taken.
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
    /// Sums over the micro-batches of all ranks; empty for a skipped step.
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
