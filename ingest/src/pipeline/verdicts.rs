//! Verdicts that come after their trajectory: rows of `rewards` without a write id, each once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::array::{Array, Float64Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use dressage_schemas::Table;
use dressage_schemas::ids::TrajectoryKey;
use dressage_schemas::tables::rewards::RewardRow;
use dressage_storage::{KnownTrajectory, Lake, ScanOptions};
use futures::TryStreamExt;
use xxhash_rust::xxh3::xxh3_128;

use super::flow::Job;
use crate::error::{Error, Result};
use crate::importer::Rejected;
use crate::prepare::rows::reward_row;
use crate::rollout::RolloutReward;
use crate::rule;

/// `rewards.stage` of a verdict that came later than its trajectory.
const STAGE_LATER: &str = "later";

/// Keys in one question to the store.
const KEYS_PER_QUERY: usize = 512;

/// A verdict that waits for the next group.
struct Waiting {
    trajectory_key: i64,
    reward: RolloutReward,
    /// What becomes of it if its trajectory is not there.
    orphan: Rejected,
    job: Arc<Job>,
}

/// Verdicts of the group that is being made.
#[derive(Default)]
pub(crate) struct Verdicts {
    waiting: Vec<Waiting>,
    /// What this ingest has sent, stored or not yet.
    sent: HashSet<u128>,
}

impl Verdicts {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn add(
        &mut self,
        run_id: &str,
        trajectory_id: &str,
        reward: RolloutReward,
        orphan: Rejected,
        job: Arc<Job>,
    ) {
        let trajectory_key = TrajectoryKey::of(run_id, trajectory_id).0;
        self.waiting.push(Waiting { trajectory_key, reward, orphan, job });
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = i64> + '_ {
        self.waiting.iter().map(|v| v.trajectory_key)
    }

    /// The rows that the store does not have, and the verdicts whose trajectory it does not have.
    pub(crate) async fn drain(
        &mut self,
        lake: &Lake,
        known: &HashMap<i64, KnownTrajectory>,
        refused: &HashSet<(i64, String)>,
        now: i64,
    ) -> Result<(Vec<RewardRow>, Vec<(Rejected, Arc<Job>)>)> {
        let waiting = std::mem::take(&mut self.waiting);
        let (mut fresh, mut orphans) = (Vec::new(), Vec::new());
        for mut verdict in waiting {
            // its trajectory went to quarantine; the one of that name in the store is another one
            if !refused.is_empty() && refused.contains(&(verdict.trajectory_key, verdict.job.info.name.clone())) {
                verdict.orphan.rule = rule::ID_CONFLICT.into();
                verdict.orphan.reason =
                    "a verdict on a trajectory of this source that went to quarantine for its id".to_owned();
                orphans.push((verdict.orphan, verdict.job));
                continue;
            }
            if !known.contains_key(&verdict.trajectory_key) {
                orphans.push((verdict.orphan, verdict.job));
                continue;
            }
            let row = reward_row(verdict.reward, verdict.trajectory_key);
            let row = RewardRow { stage: STAGE_LATER.to_owned(), visible_at: now, ..row };
            if self.sent.insert(identity(&row)) {
                fresh.push(row);
            }
        }
        let mut keys: Vec<i64> = fresh.iter().map(|r| r.trajectory_key).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut stored = HashSet::new();
        for keys in keys.chunks(KEYS_PER_QUERY) {
            stored.extend(stored_verdicts(lake, keys).await?);
        }
        fresh.retain(|row| !stored.contains(&identity(row)));
        Ok((fresh, orphans))
    }
}

/// What makes two verdicts the same: everything but when they were stored.
fn identity(row: &RewardRow) -> u128 {
    let mut bytes = row.trajectory_key.to_le_bytes().to_vec();
    let value = row.value.map(|v| v.to_bits().to_string());
    let graded_at = row.graded_at.map(|t| t.to_string());
    for text in [
        Some(&row.grader),
        Some(&row.stage),
        value.as_ref(),
        graded_at.as_ref(),
        row.parts.as_ref(),
        row.detail.as_ref(),
    ] {
        let length = text.map_or(u64::MAX, |t| t.len() as u64);
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(text.map(String::as_bytes).unwrap_or_default());
    }
    xxh3_128(&bytes)
}

async fn stored_verdicts(lake: &Lake, keys: &[i64]) -> Result<Vec<u128>> {
    let list: Vec<String> = keys.iter().map(i64::to_string).collect();
    let filter = format!("trajectory_key IN ({}) AND write_id IS NULL", list.join(","));
    let columns = ["trajectory_key", "grader", "stage", "value", "parts", "graded_at", "detail"];
    let snapshot = lake.snapshot(None).await.map_err(Error::Storage)?;
    let options = ScanOptions::columns(columns).filter(filter);
    let mut batches = snapshot.scan(Table::Rewards, options).await.map_err(Error::Storage)?;
    let mut found = Vec::new();
    while let Some(batch) = batches.try_next().await.map_err(Error::Storage)? {
        found.extend(rows_of(&batch).iter().map(identity));
    }
    Ok(found)
}

fn rows_of(batch: &RecordBatch) -> Vec<RewardRow> {
    let text = |name: &str, row: usize| {
        let array = batch.column_by_name(name)?.as_any().downcast_ref::<StringArray>()?;
        array.is_valid(row).then(|| array.value(row).to_owned())
    };
    let column = |name: &str| batch.column_by_name(name).map(|c| c.as_any());
    let key = column("trajectory_key").and_then(|c| c.downcast_ref::<Int64Array>());
    let value = column("value").and_then(|c| c.downcast_ref::<Float64Array>());
    let graded = column("graded_at").and_then(|c| c.downcast_ref::<TimestampMicrosecondArray>());
    let row = |row: usize| RewardRow {
        trajectory_key: key.map_or(0, |k| k.value(row)),
        grader: text("grader", row).unwrap_or_default(),
        stage: text("stage", row).unwrap_or_default(),
        value: value.filter(|v| v.is_valid(row)).map(|v| v.value(row)),
        parts: text("parts", row),
        graded_at: graded.filter(|g| g.is_valid(row)).map(|g| g.value(row)),
        detail: text("detail", row),
        ..RewardRow::default()
    };
    (0..batch.num_rows()).map(row).collect()
}
