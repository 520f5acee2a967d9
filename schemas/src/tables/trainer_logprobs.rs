//! `trainer_logprobs`: what the trainer makes of the trained tokens of a segment, beside what the rollout recorded: where
//! the two differ, inference and training do not agree. A step that was trained again after a crash is recorded again: of
//! rows with the same `train_run`, `optimizer_step`, `trajectory_key` and `segment_index`, the one that was recorded last
//! counts.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, Float32Builder, Int32Array, Int32Builder, Int64Array, ListBuilder, RecordBatch, StringArray,
};
use arrow::datatypes::{DataType, Field, SchemaRef};
use arrow::error::ArrowError;

use super::{float_list_type, int_list_type, schema_of, timestamp_type, timestamps};

/// The columns of `trainer_logprobs`.
pub fn schema() -> SchemaRef {
    use DataType::{Int32, Int64, Utf8};
    schema_of(vec![
        Field::new("train_run", Utf8, false),
        Field::new("plan_id", Utf8, true),
        Field::new("train_step", Int32, false),
        Field::new("optimizer_step", Int64, false),
        Field::new("weight_version", Utf8, true),
        Field::new("trajectory_key", Int64, false),
        Field::new("write_id", Int64, false),
        Field::new("trajectory_id", Utf8, false),
        Field::new("segment_index", Int32, false),
        Field::new("token_places", int_list_type(), false),
        Field::new("logprobs", float_list_type(), true),
        Field::new("trainer_logprobs", float_list_type(), false),
        Field::new("recorded_at", timestamp_type(), false),
    ])
}

/// The list columns: the bulk of a row.
pub const LIST_COLUMNS: [&str; 3] = ["token_places", "logprobs", "trainer_logprobs"];

/// The trained tokens of one segment in one train step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TrainerLogprobRow {
    /// The training run's name.
    pub train_run: String,
    /// The plan that the step is of; null where batches came from none.
    pub plan_id: Option<String>,
    /// 0-based within the plan.
    pub train_step: i32,
    /// Train steps of the training run so far over all its plans, skipped ones too, without this one: the first is 0.
    pub optimizer_step: i64,
    /// The weights that `trainer_logprobs` are under.
    pub weight_version: Option<String>,
    /// The trajectory.
    pub trajectory_key: i64,
    /// The attempt that wrote the trajectory.
    pub write_id: i64,
    /// The recorder's id.
    pub trajectory_id: String,
    /// The segment.
    pub segment_index: i32,
    /// The trained tokens, by 0-based place within the segment, ascending.
    pub token_places: Vec<i32>,
    /// The rollout's log-probs at those places; none where it recorded none.
    pub logprobs: Option<Vec<f32>>,
    /// The trainer's log-probs at those places.
    pub trainer_logprobs: Vec<f32>,
    /// When, microseconds.
    pub recorded_at: i64,
}

fn float_lists<'a>(rows: impl IntoIterator<Item = Option<&'a [f32]>>) -> ArrayRef {
    let mut builder = ListBuilder::new(Float32Builder::new());
    for row in rows {
        builder.values().append_slice(row.unwrap_or_default());
        builder.append(row.is_some());
    }
    Arc::new(builder.finish())
}

/// Rows to a batch under [`schema`].
///
/// # Errors
/// Arrow's, if the arrays do not fit the schema (a bug of ours).
pub fn batch(rows: &[TrainerLogprobRow]) -> Result<RecordBatch, ArrowError> {
    let text = |get: fn(&TrainerLogprobRow) -> &String| Arc::new(StringArray::from_iter_values(rows.iter().map(get)));
    let maybe = |get: fn(&TrainerLogprobRow) -> Option<&str>| Arc::new(StringArray::from_iter(rows.iter().map(get)));
    let int = |get: fn(&TrainerLogprobRow) -> i64| Arc::new(Int64Array::from_iter_values(rows.iter().map(get)));
    let small = |get: fn(&TrainerLogprobRow) -> i32| Arc::new(Int32Array::from_iter_values(rows.iter().map(get)));
    let mut places = ListBuilder::new(Int32Builder::new());
    for row in rows {
        places.values().append_slice(&row.token_places);
        places.append(true);
    }
    RecordBatch::try_new(
        schema(),
        vec![
            text(|r| &r.train_run),
            maybe(|r| r.plan_id.as_deref()),
            small(|r| r.train_step),
            int(|r| r.optimizer_step),
            maybe(|r| r.weight_version.as_deref()),
            int(|r| r.trajectory_key),
            int(|r| r.write_id),
            text(|r| &r.trajectory_id),
            small(|r| r.segment_index),
            Arc::new(places.finish()),
            float_lists(rows.iter().map(|r| r.logprobs.as_deref())),
            float_lists(rows.iter().map(|r| Some(r.trainer_logprobs.as_slice()))),
            timestamps(rows.iter().map(|r| Some(r.recorded_at))),
        ],
    )
}
