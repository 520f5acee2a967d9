//! Micro-batches of a plan, for one rank: the rows that the plan names are taken from the pinned tables and put together
//! to samples, ahead of whoever consumes them and within a budget of bytes.
//!
//! ```text
//!   plans ─▶ StoredPlan ─▶ placed samples of the rank (scalars) ─▶ windows of micro-batches
//!                                                                       │ budget in bytes
//!            steps at the pinned version ◀── takes in stored order ─────┤
//!                                                 │                     ▼
//!                              masks, versions, routes, positions ─▶ one RecordBatch a micro-batch (+ hash)
//! ```
//!
//! A window is read in stored order, so that neighbours come in one request, by several takes at once; its micro-batches
//! are then put together side by side. What a batch holds is a function of the plan and the pinned versions only: not
//! of the budget, of the window, or of where the stream began.
//!
//! Read first: [`StoredPlan`], [`MicroBatches`], then `columns.rs` for what a batch holds and `hash.rs` for what its
//! hash says.

mod assemble;
mod columns;
mod experts;
mod hash;
mod ledger;
mod plan;
mod reader;
mod rows;
mod sample;
mod window;

pub use columns::{BATCH_COLUMNS, BatchColumn};
pub use hash::ContentHash;
pub use ledger::{Ledger, Recorded, Verdict};
pub use plan::{PlacedSample, StoredPlan};
pub use reader::{MicroBatch, MicroBatches, StreamOptions};
