//! What can go wrong with a store, and what the caller should do about each case.

use std::fmt;

use dressage_schemas::{ErrorKind, Table};

use crate::secret;
use crate::text_kind::kind_of_text;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The text of an underlying failure, kept as the `source` of an [`Error`]. Secrets and source-code positions of
/// libraries are taken out when it is made, so that it may be printed anywhere.
#[derive(Debug, Clone)]
pub struct Cause(String);

impl Cause {
    /// The chain of `error` as one line, scrubbed.
    pub(crate) fn of(error: &(dyn std::error::Error + 'static)) -> Self {
        let mut text = error.to_string();
        let mut next = error.source();
        while let Some(inner) = next {
            let more = inner.to_string();
            // many libraries already print their cause
            if !text.contains(&more) {
                text.push_str(": ");
                text.push_str(&more);
            }
            next = inner.source();
        }
        if asks_for_role(&text) {
            return Self::words(
                "no S3 credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (there are no keys in the \
                 environment, and this machine has no role to take some from)",
            );
        }
        Self(secret::scrub(&without_positions(&text)))
    }

    /// A cause that is only words.
    pub(crate) fn words(text: impl AsRef<str>) -> Self {
        Self(secret::scrub(text.as_ref()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Cause {}

/// Whether a client found no keys and asked the metadata service of a cloud machine for some.
pub(crate) fn asks_for_role(text: &str) -> bool {
    text.contains("169.254.169.254") || text.contains("latest/api/token")
}

/// Takes `, /path/file.rs:12:34` out of a message: where in a library a failure arose helps nobody who reads it.
fn without_positions(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(", /").or_else(|| rest.find(", location: /")) {
        let tail = &rest[at + 2..];
        let end = tail.find([' ', ',', '\n', ')']).unwrap_or(tail.len());
        let token_end = if tail.starts_with("location: ") {
            let skip = "location: ".len();
            skip + tail[skip..].find([' ', ',', '\n', ')']).unwrap_or(tail.len() - skip)
        } else {
            end
        };
        out.push_str(&rest[..at]);
        if !tail[..token_end].contains(".rs:") {
            out.push_str(&rest[at..at + 2 + token_end]);
        }
        rest = &tail[token_end..];
    }
    out.push_str(rest);
    out
}

/// What happened to a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting has a value that cannot work.
    #[error("{setting} is {value:?}, which is not {expected}")]
    Setting {
        /// Which one.
        setting: &'static str,
        /// As given (never a secret).
        value: String,
        /// What would work.
        expected: &'static str,
    },
    /// There is no store at this place.
    #[error("no store at {uri}; create one with `dressage store init`")]
    StoreMissing {
        /// Where.
        uri: String,
    },
    /// The store was made by a newer release.
    #[error(
        "the store at {uri} has schema version {found}, this release reads up to {supported}; use a newer dressage"
    )]
    SchemaTooNew {
        /// Where.
        uri: String,
        /// Version in the store.
        found: u32,
        /// Version of this release.
        supported: u32,
    },
    /// The store was made by an older release whose tables need a change first.
    #[error(
        "the store at {uri} has schema version {found}, this release writes {supported}; run `dressage store migrate`"
    )]
    SchemaTooOld {
        /// Where.
        uri: String,
        /// Version in the store.
        found: u32,
        /// Version of this release.
        supported: u32,
    },
    /// The store's own record cannot be read.
    #[error("{uri}/dressage.json does not describe a store: {detail}")]
    BadRecord {
        /// Where.
        uri: String,
        /// What is wrong.
        detail: String,
    },
    /// The object store ignores conditional writes, so that two writers would lose each other's rows.
    #[error(
        "{uri} ignores conditional writes ({detail}): two writers would lose each other's rows without an error; use \
         a store that honours If-None-Match, such as AWS S3, MinIO or SeaweedFS"
    )]
    ConditionIgnored {
        /// Where.
        uri: String,
        /// How it showed.
        detail: String,
    },
    /// The store overwrote a version of a table that it had acknowledged.
    #[error(
        "version {version} of table {table} is no longer the one that was committed: the store ignores conditional \
         writes and rows may be lost; stop all writers, then run `dressage doctor` and `dressage store check`"
    )]
    FenceBroken {
        /// The table.
        table: Table,
        /// The version.
        version: u64,
    },
    /// A batch does not have the columns of its table.
    #[error("a batch for table {table} does not fit its schema: {detail}")]
    BatchShape {
        /// The table.
        table: Table,
        /// What differs.
        detail: String,
    },
    /// A row contradicts itself; nothing of its batch was stored.
    #[error("step {step_index} of trajectory {trajectory_key:016x} breaks {rule}: {detail}")]
    BadStep {
        /// Which trajectory.
        trajectory_key: i64,
        /// Which step.
        step_index: i32,
        /// Short name of the rule.
        rule: &'static str,
        /// What is wrong.
        detail: String,
    },
    /// Two text ids have the same 64-bit key.
    #[error("trajectories {stored:?} and {given:?} have the same key {trajectory_key:016x}; rename one of them")]
    KeyCollision {
        /// The key.
        trajectory_key: i64,
        /// The id in the store.
        stored: String,
        /// The id that came.
        given: String,
    },
    /// There is no such column.
    #[error("table {table} has no column {column:?}")]
    ColumnMissing {
        /// The table.
        table: Table,
        /// As asked for.
        column: String,
    },
    /// No snapshot, tag or time matches.
    #[error("no snapshot {as_of}; `dressage store snapshots` lists what there is")]
    SnapshotMissing {
        /// What was asked for.
        as_of: String,
    },
    /// Nothing in the store belongs to this run.
    #[error("no run {run_id:?} in this store; `dressage sql \"select distinct run_id from trajectories\"` lists them")]
    RunMissing {
        /// As asked for.
        run_id: String,
    },
    /// No plan has this id.
    #[error("no plan {plan:?} in this store; `dressage sql \"select plan_id, created_at from plans\"` lists them")]
    PlanMissing {
        /// As asked for.
        plan: String,
    },
    /// Several plans have an id that begins so.
    #[error("{count} plans have an id that begins with {plan:?}: give more digits")]
    PlanAmbiguous {
        /// As asked for.
        plan: String,
        /// How many.
        count: usize,
    },
    /// No checkpoint has this id.
    #[error(
        "no checkpoint {checkpoint:?} in this store; `dressage sql \"select train_run, checkpoint_id from checkpoints\"` lists them"
    )]
    CheckpointMissing {
        /// As asked for.
        checkpoint: String,
    },
    /// Several checkpoints have an id that begins so.
    #[error("{count} checkpoints have an id that begins with {checkpoint:?}: give more of it")]
    CheckpointAmbiguous {
        /// As asked for.
        checkpoint: String,
        /// How many.
        count: usize,
    },
    /// A training run went on without this process.
    #[error(
        "another process trains run {train_run}: its newest checkpoint is {newest}, not {expected}; stop one of the two, or \
         train under another name"
    )]
    TrainRunMoved {
        /// The training run.
        train_run: String,
        /// Its newest checkpoint, or "none".
        newest: String,
        /// The one that this process went on from, or "none".
        expected: String,
    },
    /// A file is not what was written.
    #[error("{object} is not what was written: {detail}; restore it, or go on from another checkpoint")]
    FileDamaged {
        /// Which file.
        object: String,
        /// What is wrong.
        detail: String,
    },
    /// A maintenance verb was not told enough to do anything.
    #[error("{verb} removes nothing unless told what to keep: give {missing}")]
    Unbounded {
        /// The verb.
        verb: &'static str,
        /// What to add.
        missing: &'static str,
    },
    /// A version is gone or never was.
    #[error("table {table} has no version {version}; it may have been collected by `dressage store gc`")]
    VersionMissing {
        /// The table.
        table: Table,
        /// The version.
        version: u64,
    },
    /// A row address does not exist in this version.
    #[error("table {table} has no row at address {row_address:#x} in this snapshot")]
    RowMissing {
        /// The table.
        table: Table,
        /// The address.
        row_address: u64,
    },
    /// Stored payload is not what it should be.
    #[error("stored data of table {table} is damaged: {detail}; run `dressage store check`")]
    Damaged {
        /// The table.
        table: Table,
        /// What is wrong.
        detail: String,
    },
    /// An operation on a table failed.
    #[error("cannot {action} table {table}")]
    TableAccess {
        /// What was attempted.
        action: &'static str,
        /// The table.
        table: Table,
        /// What the caller should do.
        kind: ErrorKind,
        /// Why.
        source: Cause,
    },
    /// An operation on an object failed.
    #[error("cannot {action} {object}")]
    ObjectAccess {
        /// What was attempted.
        action: &'static str,
        /// Which object.
        object: String,
        /// What the caller should do.
        kind: ErrorKind,
        /// Why.
        source: Cause,
    },
    /// Retrying did not help within the limit.
    #[error("{uri} did not answer within retry_timeout_ms = {timeout_ms} ms while trying to {action}")]
    StillUnavailable {
        /// Where.
        uri: String,
        /// The limit.
        timeout_ms: u64,
        /// What was attempted.
        action: &'static str,
        /// The last failure.
        source: Cause,
    },
    /// A maintenance verb would have to read more into memory than allowed.
    #[error("{what} needs {needed} bytes of memory, {limit_name} allows {limit}")]
    LimitReached {
        /// What.
        what: &'static str,
        /// How much.
        needed: u64,
        /// Name of the limit.
        limit_name: &'static str,
        /// Its value.
        limit: u64,
    },
    /// An earlier failure left this writer in the middle of a commit.
    #[error("this writer failed before; open a new one and write the unacknowledged rows again")]
    WriterBroken,
    /// A background task ended in a way that it never should.
    #[error("{what} ended unexpectedly")]
    TaskLost {
        /// Which.
        what: &'static str,
        /// How.
        source: Cause,
    },
}

