//! Plans: rows that no plan names, and tagged snapshots of plans that never came to be.

use std::collections::HashSet;

use arrow::array::{Int64Array, RecordBatch, StringArray};
use dressage_schemas::Table;

use super::ledger::Ledger;
use super::{Severity, for_each_batch};
use crate::error::Result;
use crate::maintain::snapshots;
use crate::physical::{row_addresses, typed};
use crate::plans::TAG_PREFIX;
use crate::scan::ScanOptions;
use crate::snapshot::Snapshot;

/// What interrupted planners left, old enough to be removed.
#[derive(Debug, Default)]
pub(super) struct PlanLeftovers {
    /// Attempts at plans, by `plan_write_id`.
    pub(super) writes: HashSet<i64>,
    /// Plans of which only `streamed` rows are left.
    pub(super) streamed: HashSet<String>,
    /// Tags of snapshots.
    pub(super) tags: HashSet<String>,
}

/// Reads the three tables. `written_before` says how old a snapshot must be to count as left over.
pub(super) async fn check(snapshot: &Snapshot, written_before: i64, ledger: &mut Ledger) -> Result<()> {
    let mut plans: HashSet<String> = HashSet::new();
    let mut attempts: HashSet<i64> = HashSet::new();
    let columns = ScanOptions::columns(["plan_id", "plan_write_id"]);
    for_each_batch(snapshot, Table::Plans, &columns, ledger, |batch, _| {
        let (id, write) = ids(Table::Plans, batch)?;
        plans.extend((0..batch.num_rows()).map(|row| id.value(row).to_owned()));
        attempts.extend(write.values());
        Ok(())
    })
    .await?;
    let mut found = PlanLeftovers::default();
    let options = columns.with_row_address();
    for_each_batch(snapshot, Table::Batches, &options, ledger, |batch, ledger| {
        let (id, write) = ids(Table::Batches, batch)?;
        let addresses = row_addresses(Table::Batches, batch)?;
        for row in 0..batch.num_rows() {
            let this = write.value(row);
            if !attempts.contains(&this) && ledger.ages.is_old(Table::Batches, addresses.value(row)) {
                found.writes.insert(this);
                let name = || format!("plan {}, write {this:016x}", id.value(row));
                ledger.note(Severity::Leftover, "orphan", Table::Batches, name, WHAT);
            }
        }
        Ok(())
    })
    .await?;
    let options = ScanOptions::columns(["plan_id"]).with_row_address();
    for_each_batch(snapshot, Table::Streamed, &options, ledger, |batch, ledger| {
        let id: &StringArray = typed(Table::Streamed, batch, "plan_id")?;
        let addresses = row_addresses(Table::Streamed, batch)?;
        for row in 0..batch.num_rows() {
            let plan = id.value(row);
            if !plans.contains(plan) && ledger.ages.is_old(Table::Streamed, addresses.value(row)) {
                found.streamed.insert(plan.to_owned());
                ledger.note(Severity::Leftover, "orphan", Table::Streamed, || format!("plan {plan}"), WHAT);
            }
        }
        Ok(())
    })
    .await?;
    for named in snapshots::list(snapshot.lake()).await? {
        let plan = named.tag.as_deref().and_then(|tag| tag.strip_prefix(TAG_PREFIX));
        if let Some(plan) = plan.filter(|plan| !plans.contains(*plan) && named.created_at < written_before) {
            let tag = format!("{TAG_PREFIX}{plan}");
            ledger.note(Severity::Leftover, "orphan", Table::Snapshots, || tag.clone(), WHAT);
            found.tags.insert(tag);
        }
    }
    ledger.plans = found;
    Ok(())
}

const WHAT: &str = "left by a planner that was interrupted; belongs to no plan; `--repair` removes it";

fn ids(table: Table, batch: &RecordBatch) -> Result<(&StringArray, &Int64Array)> {
    Ok((typed(table, batch, "plan_id")?, typed(table, batch, "plan_write_id")?))
}
