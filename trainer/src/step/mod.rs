//! A train step: micro-batches in, one update of the weights out, or none and the reason why.
//!
//! Takes checked micro-batches ([`MicroBatch`](crate::micro_batch::MicroBatch)), gives the trainer's log-probs of each and a
//! report of the step. Refuses to update weights from a number that is NaN or infinite: the step is left out whole.
//!
//! ```text
//!   Trainer::begin_step
//!        │   micro_batch ─▶ forward ─▶ loss ─▶ its gradients ─▶ backward ─▶ summed up
//!        │   micro_batch ─▶  …           │           │             │
//!        │                               └─ finite? ─┴── finite? ──┘── no ─▶ named; the rest of the step is not computed
//!        ▼
//!     finish ─▶ clip ─▶ AdamW ─▶ Updated        or        gradients forgotten ─▶ Skipped
//! ```
//!
//! Nothing is divided by the number of micro-batches or tokens: the weights of segments say all ([`crate::loss`]). Gradients
//! are complete when the last micro-batch is done and before they are clipped; that is where data-parallel ranks have summed
//! them up ([`Trainer::parallel`]), and nowhere else.
//!
//! Read first: [`Trainer`], [`TrainStep`], then [`NotFiniteReport`].

mod gradient_search;
mod not_finite;
mod pass;
mod report;
mod together;
mod train_step;
mod trainer;

pub use not_finite::NotFiniteReport;
pub use report::{MicroBatchOutcome, SegmentLogprobs, StepReport, TrainStepOutcome};
pub use train_step::TrainStep;
pub use trainer::Trainer;
