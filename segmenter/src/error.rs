//! What can go wrong in a SQL session, and what the caller should do about it.

use datafusion::error::DataFusionError;
use dressage_schemas::ErrorKind;
use thiserror::Error;

use crate::lake::SourceError;

pub(crate) use crate::engine_error::{Limits, unknown_table};

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
    /// A column that none of the tables of a query has.
    #[error("there is no column `{column}`{}", advice(.near.as_deref(), .known))]
    UnknownColumn {
        /// As written.
        column: String,
        /// The one that it looks like.
        near: Option<String>,
        /// Columns that there are.
        known: String,
    },
    /// A table that is not there.
    #[error("there is no table `{table}`{}", advice(.near.as_deref(), .known))]
    UnknownTable {
        /// As written.
        table: String,
        /// The one that it looks like.
        near: Option<String>,
        /// Tables that there are.
        known: String,
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
        "the query reached memory_limit, which is {}: raise it (--memory-limit, or sql.memory_limit in the settings), \
         select fewer columns, or filter before joining",
        bytes_text(*.limit_bytes)
    )]
    MemoryLimit {
        /// The limit.
        limit_bytes: u64,
        /// Which operators held the memory, in the engine's words; no part of the message.
        engine: Box<DataFusionError>,
    },
    /// The query spilled more to disk than the session may.
    #[error(
        "the query reached spill_limit, which is {} of disk: filter before sorting, or raise memory_limit \
         (--memory-limit), so that less is spilled",
        bytes_text(*.limit_bytes)
    )]
    SpillLimit {
        /// The limit.
        limit_bytes: u64,
        /// What the engine says; no part of the message.
        engine: Box<DataFusionError>,
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
    /// A limit of the session, set like a variable.
    #[error("{key} is a limit, not a variable that views read: use {instead}")]
    NotAVariable {
        /// The limit.
        key: String,
        /// What changes it.
        instead: &'static str,
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
    /// No plan has such an id.
    #[error("there is no plan whose id begins with `{plan}`: {known}")]
    PlanMissing {
        /// As asked for.
        plan: String,
        /// Plans that there are, and how to list them.
        known: String,
    },
    /// Several plans have an id that begins so.
    #[error("{count} plans have an id that begins with `{plan}`: give more of it ({known})")]
    PlanAmbiguous {
        /// As asked for.
        plan: String,
        /// How many.
        count: usize,
        /// Their ids.
        known: String,
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
    /// A plan that goes on after others would be empty: they have all that there is.
    #[error("nothing is left to plan: the plans before have all that there is (trajectories: {n_trajectories})")]
    AllPlanned {
        /// Trajectories that have samples.
        n_trajectories: u64,
    },
    /// What a plan holds in memory is more than the session may use.
    #[error(
        "the plan reached memory_limit, which is {}, with {} of samples and steps: raise it (--memory-limit, or \
         sql.memory_limit in the settings), or plan one run or fewer trajectories at once",
        bytes_text(*.limit_bytes),
        bytes_text(*.needed_bytes)
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
            | Self::UnknownColumn { .. }
            | Self::UnknownTable { .. }
            | Self::NotAVariable { .. }
            | Self::PlanAmbiguous { .. }
            | Self::AllPlanned { .. }
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
            Self::Attach { .. } | Self::RunMissing { .. } | Self::ReadSql { .. } | Self::PlanMissing { .. } => {
                ErrorKind::NotFound
            }
            Self::MemoryLimit { .. } | Self::SpillLimit { .. } | Self::TimeLimit { .. } | Self::PlanMemory { .. } => {
                ErrorKind::Exhausted
            }
            Self::Store { source } => source.kind,
            Self::Output { source } => match source.kind() {
                std::io::ErrorKind::StorageFull
                | std::io::ErrorKind::QuotaExceeded
                | std::io::ErrorKind::FileTooLarge => ErrorKind::Exhausted,
                _ => ErrorKind::Unavailable,
            },
            Self::Start { .. } => ErrorKind::Unavailable,
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

/// What a name that is not known was meant to be, or could be.
fn advice(near: Option<&str>, known: &str) -> String {
    match near {
        Some(near) => format!(": did you mean `{near}`?"),
        None if known.is_empty() => String::new(),
        None => format!("; there are {known}"),
    }
}

/// A size as a person writes one: `512 MiB`.
fn bytes_text(n: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(shift, _)| n >= 1 << shift) {
        Some((shift, unit)) if n.is_multiple_of(1 << shift) => format!("{} {unit}", n >> shift),
        Some((shift, unit)) => format!("{:.1} {unit}", n as f64 / (1_u64 << shift) as f64),
        None => format!("{n} bytes"),
    }
}