impl Error {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Setting { .. }
            | Self::SchemaTooNew { .. }
            | Self::SchemaTooOld { .. }
            | Self::ConditionIgnored { .. }
            | Self::BatchShape { .. }
            | Self::BadStep { .. }
            | Self::KeyCollision { .. }
            | Self::ColumnMissing { .. }
            | Self::PlanAmbiguous { .. }
            | Self::CheckpointAmbiguous { .. }
            | Self::Unbounded { .. } => ErrorKind::Invalid,
            Self::StoreMissing { .. }
            | Self::SnapshotMissing { .. }
            | Self::RunMissing { .. }
            | Self::PlanMissing { .. }
            | Self::CheckpointMissing { .. }
            | Self::VersionMissing { .. }
            | Self::RowMissing { .. } => ErrorKind::NotFound,
            Self::FenceBroken { .. } | Self::BadRecord { .. } | Self::Damaged { .. } | Self::FileDamaged { .. } => {
                ErrorKind::Corrupt
            }
            Self::TableAccess { kind, .. } | Self::ObjectAccess { kind, .. } => *kind,
            Self::StillUnavailable { .. } => ErrorKind::Unavailable,
            Self::LimitReached { .. } => ErrorKind::Exhausted,
            Self::WriterBroken | Self::TrainRunMoved { .. } => ErrorKind::Conflict,
            Self::TaskLost { .. } => ErrorKind::Internal,
        }
    }

    /// Turns a failure of the table format into ours.
    pub(crate) fn table(action: &'static str, table: Table, error: lance::Error) -> Self {
        Self::TableAccess { action, table, kind: kind_of_lance(&error), source: Cause::of(&error) }
    }

    /// Turns a failure of the object store into ours.
    pub(crate) fn object(action: &'static str, object: impl Into<String>, error: object_store::Error) -> Self {
        Self::ObjectAccess {
            action,
            object: object.into(),
            kind: kind_of_object_store(&error),
            source: Cause::of(&error),
        }
    }

    /// Turns a failure of Arrow into ours: the batch does not have the shape that it should.
    pub(crate) fn shape(table: Table, error: &arrow::error::ArrowError) -> Self {
        Self::BatchShape { table, detail: error.to_string() }
    }

    /// Whether the same call may succeed when repeated.
    pub(crate) fn is_retryable(&self) -> bool {
        matches!(self.kind(), ErrorKind::Unavailable)
    }
}

