//! Every setting of the command, with one value and one origin each.
//!
//! Precedence, lowest first: default, one TOML file, environment (`DRESSAGE__SQL__MEMORY_LIMIT`), flag. The file is
//! `--config`, `$DRESSAGE_CONFIG` or `./dressage.toml`, whichever is named first. Credentials are no settings: they
//! come from the variables that every S3 tool reads (`AWS_ACCESS_KEY_ID`, …) and are never printed.

mod layers;
mod units;

use serde::{Deserialize, Serialize};

pub(crate) use layers::{Layers, Origin};
pub(crate) use units::{ByteCount, TimeSpan, key_value};

/// All settings. Unknown keys are refused, with the place they came from.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Settings {
    /// The store: a folder, or `s3://bucket/prefix`.
    pub(crate) store: String,
    /// Object-store access.
    pub(crate) s3: S3,
    /// Reading rollouts.
    pub(crate) ingest: Ingest,
    /// Asking questions.
    pub(crate) sql: Sql,
}

impl Default for Settings {
    fn default() -> Self {
        Self { store: "./store".to_owned(), s3: S3::default(), ingest: Ingest::default(), sql: Sql::default() }
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

/// Reading rollouts.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Ingest {
    /// Memory that buffers may take. More lets larger records and more of them be in flight.
    pub(crate) memory_limit: ByteCount,
    /// Threads that parse and encode; 0 takes one a core.
    pub(crate) jobs: usize,
    /// Commit after this many bytes. Small: rows are visible and durable sooner. Large: fewer versions to clean up.
    pub(crate) commit_bytes: ByteCount,
    /// Commit after this long, if anything is waiting.
    pub(crate) commit_interval: TimeSpan,
    /// Run of trajectories that name none.
    pub(crate) run: String,
    /// A `tokenizer.json` (plain or .zst) for logs that have text and no token ids; empty for none.
    pub(crate) tokenizer: String,
}

impl Default for Ingest {
    fn default() -> Self {
        Self {
            memory_limit: ByteCount(512 << 20),
            jobs: 0,
            commit_bytes: ByteCount(128 << 20),
            commit_interval: TimeSpan(std::time::Duration::from_secs(10)),
            run: "default".to_owned(),
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
        Self {
            memory_limit: ByteCount(512 << 20),
            time_limit: TimeSpan(std::time::Duration::from_secs(600)),
            tokenizer: String::new(),
            pager: String::new(),
            history: String::new(),
        }
    }
}

/// A setting whose empty text means "not set".
pub(crate) fn set(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}
