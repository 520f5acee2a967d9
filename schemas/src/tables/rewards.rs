//! `rewards`: one grader's verdict a row. The effective reward of a trajectory is a view over these.

use std::sync::Arc;

use arrow::array::{Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, SchemaRef};
use arrow::error::ArrowError;

use super::{schema_of, timestamp_type, timestamps};

/// The columns of `rewards`.
pub fn schema() -> SchemaRef {
    use DataType::{Float64, Int64, Utf8};
    schema_of(vec![
        Field::new("trajectory_key", Int64, false),
        Field::new("write_id", Int64, true),
        Field::new("grader", Utf8, false),
        Field::new("stage", Utf8, false),
        Field::new("value", Float64, true),
        Field::new("parts", Utf8, true),
        Field::new("graded_at", timestamp_type(), true),
        Field::new("visible_at", timestamp_type(), false),
        Field::new("detail", Utf8, true),
    ])
}

/// One verdict.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RewardRow {
    /// Hash of (run_id, trajectory_id).
    pub trajectory_key: i64,
    /// For a verdict that came with its trajectory: the attempt that wrote both. Null for later ones.
    pub write_id: Option<i64>,
    /// Who graded.
    pub grader: String,
    /// `recorded` for a verdict that came with its trajectory; free for later ones.
    pub stage: String,
    /// The scalar; null where the grader gave none. Null is not 0.
    pub value: Option<f64>,
    /// JSON object of named parts.
    pub parts: Option<String>,
    /// When it was graded, microseconds; null where the source does not say.
    pub graded_at: Option<i64>,
    /// When it was committed, microseconds.
    pub visible_at: i64,
    /// The verdict as it came, where it is more than a number.
    pub detail: Option<String>,
}

/// Rows to a batch under [`schema`].
///
/// # Errors
/// Arrow's, if the arrays do not fit the schema (a bug of ours).
pub fn batch(rows: &[RewardRow]) -> Result<RecordBatch, ArrowError> {
    RecordBatch::try_new(
        schema(),
        vec![
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| r.trajectory_key))),
            Arc::new(Int64Array::from_iter(rows.iter().map(|r| r.write_id))),
            Arc::new(StringArray::from_iter_values(rows.iter().map(|r| &r.grader))),
            Arc::new(StringArray::from_iter_values(rows.iter().map(|r| &r.stage))),
            Arc::new(Float64Array::from_iter(rows.iter().map(|r| r.value))),
            Arc::new(StringArray::from_iter(rows.iter().map(|r| r.parts.as_deref()))),
            timestamps(rows.iter().map(|r| r.graded_at)),
            timestamps(rows.iter().map(|r| Some(r.visible_at))),
            Arc::new(StringArray::from_iter(rows.iter().map(|r| r.detail.as_deref()))),
        ],
    )
}
