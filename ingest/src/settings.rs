//! What a user tunes about an ingest.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::importers;

/// `format` that asks the importers.
pub const FORMAT_AUTO: &str = "auto";

/// The run of trajectories whose source names none.
pub const DEFAULT_RUN: &str = "default";

/// What to read and how.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IngestSettings {
    /// Files, folders, globs, `-` for standard input, `s3://` objects and prefixes.
    pub sources: Vec<String>,
    /// The name of an importer, or `auto`: each source is recognised by its content.
    pub format: String,
    /// The run of all trajectories, whatever their source says. None: the source's, or `default`.
    pub run: Option<String>,
    /// What makes a group: a field of the trajectory (`instance_id`, `model`, …) or a key of its labels or extra
    /// keys, with dots for nesting. None: the source's group, or the instance.
    pub group_by: Option<String>,
    /// Labels for every trajectory; they win over the source's.
    pub labels: BTreeMap<String, String>,
    /// A `tokenizer.json`: steps that have text and no token ids are tokenised with it, flagged as retokenised and
    /// not trainable. None leaves them without ids.
    pub tokenizer: Option<PathBuf>,
    /// Memory of the whole ingest. A larger limit reads further ahead and makes larger, fewer files.
    pub memory_limit_bytes: u64,
    /// Threads that parse and encode.
    pub jobs: usize,
    /// Stop with an error at the first record that would be quarantined.
    pub strict: bool,
    /// Commit after so many bytes of rows. Larger commits mean fewer versions, and later acknowledgement.
    pub commit_bytes: u64,
    /// Commit when the oldest uncommitted row is this old.
    pub commit_interval_ms: u64,
    /// Largest JSON document or archive member that is held in memory at once.
    pub document_bytes_max: u64,
    /// Largest single line. Half of `memory_limit_bytes` is used where that is smaller.
    pub line_bytes_max: u64,
    /// How much of a rejected record is kept in the quarantine table.
    pub quarantine_bytes_max: u64,
    /// A compressed source that grows by more than this factor (beyond its first 256 MiB) is taken for a bomb.
    pub expansion_ratio_max: u64,
    /// Keep the rank order inside each top-k of routed experts. Off, the ids of a top-k are stored as a set, which is
    /// smaller and enough where the trainer gathers its own router's weights at those ids.
    pub expert_ranks: bool,
}

impl Default for IngestSettings {
    fn default() -> Self {
        Self {
            sources: Vec::new(),
            format: FORMAT_AUTO.to_owned(),
            run: None,
            group_by: None,
            labels: BTreeMap::new(),
            tokenizer: None,
            memory_limit_bytes: 2 << 30,
            jobs: std::thread::available_parallelism().map_or(2, usize::from),
            strict: false,
            commit_bytes: 256 << 20,
            commit_interval_ms: 30_000,
            document_bytes_max: 1 << 30,
            line_bytes_max: 1 << 30,
            quarantine_bytes_max: 16 << 20,
            expansion_ratio_max: 1_000,
            expert_ranks: true,
        }
    }
}

impl IngestSettings {
    /// Smallest memory limit that an ingest can work under.
    pub const MEMORY_LIMIT_BYTES_MIN: u64 = 64 << 20;

    /// The values that `format` may have.
    pub fn formats() -> impl Iterator<Item = &'static str> {
        let named = importers::ALL.iter().map(|importer| importer.name());
        std::iter::once(FORMAT_AUTO).chain(named).chain(importers::columns::FORMATS)
    }

    /// Checks what can be checked before any source is opened.
    ///
    /// # Errors
    /// [`Error::BadSetting`] or [`Error::UnknownFormat`].
    pub fn check(&self) -> Result<()> {
        let bad = |setting, problem: String| Err(Error::BadSetting { setting, problem });
        if self.sources.is_empty() {
            return bad("sources", "nothing to read; name a file, folder, glob, - or s3:// URI".to_owned());
        }
        if self.jobs == 0 {
            return bad("jobs", "0; at least one thread must parse".to_owned());
        }
        if self.memory_limit_bytes < Self::MEMORY_LIMIT_BYTES_MIN {
            let least = Self::MEMORY_LIMIT_BYTES_MIN;
            return bad(
                "memory_limit_bytes",
                format!("{}; at least {least} bytes are needed", self.memory_limit_bytes),
            );
        }
        if self.run.as_deref() == Some("") {
            return bad("run", "empty; leave it out for the source's run".to_owned());
        }
        let known: Vec<&str> = Self::formats().collect();
        if !known.contains(&self.format.as_str()) {
            return Err(Error::UnknownFormat { format: self.format.clone(), known: known.join(", ") });
        }
        Ok(())
    }

    /// What the pipeline may hold of records and rows; the rest of the limit is the writer's and the allocator's.
    pub(crate) fn pipeline_bytes(&self) -> u64 {
        self.memory_limit_bytes / 3
    }

    /// Rows of the log that are told apart in memory, at about 16 bytes each.
    pub(crate) fn traces_max(&self) -> usize {
        usize::try_from(self.memory_limit_bytes / 8 / 48).unwrap_or(usize::MAX)
    }

    /// Largest document or line, given the memory limit: its parsed form must fit too.
    pub(crate) fn record_bytes_max(&self) -> u64 {
        self.line_bytes_max.min(self.memory_limit_bytes / 2)
    }

    /// Largest document, given the memory limit.
    pub(crate) fn held_document_bytes_max(&self) -> u64 {
        self.document_bytes_max.min(self.memory_limit_bytes / 2)
    }
}
