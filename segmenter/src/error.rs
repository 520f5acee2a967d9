//! What can go wrong in a SQL session, and what the caller should do about it.

use std::sync::Arc;

use datafusion::error::DataFusionError;
use dressage_schemas::ErrorKind;
use thiserror::Error;

use crate::lake::SourceError;

/// Results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed operation of the SQL session.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The SQL does not parse, names something that is not there, or mixes types.
    #[error("the query is not valid")]
    InvalidQuery {
        /// What the planner says.
        #[source]
        source: Box<DataFusionError>,
    },
    /// A well-formed query met a value that it cannot work with (a failed cast, a division by zero).
    #[error("the query failed on the data")]
    Execution {
        /// What the engine says.
        #[source]
        source: Box<DataFusionError>,
    },
    /// The query wanted more memory than the session may use, and could not spill.
    #[error(
        "the query reached memory_limit ({limit_bytes} bytes): raise it (--memory-limit), select fewer columns, or \
         filter before joining"
    )]
    MemoryLimit {
        /// The limit.
        limit_bytes: u64,
        /// Which operators held the memory.
        #[source]
        source: Box<DataFusionError>,
    },
    /// The query spilled more to disk than the session may.
    #[error("the query reached spill_limit ({limit_bytes} bytes on disk): raise it, or filter before sorting")]
    SpillLimit {
        /// The limit.
        limit_bytes: u64,
        /// What the engine says.
        #[source]
        source: Box<DataFusionError>,
    },
    /// The query ran longer than the session allows; it was cancelled.
    #[error(
        "the query reached time_limit ({limit_ms} ms) and was cancelled: raise it (--time-limit) or narrow the query"
    )]
    TimeLimit {
        /// The limit.
        limit_ms: u64,
    },
    /// A statement that would change something.
    #[error("{statement} is refused: the session is read-only (CREATE VIEW is allowed, for this session only)")]
    ReadOnly {
        /// The statement's verb.
        statement: String,
    },
    /// A query text holds no statement, or several where one is expected.
    #[error("expected one SQL statement, found {count}")]
    StatementCount {
        /// How many there are.
        count: usize,
    },
    /// A view or attached file would take a name that is in use.
    #[error("the name `{name}` is taken by a built-in table or view: choose another")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// A name that is not `[a-z_][a-z0-9_]*`.
    #[error("`{name}` is not a usable {what}: use lower-case letters, digits and underscores, not a digit first")]
    InvalidName {
        /// What was to be named.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A setting has a value that it cannot have.
    #[error("setting {key} cannot be `{value}`: {expected}")]
    InvalidSetting {
        /// The setting.
        key: String,
        /// The value.
        value: String,
        /// What it could be.
        expected: &'static str,
    },
    /// A file to attach has an ending that says nothing about its format.
    #[error("cannot attach {path}: its name must end in .parquet, .csv, .json, .jsonl or .ndjson")]
    UnknownAttachment {
        /// The file.
        path: String,
    },
    /// A file to attach could not be opened or has no readable schema.
    #[error("cannot attach {path} as `{name}`")]
    Attach {
        /// The table name it was to have.
        name: String,
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: Box<DataFusionError>,
    },
    /// A view of ours or of the user does not plan.
    #[error("view `{name}` does not plan")]
    View {
        /// The view.
        name: String,
        /// Why.
        #[source]
        source: Box<DataFusionError>,
    },
    /// The store could not be read.
    #[error("cannot read the store")]
    Store {
        /// What the storage room says; its kind is ours.
        #[source]
        source: SourceError,
    },
    /// The result could not be encoded in the wanted format.
    #[error("cannot write the result as {format}")]
    Encode {
        /// The format.
        format: &'static str,
        /// Why.
        #[source]
        source: Box<DataFusionError>,
    },
    /// The result could not be written to its destination.
    #[error("cannot write the result")]
    Output {
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A view gave a column of another shape than its readers know.
    #[error("column {column} of a view {problem}: this is a bug, please report it")]
    ViewShape {
        /// The column.
        column: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The parts of a trajectory do not fit together.
    #[error("trajectory {trajectory_id} cannot be put together: {problem}; run `dressage store check`")]
    Assemble {
        /// The trajectory.
        trajectory_id: String,
        /// What does not fit.
        problem: String,
    },
    /// The session could not start its threads or its spill directory.
    #[error("cannot start the SQL session")]
    Start {
        /// Why.
        #[source]
        source: Box<DataFusionError>,
    },
    /// A bug of ours or of the engine.
    #[error("the SQL engine failed: this is a bug, please report the query")]
    Internal {
        /// What the engine says.
        #[source]
        source: Box<DataFusionError>,
    },
}

impl Error {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::InvalidQuery { .. }
            | Self::Execution { .. }
            | Self::ReadOnly { .. }
            | Self::StatementCount { .. }
            | Self::NameTaken { .. }
            | Self::InvalidName { .. }
            | Self::InvalidSetting { .. }
            | Self::UnknownAttachment { .. }
            | Self::View { .. }
            | Self::Encode { .. } => ErrorKind::Invalid,
            Self::Attach { .. } => ErrorKind::NotFound,
            Self::MemoryLimit { .. } | Self::SpillLimit { .. } | Self::TimeLimit { .. } => ErrorKind::Exhausted,
            Self::Store { source } => source.kind,
            Self::Output { .. } | Self::Start { .. } => ErrorKind::Unavailable,
            Self::Assemble { .. } => ErrorKind::Corrupt,
            Self::Internal { .. } | Self::ViewShape { .. } => ErrorKind::Internal,
        }
    }

    /// Whether the reader of the result went away (a closed pipe), which is no failure.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output { source } if source.kind() == std::io::ErrorKind::BrokenPipe)
    }
}

