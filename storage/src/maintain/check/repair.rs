//! Removing what a check found left over. Only rows that no reader can ever see are touched.

use std::collections::HashSet;

use dressage_schemas::Table;
use lance::dataset::cleanup::CleanupPolicyBuilder;

use super::ledger::{Attempt, Ledger};
use super::{CheckReport, Severity};
use crate::error::{Error, Result};
use crate::lake::Lake;
use crate::maintain::rm_run::{delete, quoted};
use crate::objects::ObjectFolder;
use crate::snapshot::Snapshot;

/// Terms in one predicate.
const TERMS_PER_DELETE: usize = 500;

/// Removes orphans, repeated rows, files of checkpoints that no row names, and files that no version names.
pub(super) async fn run(lake: &Lake, snapshot: &Snapshot, ledger: &Ledger, report: &mut CheckReport) -> Result<()> {
    for (table, attempts) in &ledger.orphans {
        remove(lake, *table, attempt_predicates(attempts), report).await?;
    }
    let hashes: Vec<String> = ledger.orphan_contents.iter().map(|bits| format!("'{bits:032x}'")).collect();
    remove(lake, Table::Contents, membership("content_hash", &hashes), report).await?;
    let plans = &ledger.plans;
    let writes: Vec<String> = plans.writes.iter().map(i64::to_string).collect();
    remove(lake, Table::Batches, membership("plan_write_id", &writes), report).await?;
    let streamed: Vec<String> = plans.streamed.iter().map(|id| quoted(id)).collect();
    remove(lake, Table::Streamed, membership("plan_id", &streamed), report).await?;
    let tags: Vec<String> = plans.tags.iter().map(|tag| quoted(tag)).collect();
    remove(lake, Table::Snapshots, membership("tag", &tags), report).await?;
    let late: Vec<String> = ledger.checkpoints.rows.iter().map(|id| quoted(id)).collect();
    remove(lake, Table::Checkpoints, membership("checkpoint_id", &late), report).await?;
    for file in &ledger.checkpoints.files {
        if let Some((folder, name)) = file.rsplit_once('/') {
            ObjectFolder::in_store(lake, folder)?.delete(name).await?;
            report.files_removed += 1;
        }
    }
    for folder in &ledger.checkpoints.folders {
        report.files_removed += ObjectFolder::in_store(lake, folder)?.delete_all().await?;
    }
    for table in [Table::Contents, Table::Quarantine, Table::WeightVersions] {
        // addresses hold for the version they were read at; somebody may have compacted since
        if lake.latest(table).await?.version_id() != snapshot.dataset(table)?.version_id() {
            continue;
        }
        let rows = snapshot.duplicates(table).await?;
        let addresses: Vec<String> = rows.as_slice().iter().map(u64::to_string).collect();
        remove(lake, table, membership("_rowid", &addresses), report).await?;
    }
    for table in Table::ALL {
        let dataset = lake.latest(table).await?;
        let removed = lake
            .retry_limit()
            .run("remove leftover files", |_| async {
                let removed = dataset.cleanup(unnamed_files_policy()).execute().await;
                removed.map_err(|e| Error::table("remove leftover files of", table, e))
            })
            .await?;
        report.files_removed +=
            removed.data_files_removed + removed.index_files_removed + removed.deletion_files_removed;
    }
    Ok(())
}

/// Counts files that no version names, without removing them.
pub(super) async fn note_unnamed_files(lake: &Lake, ledger: &mut Ledger) -> Result<()> {
    for table in Table::ALL {
        let dataset = lake.latest(table).await?;
        let found = lake
            .retry_limit()
            .run("look for leftover files", |_| async {
                let found = dataset.cleanup(unnamed_files_policy()).explain().await;
                found.map_err(|e| Error::table("look for leftover files of", table, e))
            })
            .await?;
        let stats = found.stats;
        let files = stats.data_files_removed + stats.index_files_removed + stats.deletion_files_removed;
        let what = "files that no version names, a week old or more; `--repair` removes them";
        ledger.note_many(Severity::Leftover, "unnamed_file", table, files, what);
    }
    Ok(())
}

/// A policy under which no version is old: only files that none names, and that are a week old, go.
fn unnamed_files_policy() -> lance::dataset::cleanup::CleanupPolicy {
    let never = chrono::DateTime::<chrono::Utc>::UNIX_EPOCH;
    CleanupPolicyBuilder::default().before_timestamp(never).error_if_tagged_old_versions(false).build()
}

async fn remove(lake: &Lake, table: Table, predicates: Vec<String>, report: &mut CheckReport) -> Result<()> {
    for predicate in predicates {
        let dataset = lake.latest(table).await?;
        let rows = dataset.count_rows(Some(predicate.clone())).await;
        let rows = rows.map_err(|e| Error::table("count rows of", table, e))? as u64;
        if rows > 0 {
            delete(lake, table, &predicate).await?;
            *report.rows_removed.entry(table.name().to_owned()).or_default() += rows;
        }
    }
    Ok(())
}

fn membership(column: &str, values: &[String]) -> Vec<String> {
    values.chunks(TERMS_PER_DELETE).map(|chunk| format!("{column} IN ({})", chunk.join(","))).collect()
}

/// Predicates that hold exactly for rows of these attempts. A write id belongs to one attempt at one trajectory, so
/// both must match; keys and ids are listed rather than paired, which the store evaluates much faster.
fn attempt_predicates(attempts: &HashSet<Attempt>) -> Vec<String> {
    let mut sorted: Vec<&Attempt> = attempts.iter().collect();
    sorted.sort_unstable();
    sorted
        .chunks(TERMS_PER_DELETE)
        .map(|chunk| {
            let keys: Vec<String> = chunk.iter().map(|(key, _)| key.to_string()).collect();
            let writes: Vec<String> = chunk.iter().map(|(_, write)| write.to_string()).collect();
            format!("trajectory_key IN ({}) AND write_id IN ({})", keys.join(","), writes.join(","))
        })
        .collect()
}
