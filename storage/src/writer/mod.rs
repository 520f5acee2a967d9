//! A writer: takes groups of rows, streams steps to data files as they come, and commits everything else with them in
//! groups, `trajectories` last.
//!
//! ```text
//!   append(group) ─▶ checks ─┬─ steps ───────────▶ data files at once (bounded memory), not yet visible
//!                            └─ all other tables ▶ kept until the commit (bounded by buffer_bytes_max)
//!   commit: contents ▶ weight_versions ▶ steps ▶ rewards ▶ quarantine ▶ ingest_log ▶ trajectories
//!           each: write data files ▶ flush ▶ conditional put of the manifest ▶ fence
//! ```
//!
//! A crash anywhere leaves rows of earlier tables that no `trajectories` row names: they are never seen, and
//! `dressage store check --repair` removes them.

pub(crate) mod commit;
mod fence;
mod in_flight;
mod known;
mod seen;
mod step_stream;
mod weight_versions;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use dressage_schemas::Table;
use dressage_schemas::ids::WriteId;
use serde::{Deserialize, Serialize};

pub use known::{KnownTrajectory, MetTrajectory};

use crate::door;
use crate::error::{Error, Result};
use crate::lake::Lake;
use crate::retry::random;
use commit::Group;
use in_flight::Commits;
use known::KnownRows;
use step_stream::StepStream;

/// When a writer commits, and how much it may hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WriterSettings {
    /// Commit after so many bytes (as in memory). Larger groups mean fewer, larger files and fewer versions; rows
    /// are seen, and acknowledged, later.
    pub commit_bytes: u64,
    /// Commit when the oldest uncommitted row is this old. Looked at on each `append`; a caller that may fall silent
    /// asks `commit_due` how long it may wait.
    pub commit_interval_ms: u64,
    /// Commit early when the rows that are not steps take so much memory.
    pub buffer_bytes_max: u64,
    /// Keys and content hashes of stored rows are kept in memory up to this many rows of each table; beyond, the
    /// store is asked each time.
    pub known_rows_max: usize,
    /// On `close`, look-up indexes are brought up to date if so many rows came in since.
    pub index_rows_min: usize,
}

impl Default for WriterSettings {
    fn default() -> Self {
        Self {
            commit_bytes: 256 << 20,
            commit_interval_ms: 30_000,
            buffer_bytes_max: 32 << 20,
            known_rows_max: 1_000_000,
            index_rows_min: 50_000,
        }
    }
}

/// Rows that belong together. Batches have the logical schemas of `schemas`. All batches of the group are committed
/// in one go, so that a trajectory row never becomes visible before what it names; a trajectory's steps may also come
/// in earlier groups of the same writer.
#[derive(Debug, Clone, Default)]
pub struct WriteGroup {
    /// Messages, tool schemas, files. Rows that are stored already are dropped here.
    pub contents: Option<RecordBatch>,
    /// Versions in the order of first observation; `ordinal` is assigned at commit, known ones are dropped.
    pub weight_versions: Option<RecordBatch>,
    /// Steps, in as many batches as is convenient.
    pub steps: Vec<RecordBatch>,
    /// Verdicts.
    pub rewards: Option<RecordBatch>,
    /// Refused records.
    pub quarantine: Option<RecordBatch>,
    /// Where rows came from.
    pub ingest_log: Option<RecordBatch>,
    /// The trajectories that become visible.
    pub trajectories: Option<RecordBatch>,
}

impl WriteGroup {
    fn batches(&self) -> impl Iterator<Item = (Table, &RecordBatch)> {
        let single = [
            (Table::Contents, self.contents.as_ref()),
            (Table::WeightVersions, self.weight_versions.as_ref()),
            (Table::Rewards, self.rewards.as_ref()),
            (Table::Quarantine, self.quarantine.as_ref()),
            (Table::IngestLog, self.ingest_log.as_ref()),
            (Table::Trajectories, self.trajectories.as_ref()),
        ];
        let single = single.into_iter().filter_map(|(table, batch)| Some((table, batch?)));
        single.chain(self.steps.iter().map(|b| (Table::Steps, b)))
    }
}

/// What was made durable.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CommitReceipt {
    /// Newest version of each table that was written.
    pub versions: BTreeMap<String, u64>,
    /// Rows added to each table.
    pub rows: BTreeMap<String, u64>,
    /// Bytes of the data files and blob files written.
    pub bytes_stored: u64,
    /// How many commits of groups.
    pub commits: u64,
}

