//! `train_metrics`: one metric of one train step. A step that was trained again after a crash is recorded again: of rows
//! with the same `train_run`, `optimizer_step` and `metric`, the one that was recorded last counts.

use std::sync::Arc;

use arrow::array::{Float64Array, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, SchemaRef};
use arrow::error::ArrowError;

use super::{schema_of, timestamp_type, timestamps};

/// The columns of `train_metrics`.
pub fn schema() -> SchemaRef {
    use DataType::{Float64, Int32, Int64, Utf8};
    schema_of(vec![
        Field::new("train_run", Utf8, false),
        Field::new("plan_id", Utf8, true),
        Field::new("train_step", Int32, false),
        Field::new("optimizer_step", Int64, false),
        Field::new("metric", Utf8, false),
        Field::new("value", Float64, false),
        Field::new("weight_version", Utf8, true),
        Field::new("recorded_at", timestamp_type(), false),
    ])
}

/// One metric of one train step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TrainMetricRow {
    /// The training run's name: what rollouts are to a `run_id`, updates are to this.
    pub train_run: String,
    /// The plan that the step is of; null where batches came from none.
    pub plan_id: Option<String>,
    /// 0-based within the plan.
    pub train_step: i32,
    /// Train steps of the training run so far over all its plans, skipped ones too, without this one: the first is 0.
    pub optimizer_step: i64,
    /// Its name, such as `loss`.
    pub metric: String,
    /// Its value; NaN and infinities are kept.
    pub value: f64,
    /// The weights that the step began with: those that its log-probs are under.
    pub weight_version: Option<String>,
    /// When, microseconds.
    pub recorded_at: i64,
}

/// Rows to a batch under [`schema`].
///
/// # Errors
/// Arrow's, if the arrays do not fit the schema (a bug of ours).
pub fn batch(rows: &[TrainMetricRow]) -> Result<RecordBatch, ArrowError> {
    let text = |get: fn(&TrainMetricRow) -> &String| Arc::new(StringArray::from_iter_values(rows.iter().map(get)));
    let maybe = |get: fn(&TrainMetricRow) -> Option<&str>| Arc::new(StringArray::from_iter(rows.iter().map(get)));
    RecordBatch::try_new(
        schema(),
        vec![
            text(|r| &r.train_run),
            maybe(|r| r.plan_id.as_deref()),
            Arc::new(Int32Array::from_iter_values(rows.iter().map(|r| r.train_step))),
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| r.optimizer_step))),
            text(|r| &r.metric),
            Arc::new(Float64Array::from_iter_values(rows.iter().map(|r| r.value))),
            maybe(|r| r.weight_version.as_deref()),
            timestamps(rows.iter().map(|r| Some(r.recorded_at))),
        ],
    )
}
