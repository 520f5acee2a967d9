//! The committer: takes what the threads prepared, in the order of the sources, decides what is new, and gives groups
//! of rows to the store's writer.
//!
//! ```text
//!   known to the store?  same content hash ─────────────────▶ unchanged
//!                        a copy that holds more ────────────▶ updated: next revision
//!                        as much, and never seen before ────▶ updated: next revision
//!                        less (an older copy) ──────────────▶ unchanged
//!                        not known ─────────────────────────▶ new: revision 0
//! ```

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use arrow::array::StringArray;
use dressage_schemas::Table;
use dressage_schemas::ids::TrajectoryKey;
use dressage_storage::{KnownTrajectory, Lake, LakeWriter, ScanOptions};
use futures::TryStreamExt;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::flow::{Delivery, Job, Outcome};
use super::group::Group;
use super::quarantine::Quarantine;
use super::sink::strict;
use super::verdicts::Verdicts;
use crate::budget::Permit;
use crate::error::{Error, Result};
use crate::importer::{Rejected, Verdict};
use crate::prepare::Prepared;
use crate::report::IngestReport;
use crate::settings::{DEFAULT_RUN, IngestSettings};

/// A group goes to the writer at this size…
const GROUP_BYTES: u64 = 16 << 20;
/// …or with so many trajectories…
const GROUP_TRAJECTORIES: usize = 4_096;
/// …or when nothing more has come for so long: what waits here holds memory that others wait for.
const LINGER: Duration = Duration::from_millis(20);

/// Takes deliveries until the last one.
pub(crate) struct Committer<'a> {
    lake: &'a Lake,
    writer: LakeWriter,
    settings: &'a IngestSettings,
    quarantine: Quarantine,
    verdicts: Verdicts,
    pub(crate) report: IngestReport,
    /// Deliveries of pieces whose turn has not come.
    waiting: BTreeMap<u64, Vec<Outcome>>,
    next_seq: u64,
    last_seq: Option<u64>,
    group: Vec<(Prepared, Arc<Permit>)>,
    group_bytes: u64,
    /// Content hashes of all revisions of the trajectories that this ingest updated: the writer knows only the last.
    revisions: HashMap<i64, Vec<String>>,
    versions_sent: HashSet<(String, String)>,
}

impl<'a> Committer<'a> {
    pub(crate) fn new(lake: &'a Lake, writer: LakeWriter, settings: &'a IngestSettings) -> Self {
        Self {
            lake,
            writer,
            settings,
            quarantine: Quarantine::default(),
            verdicts: Verdicts::default(),
            report: IngestReport::default(),
            waiting: BTreeMap::new(),
            next_seq: 0,
            last_seq: None,
            group: Vec::new(),
            group_bytes: 0,
            revisions: HashMap::new(),
            versions_sent: HashSet::new(),
        }
    }

    /// Runs until everything is in the store. `tick` is called a few times a second.
    pub(crate) async fn run(
        mut self,
        mut deliveries: mpsc::Receiver<Delivery>,
        mut tick: impl FnMut(&IngestReport),
    ) -> Result<IngestReport> {
        let mut next_tick = Instant::now();
        while self.last_seq != Some(self.next_seq) {
            if next_tick <= Instant::now() {
                tick(&self.report);
                next_tick = Instant::now() + Duration::from_millis(200);
            }
            let has_group = !self.is_idle();
            let patience = if has_group { LINGER } else { Duration::from_millis(200) };
            match tokio::time::timeout(patience, deliveries.recv()).await {
                Ok(Some(delivery)) => self.take(delivery).await?,
                // every thread ended without the last delivery: one of them panicked
                Ok(None) => return Err(Error::WorkerPanicked { stage: "parse" }),
                Err(_) => self.flush().await?,
            }
            if self.writer.commit_due() == Some(Duration::ZERO) {
                self.flush().await?;
                self.writer.commit().await.map_err(Error::Storage)?;
            }
        }
        self.flush().await?;
        let receipt = self.writer.close().await.map_err(Error::Storage)?;
        self.report.bytes_stored = receipt.bytes_stored;
        tick(&self.report);
        Ok(self.report)
    }

    fn is_idle(&self) -> bool {
        self.group.is_empty() && self.quarantine.is_empty() && self.verdicts.is_empty()
    }

    async fn take(&mut self, delivery: Delivery) -> Result<()> {
        match delivery.outcome {
            Outcome::Failed(error) => return Err(*error),
            Outcome::LastSeq => self.last_seq = Some(delivery.seq),
            outcome if delivery.seq == self.next_seq => {
                self.outcome(outcome).await?;
                // pieces that were done before their turn
                while let Some(outcomes) = self.waiting.remove(&self.next_seq) {
                    for outcome in outcomes {
                        self.outcome(outcome).await?;
                    }
                }
            }
            outcome => self.waiting.entry(delivery.seq).or_default().push(outcome),
        }
        Ok(())
    }

    /// An outcome of the piece whose turn it is.
    async fn outcome(&mut self, outcome: Outcome) -> Result<()> {
        match outcome {
            Outcome::Done => self.next_seq += 1,
            Outcome::Prepared { prepared, permit } => {
                self.group_bytes += prepared.bytes;
                self.group.push((*prepared, permit));
            }
            Outcome::Rejected { rejected, job, permit } => self.reject(*rejected, &job, permit).await?,
            Outcome::Verdict { verdict, job } => {
                let Verdict { run_id, trajectory_id, reward, orphan } = *verdict;
                let run_id = self.settings.run.clone().or(run_id).unwrap_or_else(|| DEFAULT_RUN.to_owned());
                self.verdicts.add(&run_id, &trajectory_id, reward, orphan, job);
            }
            Outcome::Failed(error) => return Err(*error),
            Outcome::LastSeq => {}
        }
        if self.group_bytes >= GROUP_BYTES.min(self.settings.commit_bytes) || self.group.len() >= GROUP_TRAJECTORIES {
            self.flush().await?;
        }
        Ok(())
    }

