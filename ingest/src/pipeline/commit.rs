//! The committer: takes what the threads prepared, in the order of the sources, decides what is new, and gives groups
//! of rows to the store's writer.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use dressage_storage::{KnownTrajectory, Lake, LakeWriter, MetTrajectory};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::copies::{Copy, Kinship, kinship};
use super::decide::{self, Decider, Decision};
use super::flow::{Delivery, Outcome};
use super::group::{Group, log_row};
use super::quarantine::{Quarantine, ReadFrom};
use super::sink::strict;
use super::stored;
use super::traces::Traces;
use super::verdicts::Verdicts;
use crate::budget::Permit;
use crate::error::{Error, Result};
use crate::importer::{Rejected, Verdict};
use crate::prepare::Prepared;
use crate::report::IngestReport;
use crate::rule;
use crate::settings::{DEFAULT_RUN, IngestSettings};

/// A group goes to the writer at this size…
const GROUP_BYTES: u64 = 16 << 20;
/// …or with so many trajectories…
const GROUP_TRAJECTORIES: usize = 4_096;
/// …or when nothing more has come for so long: what waits here holds memory that others wait for.
const LINGER: Duration = Duration::from_millis(20);
/// An ingest that was asked to stop waits so long for what the threads have in hand; a thread may be waiting for a pipe
/// into which nobody writes.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// Takes deliveries until the last one.
pub(crate) struct Committer<'a> {
    lake: &'a Lake,
    writer: LakeWriter,
    settings: &'a IngestSettings,
    quarantine: Quarantine,
    verdicts: Verdicts,
    traces: Traces,
    decider: Decider,
    /// Trajectories that went to quarantine for their id, by the source they came from.
    refused: HashSet<(i64, String)>,
    pub(crate) report: IngestReport,
    /// Deliveries of pieces whose turn has not come.
    waiting: BTreeMap<u64, Vec<Outcome>>,
    next_seq: u64,
    last_seq: Option<u64>,
    group: Vec<(Prepared, Arc<Permit>)>,
    group_bytes: u64,
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
            traces: Traces::default(),
            decider: Decider::default(),
            refused: HashSet::new(),
            report: IngestReport::default(),
            waiting: BTreeMap::new(),
            next_seq: 0,
            last_seq: None,
            group: Vec::new(),
            group_bytes: 0,
            versions_sent: HashSet::new(),
        }
    }

    /// Runs until everything is in the store, or `stop` is done and all that was read by then is. `tick` is called a few
    /// times a second.
    pub(crate) async fn run(
        mut self,
        mut deliveries: mpsc::Receiver<Delivery>,
        mut tick: impl FnMut(&IngestReport),
        stop: impl Future<Output = ()>,
    ) -> Result<IngestReport> {
        let mut stop = pin!(stop);
        let mut last_arrival = Instant::now();
        let mut next_tick = Instant::now();
        while self.last_seq != Some(self.next_seq) {
            if next_tick <= Instant::now() {
                tick(&self.report);
                next_tick = Instant::now() + Duration::from_millis(200);
            }
            let has_group = !self.is_idle();
            let patience = if has_group { LINGER } else { Duration::from_millis(200) };
            tokio::select! {
                () = &mut stop, if !self.report.stopped => {
                    self.report.stopped = true;
                    last_arrival = Instant::now();
                }
                arrival = tokio::time::timeout(patience, deliveries.recv()) => match arrival {
                    Ok(Some(delivery)) => {
                        last_arrival = Instant::now();
                        self.take(delivery).await?;
                    }
                    // every thread ended without the last delivery: one of them panicked
                    Ok(None) => return Err(Error::WorkerPanicked { stage: "parse" }),
                    Err(_) => self.flush().await?,
                }
            }
            if self.report.stopped && last_arrival.elapsed() > STOP_PATIENCE {
                self.take_waiting().await?;
                break;
            }
            if self.writer.commit_due() == Some(Duration::ZERO) {
                self.flush().await?;
                self.writer.commit().await.map_err(Error::Storage)?;
            }
            self.settle().await?;
        }
        self.flush().await?;
        self.writer.commit().await.map_err(Error::Storage)?;
        self.settle().await?;
        self.flush().await?;
        let receipt = self.writer.close().await.map_err(Error::Storage)?;
        self.report.bytes_stored = receipt.bytes_stored;
        tick(&self.report);
        Ok(self.report)
    }

    fn is_idle(&self) -> bool {
        self.group.is_empty() && self.quarantine.is_empty() && self.verdicts.is_empty() && self.traces.is_empty()
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

    /// What is whole of the pieces after one that does not end.
    async fn take_waiting(&mut self) -> Result<()> {
        for outcome in std::mem::take(&mut self.waiting).into_values().flatten() {
            self.outcome(outcome).await?;
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
            Outcome::Rejected { rejected, job, permit } => self.reject(*rejected, ReadFrom::job(&job), permit).await?,
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

    async fn reject(&mut self, rejected: Rejected, from: ReadFrom<'_>, permit: Option<Arc<Permit>>) -> Result<()> {
        self.report.quarantined += 1;
        *self.report.quarantined_by_rule.entry(rejected.rule.to_string()).or_default() += 1;
        self.group_bytes += self.quarantine.add(self.lake, rejected, from, permit).await?;
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
        let copies = arrived.iter().map(|(prepared, _)| prepared);
        let mut compared = decide::compare(self.lake, &mut self.writer, copies, &known).await?;
        let now = crate::pipeline::now_micros();
        let mut group = Group::new(now);
        // permits are given back when the writer has the rows
        let mut permits = Vec::with_capacity(arrived.len());
        for (index, (mut prepared, permit)) in arrived.into_iter().enumerate() {
            permits.push(permit);
            let row = &prepared.trajectory;
            let stored = known.get(&row.trajectory_key);
            let decision = self.decider.decide(self.lake, (index, &prepared), stored, &mut compared, &group).await?;
            let revision = match decision {
                Decision::Store(revision) => revision,
                Decision::Unchanged(write_id) => {
                    self.report.trajectories_unchanged += 1;
                    self.traces.note(log_row(row, prepared.provenance, write_id, "unchanged", now));
                    continue;
                }
                Decision::Conflict(reason) => {
                    self.refuse(prepared, reason).await?;
                    continue;
                }
            };
            if revision == 0 {
                self.report.trajectories_new += 1;
            } else {
                self.report.trajectories_updated += 1;
            }
            self.report.steps += prepared.steps.len() as u64;
            self.report.tokens += u64::try_from(row.n_tokens).unwrap_or(0);
            let write_id = self.writer.next_write_id();
            prepared.trajectory.revision = revision;
            prepared.trajectory.write_id = write_id.0;
            known.insert(prepared.trajectory.trajectory_key, known_of(&prepared));
            group.add(prepared, &mut self.versions_sent);
        }
        let (verdicts, orphans) = self.verdicts.drain(self.lake, &known, &self.refused, now).await?;
        group.add_verdicts(verdicts);
        for (orphan, job) in orphans {
            if self.settings.strict {
                return Err(strict(&job.info.name, &orphan));
            }
            self.reject(orphan, ReadFrom::job(&job), None).await?;
        }
        let rows_max = self.settings.traces_max();
        self.traces.written(group.logged(), rows_max);
        group.add_traces(self.traces.drain(self.lake, rows_max).await?);
        let (quarantined, quarantine_permits) = self.quarantine.drain();
        let rows = group.into_rows(&quarantined)?;
        self.writer.append(rows).await.map_err(Error::Storage)?;
        drop((permits, quarantine_permits));
        Ok(())
    }

    /// A trajectory whose id another one has. Its bytes are not at hand any more: the place says where they are.
    async fn refuse(&mut self, prepared: Prepared, reason: String) -> Result<()> {
        let Prepared { trajectory: row, provenance: place, .. } = prepared;
        let rejected = Rejected {
            byte_offset: place.byte_offset,
            byte_length: place.byte_length,
            line: place.line,
            trajectory_id: Some(row.trajectory_id),
            rule: rule::ID_CONFLICT.into(),
            reason,
            raw: Vec::new(),
        };
        if self.settings.strict {
            return Err(strict(&row.source, &rejected));
        }
        self.refused.insert((row.trajectory_key, row.source.clone()));
        let from = ReadFrom { source: &row.source, format: &row.format, content_hash: Some(&row.content_hash) };
        self.reject(rejected, from, None).await
    }

    /// What other writers committed under the same names meanwhile: the same content, a longer copy, or another
    /// trajectory. Of the latter two, readers see one; the other one is named in quarantine.
    async fn settle(&mut self) -> Result<()> {
        for met in self.writer.take_met() {
            let conflict = self.conflict_with(&met).await?;
            if conflict.is_none() && met.ours.content_hash != met.theirs.content_hash {
                continue;
            }
            let left_out = conflict.is_some() && !met.ours_is_effective();
            if conflict.is_none() || left_out {
                let counted = if met.ours.revision == 0 {
                    &mut self.report.trajectories_new
                } else {
                    &mut self.report.trajectories_updated
                };
                *counted = counted.saturating_sub(1);
            }
            match conflict {
                None => self.report.trajectories_unchanged += 1,
                Some((rejected, head, content_hash)) => {
                    let from = ReadFrom {
                        source: &head.source,
                        format: &head.format,
                        content_hash: Some(content_hash.as_str()),
                    };
                    self.reject(rejected, from, None).await?;
                }
            }
        }
        Ok(())
    }

    /// The one of two trajectories that readers do not see, where it is not a copy of the other one.
    async fn conflict_with(&self, met: &MetTrajectory) -> Result<Option<(Rejected, stored::Head, String)>> {
        let (kept, lost) = if met.ours_is_effective() { (&met.ours, &met.theirs) } else { (&met.theirs, &met.ours) };
        if kept.content_hash == lost.content_hash {
            return Ok(None);
        }
        let attempt = |known: &KnownTrajectory| (known.trajectory_key, known.write_id);
        let both = HashSet::from([attempt(kept), attempt(lost)]);
        let snapshot = self.lake.snapshot(None).await.map_err(Error::Storage)?;
        let mut said = stored::said(&snapshot, &both).await?;
        let mut copy = |known| Copy { said: said.remove(&attempt(known)).unwrap_or_default(), contents: &[] };
        let (kept_copy, lost_copy) = (copy(kept), copy(lost));
        let kinship = kinship(&snapshot, &lost_copy, &kept_copy).await?;
        let mut heads = stored::heads(&snapshot, &both).await?;
        let mut head = |known| heads.remove(&attempt(known)).unwrap_or_default();
        let (kept_head, lost_head) = (head(kept), head(lost));
        let alike = kept_head.format == lost_head.format && kept_head.instance_id == lost_head.instance_id;
        if !(kinship == Kinship::Stranger || kinship == Kinship::Silent && !alike) {
            return Ok(None);
        }
        let place = stored::logged(&snapshot, attempt(lost)).await?.into_iter().next().unwrap_or_default();
        let rejected = Rejected {
            byte_offset: place.byte_offset,
            byte_length: place.byte_length,
            line: None,
            trajectory_id: Some(lost.trajectory_id.clone()),
            rule: rule::ID_CONFLICT.into(),
            reason: decide::conflict(&lost.trajectory_id, &lost.run_id, &lost_head, &kept_head),
            raw: Vec::new(),
        };
        Ok(Some((rejected, lost_head, lost.content_hash.clone())))
    }
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
