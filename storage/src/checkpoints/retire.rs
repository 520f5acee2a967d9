//! Removing old checkpoints: their rows first, so that none is ever seen without its files.

use dressage_schemas::tables::checkpoints::CheckpointRow;
use serde::Serialize;

use super::{T, chain, files, is_elsewhere, list};
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
    }
    Ok(report)
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
