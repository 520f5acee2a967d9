//! Anthropic messages: a role and blocks.

use serde_json::{Value, json};

use super::Message;
use super::draft::{Draft, ToolCall, string};

/// An assistant's blocks (`thinking`, `text`, `tool_use`) as one message. The body keeps the blocks exactly, with
/// their signatures.
pub fn anthropic_assistant(blocks: Vec<Value>) -> Message {
    let mut draft = Draft { role: "assistant".to_owned(), ..Draft::default() };
    for block in &blocks {
        let Some(map) = block.as_object() else {
            draft.text.extend(block.as_str().map(str::to_owned));
            continue;
        };
        match map.get("type").and_then(Value::as_str).unwrap_or_default() {
            "text" => draft.text.extend(string(map, "text")),
            "thinking" => draft.reasoning.extend(string(map, "thinking").filter(|text| !text.is_empty())),
            "tool_use" | "server_tool_use" => {
                draft.calls.push(ToolCall::new(string(map, "id"), string(map, "name"), map.get("input")));
            }
            _ => {}
        }
    }
    let is_plain = matches!(blocks.as_slice(), [Value::Object(map)]
        if map.len() == 2 && map.get("type").and_then(Value::as_str) == Some("text"));
    if !is_plain {
        draft.body = Some(json!({"role": "assistant", "content": blocks}));
    }
    draft.finish()
}

/// What a user turn says: each `tool_result` block becomes a message of role `tool`, in order; what lies between them
/// (text, images) becomes messages of role `user`.
pub fn anthropic_user(content: Value) -> Vec<Message> {
    let blocks = match content {
        Value::Array(blocks) => blocks,
        Value::String(text) => return vec![Message::plain("user", &text)],
        other => vec![other],
    };
    let mut messages = Vec::new();
    let mut said: Vec<Value> = Vec::new();
    for block in blocks {
        if block.get("type").and_then(Value::as_str) == Some("tool_result") {
            if !said.is_empty() {
                messages.push(user_blocks(std::mem::take(&mut said)));
            }
            messages.push(tool_result(block));
        } else {
            said.push(block);
        }
    }
    if !said.is_empty() {
        messages.push(user_blocks(said));
    }
    messages
}

fn user_blocks(blocks: Vec<Value>) -> Message {
    let mut draft = Draft { role: "user".to_owned(), ..Draft::default() };
    draft.text.extend(blocks.iter().filter_map(text_of));
    let is_plain = matches!(blocks.as_slice(), [Value::Object(map)]
        if map.len() == 2 && map.get("type").and_then(Value::as_str) == Some("text"));
    if !is_plain {
        draft.body = Some(json!({"role": "user", "content": blocks}));
    }
    draft.finish()
}

fn tool_result(block: Value) -> Message {
    let mut draft = Draft { role: "tool".to_owned(), ..Draft::default() };
    draft.tool_call_id = block.get("tool_use_id").and_then(Value::as_str).map(str::to_owned);
    let content = block.get("content");
    match content {
        Some(Value::Array(parts)) => draft.text.extend(parts.iter().filter_map(text_of)),
        Some(Value::String(text)) => draft.text.push(text.clone()),
        _ => {}
    }
    let succeeded = matches!(block.get("is_error"), None | Some(Value::Null | Value::Bool(false)));
    let is_plain = content.is_some_and(Value::is_string) && succeeded && draft.tool_call_id.is_some();
    if !is_plain {
        draft.body = Some(block);
    }
    draft.finish()
}

fn text_of(block: &Value) -> Option<String> {
    match block {
        Value::String(text) => Some(text.clone()),
        Value::Object(map) => string(map, "text"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assistants_blocks_become_one_message_with_its_blocks_kept() {
        let message = anthropic_assistant(vec![
            json!({"type": "thinking", "thinking": "hm", "signature": "sig"}),
            json!({"type": "text", "text": "I look."}),
            json!({"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}}),
        ]);
        assert_eq!(message.content.reasoning.as_deref(), Some("hm"));
        assert_eq!(message.content.text.as_deref(), Some("I look."));
        assert_eq!(message.call_ids(), [Some("toolu_1".to_owned())]);
        assert!(message.content.body.as_deref().unwrap().contains("\"signature\":\"sig\""));
        assert_eq!(anthropic_assistant(vec![json!({"type": "text", "text": "x"})]).content.body, None);
    }

    #[test]
    fn tool_results_and_text_of_one_turn_become_messages_in_order() {
        let messages = anthropic_user(json!([
            {"type": "tool_result", "tool_use_id": "a", "content": "1"},
            {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "2"}], "is_error": true},
            {"type": "text", "text": "go on"},
        ]));
        let seen: Vec<_> = messages
            .iter()
            .map(|m| (m.content.role.as_deref().unwrap(), m.content.text.as_deref().unwrap(), m.content.body.is_some()))
            .collect();
        assert_eq!(seen, [("tool", "1", false), ("tool", "2", true), ("user", "go on", false)]);
        assert_eq!(messages[1].content.tool_call_id.as_deref(), Some("b"));
    }
}
