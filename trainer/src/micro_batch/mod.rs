//! A micro-batch of the batch stream as tensors, checked against the model before anything is computed from it.
//!
//! Takes a `RecordBatch` (one row a segment, columns of `docs/batches.md`), gives packed tensors, and refuses what the
//! model cannot be trained on: every error names the train step, the micro-batch, the trajectory and the first bad token.
//!
//! ```text
//!   row 0: tokens a b c d   row 1: tokens e f g          one row a segment
//!   token_ids     a b c d e f g      [T]   end to end
//!   position_ids  0 1 2 3 0 1 2      [T]   reset where a segment begins
//!   cu_seqlens    0 4 7              [S+1] no attention across
//!   loss_mask     . . 1 1 . 1 1      [T]
//!   trained.rows      2 3 5 6        [N]   tokens with gradient
//!   trained.predictors 1 2 4 5       [N]   the rows whose hidden state predicts them
//! ```
//!
//! Log-probs, losses and gradients are computed on the N trained tokens only, so that context costs no projection onto the
//! vocabulary. The first token of a segment is predicted by nothing: if its mask is 1, it is left out and counted
//! ([`MicroBatch::n_unpredicted`]).
//!
//! Token-aligned lists go from Arrow's buffer into a tensor in one copy. Not in none: a tensor over foreign memory needs
//! `unsafe`, ids have to be widened for libtorch's index operations anyway, and the copy is a few hundred kilobytes.
//!
//! Read first: [`MicroBatch`], then [`BatchError`].

mod check;
mod columns;
mod error;
mod limits;
mod place;
mod read;
mod routes;
mod tensors;

#[cfg(test)]
pub(crate) mod made;
#[cfg(test)]
mod tests;

pub use error::BatchError;
pub use limits::{ModelLimits, Needs, RouterShape};
pub use place::{Place, SegmentPlace, TokenPlace};
pub use tensors::{MicroBatch, PackedTokens, Segment, SegmentNumbers, TrainedTokens};
