//! Tables on an object store: a lake of trajectories in a folder, on S3, or in memory.
//!
//! Takes `RecordBatch`es under the schemas of `dressage-schemas`, gives back streams of them from a pinned snapshot,
//! and refuses to know what a reward is: it moves rows, it does not interpret them.
//!
//! ```text
//!             append ┌────────────┐ commit: data files, then manifests, trajectories last
//!   batches ────────▶│ LakeWriter │────────────────┐
//!                    └────────────┘                ▼
//!                    ┌────────────┐     ┌────────────────────────┐
//!   settings ───────▶│    Lake    │────▶│ <store>/dressage.json  │
//!                    └─────┬──────┘     │ <store>/steps.lance/ … │
//!                 snapshot │            └────────────────────────┘
//!                    ┌─────▼──────┐                ▲
//!   batches ◀────────│  Snapshot  │────────────────┘ one version of every table, pinned
//!             scan   └────────────┘
//! ```
//!
//! Read first: [`Lake`] (a store), [`LakeWriter`] (how rows get in), [`Snapshot`] (how they get out), [`maintain`]
//! (how they are looked after), [`checkpoints`] and [`ObjectFolder`] (what is trained, and its files).
//!
//! Invariants:
//!
//! 1. A committed file is never rewritten.
//! 2. A trajectory is visible whole or not at all: its row is committed after everything it names.
//! 3. A reader pinned to a version is untouched by whatever is written, compacted or repaired meanwhile.
//! 4. What `commit` acknowledged is on the disk or in the object store.
//! 5. A checkpoint is visible with all its files or not at all; a training run has one line of them.
//! 6. Columns that a scan does not ask for are not read.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! use dressage_schemas::Table;
//! use dressage_storage::{Lake, StoreSettings};
//!
//! let lake = Lake::init(StoreSettings::at("memory://tour")).await?;
//! let snapshot = lake.snapshot(None).await?;
//! assert_eq!(snapshot.row_count(Table::Trajectories), 0);
//! # Ok(())
//! # })
//! # }
//! ```

pub mod checkpoints;
#[cfg(feature = "conformance")]
pub mod conformance;
mod door;
mod durable;
mod error;
mod fault;
mod index;
mod lake;
mod location;
pub mod maintain;
mod objects;
mod physical;
pub mod plans;
mod race;
mod record;
mod retry;
mod routes;
mod row_set;
mod scan;
mod secret;
mod settings;
mod slice;
mod snapshot;
pub mod source;
mod text_kind;
pub mod training;
mod writer;

pub use dressage_schemas::ErrorKind;
pub use error::{Cause, Error, Result};
pub use fault::FAULT_VARIABLE;
pub use lake::{IoStats, Lake};
pub use objects::{BlockingFolder, FILE_BYTES_MAX, ObjectEntry, ObjectFolder};
pub use physical::{PAYLOAD_HASH, ROW_ADDRESS};
pub use race::RaceOutcome;
pub use record::{RECORD_NAME, StoreRecord};
pub use row_set::RowSet;
pub use scan::{BatchStream, ScanOptions};
pub use secret::Secret;
pub use settings::{S3Settings, StoreSettings};
pub use slice::RoutedExperts;
pub use snapshot::{AsOf, FragmentInfo, Snapshot};
pub use writer::{CommitReceipt, KnownTrajectory, LakeWriter, MetTrajectory, WriteGroup, WriterSettings};
