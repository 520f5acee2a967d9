//! The interchange form: one segment a row, tokens as plain lists. What Arrow IPC and Parquet files hold on the way
//! in and out, and what any Arrow tool can write without knowing our tables.
//!
//! Rows of one trajectory must be adjacent. The columns of the trajectory repeat on each of its rows; only the first
//! row's are read. Required: `trajectory_id`, `instance_id`, `tokens`. All others may be missing or null. Field names
//! follow the segment records of the reference (semantics 3.13).

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, SchemaRef};

use super::{schema_of, timestamp_type};

/// The columns, with the types that `export` writes. Import also takes `List` for `LargeList`, any integer width for
/// ids and masks, and Float64 for log-probs.
pub fn schema() -> SchemaRef {
    use DataType::{Boolean, Float32, Float64, Int8, Int32, LargeBinary, LargeUtf8, Utf8};
    let list = |inner: DataType| DataType::LargeList(Arc::new(Field::new_list_field(inner, true)));
    schema_of(vec![
        Field::new("trajectory_id", Utf8, false),
        Field::new("instance_id", Utf8, false),
        Field::new("group_id", Utf8, true),
        Field::new("run_id", Utf8, true),
        Field::new("parent_trajectory_id", Utf8, true),
        Field::new("status", Utf8, true),
        Field::new("reward", Float64, true),
        Field::new("model", Utf8, true),
        Field::new("agent", Utf8, true),
        Field::new("created_at", timestamp_type(), true),
        Field::new("labels", Utf8, true),
        Field::new("segment_index", Int32, true),
        Field::new("segment_reasons", list(Utf8), true),
        Field::new("finish_reason", Utf8, true),
        Field::new("trainable", Boolean, true),
        Field::new("weight_version", Utf8, true),
        Field::new("tokens", list(Int32), true),
        Field::new("full_loss_mask", list(Int8), true),
        Field::new("full_logprobs", list(Float32), true),
        Field::new("full_versions", list(Utf8), true),
        Field::new("routed_experts", LargeBinary, true),
        Field::new("routed_experts_dtype", Utf8, true),
        Field::new("routed_experts_layers", Int32, true),
        Field::new("routed_experts_topk", Int32, true),
        Field::new("messages", LargeUtf8, true),
        Field::new("tools", LargeUtf8, true),
        Field::new("extra_info", LargeUtf8, true),
    ])
}
