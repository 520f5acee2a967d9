//! `plans`: how samples become train steps. A plan is visible through its row here or not at all.

use std::sync::Arc;

use arrow::array::{Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, SchemaRef};
use arrow::error::ArrowError;

use super::{schema_of, timestamp_type, timestamps};

/// The columns of `plans`.
pub fn schema() -> SchemaRef {
    use DataType::{Int32, Int64, Utf8};
    schema_of(vec![
        Field::new("plan_id", Utf8, false),
        Field::new("plan_write_id", Int64, false),
        Field::new("created_at", timestamp_type(), false),
        Field::new("run_id", Utf8, true),
        Field::new("snapshot_id", Int64, false),
        Field::new("versions", Utf8, false),
        Field::new("settings", Utf8, false),
        Field::new("sql", Utf8, false),
        Field::new("sql_hash", Utf8, false),
        Field::new("seed", Int64, false),
        Field::new("world_size", Int32, false),
        Field::new("n_train_steps", Int32, false),
        Field::new("n_samples", Int64, false),
        Field::new("n_tokens", Int64, false),
        Field::new("after_plan_id", Utf8, true),
        Field::new("summary", Utf8, false),
    ])
}

/// One plan.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PlanRow {
    /// 32 hex digits of BLAKE3 over what the plan is a function of: versions, SQL, settings, seed.
    pub plan_id: String,
    /// The attempt that wrote it; its rows of `batches` carry the same.
    pub plan_write_id: i64,
    /// When it was stored, microseconds.
    pub created_at: i64,
    /// The run it was made for; null for all runs of the store.
    pub run_id: Option<String>,
    /// The tagged snapshot that it pins.
    pub snapshot_id: i64,
    /// JSON object: table name to version.
    pub versions: String,
    /// JSON object: setting to value.
    pub settings: String,
    /// JSON object: name of a view or file to the text that was in force.
    pub sql: String,
    /// 32 hex digits of BLAKE3 over `sql`.
    pub sql_hash: String,
    /// The seed of the order.
    pub seed: i64,
    /// Data-parallel ranks.
    pub world_size: i32,
    /// Train steps.
    pub n_train_steps: i32,
    /// Samples, over all train steps.
    pub n_samples: i64,
    /// Their tokens.
    pub n_tokens: i64,
    /// The plan that this one goes on from.
    pub after_plan_id: Option<String>,
    /// JSON object: packing efficiency, rank spread, what was left out.
    pub summary: String,
}

/// Rows to a batch under [`schema`].
///
/// # Errors
/// Arrow's, if the arrays do not fit the schema (a bug of ours).
pub fn batch(rows: &[PlanRow]) -> Result<RecordBatch, ArrowError> {
    let text = |get: fn(&PlanRow) -> &String| Arc::new(StringArray::from_iter_values(rows.iter().map(get)));
    let maybe = |get: fn(&PlanRow) -> Option<&str>| Arc::new(StringArray::from_iter(rows.iter().map(get)));
    let int = |get: fn(&PlanRow) -> i64| Arc::new(Int64Array::from_iter_values(rows.iter().map(get)));
    let small = |get: fn(&PlanRow) -> i32| Arc::new(Int32Array::from_iter_values(rows.iter().map(get)));
    RecordBatch::try_new(
        schema(),
        vec![
            text(|r| &r.plan_id),
            int(|r| r.plan_write_id),
            timestamps(rows.iter().map(|r| Some(r.created_at))),
            maybe(|r| r.run_id.as_deref()),
            int(|r| r.snapshot_id),
            text(|r| &r.versions),
            text(|r| &r.settings),
            text(|r| &r.sql),
            text(|r| &r.sql_hash),
            int(|r| r.seed),
            small(|r| r.world_size),
            small(|r| r.n_train_steps),
            int(|r| r.n_samples),
            int(|r| r.n_tokens),
            maybe(|r| r.after_plan_id.as_deref()),
            text(|r| &r.summary),
        ],
    )
}
