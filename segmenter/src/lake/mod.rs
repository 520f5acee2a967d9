//! Stored tables inside the SQL engine: what a source must offer, and the provider and scan over it.
//!
//! ```text
//!   storage::Snapshot ─┐
//!                      ├─ LakeSource ─▶ LakeTable (TableProvider) ─▶ LakeScan (ExecutionPlan) ─▶ batches
//!   MemoryLake ────────┘                  filters ▸ SQL text           one partition a fragment range
//! ```
//!
//! Between the two first stands a [`ResidentLake`], which keeps the scalar columns of small tables in memory. Filters on
//! such a table are not told to the store: the scan itself leaves rows out.

mod dynamic;
mod literal;
mod memory;
mod predicate;
mod resident;
mod scan;
mod snapshot;
mod source;
mod table;

pub use memory::MemoryLake;
pub(crate) use resident::ResidentLake;
pub use source::{ExcludedRows, Fragment, LakeSource, ROW_ADDRESS, ScanRequest, SourceError, SourceStream};
pub(crate) use table::{LakeTable, Rows};
