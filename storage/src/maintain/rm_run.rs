//! Removing a run: its trajectories first, so that no reader ever sees one without its steps.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Int64Array, StringArray};
use dressage_schemas::Table;
use futures::TryStreamExt;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::lake::Lake;
use crate::physical::typed;
use crate::plans::TAG_PREFIX;
use crate::scan::{self, ScanOptions};

/// Keys in one predicate.
const KEYS_PER_DELETE: usize = 2_000;

/// What was removed, or would be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RmRunReport {
    /// Whether nothing was removed yet.
    pub dry_run: bool,
    /// The run.
    pub run_id: String,
    /// Rows by table.
    pub rows: BTreeMap<String, u64>,
}

/// Removes the rows of a run, and its plans with the snapshots that they pin. Messages that nothing else uses stay until
/// `check --repair` finds them unreferenced; bytes are freed by `compact` and `gc`. Plans over all runs of the store stay,
/// and so do the versions that they pin. Training runs have names of their own: what they stored stays, whatever it was
/// trained on.
///
/// # Errors
/// `NotFound` where the store has no such run.
pub async fn rm_run(lake: &Lake, run_id: &str, dry_run: bool) -> Result<RmRunReport> {
    let mut report = RmRunReport { dry_run, run_id: run_id.to_owned(), ..RmRunReport::default() };
    let by_run = format!("run_id = {}", quoted(run_id));
    let keys = trajectory_keys(lake, &by_run).await?;
    let versions = count(lake, Table::WeightVersions, &by_run).await?;
    if keys.is_empty() && versions == 0 {
        return Err(Error::RunMissing { run_id: run_id.to_owned() });
    }
    let rows = count(lake, Table::Trajectories, &by_run).await?;
    note(&mut report, Table::Trajectories, rows);
    if !dry_run {
        delete(lake, Table::Trajectories, &by_run).await?;
    }
    for table in [Table::Rewards, Table::Steps, Table::IngestLog] {
        for chunk in keys.chunks(KEYS_PER_DELETE) {
            let list: Vec<String> = chunk.iter().map(i64::to_string).collect();
            let filter = format!("trajectory_key IN ({})", list.join(","));
            let rows = count(lake, table, &filter).await?;
            note(&mut report, table, rows);
            if !dry_run && rows > 0 {
                delete(lake, table, &filter).await?;
            }
        }
    }
    rm_plans(lake, &by_run, &mut report).await?;
    note(&mut report, Table::WeightVersions, versions);
    if !dry_run && versions > 0 {
        delete(lake, Table::WeightVersions, &by_run).await?;
    }
    Ok(report)
}

fn note(report: &mut RmRunReport, table: Table, rows: u64) {
    *report.rows.entry(table.name().to_owned()).or_default() += rows;
}

/// The plans themselves first, so that no reader ever sees one without its batches; then what they name.
async fn rm_plans(lake: &Lake, by_run: &str, report: &mut RmRunReport) -> Result<()> {
    let ids = plan_ids(lake, by_run).await?;
    for (table, column, prefix) in [
        (Table::Plans, "plan_id", ""),
        (Table::Batches, "plan_id", ""),
        (Table::Streamed, "plan_id", ""),
        (Table::Snapshots, "tag", TAG_PREFIX),
    ] {
        for chunk in ids.chunks(KEYS_PER_DELETE) {
            let list: Vec<String> = chunk.iter().map(|id| quoted(&format!("{prefix}{id}"))).collect();
            let filter = format!("{column} IN ({})", list.join(","));
            let rows = count(lake, table, &filter).await?;
            note(report, table, rows);
            if !report.dry_run && rows > 0 {
                delete(lake, table, &filter).await?;
            }
        }
    }
    Ok(())
}

async fn plan_ids(lake: &Lake, filter: &str) -> Result<Vec<String>> {
    let dataset = lake.latest(Table::Plans).await?;
    let options = ScanOptions::columns(["plan_id"]).filter(filter);
    let mut rows = scan::scan(Table::Plans, &dataset, options, lake.settings().read_ahead_bytes_max).await?;
    let mut ids = Vec::new();
    while let Some(batch) = rows.try_next().await? {
        let column: &StringArray = typed(Table::Plans, &batch, "plan_id")?;
        ids.extend((0..batch.num_rows()).map(|row| column.value(row).to_owned()));
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

async fn trajectory_keys(lake: &Lake, filter: &str) -> Result<Vec<i64>> {
    let dataset = lake.latest(Table::Trajectories).await?;
    let options = ScanOptions::columns(["trajectory_key"]).filter(filter);
    let mut rows = scan::scan(Table::Trajectories, &dataset, options, lake.settings().read_ahead_bytes_max).await?;
    let mut keys = Vec::new();
    while let Some(batch) = rows.try_next().await? {
        let column: &Int64Array = typed(Table::Trajectories, &batch, "trajectory_key")?;
        keys.extend_from_slice(column.values());
    }
    keys.sort_unstable();
    keys.dedup();
    Ok(keys)
}

pub(super) async fn count(lake: &Lake, table: Table, filter: &str) -> Result<u64> {
    let dataset = lake.latest(table).await?;
    let rows = dataset.count_rows(Some(filter.to_owned())).await;
    rows.map(|n| n as u64).map_err(|e| Error::table("count rows of", table, e))
}

/// Deletes rows by predicate. The files stay until they are compacted and collected.
pub(crate) async fn delete(lake: &Lake, table: Table, filter: &str) -> Result<()> {
    lake.retry_limit()
        .run("delete rows", |_| async {
            let mut dataset = lake.latest(table).await?.as_ref().clone();
            dataset.delete(filter).await.map_err(|e| Error::table("delete rows of", table, e))?;
            lake.remember(table, &Arc::new(dataset));
            Ok(())
        })
        .await
}

/// A SQL string literal.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_id_with_quotes_cannot_leave_its_literal() {
        assert_eq!(quoted("a' OR '1'='1"), "'a'' OR ''1''=''1'");
    }
}
