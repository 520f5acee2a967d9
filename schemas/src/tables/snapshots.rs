//! `snapshots`: consistent sets of table versions, named so that a plan or a question can be asked again.

use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, SchemaRef};
use arrow::error::ArrowError;

use super::{schema_of, timestamp_type, timestamps};

/// The columns of `snapshots`.
pub fn schema() -> SchemaRef {
    use DataType::{Int64, Utf8};
    schema_of(vec![
        Field::new("snapshot_id", Int64, false),
        Field::new("created_at", timestamp_type(), false),
        Field::new("versions", Utf8, false),
        Field::new("tag", Utf8, true),
    ])
}

/// One version of every table.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SnapshotRow {
    /// Counting up from 1.
    pub snapshot_id: i64,
    /// When, microseconds.
    pub created_at: i64,
    /// JSON object: table name to version.
    pub versions: String,
    /// Name given by a person or plan; gc keeps tagged versions.
    pub tag: Option<String>,
}

/// Rows to a batch under [`schema`].
///
/// # Errors
/// Arrow's, if the arrays do not fit the schema (a bug of ours).
pub fn batch(rows: &[SnapshotRow]) -> Result<RecordBatch, ArrowError> {
    RecordBatch::try_new(
        schema(),
        vec![
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| r.snapshot_id))),
            timestamps(rows.iter().map(|r| Some(r.created_at))),
            Arc::new(StringArray::from_iter_values(rows.iter().map(|r| &r.versions))),
            Arc::new(StringArray::from_iter(rows.iter().map(|r| r.tag.as_deref()))),
        ],
    )
}
