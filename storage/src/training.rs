//! What a trainer writes down beside checkpoints: metrics, its own log-probs, and records that it could not train on.
//!
//! Each call is one durable commit. A train step that is done again after a crash is written again; of what says the same,
//! views take what was recorded last.

use arrow::array::RecordBatch;
use dressage_schemas::Table;
use dressage_schemas::tables::quarantine::{self, QuarantineRow};
use dressage_schemas::tables::train_metrics::{self, TrainMetricRow};

use crate::error::{Error, Result};
use crate::lake::Lake;
use crate::writer::commit::append_rows;

/// Writes down metrics of train steps.
///
/// # Errors
/// Whatever the store answers.
pub async fn append_metrics(lake: &Lake, rows: &[TrainMetricRow]) -> Result<()> {
    const T: Table = Table::TrainMetrics;
    let batch = train_metrics::batch(rows).map_err(|e| Error::shape(T, &e))?;
    append_rows(lake, T, &[batch]).await
}

/// Writes down the trainer's log-probs of segments: batches under the schema of `trainer_logprobs`.
///
/// # Errors
/// `Invalid` for batches that do not fit that schema, or with lists of different lengths; whatever the store answers.
pub async fn append_trainer_logprobs(lake: &Lake, batches: &[RecordBatch]) -> Result<()> {
    append_rows(lake, Table::TrainerLogprobs, batches).await
}

/// Writes down records that could not be used, for whoever is no ingest: that has a
/// [`LakeWriter`](crate::LakeWriter), which commits them with its rows. The same `quarantine_key` again adds nothing that
/// a reader sees.
///
/// # Errors
/// Whatever the store answers.
pub async fn append_quarantine(lake: &Lake, rows: &[QuarantineRow]) -> Result<()> {
    const T: Table = Table::Quarantine;
    let batch = quarantine::batch(rows).map_err(|e| Error::shape(T, &e))?;
    append_rows(lake, T, &[batch]).await
}
