//! `ingest_log`: where every row came from: source, byte range and hash.

use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, SchemaRef};
use arrow::error::ArrowError;

use super::{schema_of, timestamp_type, timestamps};

/// The columns of `ingest_log`.
pub fn schema() -> SchemaRef {
    use DataType::{Int64, Utf8};
    schema_of(vec![
        Field::new("trajectory_key", Int64, false),
        Field::new("write_id", Int64, false),
        Field::new("source", Utf8, false),
        Field::new("format", Utf8, false),
        Field::new("byte_offset", Int64, false),
        Field::new("byte_length", Int64, false),
        Field::new("record_hash", Utf8, false),
        Field::new("outcome", Utf8, false),
        Field::new("logged_at", timestamp_type(), false),
    ])
}

/// One trajectory as read from one place.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct IngestLogRow {
    /// Hash of (run_id, trajectory_id).
    pub trajectory_key: i64,
    /// The attempt that wrote it.
    pub write_id: i64,
    /// File, with the zip member after `!`.
    pub source: String,
    /// The importer.
    pub format: String,
    /// Where its bytes start in the decompressed source.
    pub byte_offset: i64,
    /// How many; for records spread over a file, to the end of the last one.
    pub byte_length: i64,
    /// BLAKE3 of those bytes, 32 hex digits.
    pub record_hash: String,
    /// `new`, `updated`, or `unchanged`: then nothing was written, and `write_id` is the attempt that was there.
    pub outcome: String,
    /// When, microseconds.
    pub logged_at: i64,
}

/// Rows to a batch under [`schema`].
///
/// # Errors
/// Arrow's, if the arrays do not fit the schema (a bug of ours).
pub fn batch(rows: &[IngestLogRow]) -> Result<RecordBatch, ArrowError> {
    RecordBatch::try_new(
        schema(),
        vec![
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| r.trajectory_key))),
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| r.write_id))),
            Arc::new(StringArray::from_iter_values(rows.iter().map(|r| &r.source))),
            Arc::new(StringArray::from_iter_values(rows.iter().map(|r| &r.format))),
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| r.byte_offset))),
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| r.byte_length))),
            Arc::new(StringArray::from_iter_values(rows.iter().map(|r| &r.record_hash))),
            Arc::new(StringArray::from_iter_values(rows.iter().map(|r| &r.outcome))),
            timestamps(rows.iter().map(|r| Some(r.logged_at))),
        ],
    )
}
