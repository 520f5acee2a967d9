//! Every setting of the command, with one value and one origin each.
//!
//! Precedence, lowest first: default, one TOML file, environment (`DRESSAGE__SQL__MEMORY_LIMIT`), flag. The file is
//! `--config`, `$DRESSAGE_CONFIG` or `./dressage.toml`, whichever is named first. Credentials are no settings: they
//! come from the variables that every S3 tool reads (`AWS_ACCESS_KEY_ID`, …) and are never printed.

mod layers;
mod units;

use std::collections::BTreeMap;
use std::time::Duration;

use dressage_segmenter::training_settings;
use serde::{Deserialize, Serialize};

pub(crate) use layers::Layers;
pub(crate) use units::{ByteCount, TimeSpan, key_value};

/// Keys and sections of a settings file that only `dressage train` reads; every other command sets them aside, so that
/// one file can serve all.
pub(crate) const TRAIN_KEYS: [&str; 16] = [
    "train_run",
    "out",
    "epochs",
    "train_steps_max",
    "weights",
    "plan",
    "checkpoints",
    "metrics",
    "data",
    "model",
    "optimizer",
    "schedule",
    "loss",
    "correction",
    "kl",
    "step",
];

/// All settings. Unknown keys are refused, with the place they came from.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Settings {
    /// The store: a folder, or `s3://bucket/prefix`.
    pub(crate) store: String,
    /// Object-store access.
    pub(crate) s3: S3,
    /// How the store is used.
    pub(crate) storage: Storage,
    /// Reading rollouts.
    pub(crate) ingest: Ingest,
    /// Asking questions.
    pub(crate) sql: Sql,
    /// Streaming micro-batches.
    pub(crate) batches: Batches,
    /// How rollouts become samples: the variables of `docs/training-semantics.md`; an empty text is not set.
    pub(crate) training: BTreeMap<String, toml::Value>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            store: "./store".to_owned(),
            s3: S3::default(),
            storage: Storage::default(),
            ingest: Ingest::default(),
            sql: Sql::default(),
            batches: Batches::default(),
            training: training_settings().map(|name| (name.to_owned(), toml::Value::String(String::new()))).collect(),
        }
    }
}

impl Settings {
    /// The variables that the section `training` sets.
    pub(crate) fn training_variables(&self) -> impl Iterator<Item = (String, String)> + '_ {
        let text = |value: &toml::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        self.training.iter().map(move |(name, value)| (name.clone(), text(value))).filter(|(_, text)| !text.is_empty())
    }
}

/// Object-store access; keys are left empty to use the `AWS_*` variables.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct S3 {
    /// URL of a server that is not AWS (MinIO, SeaweedFS, …); implies path-style addresses.
    pub(crate) endpoint: String,
    /// Region; many servers take any.
    pub(crate) region: String,
    /// Plain HTTP: keys and data can be read by anyone on the way.
    pub(crate) allow_http: bool,
}

/// How the store is used.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Storage {
    /// How long one request or commit is tried again while the store does not answer. Longer rides out longer outages;
    /// shorter says sooner that it is away.
    pub(crate) retry_timeout: TimeSpan,
}

impl Default for Storage {
    fn default() -> Self {
        let room = dressage_storage::StoreSettings::default();
        Self { retry_timeout: TimeSpan(Duration::from_millis(room.retry_timeout_ms)) }
    }
}

/// Reading rollouts.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Ingest {
    /// Memory of the whole ingest. More lets larger records, and more of them, be in flight.
    pub(crate) memory_limit: ByteCount,
    /// Threads that parse and encode; 0 takes one a core.
    pub(crate) jobs: usize,
    /// Commit after this many bytes. Small: rows are visible and durable sooner. Large: fewer versions to clean up.
    pub(crate) commit_bytes: ByteCount,
    /// Commit after this long, if anything is waiting.
    pub(crate) commit_interval: TimeSpan,
    /// Run of all trajectories; empty takes the source's, or `default`.
    pub(crate) run: String,
    /// A `tokenizer.json` (plain or .zst) for logs that have text and no token ids; empty for none.
    pub(crate) tokenizer: String,
}

impl Default for Ingest {
    fn default() -> Self {
        let room = dressage_ingest::IngestSettings::default();
        Self {
            memory_limit: ByteCount(room.memory_limit_bytes),
            jobs: 0,
            commit_bytes: ByteCount(room.commit_bytes),
            commit_interval: TimeSpan(Duration::from_millis(room.commit_interval_ms)),
            run: String::new(),
            tokenizer: String::new(),
        }
    }
}

/// Asking questions.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Sql {
    /// Memory that one query's operators may take before they spill or stop.
    pub(crate) memory_limit: ByteCount,
    /// Wall time after which a query is stopped.
    pub(crate) time_limit: TimeSpan,
    /// A `tokenizer.json` (plain or .zst) for `decode`; empty for none.
    pub(crate) tokenizer: String,
    /// Program that long results at the prompt go through; empty takes `$PAGER`, then `less -SFRX`.
    pub(crate) pager: String,
    /// History of the prompt; empty takes `~/.local/state/dressage/history`.
    pub(crate) history: String,
}

impl Default for Sql {
    fn default() -> Self {
        let room = dressage_segmenter::SessionSettings::default();
        Self {
            memory_limit: ByteCount(room.memory_limit_bytes),
            time_limit: TimeSpan(Duration::from_millis(room.time_limit_ms.unwrap_or(600_000))),
            tokenizer: String::new(),
            pager: String::new(),
            history: String::new(),
        }
    }
}

/// Streaming micro-batches.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Batches {
    /// Memory for micro-batches that are read ahead of the consumer. More hides a slower store.
    pub(crate) prefetch_bytes: ByteCount,
}

impl Default for Batches {
    fn default() -> Self {
        Self { prefetch_bytes: ByteCount(dressage_segmenter::StreamOptions::of_rank(0, 1).prefetch_bytes) }
    }
}

/// A setting whose empty text means "not set".
pub(crate) fn set(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}
