//! Rows of `checkpoints` as structs, in the order in which they were committed.

use std::collections::HashSet;

use arrow::array::{
    Array, AsArray, Int32Array, Int64Array, ListArray, RecordBatch, StringArray, TimestampMicrosecondArray,
};
use arrow::datatypes::Int64Type;
use dressage_schemas::Table;
use dressage_schemas::tables::checkpoints::{CheckpointFile, CheckpointRow};
use futures::TryStreamExt;

use super::T;
use crate::error::{Error, Result};
use crate::lake::Lake;
use crate::maintain::rm_run::quoted;
use crate::physical::{row_addresses, typed};
use crate::scan::{self, ScanOptions};

/// All rows of one training run or of all, also those that do not count.
pub(super) async fn read(lake: &Lake, train_run: Option<&str>) -> Result<Vec<CheckpointRow>> {
    scan(lake, train_run.map(|run| format!("train_run = {}", quoted(run)))).await
}

/// The rows that a predicate lets through.
pub(super) async fn scan(lake: &Lake, filter: Option<String>) -> Result<Vec<CheckpointRow>> {
    let dataset = lake.latest(T).await?;
    let options = ScanOptions { filter, ..ScanOptions::default() }.with_row_address();
    let mut batches = scan::scan(T, &dataset, options, lake.settings().read_ahead_bytes_max).await?;
    let mut rows = Vec::new();
    while let Some(batch) = batches.try_next().await? {
        let addresses = row_addresses(T, &batch)?.values().to_vec();
        rows.extend(addresses.into_iter().zip(checkpoint_rows(&batch)?));
    }
    // fragments are numbered in the order of their commits; a scan with a predicate promises no order
    rows.sort_by_key(|(address, _)| *address);
    Ok(rows.into_iter().map(|(_, row)| row).collect())
}

/// Of rows in the order of their commits, those that count: the first that goes on from a checkpoint of a run. The same
/// rule as [`Snapshot::duplicates`](crate::Snapshot::duplicates).
pub(crate) fn in_force(mut rows: Vec<CheckpointRow>) -> Vec<CheckpointRow> {
    let mut followed = HashSet::new();
    rows.retain(|row| followed.insert((row.train_run.clone(), row.after_checkpoint_id.clone())));
    rows
}

/// The rows of a batch with all columns.
pub(crate) fn checkpoint_rows(batch: &RecordBatch) -> Result<Vec<CheckpointRow>> {
    const TABLE: Table = T;
    let text = |name| typed::<StringArray>(TABLE, batch, name);
    let (id, run, after) = (text("checkpoint_id")?, text("train_run")?, text("after_checkpoint_id")?);
    let (plan, version, model) = (text("plan_id")?, text("weight_version")?, text("model")?);
    let (location, settings) = (text("location")?, text("settings")?);
    let next_train_step: &Int32Array = typed(TABLE, batch, "next_train_step")?;
    let optimizer_step: &Int64Array = typed(TABLE, batch, "optimizer_step")?;
    let n_bytes: &Int64Array = typed(TABLE, batch, "n_bytes")?;
    let created_at: &TimestampMicrosecondArray = typed(TABLE, batch, "created_at")?;
    let files: &ListArray = typed(TABLE, batch, "files")?;
    let maybe = |column: &StringArray, row| column.is_valid(row).then(|| column.value(row).to_owned());
    (0..batch.num_rows())
        .map(|row| {
            Ok(CheckpointRow {
                checkpoint_id: id.value(row).to_owned(),
                train_run: run.value(row).to_owned(),
                after_checkpoint_id: maybe(after, row),
                plan_id: maybe(plan, row),
                next_train_step: next_train_step.value(row),
                optimizer_step: optimizer_step.value(row),
                weight_version: version.value(row).to_owned(),
                model: model.value(row).to_owned(),
                location: location.value(row).to_owned(),
                files: file_rows(files.value(row).as_ref())?,
                n_bytes: n_bytes.value(row),
                settings: settings.value(row).to_owned(),
                created_at: created_at.value(row),
            })
        })
        .collect()
}

fn file_rows(files: &dyn Array) -> Result<Vec<CheckpointFile>> {
    let odd = || Error::Damaged { table: T, detail: "files is no list of (path, bytes, hash)".to_owned() };
    let files = files.as_struct_opt().ok_or_else(odd)?;
    let text = |name| files.column_by_name(name).and_then(|c| c.as_string_opt::<i32>()).ok_or_else(odd);
    let (path, hash) = (text("path")?, text("hash")?);
    let bytes = files.column_by_name("bytes").and_then(|c| c.as_primitive_opt::<Int64Type>()).ok_or_else(odd)?;
    Ok((0..files.len())
        .map(|at| CheckpointFile {
            path: path.value(at).to_owned(),
            bytes: bytes.value(at),
            hash: hash.value(at).to_owned(),
        })
        .collect())
}
