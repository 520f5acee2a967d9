//! `contents`: messages, tool schemas and inlined files, each stored once and named by its hash.

use std::sync::Arc;

use arrow::array::{Int64Array, LargeBinaryArray, LargeStringArray, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, SchemaRef};
use arrow::error::ArrowError;

use super::schema_of;

/// The columns of `contents`.
pub fn schema() -> SchemaRef {
    use DataType::{Int64, LargeBinary, LargeUtf8, Utf8};
    schema_of(vec![
        Field::new("content_hash", Utf8, false),
        Field::new("kind", Utf8, false),
        Field::new("role", Utf8, true),
        Field::new("text", LargeUtf8, true),
        Field::new("reasoning", LargeUtf8, true),
        Field::new("tool_calls", LargeUtf8, true),
        Field::new("tool_call_id", Utf8, true),
        Field::new("body", LargeUtf8, true),
        Field::new("data", LargeBinary, true),
        Field::new("n_bytes", Int64, false),
    ])
}

/// One message, tool schema list or inlined file; see [`Content`](crate::message::Content).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ContentRow {
    /// BLAKE3 of [`canonical_bytes`](crate::message::Content::canonical_bytes), 32 hex digits.
    pub content_hash: String,
    /// `message`, `tools` or `data`.
    pub kind: String,
    /// Role of a message.
    pub role: Option<String>,
    /// All text parts, joined by a newline.
    pub text: Option<String>,
    /// Reasoning text, whichever field it came in.
    pub reasoning: Option<String>,
    /// JSON array of tool calls in OpenAI form.
    pub tool_calls: Option<String>,
    /// On a tool result: the call it answers.
    pub tool_call_id: Option<String>,
    /// The exact JSON; null where role and text say everything.
    pub body: Option<String>,
    /// Raw bytes of an inlined file.
    pub data: Option<Vec<u8>>,
    /// Length of the canonical bytes.
    pub n_bytes: i64,
}

/// Rows to a batch under [`schema`].
///
/// # Errors
/// Arrow's, if the arrays do not fit the schema (a bug of ours).
pub fn batch(rows: &[ContentRow]) -> Result<RecordBatch, ArrowError> {
    RecordBatch::try_new(
        schema(),
        vec![
            Arc::new(StringArray::from_iter_values(rows.iter().map(|r| &r.content_hash))),
            Arc::new(StringArray::from_iter_values(rows.iter().map(|r| &r.kind))),
            Arc::new(StringArray::from_iter(rows.iter().map(|r| r.role.as_deref()))),
            Arc::new(LargeStringArray::from_iter(rows.iter().map(|r| r.text.as_deref()))),
            Arc::new(LargeStringArray::from_iter(rows.iter().map(|r| r.reasoning.as_deref()))),
            Arc::new(LargeStringArray::from_iter(rows.iter().map(|r| r.tool_calls.as_deref()))),
            Arc::new(StringArray::from_iter(rows.iter().map(|r| r.tool_call_id.as_deref()))),
            Arc::new(LargeStringArray::from_iter(rows.iter().map(|r| r.body.as_deref()))),
            Arc::new(LargeBinaryArray::from_iter(rows.iter().map(|r| r.data.as_deref()))),
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| r.n_bytes))),
        ],
    )
}
