//! The SQL session over a trajectory lake: stored tables, views for people who train, functions on tokens and masks.
//!
//! Takes one pinned view of a store ([`LakeSource`]) and SQL; gives batches, within limits of memory, time and disk
//! that it names when they are reached. Refuses to write, and to know a tensor or the wall clock.
//!
//! ```text
//!   storage::Snapshot ──▶ LakeSource ─┐                       ┌─▶ write(…)  table, JSON, CSV, Parquet
//!                                     ├─▶ Session ─▶ sql(…) ──┤
//!     sql/*.sql · functions/ · SET ───┘   │ optimise, run     └─▶ QueryStream  batches
//!                                         │ filters, columns, limits
//!                                         └──────▶ LakeScan ──▶ only what the query needs is read
//! ```
//!
//! Read first: [`Session`], [`SessionSettings`], then the views in `sql/*.sql`, each of which says in its header
//! what it is.
//!
//! Invariants:
//!
//! 1. A session never changes a store.
//! 2. Every view joins through `trajectories`, so that a trajectory is seen whole or not at all.
//! 3. A column that a query does not need is not read.
//!
//! ```
//! use std::sync::Arc;
//!
//! use dressage_segmenter::{MemoryLake, Session, SessionSettings};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = tokio::runtime::Runtime::new()?;
//! runtime.block_on(async {
//!     let session = Session::over(Arc::new(MemoryLake::new()), SessionSettings::default())?;
//!     let batches = session.sql("SELECT count(*) AS n FROM trajectories").await?.collect().await?;
//!     assert_eq!(batches[0].num_rows(), 1);
//!     Ok(())
//! })
//! # }
//! ```

mod attach;
mod catalog;
mod columns;
mod describe;
mod engine_error;
mod error;
mod functions;
mod lake;
mod nearest;
pub mod plan;
mod plan_id;
mod pushdown;
mod query;
mod rollouts;
mod runtime;
mod session;
mod settings;
mod statement;
mod stream;
mod training;
mod views;
mod write;

pub use catalog::Origin;
pub use describe::{ColumnInfo, TableInfo, type_name};
pub use error::{Error, Result};
pub use lake::{ExcludedRows, Fragment, LakeSource, MemoryLake, ROW_ADDRESS, ScanRequest, SourceError, SourceStream};
pub use nearest::nearest;
pub use query::{BatchStream, QueryStream, Spills};
pub use rollouts::{RolloutOptions, Rollouts, base64};
pub use session::{Outcome, Session};
pub use settings::{SessionSettings, Variables};
pub use statement::Statement;
pub use stream::{
    BATCH_COLUMNS, BatchColumn, ContentHash, Ledger, MicroBatch, MicroBatches, PlacedSample, Recorded, StoredPlan,
    StreamOptions, Verdict,
};
pub use training::training_settings;
pub use write::{Format, TableStyle, Written, write};