impl CommitReceipt {
    fn add(&mut self, other: &Self) {
        for (table, version) in &other.versions {
            self.versions.insert(table.clone(), *version);
        }
        for (table, rows) in &other.rows {
            *self.rows.entry(table.clone()).or_default() += rows;
        }
        self.bytes_stored += other.bytes_stored;
        self.commits += other.commits;
    }

    /// What came in after `before`, which becomes a copy of this.
    fn since(&self, before: &mut Self) -> Self {
        let versions = self.versions.iter().filter(|(t, v)| before.versions.get(*t) != Some(v));
        let rows = self.rows.iter().map(|(t, n)| (t.clone(), n - before.rows.get(t).copied().unwrap_or(0)));
        let out = Self {
            versions: versions.map(|(t, v)| (t.clone(), *v)).collect(),
            rows: rows.filter(|(_, n)| *n > 0).collect(),
            bytes_stored: self.bytes_stored - before.bytes_stored,
            commits: self.commits - before.commits,
        };
        before.clone_from(self);
        out
    }
}

/// Writes to a store. One per thread of work; any number may be open on a store.
pub struct LakeWriter {
    lake: Lake,
    settings: WriterSettings,
    group: Group,
    commits: Commits,
    pending_bytes: u64,
    buffered_bytes: u64,
    oldest_pending: Option<Instant>,
    next_write_id: i64,
    known: KnownRows,
    totals: CommitReceipt,
    /// What `commit` has told of `totals`.
    reported: CommitReceipt,
    broken: bool,
}

impl std::fmt::Debug for LakeWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("LakeWriter");
        out.field("uri", &self.lake.uri()).field("pending_bytes", &self.pending_bytes).finish_non_exhaustive()
    }
}

impl LakeWriter {
    pub(crate) fn new(lake: Lake, settings: WriterSettings) -> Self {
        Self {
            known: KnownRows::new(settings.known_rows_max),
            lake,
            settings,
            group: Group::default(),
            commits: Commits::default(),
            pending_bytes: 0,
            buffered_bytes: 0,
            oldest_pending: None,
            // 62 random bits: room to count up without ever turning negative
            next_write_id: (random() >> 2) as i64,
            totals: CommitReceipt::default(),
            reported: CommitReceipt::default(),
            broken: false,
        }
    }

    /// An id for one attempt to write one trajectory; never given twice.
    pub fn next_write_id(&mut self) -> WriteId {
        let id = self.next_write_id;
        self.next_write_id += 1;
        WriteId(id)
    }

    /// Takes rows. They are neither visible nor durable before a commit. One is begun in here when size or age asks
    /// for it, and goes on beside the rows that come next: files are flushed while the next ones are encoded. At most
    /// one is under way; a second one waits for it.
    ///
    /// # Errors
    /// `Invalid` where a row breaks a rule: then nothing of the group was taken and the writer goes on. Any other
    /// error, which may be one of a commit that was begun earlier, ends the writer: everything since the last commit
    /// that [`totals`](Self::totals) counts must be written again by a new one.
    ///
    /// # Cancel safety
    /// Not cancel safe: dropping the future may lose part of the group. Drop the writer then.
    pub async fn append(&mut self, group: WriteGroup) -> Result<()> {
        self.check_usable()?;
        for (table, batch) in group.batches() {
            door::check(table, batch)?;
        }
        let taken = self.take_in(group).await;
        self.broken |= taken.is_err();
        taken?;
        let too_old = self.commit_due() == Some(Duration::ZERO);
        if too_old
            || self.pending_bytes >= self.settings.commit_bytes
            || self.buffered_bytes >= self.settings.buffer_bytes_max
        {
            let begun = self.begin_commit().await;
            self.broken |= begun.is_err();
            begun?;
        }
        Ok(())
    }

    /// Hands what is pending to a commit of its own, after the one that is under way.
    async fn begin_commit(&mut self) -> Result<()> {
        self.finish_commits().await?;
        if self.oldest_pending.take().is_some() {
            self.commits.begin(self.lake.clone(), std::mem::take(&mut self.group));
            self.known.commit_begun();
            self.pending_bytes = 0;
            self.buffered_bytes = 0;
        }
        Ok(())
    }

