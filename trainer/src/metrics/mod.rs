//! What a train step reports: an ordered list of names and values, as rows of `train_metrics` and as TensorBoard events.
//!
//! Takes numbers, gives rows and files, and refuses to compute any: sums over micro-batches are the loss's business
//! ([`LossStats`](crate::loss::LossStats)), rates are the loop's.
//!
//! ```text
//!   loss, optimiser, loop ─▶ StepMetrics (name, value)… ─┬─▶ rows of train_metrics
//!                                                        └─▶ events.out.tfevents.…
//! ```
//!
//! Read first: [`StepMetrics`], [`names`] for what there is, then [`tensorboard`].

pub mod names;
mod step;
pub mod tensorboard;

pub use step::{BatchTotals, RowContext, StepMetrics};
