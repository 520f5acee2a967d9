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
    /// A setting whose name is nearly one of ours.
    #[error("there is no setting `{key}`: did you mean `{near}`? A variable of your own needs a name less like it")]
    UnknownSetting {
        /// The name.
        key: String,
        /// The setting that it looks like.
        near: &'static str,
    },
    /// The file of an estimator or filter could not be read.
    #[error("cannot read the {what} {path}")]
    ReadSql {
        /// Estimator or filter.
        what: &'static str,
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A user's estimator or filter does not give what it must.
    #[error("the {what} {path} cannot be used: {problem}")]
    UserSql {
        /// Estimator or filter.
        what: &'static str,
        /// The file.
        path: String,
        /// What is wrong, with the offending keys.
        problem: String,
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
    /// What is stored of a plan contradicts itself.
    #[error("plan {plan_id} is damaged: {problem}; run `dressage store check`, or plan again")]
    PlanDamaged {
        /// The plan.
        plan_id: String,
        /// What is wrong.
        problem: String,
    },
    /// A plan is for another number of ranks.
    #[error(
        "plan {plan_id} is for a world size of {planned}, not {given}: its samples are dealt out to {planned} ranks; \
         plan again with --world-size {given}"
    )]
    WorldSize {
        /// The plan.
        plan_id: String,
        /// Its ranks.
        planned: u32,
        /// As asked for.
        given: u32,
    },
    /// A rank that is not there.
    #[error("there is no rank {dp_rank} in a world size of {world_size}: ranks count from 0")]
    RankRange {
        /// As asked for.
        dp_rank: u32,
        /// Ranks that there are.
        world_size: u32,
    },
    /// Train steps that a plan does not have.
    #[error("plan {plan_id} has {n_train_steps} train steps, counted from 0: {asked} is none of them")]
    TrainStepRange {
        /// The plan.
        plan_id: String,
        /// As asked for.
        asked: String,
        /// How many there are.
        n_train_steps: u32,
    },
    /// A column that a batch does not have.
    #[error("a batch has no column `{name}`: it has {known}")]
    BatchColumn {
        /// As asked for.
        name: String,
        /// Those that it has.
        known: String,
    },
    /// The steps of a sample do not make what the plan says.
    #[error(
        "plan {plan_id}, train step {train_step}, micro-batch {micro_batch}: segment {segment_index} of trajectory \
         {trajectory_id} cannot be put together: {problem}; run `dressage store check`"
    )]
    SampleMismatch {
        /// The plan.
        plan_id: String,
        /// Its train step.
        train_step: i32,
        /// Its micro-batch.
        micro_batch: i32,
        /// The trajectory.
        trajectory_id: String,
        /// The segment.
        segment_index: i32,
        /// What does not fit.
        problem: String,
    },
    /// A micro-batch is not what it was when it was first streamed.
    #[error(
        "plan {plan_id}, train step {train_step}, rank {dp_rank}, micro-batch {micro_batch}: its {what} are not those \
         that were streamed first: their hash is {made}, recorded is {recorded}; run `dressage store check`"
    )]
    HashMismatch {
        /// The plan.
        plan_id: String,
        /// Its train step.
        train_step: i32,
        /// The rank.
        dp_rank: u32,
        /// Its micro-batch.
        micro_batch: i32,
        /// Which part of it.
        what: &'static str,
        /// The hash in table `streamed`.
        recorded: String,
        /// The hash now.
        made: String,
    },
    /// Several runs are in the store and none is named.
    #[error("the store has several runs: name one with --run, or plan over all of them with --all-runs ({runs})")]
    RunNeeded {
        /// The runs.
        runs: String,
    },
    /// No trajectory belongs to this run.
    #[error("no run `{run}` in this store; it has {runs}")]
    RunMissing {
        /// As asked for.
        run: String,
        /// The runs.
        runs: String,
    },
    /// A plan would have no train step.
    #[error("there is nothing to plan: {reason}")]
    NothingToPlan {
        /// Why.
        reason: String,
    },
    /// What a plan holds in memory is more than the session may use.
    #[error(
        "the plan reached memory_limit ({limit_bytes} bytes) with {needed_bytes} bytes of samples and steps: raise it \
         (--memory-limit), or plan one run or fewer trajectories at once"
    )]
    PlanMemory {
        /// Held so far.
        needed_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// An advantage is missing, infinite or no number.
    #[error("segment {segment_index} of trajectory {trajectory_id} has no finite advantage")]
    BadAdvantage {
        /// The trajectory.
        trajectory_id: String,
        /// The segment.
        segment_index: i64,
    },
    /// The view `samples` gave one segment twice.
    #[error("segment {segment_index} of trajectory {trajectory_id} is there twice in samples")]
    RepeatedSample {
        /// The trajectory.
        trajectory_id: String,
        /// The segment.
        segment_index: i64,
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
            | Self::UnknownSetting { .. }
            | Self::UserSql { .. }
            | Self::UnknownAttachment { .. }
            | Self::View { .. }
            | Self::WorldSize { .. }
            | Self::RankRange { .. }
            | Self::TrainStepRange { .. }
            | Self::BatchColumn { .. }
            | Self::RunNeeded { .. }
            | Self::NothingToPlan { .. }
            | Self::BadAdvantage { .. }
            | Self::RepeatedSample { .. }
            | Self::Encode { .. } => ErrorKind::Invalid,
            Self::Attach { .. } | Self::RunMissing { .. } | Self::ReadSql { .. } => ErrorKind::NotFound,
            Self::MemoryLimit { .. } | Self::SpillLimit { .. } | Self::TimeLimit { .. } | Self::PlanMemory { .. } => {
                ErrorKind::Exhausted
            }
            Self::Store { source } => source.kind,
            Self::Output { .. } | Self::Start { .. } => ErrorKind::Unavailable,
            Self::Assemble { .. }
            | Self::PlanDamaged { .. }
            | Self::SampleMismatch { .. }
            | Self::HashMismatch { .. } => ErrorKind::Corrupt,
            Self::Internal { .. } | Self::ViewShape { .. } => ErrorKind::Internal,
        }
    }

    /// What the storage room says, as ours.
    pub(crate) fn storage(error: dressage_storage::Error) -> Self {
        Self::Store { source: SourceError::new(error.kind(), error) }
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
                // what a view said while it was being looked up
                Err(inner) if inner.is::<Error>() => match inner.downcast::<Error>() {
                    Ok(error) => *error,
                    Err(inner) => Error::Execution { source: Box::new(DataFusionError::External(inner)) },
                },
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
