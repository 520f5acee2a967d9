//! Stored tables inside the SQL engine: what a source must offer, and the provider and scan over it.
//!
//! ```text
//!   storage::Snapshot ─┐
//!                      ├─ LakeSource ─▶ LakeTable (TableProvider) ─▶ LakeScan (ExecutionPlan) ─▶ batches
//!   MemoryLake ────────┘                  filters ▸ SQL text           one partition a fragment range
//! ```

mod dynamic;
mod literal;
mod memory;
mod predicate;
mod scan;
mod snapshot;
mod source;
mod table;

pub use memory::MemoryLake;
pub use source::{ExcludedRows, Fragment, LakeSource, ROW_ADDRESS, ScanRequest, SourceError, SourceStream};
pub(crate) use table::{LakeTable, Rows};
