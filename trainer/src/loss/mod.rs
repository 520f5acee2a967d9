//! The losses: from log-probs of trained tokens to one number, its gradient and what to report about it.
//!
//! Takes the trainer's log-probs of N tokens, those of others (rollout, old, reference), and the advantage and weight of
//! each segment; gives the loss of the micro-batch as a scalar with a gradient. The loss of a train step is
//!
//! ```text
//!   Σ over segments of  loss_weight · Σ over trained tokens of ( w · policy + kl_coefficient · kl − entropy_coefficient · H )
//! ```
//!
//! and nothing else: no mean over tokens, segments or micro-batches is taken here. A segment lies in one micro-batch, so
//! the sum over micro-batches (and ranks) is the same however the step was split.
//!
//! ```text
//!   trainer_logprobs ─┬─ old_logprobs ──▶ ratio ─▶ policy ─┐
//!                     ├─ ref_logprobs ──▶ kl ──────────────┼─▶ token_loss ─▶ · loss_weight ─▶ Σ loss
//!   old_logprobs ─────┴─ logprobs ──────▶ correction w ────┘                       └─▶ stats (sums and maxima)
//! ```
//!
//! Everything is computed in float64, whatever the model's type: N numbers cost nothing beside a forward pass, sums over
//! long segments keep their digits, and the gradient is cast back where it enters the model.
//!
//! Formulas, sources and a worked example: `docs/losses.md`. Read first: [`Objective`], [`LossInput`]; then one file a
//! formula: `policy.rs`, `correction.rs`, `kl.rs`.

mod correction;
mod error;
mod finite;
mod input;
mod kl;
mod objective;
mod per_token;
mod policy;
mod stats;

pub use error::{LossError, NonFinite, Quantity};
pub use finite::{check_packed, check_trained, check_value};
pub use input::LossInput;
pub use objective::{Gradients, LossOutput, Objective};
pub use per_token::LOG_RATIO_MAX;
pub use stats::LossStats;
