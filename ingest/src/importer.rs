//! The contract of an importer: recognise a format by its bytes, and turn its records into [`Rollout`]s.
//!
//! ```text
//!             sniff(head) ─▶ Confidence                      highest one reads the file
//!  bytes ─▶ ┌───────────────────────── reader() ────────────────────────────┐
//!           │ Records   one record, one or more rollouts; many threads      │
//!           │ Session   records of one file in order, one state             │ ─▶ Sink: rollout | reject
//!           │ Document  the whole file as one JSON document                 │
//!           │ Archive   members of a zip, one at a time                     │
//!           └───────────────────────────────────────────────────────────────┘
//! ```
//!
//! The pipeline has already removed compression, the byte order mark, line ends, empty lines and NUL runs. A reader
//! that answers [`RecordError::Syntax`] has its record taken apart (glued, cut and broken records) and is asked again
//! with each part that is a JSON value; so a reader must not change its state before the record has parsed.

use std::borrow::Cow;

use serde_json::Value;

use crate::error::Error;
use crate::rollout::Rollout;

/// One format. Stateless: what a file needs lives in the [`Reader`].
pub trait Importer: Send + Sync {
    /// The name for `--format`, for column `format`, and in messages.
    fn name(&self) -> &'static str;

    /// How sure the importer is that the source is of its format. Looks at content only, never at names.
    fn sniff(&self, sniff: &Sniff<'_>) -> Confidence;

    /// A reader for one source.
    fn reader(&self, source: &SourceInfo) -> Reader;

    /// About how many bytes of memory a byte of the source takes while it is read, text and parsed form together.
    fn memory_factor(&self) -> u64 {
        8
    }
}

/// How sure an importer is. The highest answer wins; among equals the first in the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Confidence {
    /// Not this format.
    No,
    /// Reads as this format, and may be another (plain chat messages).
    Weak,
    /// Has the shape of this format.
    Likely,
    /// Has a mark that only this format has.
    Certain,
}

/// What a source is, for its reader.
#[derive(Debug, Clone)]
pub struct SourceInfo {
    /// Path or URI, with the zip member after `!`; never with credentials. Do not derive ids from it unless the
    /// format itself does: a renamed copy must give the same trajectory.
    pub name: String,
    /// Last path component without its extensions.
    pub stem: String,
}

/// What a source looks like from outside, found from its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One JSON value a line.
    JsonLines,
    /// One JSON document over many lines, or on a single line.
    JsonDocument,
    /// A zip archive.
    Zip,
    /// Parquet.
    Parquet,
    /// Arrow IPC, file form.
    ArrowFile,
    /// Arrow IPC, stream form.
    ArrowStream,
    /// Text that is no JSON.
    Text,
    /// Anything else.
    Binary,
    /// No bytes.
    Empty,
}

/// What importers see of a source when they are asked whether it is theirs.
#[derive(Debug)]
pub struct Sniff<'a> {
    /// What it looks like. A one-line JSON file is a [`Shape::JsonLines`] with one record and `complete` set.
    pub shape: Shape,
    /// The first bytes (up to 256 KiB), decompressed, without a byte order mark.
    pub head: &'a [u8],
    /// Whether `head` is the whole source.
    pub complete: bool,
    /// Of JSON lines: the first values that parse (up to 16). Of a document that fits `head`: the document.
    pub records: Vec<Value>,
    /// Keys of the first object (of a document: of its root, or of its first element if the root is an array), as far
    /// as `head` shows them; this also works for a document or line that is longer than `head`.
    pub keys: Vec<String>,
    /// Whether the root of a document is an array.
    pub root_is_array: bool,
    /// Of a zip: names of the members.
    pub members: Vec<String>,
}

impl Sniff<'_> {
    /// Whether the first object has this key.
    pub fn has(&self, key: &str) -> bool {
        self.keys.iter().any(|k| k == key)
    }

    /// Whether the first object has all these keys.
    pub fn has_all(&self, keys: &[&str]) -> bool {
        keys.iter().all(|key| self.has(key))
    }

    /// Whether the source is JSON of any layout.
    pub fn is_json(&self) -> bool {
        matches!(self.shape, Shape::JsonLines | Shape::JsonDocument)
    }
}

/// How a format is read.
pub enum Reader {
    /// Every record stands alone; records are read on many threads, in any order.
    Records(Box<dyn RecordReader>),
    /// The records of one source belong together and come in order.
    Session(Box<dyn SessionReader>),
    /// The whole source is one record (a JSON document). Bounded by the document limit.
    Document(Box<dyn RecordReader>),
    /// A zip archive, read member by member.
    Archive(Box<dyn ArchiveReader>),
}

/// A piece of the source: one line's value, or the whole document.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// Its bytes, without the line end.
    pub bytes: &'a [u8],
    /// Where they start in the decompressed source.
    pub byte_offset: u64,
    /// 1-based line.
    pub line: Option<u64>,
}

impl Record<'_> {
    /// The record as a JSON value; bare NaN and infinities become null and lone surrogates U+FFFD, and the notes say
    /// so.
    ///
    /// # Errors
    /// [`RecordError::Syntax`] where it is no JSON even so.
    pub fn json(&self) -> Result<(Value, crate::json::Notes), RecordError> {
        crate::json::parse(self.bytes).map_err(RecordError::Syntax)
    }
}