/// The limits that an engine error may name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) memory_limit_bytes: u64,
    pub(crate) spill_limit_bytes: u64,
}

impl Limits {
    /// Sorts an engine error into one of ours.
    pub(crate) fn classify(&self, error: DataFusionError) -> Error {
        let error = unwrapped(error);
        match error {
            DataFusionError::External(inner) => match inner.downcast::<SourceError>() {
                Ok(source) => Error::Store { source: *source },
                Err(inner) => Error::Execution { source: Box::new(DataFusionError::External(inner)) },
            },
            // the engine has one variant for both limits and only its text tells them apart
            DataFusionError::ResourcesExhausted(ref text) if text.contains("disk space") => {
                Error::SpillLimit { limit_bytes: self.spill_limit_bytes, source: Box::new(error) }
            }
            DataFusionError::ResourcesExhausted(_) => {
                Error::MemoryLimit { limit_bytes: self.memory_limit_bytes, source: Box::new(error) }
            }
            DataFusionError::SQL(..)
            | DataFusionError::Plan(_)
            | DataFusionError::SchemaError(..)
            | DataFusionError::NotImplemented(_)
            | DataFusionError::Configuration(_)
            | DataFusionError::Diagnostic(..)
            | DataFusionError::Collection(_) => Error::InvalidQuery { source: Box::new(error) },
            DataFusionError::Internal(_) | DataFusionError::Substrait(_) | DataFusionError::ExecutionJoin(_) => {
                Error::Internal { source: Box::new(error) }
            }
            _ => Error::Execution { source: Box::new(error) },
        }
    }
}

/// Takes the wrappers off that say where an error passed through, not what it is.
fn unwrapped(error: DataFusionError) -> DataFusionError {
    match error {
        DataFusionError::Context(_, inner) => unwrapped(*inner),
        DataFusionError::Shared(inner) => match Arc::try_unwrap(inner) {
            Ok(inner) => unwrapped(inner),
            Err(inner) => match inner.find_root() {
                DataFusionError::ResourcesExhausted(text) => DataFusionError::ResourcesExhausted(text.clone()),
                DataFusionError::External(source) => match source.downcast_ref::<SourceError>() {
                    Some(source) => DataFusionError::External(Box::new(source.clone())),
                    None => DataFusionError::Shared(inner),
                },
                _ => DataFusionError::Shared(inner),
            },
        },
        DataFusionError::External(inner) => match inner.downcast::<DataFusionError>() {
            Ok(inner) => unwrapped(*inner),
            Err(inner) => DataFusionError::External(inner),
        },
        DataFusionError::ArrowError(inner, backtrace) => match *inner {
            arrow::error::ArrowError::ExternalError(source) => match source.downcast::<DataFusionError>() {
                Ok(source) => unwrapped(*source),
                Err(source) => {
                    DataFusionError::ArrowError(Box::new(arrow::error::ArrowError::ExternalError(source)), backtrace)
                }
            },
            other => DataFusionError::ArrowError(Box::new(other), backtrace),
        },
        other => other,
    }
}
