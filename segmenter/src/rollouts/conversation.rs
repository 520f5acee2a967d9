//! Stored messages back to the JSON that they came as.

use serde_json::{Map, Value, json};

use super::load::Contents;
use crate::columns::Columns;
use crate::error::Result;

/// The key under which a message's body names an inlined file.
const CONTENT_KEY: &str = "$content";

/// One message as the store keeps it.
#[derive(Debug, Clone, Default)]
pub(super) struct Message {
    role: Option<String>,
    text: Option<String>,
    reasoning: Option<String>,
    tool_calls: Option<String>,
    tool_call_id: Option<String>,
    body: Option<String>,
}

impl Message {
    pub(super) fn read(columns: &Columns<'_>, row: usize) -> Result<Self> {
        Ok(Self {
            role: columns.text("role", row)?,
            text: columns.text("text", row)?,
            reasoning: columns.text("reasoning", row)?,
            tool_calls: columns.text("tool_calls", row)?,
            tool_call_id: columns.text("tool_call_id", row)?,
            body: columns.text("body", row)?,
        })
    }

    /// Hashes of the files that it inlines.
    pub(super) fn files(&self) -> Vec<String> {
        let mut hashes = Vec::new();
        if let Some(body) = self.body.as_deref().filter(|body| body.contains(CONTENT_KEY))
            && let Ok(value) = serde_json::from_str(body)
        {
            collect(&value, &mut hashes);
        }
        hashes
    }

    /// The exact JSON where it was kept, else the object that role, text and calls describe.
    pub(super) fn to_json(&self, contents: &Contents) -> Value {
        let Some(mut body) = self.body.as_deref().and_then(|body| serde_json::from_str::<Value>(body).ok()) else {
            return self.plain();
        };
        inline(&mut body, contents);
        match body {
            // a body without a role is a part of a larger record: say whose it is
            Value::Object(mut map) => {
                if let (false, Some(role)) = (map.contains_key("role"), &self.role) {
                    map.insert("role".to_owned(), Value::String(role.clone()));
                }
                Value::Object(map)
            }
            // several records that are one message: it is readable as one, and they are kept beside it
            items => {
                let mut message = self.plain();
                message["items"] = items;
                message
            }
        }
    }

    /// What every chat tool reads: role, content, reasoning, tool calls. Files are left out.
    pub(super) fn plain(&self) -> Value {
        let mut map = Map::new();
        map.insert("role".to_owned(), json!(self.role.as_deref().unwrap_or("unknown")));
        map.insert("content".to_owned(), json!(self.text));
        if let Some(reasoning) = &self.reasoning {
            map.insert("reasoning_content".to_owned(), json!(reasoning));
        }
        if let Some(calls) = self.tool_calls.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok()) {
            map.insert("tool_calls".to_owned(), calls);
        }
        if let Some(id) = &self.tool_call_id {
            map.insert("tool_call_id".to_owned(), json!(id));
        }
        Value::Object(map)
    }
}

fn collect(value: &Value, hashes: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            hashes.extend(map.get(CONTENT_KEY).and_then(Value::as_str).map(str::to_owned));
            map.values().for_each(|v| collect(v, hashes));
        }
        Value::Array(items) => items.iter().for_each(|v| collect(v, hashes)),
        _ => {}
    }
}

/// Puts the files back where they were taken out.
fn inline(value: &mut Value, contents: &Contents) {
    match value {
        Value::Object(map) => {
            let file = map.get(CONTENT_KEY).and_then(Value::as_str).and_then(|hash| contents.files.get(hash));
            if let Some(bytes) = file {
                let text = base64(bytes);
                *value = Value::String(match map.get("media_type").and_then(Value::as_str) {
                    Some(media_type) => format!("data:{media_type};base64,{text}"),
                    None => text,
                });
                return;
            }
            map.values_mut().for_each(|v| inline(v, contents));
        }
        Value::Array(items) => items.iter_mut().for_each(|v| inline(v, contents)),
        _ => {}
    }
}

/// Standard base64 with padding.
pub fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0_u32, |word, b| word << 8 | u32::from(*b)) << (8 * (3 - chunk.len()));
        for position in 0..4 {
            if position <= chunk.len() {
                out.push(char::from(ALPHABET[(word >> (18 - 6 * position) & 63) as usize]));
            } else {
                out.push('=');
            }
        }
    }
    out
}

/// Text as a SQL literal.
pub(super) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_standard() {
        for (plain, encoded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(base64(plain.as_bytes()), encoded);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xfe]), "+//+");
    }

    #[test]
    fn files_come_back_to_where_they_were() {
        let mut contents = Contents::default();
        contents.files.insert("h1".into(), b"foo".to_vec());
        let body = json!({"role": "user", "content": [
            {"image_url": {"url": {"$content": "h1", "media_type": "image/png"}}},
            {"source": {"type": "base64", "data": {"$content": "h1"}}},
        ]});
        let message = Message { body: Some(body.to_string()), ..Message::default() };
        assert_eq!(message.files(), vec!["h1", "h1"]);
        let value = message.to_json(&contents);
        assert_eq!(value["content"][0]["image_url"]["url"], "data:image/png;base64,Zm9v");
        assert_eq!(value["content"][1]["source"]["data"], "Zm9v");
    }

    #[test]
    fn records_that_are_one_message_stand_beside_it() {
        let body = Some(r#"[{"type":"reasoning"},{"type":"message"}]"#.to_owned());
        let message = Message { role: Some("assistant".into()), text: Some("hi".into()), body, ..Message::default() };
        let value = message.to_json(&Contents::default());
        assert_eq!((&value["role"], &value["content"]), (&json!("assistant"), &json!("hi")));
        assert_eq!(value["items"][1]["type"], "message");
    }

    #[test]
    fn a_plain_message_is_role_and_content() {
        let message = Message { role: Some("user".into()), text: Some("hi".into()), ..Message::default() };
        assert_eq!(message.to_json(&Contents::default()), json!({"role": "user", "content": "hi"}));
    }
}