/// What to do about a failure of the object store.
pub(crate) fn kind_of_object_store(error: &object_store::Error) -> ErrorKind {
    use object_store::Error as E;
    match error {
        E::NotFound { .. } => ErrorKind::NotFound,
        E::AlreadyExists { .. } | E::Precondition { .. } | E::NotModified { .. } => ErrorKind::Conflict,
        E::InvalidPath { .. }
        | E::NotSupported { .. }
        | E::NotImplemented { .. }
        | E::PermissionDenied { .. }
        | E::Unauthenticated { .. }
        | E::UnknownConfigurationKey { .. } => ErrorKind::Invalid,
        E::Generic { .. } => kind_of_text(&Cause::of(error).0),
        _ => ErrorKind::Unavailable,
    }
}

/// What to do about a failure of the table format.
pub(crate) fn kind_of_lance(error: &lance::Error) -> ErrorKind {
    use lance::Error as E;
    match error {
        E::InvalidInput { .. } | E::SchemaMismatch { .. } | E::NotSupported { .. } | E::Schema { .. } => {
            ErrorKind::Invalid
        }
        E::DatasetNotFound { .. } | E::NotFound { .. } | E::RefNotFound { .. } => ErrorKind::NotFound,
        E::CommitConflict { .. }
        | E::IncompatibleTransaction { .. }
        | E::RetryableCommitConflict { .. }
        | E::RefConflict { .. }
        | E::DatasetAlreadyExists { .. } => ErrorKind::Conflict,
        E::TooMuchWriteContention { .. } | E::Timeout { .. } => ErrorKind::Unavailable,
        E::CorruptFile { .. } => ErrorKind::Corrupt,
        E::IO { source, .. } => match source.downcast_ref::<object_store::Error>() {
            Some(inner) => kind_of_object_store(inner),
            None => kind_of_text(&Cause::of(error).0),
        },
        _ => kind_of_text(&Cause::of(error).0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_in_library_sources_are_taken_out() {
        let text = "LanceError(IO): disk gone, /root/.cargo/registry/lance-io/src/local.rs:12:7: more";
        assert_eq!(without_positions(text), "LanceError(IO): disk gone more");
        assert_eq!(without_positions("see a, /data/x and b"), "see a, /data/x and b");
    }

    #[test]
    fn secrets_never_reach_a_message() {
        secret::remember("hunter2hunter2");
        let error = Error::object(
            "read",
            "s3://b/k",
            object_store::Error::Generic { store: "S3", source: "bad key hunter2hunter2 for".into() },
        );
        let Error::ObjectAccess { source, .. } = &error else { panic!("{error:?}") };
        assert!(!source.as_str().contains("hunter2"), "{source}");
        assert!(!format!("{error:?}").contains("hunter2"));
    }

    #[test]
    fn a_client_without_keys_is_told_which_variables_to_set() {
        let asked = "Error performing PUT http://169.254.169.254/latest/api/token in 3s, after 3 retries";
        let source = object_store::Error::Generic { store: "S3", source: asked.into() };
        let error = Error::object("list", "s3://b/", source);
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let Error::ObjectAccess { source, .. } = &error else { panic!("{error:?}") };
        assert!(source.as_str().contains("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"), "{source}");
        assert!(!source.as_str().contains("169.254"), "{source}");
    }
}
