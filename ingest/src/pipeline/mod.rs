//! One ingest: a reading thread, parsing threads and the committer, joined by queues that are bounded in bytes.
//!
//! ```text
//!   reading thread ──tasks──▶ parsing threads (jobs) ──deliveries──▶ committer (async) ──▶ LakeWriter
//!   open, unpack, sniff,       parse, check, hash,                    order, decide,
//!   cut into pieces            encode                                 group
//!        │ acquires bytes                                                 │ gives them back
//!        └───────────────────────────── Budget ──────────────────────────┘
//! ```
//!
//! Parsing and encoding never run on the async runtime, and the threads never wait for the network except through it.

mod commit;
mod copies;
mod decide;
mod dispatch;
mod flow;
mod group;
mod quarantine;
mod sink;
mod stored;
mod traces;
mod verdicts;
mod worker;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use dressage_storage::{Lake, WriterSettings};
use dressage_tokenizer::Tokenizer;
use tokio::sync::mpsc;

use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::prepare::Preparer;
use crate::report::{Counts, IngestReport, Progress, ProgressNow, peak_rss_bytes};
use crate::settings::IngestSettings;
use crate::source::object::{ObjectReader, expand_objects};
use crate::source::{Source, expand::expand_local};
use commit::Committer;
use dispatch::Dispatcher;
use flow::{Outcome, Shared};

/// Deliveries that may wait for the committer; their bytes are bounded by the budget.
const DELIVERIES: usize = 256;

/// Reads sources into a store.
///
/// Records that cannot be stored are quarantined and counted; the report says how many. What is committed stays when
/// the ingest ends early, and the same call goes on from there: trajectories that the store has are left alone.
///
/// When `stop` is done before everything is read, reading ends between two records, what was read whole is committed,
/// and the report says `stopped`. Of a session (a log that is one trajectory from end to end) in the middle, nothing is
/// stored. For an ingest that nobody stops: `std::future::pending()`.
///
/// # Errors
/// A wrong setting, a source that does not exist or cannot be read, a store that refuses, or (`strict`) the first
/// record that would be quarantined.
///
/// # Cancel safety
/// Dropping the future ends the threads at their next step; everything committed so far stays, nothing is half
/// visible.
pub async fn ingest(
    lake: &Lake,
    settings: IngestSettings,
    progress: &dyn Progress,
    stop: impl Future<Output = ()>,
) -> Result<IngestReport> {
    let started = Instant::now();
    settings.check()?;
    let tokenizer = load_tokenizer(&settings).await?;
    let sources = expand(lake, &settings).await?;
    let bytes_total = sources.iter().map(|s| s.byte_length).sum::<Option<u64>>();
    let writer = lake.writer(writer_settings(&settings));
    let settings = Arc::new(settings);
    let (deliveries, received) = mpsc::channel(DELIVERIES);
    let shared = Arc::new(Shared {
        budget: Budget::new(settings.pipeline_bytes()),
        counts: Counts::default(),
        formats: Mutex::default(),
        deliveries,
        stopping: AtomicBool::new(false),
        settings,
    });
    let end_threads = StopOnDrop(Arc::clone(&shared.budget));
    let files_total = sources.len() as u64;
    start_threads(&shared, sources, tokenizer, lake)?;
    let tick = |report: &IngestReport| {
        progress.update(&ProgressNow {
            bytes_done: Counts::get(&shared.counts.bytes_in),
            bytes_total,
            files_done: Counts::get(&shared.counts.sources_begun),
            files_total,
            trajectories: report.trajectories_new + report.trajectories_updated + report.trajectories_unchanged,
            quarantined: report.quarantined,
        });
    };
    let stop = async {
        stop.await;
        shared.stopping.store(true, Ordering::Relaxed);
    };
    let mut report = Committer::new(lake, writer, &shared.settings).run(received, tick, stop).await?;
    drop(end_threads);
    report.files = shared.counts.files.load(Ordering::Relaxed);
    report.records = shared.counts.records.load(Ordering::Relaxed);
    report.bytes_in = shared.counts.bytes_in.load(Ordering::Relaxed);
    report.formats = shared.formats.lock().unwrap_or_else(PoisonError::into_inner).clone();
    report.peak_rss_bytes = peak_rss_bytes();
    report.seconds = started.elapsed().as_secs_f64();
    Ok(report)
}

/// Ends the threads when the ingest ends, however it ends.
struct StopOnDrop(Arc<Budget>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

async fn load_tokenizer(settings: &IngestSettings) -> Result<Option<Arc<Tokenizer>>> {
    let Some(path) = settings.tokenizer.clone() else { return Ok(None) };
    let loaded = tokio::task::spawn_blocking(move || Tokenizer::load(path)).await;
    let loaded = loaded.map_err(|_| Error::WorkerPanicked { stage: "tokenizer" })?;
    loaded.map(|t| Some(Arc::new(t))).map_err(Error::Tokenizer)
}

async fn expand(lake: &Lake, settings: &IngestSettings) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    for name in &settings.sources {
        if name.starts_with("s3://") {
            sources.extend(expand_objects(name, &lake.settings().s3).await?);
        } else {
            sources.extend(expand_local(name.strip_prefix("file://").unwrap_or(name))?);
        }
    }
    Ok(sources)
}

/// The writer's share of the memory: what it keeps until a commit, besides the steps, which it streams.
fn writer_settings(settings: &IngestSettings) -> WriterSettings {
    let share = settings.memory_limit_bytes / 8;
    WriterSettings {
        commit_bytes: settings.commit_bytes,
        commit_interval_ms: settings.commit_interval_ms,
        buffer_bytes_max: share,
        // at most 24 bytes a row are kept of each table
        known_rows_max: usize::try_from(share / 24).unwrap_or(usize::MAX),
        ..WriterSettings::default()
    }
}

fn start_threads(
    shared: &Arc<Shared>,
    sources: Vec<Source>,
    tokenizer: Option<Arc<Tokenizer>>,
    lake: &Lake,
) -> Result<()> {
    let jobs = shared.settings.jobs;
    let (tasks, received) = sync_channel(jobs * 2);
    let received = Arc::new(Mutex::new(received));
    for number in 0..jobs {
        let (shared, received) = (Arc::clone(shared), Arc::clone(&received));
        let preparer = Preparer::new(Arc::clone(&shared.settings), tokenizer.clone());
        spawn(&format!("ingest-parse-{number}"), "parse", Arc::clone(&shared), move || {
            worker::run(&shared, &received, preparer);
        })?;
    }
    let objects = ObjectReader { runtime: tokio::runtime::Handle::current(), s3: lake.settings().s3.clone() };
    let reading = Arc::clone(shared);
    spawn("ingest-read", "read", Arc::clone(shared), move || {
        Dispatcher::new(&reading, tasks, objects).run(&sources);
    })
}

/// A thread whose panic ends the ingest instead of leaving it waiting.
fn spawn(name: &str, stage: &'static str, shared: Arc<Shared>, body: impl FnOnce() + Send + 'static) -> Result<()> {
    let guarded = move || {
        if catch_unwind(AssertUnwindSafe(body)).is_err() {
            // nobody is left to be told if this cannot be delivered
            drop(shared.deliver(0, Outcome::Failed(Box::new(Error::WorkerPanicked { stage }))));
        }
    };
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(guarded);
    started.map(drop).map_err(|source| Error::Read { source_name: format!("thread {name}"), byte_offset: 0, source })
}

pub(crate) fn now_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
