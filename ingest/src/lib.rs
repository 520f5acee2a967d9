//! Rollouts people already have, streamed into the lake.
//!
//! Takes files, folders, globs, standard input and `s3://` objects in any format it knows (recognised by content);
//! gives rows of `contents`, `steps`, `rewards`, `trajectories`, `ingest_log` and `quarantine` to the storage room;
//! refuses to drop a record silently: what cannot be stored is quarantined with its reason, and the rest is read.
//!
//! ```text
//!  sources ─▶ sniff ─▶ importer ─▶ Rollout ─▶ door checks ─▶ encode ─▶ known already? ─▶ LakeWriter
//!  one reading thread   jobs threads, bytes bounded by the memory limit   one committer
//!                          └────────────── Rejected ──────────────────────────▶ quarantine
//! ```
//!
//! Read first: [`ingest`] and [`IngestSettings`], [`rollout::Rollout`] (what an importer produces),
//! [`importer::Importer`] (how a format is read).
//!
//! Invariants: I1 the same trajectory content is stored once, however often and from wherever it is read; I2 every
//! rejected record is in quarantine with its reason; I3 memory is bounded by the limit, whatever the input; I4 what is
//! stored does not depend on how many threads read it.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! use std::future::pending;
//!
//! use dressage_ingest::{IngestSettings, Unwatched, ingest};
//! use dressage_storage::{Lake, StoreSettings};
//!
//! let file = std::env::temp_dir().join(format!("dressage-tour-{}.jsonl", std::process::id()));
//! std::fs::write(&file, r#"{"trajectory_id":"t","segments":[{"tokens":[1,2],"full_loss_mask":[0,1]}]}"#)?;
//! let lake = Lake::init(StoreSettings::at("memory://ingest-tour")).await?;
//! let settings = IngestSettings { sources: vec![file.display().to_string()], ..IngestSettings::default() };
//!
//! let first = ingest(&lake, settings.clone(), &Unwatched, pending()).await?;
//! let again = ingest(&lake, settings, &Unwatched, pending()).await?;
//! assert_eq!((first.trajectories_new, again.trajectories_unchanged), (1, 1));
//! # std::fs::remove_file(file)?;
//! # Ok(())
//! # })
//! # }
//! ```

mod budget;
mod error;
pub mod importer;
pub mod importers;
pub mod json;
pub mod lineage;
pub mod message_form;
mod pipeline;
mod prepare;
mod recognise;
mod records;
mod report;
pub mod rollout;
pub mod rule;
mod settings;
mod sniff;
mod source;
pub mod synth;

pub use error::{Error, Result};
pub use pipeline::ingest;
pub use report::{IngestReport, Progress, ProgressNow, Unwatched, peak_rss_bytes};
pub use settings::{DEFAULT_RUN, FORMAT_AUTO, IngestSettings};
