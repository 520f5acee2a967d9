//! What an ingest did, and how far it is.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

/// What an ingest did. Serialised, it is the one JSON object that `--json` prints.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct IngestReport {
    /// Sources read, archive members counted one by one.
    pub files: u64,
    /// Records read (lines, documents, rows, members), good and bad.
    pub records: u64,
    /// Trajectories that the store did not have.
    pub trajectories_new: u64,
    /// Trajectories of which this was a longer or changed copy.
    pub trajectories_updated: u64,
    /// Trajectories that the store had already.
    pub trajectories_unchanged: u64,
    /// Steps stored.
    pub steps: u64,
    /// Tokens stored.
    pub tokens: u64,
    /// Records quarantined now or by an earlier ingest of the same bytes.
    pub quarantined: u64,
    /// Bytes read from the sources, compressed where they are.
    pub bytes_in: u64,
    /// Bytes of data files written.
    pub bytes_stored: u64,
    /// Largest resident memory of the process so far; 0 where the system does not say.
    pub peak_rss_bytes: u64,
    /// Wall time.
    pub seconds: f64,
    /// Whether it was asked to stop; the sources may hold more.
    pub stopped: bool,
    /// Sources by the format they were read as; `unrecognised` for those that no importer knows.
    pub formats: BTreeMap<String, u64>,
    /// Quarantined records by rule.
    pub quarantined_by_rule: BTreeMap<String, u64>,
}

/// How far an ingest is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProgressNow {
    /// Bytes read from the sources, compressed where they are.
    pub bytes_done: u64,
    /// Bytes of all sources; none where one does not say (standard input).
    pub bytes_total: Option<u64>,
    /// Sources begun.
    pub files_done: u64,
    /// All sources.
    pub files_total: u64,
    /// Trajectories decided about.
    pub trajectories: u64,
    /// Records quarantined.
    pub quarantined: u64,
}

/// Told how far the ingest is, a few times a second, from the task that runs it. Must not block.
pub trait Progress: Sync {
    /// The state now.
    fn update(&self, now: &ProgressNow);
}

/// Progress that nobody watches.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unwatched;

impl Progress for Unwatched {
    fn update(&self, _now: &ProgressNow) {}
}

/// Counts that the threads of one ingest share.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) files: AtomicU64,
    pub(crate) sources_begun: AtomicU64,
    pub(crate) records: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
}

impl Counts {
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn take_back(counter: &AtomicU64, n: u64) {
        counter.fetch_sub(n, Ordering::Relaxed);
    }

    pub(crate) fn get(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }
}

/// The largest resident memory of this process so far.
pub fn peak_rss_bytes() -> u64 {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return 0 };
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
