//! Removing old checkpoints: their rows first, so that none is ever seen without its files.

use dressage_schemas::tables::checkpoints::CheckpointRow;
use serde::Serialize;

use super::{T, chain, files, find, is_elsewhere, latest, list};
use crate::error::Result;
use crate::fault;
use crate::lake::Lake;
use crate::maintain::rm_run::{delete, quoted};

/// What was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RetireReport {
    /// Ids of the checkpoints, oldest first.
    pub checkpoints_removed: Vec<String>,
    /// Their files.
    pub files_removed: u64,
    /// The bytes of those files.
    pub bytes_removed: u64,
}

/// Removes checkpoints of a training run but the newest `keep_last` (at least one), and with `keep_every` the first at or
/// after each multiple of so many optimiser steps. Files of checkpoints that are being written are never touched: those
/// have no row yet. What is interrupted between rows and files leaves files that `check --repair` removes. Where a
/// checkpoint lies outside of the store, only the files that its row names go.
///
/// # Errors
/// Whatever the store answers.
pub async fn retire(lake: &Lake, train_run: &str, keep_last: usize, keep_every: Option<i64>) -> Result<RetireReport> {
    let rows = list(lake, Some(train_run)).await?;
    let retired = retired(rows, keep_last, keep_every);
    let mut report = RetireReport::default();
    if retired.is_empty() {
        return Ok(report);
    }
    let ids: Vec<String> = retired.iter().map(|row| quoted(&row.checkpoint_id)).collect();
    let predicate = format!("train_run = {} AND checkpoint_id IN ({})", quoted(train_run), ids.join(","));
    delete(lake, T, &predicate).await?;
    fault::point("after", "retired");
    for row in retired {
        remove_files(lake, row, &mut report).await?;
    }
    Ok(report)
}

/// Removes one checkpoint. Without the newest one, such as one whose files are damaged, its run goes on from the one before
/// and trains again what came after that.
///
/// # Errors
/// `NotFound` where there is none of that id or beginning, `Invalid` where there are several; whatever the store answers.
pub async fn remove(lake: &Lake, id: &str, dry_run: bool) -> Result<RemoveReport> {
    let row = find(lake, id).await?;
    let newest = latest(lake, &row.train_run).await?.is_some_and(|newest| newest.checkpoint_id == row.checkpoint_id);
    let before = list(lake, Some(&row.train_run)).await?;
    let goes_on_from = before.iter().rev().find(|other| other.optimizer_step < row.optimizer_step);
    let mut report = RemoveReport {
        checkpoint_id: row.checkpoint_id.clone(),
        train_run: row.train_run.clone(),
        goes_on_from: goes_on_from.filter(|_| newest).map(|other| other.checkpoint_id.clone()),
        dry_run,
        removed: RetireReport::default(),
    };
    if !dry_run {
        let predicate =
            format!("train_run = {} AND checkpoint_id = {}", quoted(&row.train_run), quoted(&row.checkpoint_id));
        delete(lake, T, &predicate).await?;
        remove_files(lake, row, &mut report.removed).await?;
    }
    Ok(report)
}

/// What removing one checkpoint does.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RemoveReport {
    /// The checkpoint.
    pub checkpoint_id: String,
    /// Its training run.
    pub train_run: String,
    /// What the run then goes on from; none where it was not the newest, or where it was the only one and the run begins anew.
    pub goes_on_from: Option<String>,
    /// Whether nothing was removed.
    pub dry_run: bool,
    /// What was removed.
    pub removed: RetireReport,
}

/// Removes the files of a checkpoint whose row is gone.
async fn remove_files(lake: &Lake, row: CheckpointRow, report: &mut RetireReport) -> Result<()> {
    let folder = files(lake, &row).await?;
    if is_elsewhere(&row.location) {
        for file in &row.files {
            folder.delete(&file.path).await?;
        }
        report.files_removed += row.files.len() as u64;
    } else {
        report.files_removed += folder.delete_all().await?;
    }
    report.bytes_removed += u64::try_from(row.n_bytes).unwrap_or(0);
    report.checkpoints_removed.push(row.checkpoint_id);
    Ok(())
}

/// Of the checkpoints of a run, oldest first, those that go.
fn retired(rows: Vec<CheckpointRow>, keep_last: usize, keep_every: Option<i64>) -> Vec<CheckpointRow> {
    let newest = chain::newest(&rows).map(|row| row.checkpoint_id.clone());
    let kept_from = rows.len().saturating_sub(keep_last.max(1));
    let mut span_before = 0;
    let mut gone = Vec::new();
    for (at, row) in rows.into_iter().enumerate() {
        let span = keep_every.map_or(0, |every| row.optimizer_step / every.max(1));
        let first_of_span = span > span_before;
        span_before = span_before.max(span);
        if at < kept_from && !first_of_span && newest.as_deref() != Some(row.checkpoint_id.as_str()) {
            gone.push(row);
        }
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(steps: &[i64]) -> Vec<CheckpointRow> {
        let id = |at: usize| format!("c{}", steps[at]);
        let row = |at: usize| CheckpointRow {
            checkpoint_id: id(at),
            after_checkpoint_id: at.checked_sub(1).map(id),
            optimizer_step: steps[at],
            ..CheckpointRow::default()
        };
        (0..steps.len()).map(row).collect()
    }

    fn gone(steps: &[i64], keep_last: usize, keep_every: Option<i64>) -> Vec<i64> {
        retired(rows(steps), keep_last, keep_every).iter().map(|row| row.optimizer_step).collect()
    }

    #[test]
    fn the_newest_ones_and_one_of_each_span_are_kept() {
        let steps = [10, 20, 30, 40, 55, 65, 70];
        assert_eq!(gone(&steps, 2, None), [10, 20, 30, 40, 55]);
        assert_eq!(gone(&steps, 0, None), [10, 20, 30, 40, 55, 65]);
        assert_eq!(gone(&steps, 9, None), [0; 0]);
        // 20, 40, and the first at or after 60
        assert_eq!(gone(&steps, 1, Some(20)), [10, 30, 55]);
        // doing it again removes no more
        assert_eq!(gone(&[20, 40, 65, 70], 1, Some(20)), [0; 0]);
    }
}
