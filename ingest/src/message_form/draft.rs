//! A message while its parts are being collected; every shape ends here.

use std::sync::Arc;

use dressage_schemas::ids::ContentHash;
use dressage_schemas::message::{Content, ContentKind};
use dressage_schemas::words::flag;
use serde_json::{Map, Value, json};

use super::inline_data::take_inlined;
use super::{Message, MessageKey};
use crate::rollout::content_hash;

/// One tool call of an assistant message.
#[derive(Debug, Clone, Default)]
pub(crate) struct ToolCall {
    pub(crate) id: Option<String>,
    pub(crate) name: Option<String>,
    /// As it came where it came as a string (broken or doubly encoded ones too), else compact JSON.
    pub(crate) arguments: String,
}

impl ToolCall {
    pub(crate) fn new(id: Option<String>, name: Option<String>, arguments: Option<&Value>) -> Self {
        let arguments = match arguments {
            None => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        };
        Self { id, name, arguments }
    }

    fn to_json(&self) -> Value {
        json!({"id": self.id, "type": "function",
               "function": {"name": self.name, "arguments": self.arguments}})
    }
}

/// The parts of a message.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    pub(crate) role: String,
    pub(crate) name: Option<String>,
    pub(crate) text: Vec<String>,
    pub(crate) reasoning: Vec<String>,
    pub(crate) calls: Vec<ToolCall>,
    pub(crate) tool_call_id: Option<String>,
    /// The exact JSON, unless role, text and tool call id say everything.
    pub(crate) body: Option<Value>,
}

impl Draft {
    pub(crate) fn finish(self) -> Message {
        let Self { role, name, text, reasoning, calls, tool_call_id, body } = self;
        let mut data = Vec::new();
        let body = body.map(|mut body| {
            take_inlined(&mut body, &mut data);
            body.to_string()
        });
        let mut flags = Vec::new();
        let is_broken = |call: &ToolCall| serde_json::from_str::<Value>(&call.arguments).is_err();
        if calls.iter().any(is_broken) {
            flags.push(flag::ARGUMENTS_NOT_JSON);
        }
        let joined = |parts: Vec<String>| (!parts.is_empty()).then(|| parts.join("\n"));
        let content = Content {
            kind: ContentKind::Message,
            role: Some(role),
            text: joined(text),
            reasoning: joined(reasoning),
            tool_calls: (!calls.is_empty())
                .then(|| Value::Array(calls.iter().map(ToolCall::to_json).collect()).to_string()),
            tool_call_id,
            body,
            data: None,
        };
        let hashes: Vec<ContentHash> = data.iter().map(content_hash).collect();
        let key = MessageKey::of(&content, &calls, name.as_deref(), &hashes);
        Message { content: Arc::new(content), data, key, flags }
    }
}

/// A string field of a JSON object.
pub(crate) fn string(map: &Map<String, Value>, key: &str) -> Option<String> {
    map.get(key).and_then(Value::as_str).map(str::to_owned)
}
