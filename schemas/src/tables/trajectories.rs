//! `trajectories`: one interaction a row, written last. A trajectory is visible through this row or not at all.

use std::sync::Arc;

use arrow::array::{Float64Array, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, SchemaRef};
use arrow::error::ArrowError;

use super::{schema_of, text_list_type, text_lists, timestamp_type, timestamps};

/// The columns of `trajectories`.
pub fn schema() -> SchemaRef {
    use DataType::{Float64, Int32, Int64, Utf8};
    schema_of(vec![
        Field::new("trajectory_key", Int64, false),
        Field::new("write_id", Int64, false),
        Field::new("trajectory_id", Utf8, false),
        Field::new("revision", Int32, false),
        Field::new("instance_id", Utf8, false),
        Field::new("group_id", Utf8, false),
        Field::new("run_id", Utf8, false),
        Field::new("parent_trajectory_id", Utf8, true),
        Field::new("status", Utf8, false),
        Field::new("recorded_reward", Float64, true),
        Field::new("n_steps", Int32, true),
        Field::new("n_segments", Int32, false),
        Field::new("n_messages", Int32, false),
        Field::new("n_tokens", Int64, false),
        Field::new("n_trained_tokens", Int64, false),
        Field::new("model", Utf8, true),
        Field::new("agent", Utf8, true),
        Field::new("format", Utf8, false),
        Field::new("source", Utf8, false),
        Field::new("created_at", timestamp_type(), true),
        Field::new("extent", Int64, false),
        Field::new("content_hash", Utf8, false),
        Field::new("flags", text_list_type(), false),
        Field::new("labels", Utf8, true),
        Field::new("extra", Utf8, true),
    ])
}

/// One interaction.
#[derive(Debug, Clone, PartialEq)]
pub struct TrajectoryRow {
    /// Hash of (run_id, trajectory_id).
    pub trajectory_key: i64,
    /// The attempt that wrote it; its steps carry the same.
    pub write_id: i64,
    /// The recorder's id.
    pub trajectory_id: String,
    /// 0 for the first copy; a longer copy of the same trajectory has the next number.
    pub revision: i32,
    /// The task or prompt.
    pub instance_id: String,
    /// Trajectories whose rewards are compared with each other.
    pub group_id: String,
    /// The run, chosen at ingest (`default` where nothing names one).
    pub run_id: String,
    /// The trajectory that spawned this one.
    pub parent_trajectory_id: Option<String>,
    /// A [`Status`](crate::words::Status) word.
    pub status: String,
    /// The scalar reward that came with the trajectory; also a row of `rewards`. Null is not 0.
    pub recorded_reward: Option<f64>,
    /// Model calls; null where the source gives whole segments.
    pub n_steps: Option<i32>,
    /// Segments.
    pub n_segments: i32,
    /// Messages, over all steps' deltas.
    pub n_messages: i32,
    /// Tokens, over all steps' deltas.
    pub n_tokens: i64,
    /// Tokens that receive gradient.
    pub n_trained_tokens: i64,
    /// The policy's name.
    pub model: Option<String>,
    /// The harness, with its version.
    pub agent: Option<String>,
    /// The importer that read it.
    pub format: String,
    /// File (and zip member) it came from; never with credentials.
    pub source: String,
    /// When the interaction began, microseconds.
    pub created_at: Option<i64>,
    /// How much of the interaction this copy holds, in the unit of its format (records, rows): decides which of two
    /// copies is the longer one.
    pub extent: i64,
    /// BLAKE3 (32 hex digits) over what the trajectory says, free of where it was read from: the same content is
    /// the same hash, so that reading it again changes nothing.
    pub content_hash: String,
    /// Words of [`flag`](crate::words::flag).
    pub flags: Vec<String>,
    /// JSON object of the user's labels.
    pub labels: Option<String>,
    /// JSON object of keys that we have no column for.
    pub extra: Option<String>,
}

/// Rows to a batch under [`schema`].
///
/// # Errors
/// Arrow's, if the arrays do not fit the schema (a bug of ours).
pub fn batch(rows: &[TrajectoryRow]) -> Result<RecordBatch, ArrowError> {
    let text = |get: fn(&TrajectoryRow) -> &String| Arc::new(StringArray::from_iter_values(rows.iter().map(get)));
    let maybe = |get: fn(&TrajectoryRow) -> Option<&str>| Arc::new(StringArray::from_iter(rows.iter().map(get)));
    let int = |get: fn(&TrajectoryRow) -> i64| Arc::new(Int64Array::from_iter_values(rows.iter().map(get)));
    let small = |get: fn(&TrajectoryRow) -> i32| Arc::new(Int32Array::from_iter_values(rows.iter().map(get)));
    RecordBatch::try_new(
        schema(),
        vec![
            int(|r| r.trajectory_key),
            int(|r| r.write_id),
            text(|r| &r.trajectory_id),
            small(|r| r.revision),
            text(|r| &r.instance_id),
            text(|r| &r.group_id),
            text(|r| &r.run_id),
            maybe(|r| r.parent_trajectory_id.as_deref()),
            text(|r| &r.status),
            Arc::new(Float64Array::from_iter(rows.iter().map(|r| r.recorded_reward))),
            Arc::new(Int32Array::from_iter(rows.iter().map(|r| r.n_steps))),
            small(|r| r.n_segments),
            small(|r| r.n_messages),
            int(|r| r.n_tokens),
            int(|r| r.n_trained_tokens),
            maybe(|r| r.model.as_deref()),
            maybe(|r| r.agent.as_deref()),
            text(|r| &r.format),
            text(|r| &r.source),
            timestamps(rows.iter().map(|r| r.created_at)),
            int(|r| r.extent),
            text(|r| &r.content_hash),
            text_lists(rows.iter().map(|r| r.flags.as_slice())),
            maybe(|r| r.labels.as_deref()),
            maybe(|r| r.extra.as_deref()),
        ],
    )
}
