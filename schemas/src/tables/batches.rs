//! `batches`: one sample's place in a plan. Derived: a plan's rows can be made again from its row in `plans`.

use std::sync::Arc;

use arrow::array::{
    Float64Array, Int32Array, Int64Array, ListBuilder, RecordBatch, StringArray, UInt64Array, UInt64Builder,
};
use arrow::datatypes::{DataType, Field, SchemaRef};
use arrow::error::ArrowError;

use super::schema_of;

/// The columns of `batches`.
pub fn schema() -> SchemaRef {
    use DataType::{Float64, Int32, Int64, Utf8};
    schema_of(vec![
        Field::new("plan_id", Utf8, false),
        Field::new("plan_write_id", Int64, false),
        Field::new("train_step", Int32, false),
        Field::new("dp_rank", Int32, false),
        Field::new("micro_batch", Int32, false),
        Field::new("position", Int32, false),
        Field::new("trajectory_key", Int64, false),
        Field::new("write_id", Int64, false),
        Field::new("segment_index", Int32, false),
        Field::new("n_tokens", Int64, false),
        Field::new("mask_sum", Int64, false),
        Field::new("advantage", Float64, false),
        Field::new("loss_weight", Float64, false),
        Field::new("step_rows", address_list_type(), false),
    ])
}

/// A list of row addresses.
pub fn address_list_type() -> DataType {
    DataType::List(Arc::new(Field::new_list_field(DataType::UInt64, true)))
}

/// One sample's place. Rows of a plan are stored in order of (`train_step`, `dp_rank`, `micro_batch`, `position`).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BatchRow {
    /// The plan.
    pub plan_id: String,
    /// The attempt that wrote the plan; only rows that agree with the plan's row count.
    pub plan_write_id: i64,
    /// 0-based.
    pub train_step: i32,
    /// The data-parallel rank that takes it, 0-based.
    pub dp_rank: i32,
    /// 0-based within (train step, rank).
    pub micro_batch: i32,
    /// 0-based within the micro-batch.
    pub position: i32,
    /// The trajectory.
    pub trajectory_key: i64,
    /// The attempt that wrote the trajectory.
    pub write_id: i64,
    /// The segment.
    pub segment_index: i32,
    /// Its tokens, after the cap.
    pub n_tokens: i64,
    /// Its trained tokens.
    pub mask_sum: i64,
    /// Its advantage.
    pub advantage: f64,
    /// What its summed token loss is multiplied with; 0 where no token is trained.
    pub loss_weight: f64,
    /// Addresses of its steps in table `steps` at the pinned version, in order.
    pub step_rows: Vec<u64>,
}

/// Rows to a batch under [`schema`].
///
/// # Errors
/// Arrow's, if the arrays do not fit the schema (a bug of ours).
pub fn batch(rows: &[BatchRow]) -> Result<RecordBatch, ArrowError> {
    let int = |get: fn(&BatchRow) -> i64| Arc::new(Int64Array::from_iter_values(rows.iter().map(get)));
    let small = |get: fn(&BatchRow) -> i32| Arc::new(Int32Array::from_iter_values(rows.iter().map(get)));
    let float = |get: fn(&BatchRow) -> f64| Arc::new(Float64Array::from_iter_values(rows.iter().map(get)));
    let mut step_rows = ListBuilder::new(UInt64Builder::new());
    for row in rows {
        step_rows.values().append_array(&UInt64Array::from_iter_values(row.step_rows.iter().copied()));
        step_rows.append(true);
    }
    RecordBatch::try_new(
        schema(),
        vec![
            Arc::new(StringArray::from_iter_values(rows.iter().map(|r| &r.plan_id))),
            int(|r| r.plan_write_id),
            small(|r| r.train_step),
            small(|r| r.dp_rank),
            small(|r| r.micro_batch),
            small(|r| r.position),
            int(|r| r.trajectory_key),
            int(|r| r.write_id),
            small(|r| r.segment_index),
            int(|r| r.n_tokens),
            int(|r| r.mask_sum),
            float(|r| r.advantage),
            float(|r| r.loss_weight),
            Arc::new(step_rows.finish()),
        ],
    )
}