/// Reads records that stand alone.
pub trait RecordReader: Send + Sync {
    /// Reads one record and gives what it holds to `sink`.
    ///
    /// # Errors
    /// [`RecordError`]; the pipeline takes the record apart or quarantines it.
    fn record(&self, record: &Record<'_>, sink: &mut dyn Sink) -> Result<(), RecordError>;
}

/// Reads the records of one source in order.
pub trait SessionReader: Send {
    /// Reads one record.
    ///
    /// # Errors
    /// [`RecordError`]; the state must then be as before.
    fn record(&mut self, record: &Record<'_>, sink: &mut dyn Sink) -> Result<(), RecordError>;

    /// About how many bytes of the source the reader holds now. None: all that it was given, until the end.
    fn held_bytes(&self) -> Option<u64> {
        None
    }

    /// The source has ended: gives what is left.
    ///
    /// # Errors
    /// [`RecordError`].
    fn finish(self: Box<Self>, sink: &mut dyn Sink) -> Result<(), RecordError>;
}

/// Reads a zip archive.
pub trait ArchiveReader: Send {
    /// Reads what it needs, one member at a time.
    ///
    /// # Errors
    /// [`RecordError`] where the archive as a whole cannot be read; a member that cannot is given to `sink` as
    /// [`Rejected`].
    fn archive(self: Box<Self>, archive: &mut dyn Archive, sink: &mut dyn Sink) -> Result<(), RecordError>;
}

/// The members of a zip archive.
pub trait Archive {
    /// Name and decompressed size of each, in the archive's order.
    fn members(&self) -> &[Member];

    /// Decompresses one member, at most the document limit.
    ///
    /// # Errors
    /// [`RecordError::Refused`] where the member is damaged or too large.
    fn read(&mut self, index: usize) -> Result<Vec<u8>, RecordError>;
}

/// One member of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its path in the archive.
    pub name: String,
    /// Its size, as the directory claims.
    pub byte_length: u64,
    /// Where its compressed bytes start in the archive.
    pub byte_offset: u64,
}

/// Takes what a reader found. Blocks while the pipeline is full.
pub trait Sink {
    /// One trajectory.
    ///
    /// # Errors
    /// [`RecordError::Stopped`]: the ingest is over; return it at once.
    fn rollout(&mut self, rollout: Rollout) -> Result<(), RecordError>;

    /// A verdict on a trajectory that was given before, or is in the store already.
    ///
    /// # Errors
    /// [`RecordError::Refused`] where the sink takes no verdicts, [`RecordError::Stopped`] where the ingest is over.
    fn verdict(&mut self, verdict: Verdict) -> Result<(), RecordError> {
        let reason = "a verdict without its trajectory";
        Err(RecordError::Refused {
            rule: crate::rule::ORPHAN,
            reason: reason.to_owned(),
            trajectory_id: Some(verdict.trajectory_id),
        })
    }

    /// Something that is quarantined while the reading goes on.
    ///
    /// # Errors
    /// [`RecordError::Stopped`]: the ingest is over; return it at once.
    fn reject(&mut self, rejected: Rejected) -> Result<(), RecordError>;
}

/// A verdict that comes after its trajectory.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// The run, where the source names one.
    pub run_id: Option<String>,
    /// The trajectory.
    pub trajectory_id: String,
    /// What was found.
    pub reward: crate::rollout::RolloutReward,
    /// The record it came in: what is quarantined if the trajectory is not there.
    pub orphan: Rejected,
}

/// A record, or a part of one, that cannot be stored.
#[derive(Debug, Clone)]
pub struct Rejected {
    /// Where it starts in the decompressed source.
    pub byte_offset: u64,
    /// Its length.
    pub byte_length: u64,
    /// 1-based line.
    pub line: Option<u64>,
    /// The trajectory, where it names one.
    pub trajectory_id: Option<String>,
    /// Short name of the rule that it broke; see [`rule`](crate::rule).
    pub rule: Cow<'static, str>,
    /// What is wrong, for a person, with the numbers that show it.
    pub reason: String,
    /// Its bytes; the pipeline cuts them at the quarantine limit.
    pub raw: Vec<u8>,
}

impl Rejected {
    /// A whole record, refused.
    pub fn record(record: &Record<'_>, rule: &'static str, reason: impl Into<String>) -> Self {
        Self {
            byte_offset: record.byte_offset,
            byte_length: record.bytes.len() as u64,
            line: record.line,
            trajectory_id: None,
            rule: Cow::Borrowed(rule),
            reason: reason.into(),
            raw: record.bytes.to_vec(),
        }
    }

    /// The same, naming the trajectory.
    #[must_use]
    pub fn of_trajectory(mut self, trajectory_id: impl Into<String>) -> Self {
        self.trajectory_id = Some(trajectory_id.into());
        self
    }
}

/// Why a record was not read.
#[derive(Debug)]
pub enum RecordError {
    /// It is no JSON: the pipeline looks for JSON values inside it.
    Syntax(crate::json::Broken),
    /// It is JSON and not what the format says; quarantined whole.
    Refused {
        /// Short name of the rule that it broke.
        rule: &'static str,
        /// What is wrong, for a person.
        reason: String,
        /// The trajectory, where it names one.
        trajectory_id: Option<String>,
    },
    /// The ingest is over (an error elsewhere, or cancelled).
    Stopped,
    /// Reading itself failed.
    Failed(Box<Error>),
}

impl RecordError {
    /// A refusal that names no trajectory.
    pub fn refused(rule: &'static str, reason: impl Into<String>) -> Self {
        Self::Refused { rule, reason: reason.into(), trajectory_id: None }
    }
}
