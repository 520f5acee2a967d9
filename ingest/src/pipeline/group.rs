//! The rows of one group as batches for the writer.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use dressage_schemas::tables::contents::{self, ContentRow};
use dressage_schemas::tables::ingest_log::{self, IngestLogRow};
use dressage_schemas::tables::quarantine::{self, QuarantineRow};
use dressage_schemas::tables::rewards::{self, RewardRow};
use dressage_schemas::tables::steps::{self, StepRow};
use dressage_schemas::tables::trajectories::{self, TrajectoryRow};
use dressage_schemas::tables::weight_versions::{self, WeightVersionRow};
use dressage_storage::WriteGroup;

use super::copies::{Copy, Said};
use crate::error::{Error, Result};
use crate::prepare::Prepared;
use crate::rollout::Provenance;

/// Steps go to the writer in batches of about this size: a batch is copied once on its way.
const STEP_BATCH_BYTES: usize = 8 << 20;

/// Rows that are written together.
pub(crate) struct Group {
    now: i64,
    contents: Vec<ContentRow>,
    hashes: HashSet<String>,
    weight_versions: Vec<WeightVersionRow>,
    steps: Vec<StepRow>,
    rewards: Vec<RewardRow>,
    ingest_log: Vec<IngestLogRow>,
    trajectories: Vec<TrajectoryRow>,
    /// The newest copy of each trajectory: its row, and its steps.
    newest: HashMap<i64, (usize, Range<usize>)>,
}

impl Group {
    pub(crate) fn new(now: i64) -> Self {
        Self {
            now,
            contents: Vec::new(),
            hashes: HashSet::new(),
            weight_versions: Vec::new(),
            steps: Vec::new(),
            rewards: Vec::new(),
            ingest_log: Vec::new(),
            trajectories: Vec::new(),
            newest: HashMap::new(),
        }
    }

    /// Adds a trajectory whose `write_id` and `revision` are set. `versions_sent`: what this ingest has sent before.
    pub(crate) fn add(&mut self, prepared: Prepared, versions_sent: &mut HashSet<(String, String)>) {
        let Prepared { trajectory, steps, rewards, contents, weight_versions, provenance, .. } = prepared;
        let (write_id, revision) = (trajectory.write_id, trajectory.revision);
        for row in contents {
            if self.hashes.insert(row.content_hash.clone()) {
                self.contents.push(row);
            }
        }
        for weight_version in weight_versions {
            if versions_sent.insert((trajectory.run_id.clone(), weight_version.clone())) {
                let run_id = trajectory.run_id.clone();
                // the writer gives the ordinal
                self.weight_versions.push(WeightVersionRow {
                    run_id,
                    weight_version,
                    ordinal: 0,
                    first_seen_at: self.now,
                });
            }
        }
        let first = self.steps.len();
        self.steps.extend(steps.into_iter().map(|step| StepRow { write_id, revision, ..step }));
        let visible_at = self.now;
        self.rewards.extend(rewards.into_iter().map(|r| RewardRow { write_id: Some(write_id), visible_at, ..r }));
        let outcome = if revision == 0 { "new" } else { "updated" };
        self.ingest_log.push(log_row(&trajectory, provenance, write_id, outcome, self.now));
        self.newest.insert(trajectory.trajectory_key, (self.trajectories.len(), first..self.steps.len()));
        self.trajectories.push(trajectory);
    }

    /// The newest copy of a trajectory that this group holds.
    pub(crate) fn copy(&self, trajectory_key: i64) -> Option<(&TrajectoryRow, Copy<'_>)> {
        let (row, steps) = self.newest.get(&trajectory_key)?;
        let said = Said::of(self.steps.get(steps.clone()).unwrap_or_default());
        Some((self.trajectories.get(*row)?, Copy { said, contents: &self.contents }))
    }

    /// What the log says of this group so far.
    pub(crate) fn logged(&self) -> &[IngestLogRow] {
        &self.ingest_log
    }

    /// Adds traces of trajectories that are stored already.
    pub(crate) fn add_traces(&mut self, rows: Vec<IngestLogRow>) {
        self.ingest_log.extend(rows);
    }

    /// Adds verdicts that came after their trajectories.
    pub(crate) fn add_verdicts(&mut self, verdicts: Vec<RewardRow>) {
        self.rewards.extend(verdicts);
    }

    /// The batches of all tables.
    pub(crate) fn into_rows(self, quarantined: &[QuarantineRow]) -> Result<WriteGroup> {
        let mut step_batches = Vec::new();
        let mut rest = self.steps;
        while !rest.is_empty() {
            let mut bytes = 0;
            let count = rest.iter().take_while(|step| {
                let fits = bytes < STEP_BATCH_BYTES;
                bytes += payload_bytes(step);
                fits
            });
            let tail = rest.split_off(count.count());
            step_batches.push(built("steps", steps::batch(&rest))?);
            rest = tail;
        }
        Ok(WriteGroup {
            contents: some("contents", &self.contents, contents::batch)?,
            weight_versions: some("weight_versions", &self.weight_versions, weight_versions::batch)?,
            steps: step_batches,
            rewards: some("rewards", &self.rewards, rewards::batch)?,
            quarantine: some("quarantine", quarantined, quarantine::batch)?,
            ingest_log: some("ingest_log", &self.ingest_log, ingest_log::batch)?,
            trajectories: some("trajectories", &self.trajectories, trajectories::batch)?,
        })
    }
}

/// One trajectory as read from one place.
pub(crate) fn log_row(
    trajectory: &TrajectoryRow,
    provenance: Provenance,
    write_id: i64,
    outcome: &str,
    logged_at: i64,
) -> IngestLogRow {
    let length = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let has_bytes = !provenance.record_hash.is_empty();
    IngestLogRow {
        trajectory_key: trajectory.trajectory_key,
        write_id,
        source: trajectory.source.clone(),
        format: trajectory.format.clone(),
        byte_offset: length(provenance.byte_offset),
        byte_length: length(provenance.byte_length),
        // rows of a table have no bytes of their own: what they say stands for them
        record_hash: if has_bytes { provenance.record_hash } else { trajectory.content_hash.clone() },
        outcome: outcome.to_owned(),
        logged_at,
    }
}

fn payload_bytes(step: &StepRow) -> usize {
    [&step.token_ids, &step.logprobs, &step.routed_experts].into_iter().flatten().map(Vec::len).sum()
}

fn built(table: &'static str, batch: std::result::Result<RecordBatch, ArrowError>) -> Result<RecordBatch> {
    batch.map_err(|source| Error::Rows { table, source })
}

fn some<R>(
    table: &'static str,
    rows: &[R],
    batch: fn(&[R]) -> std::result::Result<RecordBatch, ArrowError>,
) -> Result<Option<RecordBatch>> {
    if rows.is_empty() { Ok(None) } else { built(table, batch(rows)).map(Some) }
}
