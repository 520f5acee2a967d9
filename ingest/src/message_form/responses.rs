//! Items of the Responses API: what one model call says comes as several of them.

use serde_json::{Map, Value};

use super::Message;
use super::chat::chat_message;
use super::draft::{Draft, ToolCall, string};

/// Token fields that recorders put on items; they have columns of their own and are not part of what was said.
const TOKEN_FIELDS: [&str; 4] = ["prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts"];

/// Whether the item is said by the model: an assistant's message, reasoning, or a call.
pub fn is_reply_item(item: &Value) -> bool {
    match item.get("type").and_then(Value::as_str) {
        Some("message") | None => item.get("role").and_then(Value::as_str) == Some("assistant"),
        Some(kind) => !kind.ends_with("_output") && !kind.ends_with("_response"),
    }
}

/// The messages of items that are context: user, system and developer messages, tool outputs, and (in a replayed
/// history) earlier replies, whose items are put together as [`reply_of_items`] does.
pub fn responses_context(items: Vec<Value>) -> Vec<Message> {
    let mut messages = Vec::new();
    let mut reply: Vec<Value> = Vec::new();
    for item in items {
        if is_reply_item(&item) {
            reply.push(item);
            continue;
        }
        if !reply.is_empty() {
            messages.push(reply_of_items(std::mem::take(&mut reply)));
        }
        messages.push(context_item(item));
    }
    if !reply.is_empty() {
        messages.push(reply_of_items(reply));
    }
    messages
}

/// One assistant message from the items of one model call; the body keeps the items, without their token fields.
pub fn reply_of_items(items: Vec<Value>) -> Message {
    let mut draft = Draft { role: "assistant".to_owned(), ..Draft::default() };
    let mut items = items;
    for item in &mut items {
        let Some(map) = item.as_object_mut() else { continue };
        for field in TOKEN_FIELDS {
            map.remove(field);
        }
        match map.get("type").and_then(Value::as_str).unwrap_or("message") {
            "message" => draft.text.extend(texts(map.get("content"))),
            "reasoning" => {
                let content = texts(map.get("content"));
                draft.reasoning.extend(if content.is_empty() { texts(map.get("summary")) } else { content });
            }
            _ => {
                let id = string(map, "call_id").or_else(|| string(map, "id"));
                let arguments = map.get("arguments").or_else(|| map.get("input")).or_else(|| map.get("action"));
                let name = string(map, "name").or_else(|| string(map, "type"));
                draft.calls.push(ToolCall::new(id, name, arguments));
            }
        }
    }
    draft.body = Some(Value::Array(items));
    draft.finish()
}

fn context_item(item: Value) -> Message {
    let kind = item.get("type").and_then(Value::as_str);
    if matches!(kind, Some("message") | None) {
        return chat_message(without_type(item));
    }
    let mut draft = Draft { role: "tool".to_owned(), ..Draft::default() };
    if let Some(map) = item.as_object() {
        draft.tool_call_id = string(map, "call_id");
        match map.get("output") {
            Some(Value::String(text)) => draft.text.push(text.clone()),
            Some(Value::Object(output)) => draft.text.extend(texts(output.get("content"))),
            Some(output) => draft.text.extend(texts(Some(output))),
            None => {}
        }
    }
    let is_plain = item.as_object().is_some_and(|map| {
        map.iter().all(|(key, value)| match key.as_str() {
            "type" => true,
            "call_id" | "output" => value.is_string(),
            _ => value.is_null(),
        })
    });
    if !is_plain {
        draft.body = Some(item);
    }
    draft.finish()
}

/// `"type": "message"` says nothing that a message with a role does not; without it a plain message needs no body.
fn without_type(mut item: Value) -> Value {
    if let Some(map) = item.as_object_mut()
        && map.get("content").is_some_and(Value::is_string)
    {
        map.remove("type");
    }
    item
}

fn texts(content: Option<&Value>) -> Vec<String> {
    let text_of = |part: &Value| match part {
        Value::String(text) => Some(text.clone()),
        Value::Object(map) => text_field(map),
        _ => None,
    };
    match content {
        Some(Value::Array(parts)) => parts.iter().filter_map(text_of).collect(),
        Some(value) => text_of(value).into_iter().collect(),
        None => Vec::new(),
    }
}

fn text_field(map: &Map<String, Value>) -> Option<String> {
    string(map, "text").or_else(|| string(map, "refusal"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_items_of_one_call_become_one_message_without_its_token_arrays() {
        let message = reply_of_items(vec![
            json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}),
            json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I call."}]}),
            json!({"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c1",
                   "prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.1]}),
        ]);
        assert_eq!(message.content.reasoning.as_deref(), Some("hm"));
        assert_eq!(message.content.text.as_deref(), Some("I call."));
        assert_eq!(message.call_ids(), [Some("c1".to_owned())]);
        assert!(!message.content.body.as_deref().unwrap().contains("token_ids"));
    }

    #[test]
    fn a_replayed_history_puts_replies_together_between_outputs() {
        let messages = responses_context(vec![
            json!({"role": "user", "content": "q", "type": "message"}),
            json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}),
            json!({"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c1"}),
            json!({"type": "function_call_output", "call_id": "c1", "output": "r"}),
        ]);
        let roles: Vec<_> = messages.iter().map(|m| m.content.role.as_deref().unwrap()).collect();
        assert_eq!(roles, ["user", "assistant", "tool"]);
        assert_eq!(messages[0].content.body, None);
        assert_eq!(messages[2].content.tool_call_id.as_deref(), Some("c1"));
        assert_eq!(messages[2].content.text.as_deref(), Some("r"));
    }
}
