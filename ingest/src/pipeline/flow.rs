//! What moves between the threads of one ingest.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;

use crate::budget::{Budget, Permit};
use crate::error::Error;
use crate::importer::{ArchiveReader, RecordReader, Rejected, SessionReader, SourceInfo, Verdict};
use crate::importers::columns::Piece;
use crate::prepare::Prepared;
use crate::report::Counts;
use crate::settings::IngestSettings;
use crate::source::archive::ZipFile;
use crate::source::blocks::{Block, Blocks};

/// What all threads of one ingest share.
pub(crate) struct Shared {
    pub(crate) settings: Arc<IngestSettings>,
    pub(crate) budget: Arc<Budget>,
    pub(crate) counts: Counts,
    pub(crate) formats: Mutex<BTreeMap<String, u64>>,
    pub(crate) deliveries: mpsc::Sender<Delivery>,
    /// Set when nothing more is to be read.
    pub(crate) stopping: AtomicBool,
}

impl Shared {
    /// Whether the readers should end at the next place where nothing is torn.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    pub(crate) fn note_format(&self, format: &str) {
        let mut formats = self.formats.lock().unwrap_or_else(PoisonError::into_inner);
        *formats.entry(format.to_owned()).or_default() += 1;
    }

    /// Hands something to the committer; waits while it is busy.
    pub(crate) fn deliver(&self, seq: u64, outcome: Outcome) -> Result<(), End> {
        self.deliveries.blocking_send(Delivery { seq, outcome }).map_err(|_| End::Stopped)
    }
}

/// One source as its rows name it, and how its records are read.
pub(crate) struct Job {
    pub(crate) info: SourceInfo,
    pub(crate) format: &'static str,
    pub(crate) memory_factor: u64,
}

/// A piece of work for the parsing threads. Pieces are numbered in the order of the sources, and the committer takes
/// what comes of them in that order, so that the outcome does not depend on which thread was faster.
pub(crate) struct Task {
    pub(crate) seq: u64,
    pub(crate) job: Arc<Job>,
    pub(crate) permit: Arc<Permit>,
    pub(crate) work: Work,
}

pub(crate) enum Work {
    /// Lines whose records stand alone.
    Block { reader: Arc<dyn RecordReader>, block: Block },
    /// All lines of a source, in order.
    Session { reader: Box<dyn SessionReader>, blocks: Blocks },
    /// A JSON document.
    Document { reader: DocumentUse, stream: Box<dyn Read + Send>, byte_offset: u64 },
    /// A zip archive of one importer.
    Archive { reader: Box<dyn ArchiveReader>, archive: ZipFile },
    /// Rows of whole trajectories.
    Rows { piece: Piece },
}

/// What a JSON document is to its importer.
pub(crate) enum DocumentUse {
    /// One record.
    Whole(Arc<dyn RecordReader>),
    /// The records of a line format, as the elements of an array (or as the only one).
    Records(Arc<dyn RecordReader>),
    /// The same, in order.
    Session(Box<dyn SessionReader>),
}

/// What came of a piece of work.
pub(crate) struct Delivery {
    pub(crate) seq: u64,
    pub(crate) outcome: Outcome,
}

pub(crate) enum Outcome {
    Prepared {
        prepared: Box<Prepared>,
        permit: Arc<Permit>,
    },
    Rejected {
        rejected: Box<Rejected>,
        job: Arc<Job>,
        permit: Option<Arc<Permit>>,
    },
    Verdict {
        verdict: Box<Verdict>,
        job: Arc<Job>,
    },
    /// Nothing more comes of this piece.
    Done,
    /// The ingest must end.
    Failed(Box<Error>),
    /// There are no more pieces from this number on.
    LastSeq,
}

/// Why a thread ends early.
#[derive(Debug)]
pub(crate) enum End {
    /// Somebody else ended the ingest.
    Stopped,
    /// This does.
    Failed(Box<Error>),
}

impl From<crate::budget::Stopped> for End {
    fn from(_: crate::budget::Stopped) -> Self {
        Self::Stopped
    }
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        Self::Failed(Box::new(error))
    }
}
