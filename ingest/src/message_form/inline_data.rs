//! Files that messages have inlined as base64: taken out once, named by hash.
//!
//! Harnesses inline the same screenshot in every request and again in every compaction; with the bytes in a row of
//! their own they are stored once.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dressage_schemas::message::{Content, ContentKind};
use serde_json::{Map, Value, json};

use crate::rollout::content_hash;

/// Shorter base64 stays where it is: a row of its own would cost more than it saves.
const ENCODED_BYTES_MIN: usize = 64;

/// Replaces each inlined file in `value` by `{"$content": "<hash>"}` and adds it to `data`.
pub(crate) fn take_inlined(value: &mut Value, data: &mut Vec<Content>) {
    match value {
        Value::String(text) => {
            if let Some((media_type, encoded)) = data_url(text)
                && let Some(hash) = take(encoded, data)
            {
                *value = json!({"$content": hash, "media_type": media_type});
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| take_inlined(item, data)),
        Value::Object(map) => {
            if holds_base64(map)
                && let Some(Value::String(encoded)) = map.get("data")
                && let Some(hash) = take(encoded, data)
            {
                map.insert("data".to_owned(), json!({"$content": hash}));
            }
            map.values_mut().for_each(|item| take_inlined(item, data));
        }
        _ => {}
    }
}

/// `data:image/png;base64,…`
fn data_url(text: &str) -> Option<(&str, &str)> {
    let (head, encoded) = text.strip_prefix("data:")?.split_once(',')?;
    head.strip_suffix(";base64").map(|media_type| (media_type, encoded))
}

/// `{"type": "base64", "data": …}` (Anthropic), `{"format": "wav", "data": …}` (OpenAI audio),
/// `{"mimeType": …, "data": …}` (Gemini, MCP).
fn holds_base64(map: &Map<String, Value>) -> bool {
    map.get("type").and_then(Value::as_str) == Some("base64")
        || ["format", "media_type", "mime_type", "mimeType"]
            .iter()
            .any(|key| map.get(*key).is_some_and(Value::is_string))
}

fn take(encoded: &str, data: &mut Vec<Content>) -> Option<String> {
    if encoded.len() < ENCODED_BYTES_MIN {
        return None;
    }
    // the strict engine refuses white space and missing padding, so that encoding the bytes again gives the same text
    let bytes = STANDARD.decode(encoded).ok()?;
    let content = Content { kind: ContentKind::Data, data: Some(bytes), ..Content::default() };
    let hash = content_hash(&content).0;
    data.push(content);
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_an_inlined_file_is_the_same_row() {
        let encoded = STANDARD.encode([7_u8; 100]);
        let mut value = json!([
            {"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{encoded}")}},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": encoded}},
            {"type": "input_audio", "input_audio": {"format": "wav", "data": encoded}},
        ]);
        let mut data = Vec::new();
        take_inlined(&mut value, &mut data);
        assert_eq!(data.len(), 3);
        assert!(data.iter().all(|d| d == &data[0] && d.data.as_deref() == Some(&[7_u8; 100][..])));
        let hash = content_hash(&data[0]).0;
        assert_eq!(value[0]["image_url"]["url"], json!({"$content": hash, "media_type": "image/png"}));
        assert_eq!(value[1]["source"]["data"], json!({"$content": hash}));
        assert_eq!(value[2]["input_audio"]["data"], json!({"$content": hash}));
    }

    #[test]
    fn what_would_not_come_back_the_same_stays_inline() {
        let line_wrapped = format!("data:image/png;base64,{}\n{}", "A".repeat(76), "A".repeat(76));
        let remote = "https://example.com/a.png";
        let short = "data:image/gif;base64,R0lGODlhAQABAAAAACw=";
        let mut value = json!([line_wrapped, remote, short, {"type": "text", "data": "A".repeat(100)}]);
        let before = value.clone();
        let mut data = Vec::new();
        take_inlined(&mut value, &mut data);
        assert_eq!(value, before);
        assert!(data.is_empty());
    }
}
