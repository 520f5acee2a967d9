//! When two messages are the same message: equality under the normalisation of semantics 2.3 (a).

use dressage_schemas::ids::ContentHash;
use dressage_schemas::message::Content;
use serde_json::Value;
use xxhash_rust::xxh3::Xxh3;

use super::draft::ToolCall;

/// Identifies a message up to what harnesses change when they replay it: punctuation in call ids, white space in
/// JSON arguments, white space around reasoning, `""` for null beside tool calls, text as a string or as parts. 128
/// bits, so that two different messages never share one by accident.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MessageKey(pub u128);

impl MessageKey {
    /// The key of a message with these tool calls, author name and inlined files.
    pub(crate) fn of(content: &Content, calls: &[ToolCall], name: Option<&str>, data: &[ContentHash]) -> Self {
        let mut hasher = Xxh3::new();
        let mut field = |tag: u8, value: &str| {
            hasher.update(&[tag]);
            hasher.update(&(value.len() as u64).to_le_bytes());
            hasher.update(value.as_bytes());
        };
        field(b'r', content.role.as_deref().unwrap_or_default());
        // an empty text says nothing where there are tool calls, and null where there are none is not ""
        if let Some(text) = content.text.as_deref().filter(|text| calls.is_empty() || !text.is_empty()) {
            field(b't', text);
        }
        if let Some(reasoning) = content.reasoning.as_deref().map(str::trim).filter(|r| !r.is_empty()) {
            field(b'z', reasoning);
        }
        if let Some(name) = name {
            field(b'n', name);
        }
        if let Some(id) = content.tool_call_id.as_deref() {
            field(b'i', &alphanumeric(id));
        }
        for call in calls {
            field(b'c', &alphanumeric(call.id.as_deref().unwrap_or_default()));
            field(b'f', call.name.as_deref().unwrap_or_default());
            match serde_json::from_str::<Value>(&call.arguments) {
                Ok(arguments) => field(b'j', &canonical_json(&arguments)),
                Err(_) => field(b'a', &call.arguments),
            }
        }
        for hash in data {
            field(b'd', &hash.0);
        }
        Self(hasher.digest128())
    }
}

fn alphanumeric(id: &str) -> String {
    id.chars().filter(|c| c.is_alphanumeric()).collect()
}

/// JSON with sorted keys and no white space: equal values give equal text.
pub fn canonical_json(value: &Value) -> String {
    fn write(value: &Value, out: &mut String) {
        match value {
            Value::Array(items) => {
                out.push('[');
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    write(item, out);
                }
                out.push(']');
            }
            Value::Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                entries.sort_unstable_by(|a, b| a.0.cmp(b.0));
                out.push('{');
                for (i, (key, value)) in entries.into_iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    out.push_str(&Value::from(key.as_str()).to_string());
                    out.push(':');
                    write(value, out);
                }
                out.push('}');
            }
            scalar => out.push_str(&scalar.to_string()),
        }
    }
    let mut out = String::new();
    write(value, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::chat_message;
    use super::*;

    fn key(message: Value) -> MessageKey {
        chat_message(message).key
    }

    fn call(id: &str, arguments: Value) -> Value {
        json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}]})
    }

    #[test]
    fn punctuation_in_call_ids_and_white_space_in_arguments_do_not_matter() {
        let sent = key(call("call_b1467966", json!(r#"{"a": 1}"#)));
        assert_eq!(sent, key(call("callb1467966", json!(r#"{"a":1}"#))));
        assert_eq!(sent, key(call("call_b1467966", json!({"a": 1}))));
        assert_ne!(sent, key(call("call_b1467967", json!({"a": 1}))));
    }

    #[test]
    fn arguments_that_are_no_json_are_compared_word_for_word() {
        assert_ne!(key(call("c", json!(r#"{"a":1"#))), key(call("c", json!(r#"{"a":1 "#))));
        assert_eq!(key(call("c", json!(r#"{"a":1"#))), key(call("c", json!(r#"{"a":1"#))));
    }

    #[test]
    fn key_order_in_arguments_does_not_matter() {
        assert_eq!(key(call("c", json!(r#"{"a":1,"b":2}"#))), key(call("c", json!(r#"{"b":2,"a":1}"#))));
    }

    #[test]
    fn empty_text_is_null_only_beside_tool_calls() {
        let mut with_text = call("c", json!("{}"));
        with_text["content"] = json!("");
        assert_eq!(key(with_text), key(call("c", json!("{}"))));
        assert_ne!(key(json!({"role": "user", "content": ""})), key(json!({"role": "user", "content": null})));
    }

    #[test]
    fn a_string_and_one_text_part_are_the_same_and_reasoning_is_trimmed() {
        assert_eq!(
            key(json!({"role": "user", "content": "hi"})),
            key(json!({"role": "user", "content": [{"type": "text", "text": "hi"}]}))
        );
        assert_eq!(
            key(json!({"role": "assistant", "content": "x", "reasoning_content": " t\n"})),
            key(json!({"role": "assistant", "content": "x", "reasoning_content": "t"}))
        );
        assert_ne!(
            key(json!({"role": "assistant", "content": "x", "reasoning_content": "t"})),
            key(json!({"role": "assistant", "content": "x"}))
        );
    }

    #[test]
    fn a_name_and_an_image_matter() {
        assert_ne!(
            key(json!({"role": "user", "content": "hi"})),
            key(json!({"role": "user", "content": "hi", "name": "bob"}))
        );
        let image = |byte: char| {
            let url = format!("data:image/png;base64,{}", byte.to_string().repeat(400));
            json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]})
        };
        assert_eq!(key(image('A')), key(image('A')));
        assert_ne!(key(image('A')), key(image('B')));
    }
}
