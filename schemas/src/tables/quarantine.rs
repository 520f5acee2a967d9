//! `quarantine`: what could not be read, with the reason and the raw bytes.

use std::sync::Arc;

use arrow::array::{Int64Array, LargeBinaryArray, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, SchemaRef};
use arrow::error::ArrowError;

use super::{schema_of, timestamp_type, timestamps};

/// The columns of `quarantine`.
pub fn schema() -> SchemaRef {
    use DataType::{Int64, LargeBinary, Utf8};
    schema_of(vec![
        Field::new("quarantine_key", Int64, false),
        Field::new("source", Utf8, false),
        Field::new("line", Int64, true),
        Field::new("byte_offset", Int64, false),
        Field::new("byte_length", Int64, false),
        Field::new("format", Utf8, true),
        Field::new("trajectory_id", Utf8, true),
        Field::new("rule", Utf8, false),
        Field::new("reason", Utf8, false),
        Field::new("raw", LargeBinary, false),
        Field::new("quarantined_at", timestamp_type(), false),
    ])
}

/// One record that was refused.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QuarantineRow {
    /// Hash of (source content, byte range, rule): reading the same bad record twice adds nothing.
    pub quarantine_key: i64,
    /// File, with the zip member after `!`.
    pub source: String,
    /// 1-based line.
    pub line: Option<i64>,
    /// Where the record starts in the decompressed source.
    pub byte_offset: i64,
    /// Its length; `raw` may hold less.
    pub byte_length: i64,
    /// The importer that refused it; null where no format was recognised.
    pub format: Option<String>,
    /// The trajectory, where the record names one.
    pub trajectory_id: Option<String>,
    /// Short name of the rule that it broke, such as `mask_length_mismatch` or `unrecognised`.
    pub rule: String,
    /// What is wrong, for a person.
    pub reason: String,
    /// The bytes as read, cut at the quarantine limit (16 MiB unless set otherwise).
    pub raw: Vec<u8>,
    /// When, microseconds.
    pub quarantined_at: i64,
}

/// Rows to a batch under [`schema`].
///
/// # Errors
/// Arrow's, if the arrays do not fit the schema (a bug of ours).
pub fn batch(rows: &[QuarantineRow]) -> Result<RecordBatch, ArrowError> {
    RecordBatch::try_new(
        schema(),
        vec![
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| r.quarantine_key))),
            Arc::new(StringArray::from_iter_values(rows.iter().map(|r| &r.source))),
            Arc::new(Int64Array::from_iter(rows.iter().map(|r| r.line))),
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| r.byte_offset))),
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| r.byte_length))),
            Arc::new(StringArray::from_iter(rows.iter().map(|r| r.format.as_deref()))),
            Arc::new(StringArray::from_iter(rows.iter().map(|r| r.trajectory_id.as_deref()))),
            Arc::new(StringArray::from_iter_values(rows.iter().map(|r| &r.rule))),
            Arc::new(StringArray::from_iter_values(rows.iter().map(|r| &r.reason))),
            Arc::new(LargeBinaryArray::from_iter_values(rows.iter().map(|r| &r.raw))),
            timestamps(rows.iter().map(|r| Some(r.quarantined_at))),
        ],
    )
}