    async fn reject(&mut self, rejected: Rejected, job: &Job, permit: Option<Arc<Permit>>) -> Result<()> {
        self.report.quarantined += 1;
        *self.report.quarantined_by_rule.entry(rejected.rule.to_string()).or_default() += 1;
        self.group_bytes += self.quarantine.add(self.lake, rejected, job, permit).await?;
        Ok(())
    }

    /// Decides about the trajectories that have come together, and gives their rows to the writer.
    async fn flush(&mut self) -> Result<()> {
        if self.is_idle() {
            return Ok(());
        }
        let arrived = std::mem::take(&mut self.group);
        self.group_bytes = 0;
        let mut keys: Vec<i64> = arrived.iter().map(|(p, _)| p.trajectory.trajectory_key).collect();
        keys.extend(self.verdicts.keys());
        keys.sort_unstable();
        keys.dedup();
        let known = if keys.is_empty() {
            Vec::new()
        } else {
            self.writer.known_trajectories(&keys).await.map_err(Error::Storage)?
        };
        let mut known: HashMap<i64, KnownTrajectory> = known.into_iter().map(|k| (k.trajectory_key, k)).collect();
        let now = crate::pipeline::now_micros();
        let mut group = Group::new(now);
        // permits are given back when the writer has the rows
        let mut permits = Vec::with_capacity(arrived.len());
        for (mut prepared, permit) in arrived {
            permits.push(permit);
            let row = &prepared.trajectory;
            let stored = known.get(&row.trajectory_key);
            let Some(revision) = self.revision_of(&prepared, stored).await? else {
                self.report.trajectories_unchanged += 1;
                continue;
            };
            if revision == 0 {
                self.report.trajectories_new += 1;
            } else {
                self.report.trajectories_updated += 1;
                self.revisions.entry(row.trajectory_key).or_default().push(row.content_hash.clone());
            }
            self.report.steps += prepared.steps.len() as u64;
            self.report.tokens += u64::try_from(row.n_tokens).unwrap_or(0);
            let write_id = self.writer.next_write_id();
            prepared.trajectory.revision = revision;
            prepared.trajectory.write_id = write_id.0;
            known.insert(prepared.trajectory.trajectory_key, known_of(&prepared));
            group.add(prepared, &mut self.versions_sent);
        }
        let (verdicts, orphans) = self.verdicts.drain(self.lake, &known, now).await?;
        group.add_verdicts(verdicts);
        for (orphan, job) in orphans {
            if self.settings.strict {
                return Err(strict(&job.info.name, &orphan));
            }
            self.reject(orphan, &job, None).await?;
        }
        let (quarantined, quarantine_permits) = self.quarantine.drain();
        let rows = group.into_rows(&quarantined)?;
        self.writer.append(rows).await.map_err(Error::Storage)?;
        drop((permits, quarantine_permits));
        Ok(())
    }

    /// The revision under which a trajectory is stored; none where the store has it.
    async fn revision_of(&mut self, prepared: &Prepared, stored: Option<&KnownTrajectory>) -> Result<Option<i32>> {
        let row = &prepared.trajectory;
        let Some(stored) = stored else { return Ok(Some(0)) };
        if stored.trajectory_id != row.trajectory_id || stored.run_id != row.run_id {
            return Err(Error::KeyCollision {
                key: TrajectoryKey(row.trajectory_key),
                first: format!("{} of run {}", stored.trajectory_id, stored.run_id),
                second: format!("{} of run {}", row.trajectory_id, row.run_id),
            });
        }
        if stored.content_hash == row.content_hash || row.extent < stored.extent {
            return Ok(None);
        }
        let known = match self.revisions.entry(row.trajectory_key) {
            Entry::Occupied(known) => known.into_mut(),
            // the effective revision is the only one
            Entry::Vacant(unknown) if stored.revision == 0 => unknown.insert(vec![stored.content_hash.clone()]),
            Entry::Vacant(unknown) => unknown.insert(stored_hashes(self.lake, row.trajectory_key).await?),
        };
        // two copies of one length must not overtake each other for ever
        let is_old = row.extent == stored.extent && known.contains(&row.content_hash);
        Ok(if is_old { None } else { Some(stored.revision.saturating_add(1)) })
    }
}

/// Content hashes of all stored revisions of a trajectory.
async fn stored_hashes(lake: &Lake, trajectory_key: i64) -> Result<Vec<String>> {
    let snapshot = lake.snapshot(None).await.map_err(Error::Storage)?;
    let filter = format!("trajectory_key = {trajectory_key}");
    let options = ScanOptions::columns(["content_hash"]).filter(filter);
    let mut rows = snapshot.scan(Table::Trajectories, options).await.map_err(Error::Storage)?;
    let mut found = Vec::new();
    while let Some(batch) = rows.try_next().await.map_err(Error::Storage)? {
        if let Some(hashes) = batch.column(0).as_any().downcast_ref::<StringArray>() {
            found.extend(hashes.iter().flatten().map(str::to_owned));
        }
    }
    Ok(found)
}

fn known_of(prepared: &Prepared) -> KnownTrajectory {
    let row = &prepared.trajectory;
    KnownTrajectory {
        trajectory_key: row.trajectory_key,
        trajectory_id: row.trajectory_id.clone(),
        run_id: row.run_id.clone(),
        revision: row.revision,
        extent: row.extent,
        content_hash: row.content_hash.clone(),
        write_id: row.write_id,
    }
}
