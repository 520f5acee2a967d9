//! What a log says about all of its samples.

use serde_json::Value;

use crate::importers::timestamp::micros;

/// The head of a log.
#[derive(Debug, Default)]
pub(super) struct Eval {
    pub(super) task: Option<String>,
    pub(super) task_id: Option<String>,
    pub(super) model: Option<String>,
    pub(super) created_at: Option<i64>,
    pub(super) version: Option<String>,
}

impl Eval {
    /// From a header, a start record or a whole document: all have `eval`.
    pub(super) fn read(header: &Value) -> Self {
        let field = |key: &str| header.pointer(&format!("/eval/{key}")).and_then(Value::as_str).map(str::to_owned);
        Self {
            task: field("task"),
            // the same run in its two file forms has the same one
            task_id: field("task_id").or_else(|| field("run_id")),
            model: field("model"),
            created_at: micros(header.pointer("/eval/created")),
            version: field("packages/inspect_ai"),
        }
    }
}
