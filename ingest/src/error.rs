//! What can end an ingest. A bad record is no error: it is quarantined and counted.

use dressage_schemas::ErrorKind;
use dressage_schemas::ids::TrajectoryKey;

/// The result of this room.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can end an ingest.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A source does not exist, or a glob matches nothing.
    #[error("no such source: {source_name}; check the path, glob or prefix")]
    SourceNotFound {
        /// As the user named it.
        source_name: String,
    },
    /// A glob or URI cannot be understood.
    #[error("cannot read {source_name} as a path, glob or s3:// URI: {problem}")]
    BadSource {
        /// As the user named it.
        source_name: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Reading a source failed for a reason outside its content.
    #[error("reading {source_name} failed at byte {byte_offset}")]
    Read {
        /// The source.
        source_name: String,
        /// How far the reading got.
        byte_offset: u64,
        /// Why.
        source: std::io::Error,
    },
    /// Writing an output failed.
    #[error("writing {output_name} failed")]
    Write {
        /// What was being written.
        output_name: String,
        /// Why.
        source: std::io::Error,
    },
    /// A setting has a value that it cannot have.
    #[error("setting {setting} is wrong: {problem}")]
    BadSetting {
        /// The setting.
        setting: &'static str,
        /// What is wrong, and what is allowed.
        problem: String,
    },
    /// `--format` names no importer.
    #[error("no importer is called {format}; known: {known}")]
    UnknownFormat {
        /// As the user named it.
        format: String,
        /// The registry.
        known: String,
    },
    /// `--strict`, and a record had to be quarantined.
    #[error("{source_name}{place}: {reason} (rule {rule}); without --strict it would be quarantined and the rest read")]
    Strict {
        /// The source.
        source_name: String,
        /// `:line 3, byte 120`.
        place: String,
        /// The rule.
        rule: String,
        /// What is wrong.
        reason: String,
    },
    /// Two trajectories have the same 64-bit key.
    #[error("trajectories {first} and {second} have the same key {key}; ingest one of them under another --run")]
    KeyCollision {
        /// The key.
        key: TrajectoryKey,
        /// The one in the store.
        first: String,
        /// The one that was being ingested.
        second: String,
    },
    /// The tokenizer could not be loaded or used.
    #[error("the tokenizer cannot be used")]
    Tokenizer(#[source] dressage_tokenizer::Error),
    /// The store refused or failed.
    #[error("the store could not take the rows, or could not be asked")]
    Storage(#[source] dressage_storage::Error),
    /// Rows did not fit our own schema: a bug of ours.
    #[error("rows of {table} do not fit its schema; this is a bug in dressage")]
    Rows {
        /// The table.
        table: &'static str,
        /// Why.
        source: arrow::error::ArrowError,
    },
    /// A worker ended without saying why: a bug of ours.
    #[error("a worker of stage {stage} panicked; this is a bug in dressage")]
    WorkerPanicked {
        /// The stage.
        stage: &'static str,
    },
    /// Cancelled by the caller; what was committed stays.
    #[error("cancelled; what was committed is kept, and the same command goes on from there")]
    Cancelled,
}

impl Error {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::SourceNotFound { .. } => ErrorKind::NotFound,
            Self::BadSource { .. }
            | Self::BadSetting { .. }
            | Self::UnknownFormat { .. }
            | Self::Strict { .. }
            | Self::KeyCollision { .. } => ErrorKind::Invalid,
            Self::Read { source, .. } | Self::Write { source, .. } => match source.kind() {
                std::io::ErrorKind::NotFound => ErrorKind::NotFound,
                std::io::ErrorKind::PermissionDenied => ErrorKind::Invalid,
                _ => ErrorKind::Unavailable,
            },
            Self::Tokenizer(error) => error.kind(),
            Self::Storage(error) => error.kind(),
            Self::Rows { .. } | Self::WorkerPanicked { .. } => ErrorKind::Internal,
            Self::Cancelled => ErrorKind::Unavailable,
        }
    }
}
