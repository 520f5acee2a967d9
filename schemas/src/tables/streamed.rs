//! `streamed`: what a micro-batch was when it was first given out, so that a replay can be compared with it.

use std::sync::Arc;

use arrow::array::{Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, SchemaRef};
use arrow::error::ArrowError;

use super::{schema_of, timestamp_type, timestamps};

/// The columns of `streamed`.
pub fn schema() -> SchemaRef {
    use DataType::{Int32, Int64, Utf8};
    schema_of(vec![
        Field::new("plan_id", Utf8, false),
        Field::new("train_step", Int32, false),
        Field::new("dp_rank", Int32, false),
        Field::new("micro_batch", Int32, false),
        Field::new("n_samples", Int64, false),
        Field::new("n_tokens", Int64, false),
        Field::new("content_hash", Utf8, false),
        Field::new("experts_hash", Utf8, true),
        Field::new("streamed_at", timestamp_type(), false),
    ])
}

/// One micro-batch that was streamed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StreamedRow {
    /// The plan.
    pub plan_id: String,
    /// 0-based.
    pub train_step: i32,
    /// The data-parallel rank, 0-based.
    pub dp_rank: i32,
    /// 0-based within (train step, rank).
    pub micro_batch: i32,
    /// Its samples.
    pub n_samples: i64,
    /// Their tokens.
    pub n_tokens: i64,
    /// Hash over the values of its columns but router choices.
    pub content_hash: String,
    /// Hash over its router choices; null where they were not streamed.
    pub experts_hash: Option<String>,
    /// When, microseconds.
    pub streamed_at: i64,
}

/// Rows to a batch under [`schema`].
///
/// # Errors
/// Arrow's, if the arrays do not fit the schema (a bug of ours).
pub fn batch(rows: &[StreamedRow]) -> Result<RecordBatch, ArrowError> {
    let text = |get: fn(&StreamedRow) -> &String| Arc::new(StringArray::from_iter_values(rows.iter().map(get)));
    let int = |get: fn(&StreamedRow) -> i64| Arc::new(Int64Array::from_iter_values(rows.iter().map(get)));
    let small = |get: fn(&StreamedRow) -> i32| Arc::new(Int32Array::from_iter_values(rows.iter().map(get)));
    RecordBatch::try_new(
        schema(),
        vec![
            text(|r| &r.plan_id),
            small(|r| r.train_step),
            small(|r| r.dp_rank),
            small(|r| r.micro_batch),
            int(|r| r.n_samples),
            int(|r| r.n_tokens),
            text(|r| &r.content_hash),
            Arc::new(StringArray::from_iter(rows.iter().map(|r| r.experts_hash.as_deref()))),
            timestamps(rows.iter().map(|r| Some(r.streamed_at))),
        ],
    )
}
