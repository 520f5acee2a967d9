//! Trajectories, their rewards and where they came from.

use std::collections::HashMap;

use arrow::array::{Array, Int32Array, Int64Array, RecordBatch, StringArray};
use dressage_schemas::Table;
use dressage_schemas::ids::TrajectoryKey;
use xxhash_rust::xxh3::xxh3_64;

use super::ledger::{Ledger, Tally};
use super::{Severity, for_each_batch};
use crate::error::Result;
use crate::physical::{row_addresses, typed};
use crate::scan::ScanOptions;
use crate::snapshot::Snapshot;

const T: Table = Table::Trajectories;

/// Reads all trajectory rows: keys, promises, parents, groups.
pub(super) async fn check(snapshot: &Snapshot, ledger: &mut Ledger) -> Result<()> {
    let columns = [
        "trajectory_key",
        "write_id",
        "trajectory_id",
        "run_id",
        "group_id",
        "parent_trajectory_id",
        "n_steps",
        "n_segments",
        "n_tokens",
    ];
    let mut parents: Vec<(i64, String)> = Vec::new();
    let mut groups: HashMap<(u64, u64), u32> = HashMap::new();
    for_each_batch(snapshot, T, &ScanOptions::columns(columns), ledger, |batch, ledger| {
        read_batch(batch, ledger, &mut parents, &mut groups)
    })
    .await?;
    for (key, name) in parents {
        if !ledger.keys.contains_key(&key) {
            ledger.note(
                Severity::Note,
                "missing_parent",
                T,
                || name,
                "the trajectory that spawned it was never stored; ingest it if you have it",
            );
        }
    }
    note_group_gaps(&groups, ledger);
    Ok(())
}

fn read_batch(
    batch: &RecordBatch,
    ledger: &mut Ledger,
    parents: &mut Vec<(i64, String)>,
    groups: &mut HashMap<(u64, u64), u32>,
) -> Result<()> {
    let key: &Int64Array = typed(T, batch, "trajectory_key")?;
    let write_id: &Int64Array = typed(T, batch, "write_id")?;
    let id: &StringArray = typed(T, batch, "trajectory_id")?;
    let run: &StringArray = typed(T, batch, "run_id")?;
    let group: &StringArray = typed(T, batch, "group_id")?;
    let parent: &StringArray = typed(T, batch, "parent_trajectory_id")?;
    let n_steps: &Int32Array = typed(T, batch, "n_steps")?;
    let n_segments: &Int32Array = typed(T, batch, "n_segments")?;
    let n_tokens: &Int64Array = typed(T, batch, "n_tokens")?;
    for row in 0..batch.num_rows() {
        let (run_id, trajectory_id) = (run.value(row), id.value(row));
        let this = key.value(row);
        let name = || format!("{run_id}/{trajectory_id}");
        if TrajectoryKey::of(run_id, trajectory_id).0 != this {
            let what = "its key is not the hash of its ids: the row was damaged or written by something else";
            ledger.note(Severity::Damage, "foreign_key", T, name, what);
        }
        let identity = xxh3_64(name().as_bytes());
        let first = ledger.keys.insert(this, identity);
        match first {
            None => *groups.entry((xxh3_64(run_id.as_bytes()), xxh3_64(group.value(row).as_bytes()))).or_default() += 1,
            Some(other) if other != identity => {
                let what = "two trajectories have one key, so their steps cannot be told apart; rename one and ingest it again";
                ledger.note(Severity::Damage, "key_collision", T, name, what);
            }
            Some(_) => {}
        }
        if parent.is_valid(row) {
            parents.push((TrajectoryKey::of(run_id, parent.value(row)).0, name()));
        }
        // whole segments are one step each where the steps are not known
        let promised = if n_steps.is_valid(row) { n_steps.value(row) } else { n_segments.value(row) };
        let tally = Tally {
            steps_promised: i64::from(promised),
            tokens_promised: n_tokens.value(row),
            index_max: -1,
            ..Tally::default()
        };
        ledger.attempts.insert((this, write_id.value(row)), tally);
    }
    Ok(())
}

/// Groups of a run that have fewer members than most groups of the run.
fn note_group_gaps(groups: &HashMap<(u64, u64), u32>, ledger: &mut Ledger) {
    let mut sizes: HashMap<u64, HashMap<u32, u64>> = HashMap::new();
    for ((run, _), members) in groups {
        *sizes.entry(*run).or_default().entry(*members).or_default() += 1;
    }
    let mut short = 0;
    for counts in sizes.values() {
        let usual = counts.iter().max_by_key(|(size, n)| (**n, **size)).map_or(0, |(size, _)| *size);
        short += counts.iter().filter(|(size, _)| **size < usual).map(|(_, n)| n).sum::<u64>();
    }
    ledger.note_many(
        Severity::Note,
        "group_gap",
        T,
        short,
        "these groups have fewer trajectories than most of their run; some may not have been ingested",
    );
}

/// Rewards and log rows whose trajectory is not there, and, at last, whether each trajectory has what it promises.
pub(super) async fn check_rewards_and_log(snapshot: &Snapshot, ledger: &mut Ledger) -> Result<()> {
    for table in [Table::Rewards, Table::IngestLog] {
        let options = ScanOptions::columns(["trajectory_key", "write_id"]).with_row_address();
        for_each_batch(snapshot, table, &options, ledger, |batch, ledger| {
            let key: &Int64Array = typed(table, batch, "trajectory_key")?;
            let write_id: &Int64Array = typed(table, batch, "write_id")?;
            let addresses = row_addresses(table, batch)?;
            for row in 0..batch.num_rows() {
                let this = key.value(row);
                if write_id.is_valid(row) {
                    let attempt = (this, write_id.value(row));
                    if !ledger.attempts.contains_key(&attempt) {
                        ledger.note_orphan(table, attempt, addresses.value(row));
                    }
                } else if !ledger.keys.contains_key(&this) {
                    let what = "a verdict on a trajectory that is not stored; it takes effect when that is ingested";
                    ledger.note(Severity::Note, "reward_without_trajectory", table, || format!("{this:016x}"), what);
                }
            }
            Ok(())
        })
        .await?;
    }
    check_promises(ledger);
    Ok(())
}

fn check_promises(ledger: &mut Ledger) {
    let attempts = std::mem::take(&mut ledger.attempts);
    for ((key, _), tally) in &attempts {
        let name = || format!("trajectory {key:016x}: {tally:?}");
        if tally.steps != tally.steps_promised {
            let what = "a trajectory has fewer or more steps than it says; ingest its source again under a new run";
            ledger.note(Severity::Damage, "step_count", T, name, what);
        } else if tally.tokens != tally.tokens_promised {
            let what = "the tokens of its steps do not add up to n_tokens";
            ledger.note(Severity::Warning, "token_count", T, name, what);
        }
        let expected = tally.steps * (tally.steps - 1) / 2;
        if tally.steps > 0 && (tally.index_sum != expected || tally.index_max != tally.steps - 1) {
            ledger.note(
                Severity::Warning,
                "step_gap",
                Table::Steps,
                name,
                "step_index does not count from 0 without gaps",
            );
        }
    }
    ledger.attempts = attempts;
}
