//! `weight_versions`: versions of the policy, ordered by the persisted ordinal of their first observation.

use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, SchemaRef};
use arrow::error::ArrowError;

use super::{schema_of, timestamp_type, timestamps};

/// The columns of `weight_versions`.
pub fn schema() -> SchemaRef {
    use DataType::{Int64, Utf8};
    schema_of(vec![
        Field::new("run_id", Utf8, false),
        Field::new("weight_version", Utf8, false),
        Field::new("ordinal", Int64, false),
        Field::new("first_seen_at", timestamp_type(), false),
    ])
}

/// One version of the policy, as one writer first saw it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WeightVersionRow {
    /// The run.
    pub run_id: String,
    /// The version as the engine names it.
    pub weight_version: String,
    /// Order of first observation in the run; two racing writers may give two versions the same one, so order by (ordinal, first_seen_at, weight_version).
    pub ordinal: i64,
    /// When it was committed, microseconds.
    pub first_seen_at: i64,
}

/// Rows to a batch under [`schema`].
///
/// # Errors
/// Arrow's, if the arrays do not fit the schema (a bug of ours).
pub fn batch(rows: &[WeightVersionRow]) -> Result<RecordBatch, ArrowError> {
    RecordBatch::try_new(
        schema(),
        vec![
            Arc::new(StringArray::from_iter_values(rows.iter().map(|r| &r.run_id))),
            Arc::new(StringArray::from_iter_values(rows.iter().map(|r| &r.weight_version))),
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| r.ordinal))),
            timestamps(rows.iter().map(|r| Some(r.first_seen_at))),
        ],
    )
}
