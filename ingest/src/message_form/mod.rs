//! The message shapes of the wild, brought into the one form that is stored.
//!
//! ```text
//!  OpenAI chat      {"role","content","tool_calls",…} ──┐
//!  Anthropic        role + blocks (thinking, tool_use) ─┼─▶ Message { content, data, key, flags }
//!  Responses items  reasoning, message, function_call ──┘      │        │      └─ equality for segment finding
//!                                                              │        └─ files that were inlined (base64), by hash
//!                                                              └─ text · reasoning · tool_calls · exact body
//! ```
//!
//! Nothing is lost by it: where text, tool calls and reasoning do not say everything, the exact JSON stays in `body`.

mod anthropic;
mod chat;
mod draft;
mod inline_data;
mod key;
mod reasoning;
mod responses;

use std::sync::Arc;

use dressage_schemas::message::{Content, ContentKind};
use serde_json::Value;

pub use anthropic::{anthropic_assistant, anthropic_user};
pub use chat::chat_message;
pub use key::{MessageKey, canonical_json};
pub use responses::{is_reply_item, reply_of_items, responses_context};

/// A message in stored form, with what segment finding needs to know of it.
#[derive(Debug, Clone)]
pub struct Message {
    /// The stored form.
    pub content: Arc<Content>,
    /// Files that it had inlined, named in the body by hash.
    pub data: Vec<Content>,
    /// Two messages with the same key are the same message to segment finding.
    pub key: MessageKey,
    /// Words of [`flag`](dressage_schemas::words::flag).
    pub flags: Vec<&'static str>,
}

impl Message {
    /// A role and text.
    pub fn plain(role: &str, text: &str) -> Self {
        let content = Content::plain(role, text);
        let key = MessageKey::of(&content, &[], None, &[]);
        Self { key, content: Arc::new(content), data: Vec::new(), flags: Vec::new() }
    }

    /// The ids of the tool calls that it makes, in order; none where a call has no id.
    pub fn call_ids(&self) -> Vec<Option<String>> {
        let Some(calls) = &self.content.tool_calls else { return Vec::new() };
        let Ok(Value::Array(calls)) = serde_json::from_str::<Value>(calls) else { return Vec::new() };
        calls.iter().map(|call| call.get("id").and_then(Value::as_str).map(str::to_owned)).collect()
    }
}

/// A list of tool schemas as a row of kind `tools`; none for no tools, null and `[]` alike (semantics 3.2).
pub fn tools_content(tools: Option<&Value>) -> Option<Arc<Content>> {
    // some rows have the list as JSON text
    let parsed = tools.and_then(Value::as_str).and_then(|text| serde_json::from_str::<Value>(text).ok());
    let tools = parsed.as_ref().or(tools)?;
    let is_empty = match tools {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    if is_empty {
        return None;
    }
    // keys sorted: the same schemas in another key order are the same tools
    let content = Content { kind: ContentKind::Tools, body: Some(canonical_json(tools)), ..Content::default() };
    Some(Arc::new(content))
}
