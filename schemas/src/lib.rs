//! Every table's Arrow schema, row type and version, the ids, and the error kinds: the vocabulary that all
//! rooms share.
//!
//! Takes rows (plain structs), gives Arrow `RecordBatch`es under a schema that every room agrees on, and refuses
//! I/O of any kind. It is the only place where a column name is spelled.
//!
//! ```text
//!                       ┌────────────── schemas ──────────────┐
//!   rows (StepRow, …) ─▶│ tables::steps   schema() · batch()  │─▶ RecordBatch ─▶ storage, segmenter, trainer
//!                       │ tables::…       one module a table  │
//!   text ids ──────────▶│ ids             TrajectoryKey::of() │─▶ 64-bit join keys
//!   loss masks ────────▶│ spans           run lengths         │─▶ mask_spans, version_spans
//!                       └─────────────────────────────────────┘
//! ```
//!
//! Read first: [`Table`] (which tables there are), [`tables::trajectories`] and [`tables::steps`] (what a row is),
//! [`spans`] (how masks and versions are kept), [`training`] (what of a segment is trained on),
//! [`ErrorKind`] (what a caller should do about an error).
//!
//! Invariants:
//!
//! 1. `TrajectoryKey::of(run, id)` never changes: it is in every store ever written.
//! 2. A schema change bumps [`SCHEMA_VERSION`] and adds a migration; columns are never renamed in place.
//!
//! ```
//! use dressage_schemas::{ids::TrajectoryKey, spans::MaskSpans};
//!
//! let key = TrajectoryKey::of("run-7", "traj-1");
//! assert_eq!(key, TrajectoryKey::of("run-7", "traj-1"));
//! // 19 context tokens, then 5 that the model produced
//! let spans = MaskSpans::from_mask((0..24).map(|i| i >= 19));
//! assert_eq!(spans.as_slice(), &[19, 5]);
//! ```

pub mod ids;
mod kind;
pub mod message;
pub mod spans;
mod table;
pub mod tables;
pub mod training;
pub mod words;

pub use kind::ErrorKind;
pub use table::{SCHEMA_VERSION, SCHEMA_VERSION_KEY, Table};