    /// Waits for the commit that is under way.
    async fn finish_commits(&mut self) -> Result<CommitReceipt> {
        let (receipt, trajectories) = self.commits.finish().await?;
        if receipt.commits > 0 {
            self.totals.add(&receipt);
            self.known.committed(&self.lake, trajectories.as_ref()).await?;
        }
        Ok(receipt)
    }

    async fn take_in(&mut self, group: WriteGroup) -> Result<()> {
        let WriteGroup { contents, weight_versions, steps, rewards, quarantine, ingest_log, trajectories } = group;
        if let Some(contents) = contents {
            let fresh = self.known.drop_stored_contents(&self.lake, contents).await?;
            self.keep(Table::Contents, fresh);
        }
        for batch in steps.into_iter().filter(|b| b.num_rows() > 0) {
            self.note_pending(bytes_of(&batch), false);
            let stream = match &mut self.group.steps {
                Some(stream) => stream,
                none => none.insert(StepStream::open(&self.lake).await?),
            };
            stream.send(&batch).await?;
        }
        if let Some(batch) = &trajectories {
            self.known.note_pending(batch)?;
        }
        let others = [
            (Table::WeightVersions, weight_versions),
            (Table::Rewards, rewards),
            (Table::Quarantine, quarantine),
            (Table::IngestLog, ingest_log),
            (Table::Trajectories, trajectories),
        ];
        for (table, batch) in others {
            if let Some(batch) = batch {
                self.keep(table, batch);
            }
        }
        Ok(())
    }

    fn keep(&mut self, table: Table, batch: RecordBatch) {
        if batch.num_rows() > 0 {
            self.note_pending(bytes_of(&batch), true);
            self.group.others.entry(table).or_default().push(batch);
        }
    }

    fn note_pending(&mut self, bytes: u64, buffered: bool) {
        self.pending_bytes += bytes;
        if buffered {
            self.buffered_bytes += bytes;
        }
        self.oldest_pending.get_or_insert_with(Instant::now);
    }

    /// How long uncommitted rows may still wait; none where there are none.
    pub fn commit_due(&self) -> Option<Duration> {
        let oldest = self.oldest_pending?;
        Some(Duration::from_millis(self.settings.commit_interval_ms).saturating_sub(oldest.elapsed()))
    }

    /// Bytes taken since the last commit.
    pub fn pending_bytes(&self) -> u64 {
        self.pending_bytes
    }

    /// What all commits so far made durable.
    pub fn totals(&self) -> &CommitReceipt {
        &self.totals
    }

    /// Makes everything taken so far durable and visible. The receipt is of everything that became so since the last
    /// call.
    ///
    /// # Errors
    /// Any error ends the writer: everything since the last successful commit must be written again by a new one.
    /// `Corrupt` where the store was found to ignore conditional writes.
    ///
    /// # Cancel safety
    /// Not cancel safe: a commit that is dropped may still become visible up to some table; trajectories are last.
    pub async fn commit(&mut self) -> Result<CommitReceipt> {
        self.check_usable()?;
        let done = self.commit_all().await;
        self.broken |= done.is_err();
        done
    }

    async fn commit_all(&mut self) -> Result<CommitReceipt> {
        let idle = self.oldest_pending.is_none();
        self.begin_commit().await?;
        self.finish_commits().await?;
        if idle {
            // a store that began to lie since the last commit is found even where there is nothing to write
            self.commits.verify(&self.lake).await?;
        }
        Ok(self.totals.since(&mut self.reported))
    }

    /// Commits, checks the fence a last time, brings indexes up to date where many rows came in, and says what was
    /// made durable over the writer's whole life.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub async fn close(mut self) -> Result<CommitReceipt> {
        self.commit().await?;
        self.commits.verify(&self.lake).await?;
        crate::index::refresh_if_stale(&self.lake, self.settings.index_rows_min).await?;
        Ok(self.totals)
    }

    fn check_usable(&self) -> Result<()> {
        if self.broken { Err(Error::WriterBroken) } else { Ok(()) }
    }
}

/// Bytes of the rows of a batch, not of the buffers that it may share with others.
fn bytes_of(batch: &RecordBatch) -> u64 {
    batch.columns().iter().map(|c| c.to_data().get_slice_memory_size().unwrap_or(0) as u64).sum()
}
