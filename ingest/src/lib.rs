//! Rollouts people already have, streamed into the lake.
//!
//! Takes files, folders, globs, standard input and `s3://` objects in any format it knows (recognised by content);
//! gives rows of `contents`, `steps`, `rewards`, `trajectories`, `ingest_log` and `quarantine` to the storage room;
//! refuses to drop a record silently: what cannot be stored is quarantined with its reason, and the rest is read.
//!
//! ```text
//!  sources ─▶ sniff ─▶ importer ─▶ Rollout ─▶ door checks ─▶ encode ─▶ known already? ─▶ LakeWriter
//!  (async)             (jobs threads, bytes bounded by the memory limit)   (one committer)
//!                          └────────────── Rejected ──────────────────────────▶ quarantine
//! ```
//!
//! Read first: [`rollout::Rollout`] (what an importer produces), [`importer::Importer`] (how a format is read).
//!
//! Invariants: I1 the same trajectory content is stored once, however often and from wherever it is read; I2 every
//! rejected record is in quarantine with its reason; I3 memory is bounded by the limit, whatever the input.

mod error;
pub mod importer;
pub mod importers;
pub mod json;
pub mod lineage;
pub mod message_form;
pub mod rollout;
pub mod rule;
pub mod synth;

pub use error::{Error, Result};
