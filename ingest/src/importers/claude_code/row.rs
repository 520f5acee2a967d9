//! What one row of a transcript is.

use std::sync::Arc;

use dressage_schemas::words::flag;
use serde_json::{Map, Value, json};

use crate::importer::RecordError;
use crate::importers::fields::{int, object, text};
use crate::importers::timestamp::micros;
use crate::json::Notes;
use crate::message_form::{Message, anthropic_user};
use crate::rule;

/// One row, with what its message says already in stored form.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) uuid: Option<String>,
    pub(super) parent: Option<String>,
    pub(super) session: Option<String>,
    pub(super) agent_id: Option<String>,
    pub(super) is_sidechain: bool,
    pub(super) timestamp: Option<i64>,
    pub(super) version: Option<String>,
    pub(super) cwd: Option<String>,
    pub(super) git_branch: Option<String>,
    pub(super) slug: Option<String>,
    pub(super) type_name: String,
    pub(super) flags: Vec<&'static str>,
    pub(super) kind: RowKind,
}

#[derive(Debug)]
pub(super) enum RowKind {
    /// What the user or a tool said.
    User {
        messages: Vec<Arc<Message>>,
        /// Nothing but tool results: they may hang beside the path that the conversation took.
        only_results: bool,
    },
    /// A block (or more) of a model's response.
    Assistant(Box<Response>),
    /// The history before it was replaced; the next row is the summary.
    Compaction {
        /// Rows kept word for word beside the summary: where they stand in the prompt is not recorded.
        keeps_rows: bool,
    },
    /// Old tool results were cleared in the prompt; the rows still show them.
    Microcompaction,
    /// A title for the session.
    Summary(String),
    /// Said by the client in the model's place (API errors).
    Client(Value),
    /// Anything else: it may be a link between messages.
    Other,
}

/// Rows of the same response have the same `message_id`.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) message_id: Option<String>,
    pub(super) request_id: Option<String>,
    pub(super) model: Option<String>,
    pub(super) blocks: Vec<Value>,
    pub(super) stop_reason: Option<String>,
    pub(super) usage: Map<String, Value>,
}

impl Row {
    /// # Errors
    /// A record that is no object, or has no type.
    pub(super) fn read(value: Value, notes: Notes) -> Result<Self, RecordError> {
        let mut map = object(value, "the row")?;
        let Some(type_name) = text(&map, "type") else {
            return Err(RecordError::refused(rule::MISSING_FIELD, "the row has no type"));
        };
        let flag_of = |key: &str| map.get(key).and_then(Value::as_bool) == Some(true);
        let is_client = flag_of("isApiErrorMessage");
        let subtype = text(&map, "subtype");
        let mut row = Self {
            uuid: text(&map, "uuid"),
            parent: text(&map, "parentUuid"),
            session: text(&map, "sessionId"),
            agent_id: text(&map, "agentId"),
            is_sidechain: flag_of("isSidechain"),
            timestamp: micros(map.get("timestamp")),
            version: text(&map, "version"),
            cwd: text(&map, "cwd"),
            git_branch: text(&map, "gitBranch"),
            slug: text(&map, "slug"),
            flags: Vec::new(),
            kind: RowKind::Other,
            type_name,
        };
        if notes.lone_surrogates > 0 {
            row.flags.push(flag::LONE_SURROGATE);
        }
        row.kind = match (row.type_name.as_str(), subtype.as_deref()) {
            ("user", _) => user(map.remove("message")),
            ("assistant", _) => assistant(&map, map.get("message"), is_client),
            ("system", Some("compact_boundary")) => {
                // the boundary has no parent of its own
                row.parent = row.parent.take().or_else(|| text(&map, "logicalParentUuid"));
                let metadata = map.get("compactMetadata");
                let keeps_rows = metadata.and_then(|m| m.get("preservedSegment")).is_some_and(|kept| !kept.is_null());
                RowKind::Compaction { keeps_rows }
            }
            ("system", Some("microcompact_boundary")) => RowKind::Microcompaction,
            ("summary", _) => RowKind::Summary(text(&map, "summary").unwrap_or_default()),
            _ => RowKind::Other,
        };
        Ok(row)
    }

    /// Whether a person, a tool or a model says something in it.
    pub(super) fn is_message(&self) -> bool {
        matches!(self.kind, RowKind::User { .. } | RowKind::Assistant(_))
    }
}

fn user(message: Option<Value>) -> RowKind {
    let content = match message {
        Some(Value::Object(mut message)) => message.remove("content"),
        // a bare string instead of a message has been seen
        other => other,
    };
    let Some(content) = content.filter(|content| !content.is_null()) else { return RowKind::Other };
    let messages: Vec<Arc<Message>> = anthropic_user(content).into_iter().map(Arc::new).collect();
    let only_results = messages.iter().all(|message| message.content.role.as_deref() == Some("tool"));
    RowKind::User { messages, only_results }
}

fn assistant(map: &Map<String, Value>, message: Option<&Value>, is_client: bool) -> RowKind {
    let Some(Value::Object(message)) = message else { return RowKind::Other };
    let blocks = match message.get("content") {
        Some(Value::Array(blocks)) => blocks.clone(),
        Some(Value::String(text)) => vec![json!({"type": "text", "text": text})],
        _ => Vec::new(),
    };
    let model = text(message, "model");
    if is_client || model.as_deref() == Some("<synthetic>") {
        return RowKind::Client(Value::Array(blocks));
    }
    RowKind::Assistant(Box::new(Response {
        message_id: text(message, "id"),
        request_id: text(map, "requestId"),
        model,
        blocks,
        stop_reason: text(message, "stop_reason"),
        usage: message.get("usage").and_then(Value::as_object).cloned().unwrap_or_default(),
    }))
}

/// Prompt tokens of a usage object: fresh, written to the cache, and read from it.
pub(super) fn input_tokens(usage: &Map<String, Value>) -> Option<i64> {
    let parts = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];
    let counts: Vec<i64> = parts.iter().filter_map(|key| int(usage, key)).collect();
    (!counts.is_empty()).then(|| counts.iter().sum())
}
