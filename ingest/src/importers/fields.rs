//! Typed reading of JSON objects whose shape is only mostly what the format says.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dressage_schemas::words::flag;
use serde_json::{Map, Value, json};

use crate::importer::RecordError;
use crate::json::Notes;
use crate::rollout::Rollout;
use crate::rule;

/// The longest record that is kept word for word beside what was read from it; of longer ones the ingest log has the
/// byte range and the hash.
const RAW_BYTES_MAX: usize = 256 << 10;

/// The record as an object.
pub(crate) fn object(value: Value, what: &str) -> Result<Map<String, Value>, RecordError> {
    match value {
        Value::Object(map) => Ok(map),
        other => Err(RecordError::refused(rule::WRONG_TYPE, format!("{what} is {}, not an object", kind(&other)))),
    }
}

/// Text, or a number written out; none for anything else and for empty text.
pub(crate) fn text(map: &Map<String, Value>, key: &str) -> Option<String> {
    match map.get(key)? {
        Value::String(text) => Some(text.clone()).filter(|text| !text.is_empty()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// A whole number.
pub(crate) fn int(map: &Map<String, Value>, key: &str) -> Option<i64> {
    map.get(key).and_then(Value::as_i64)
}

/// Token ids; none where the key is missing, null, or not a list.
///
/// # Errors
/// An entry that is no whole number of 32 bits.
pub(crate) fn token_ids(map: &Map<String, Value>, key: &str) -> Result<Option<Vec<i32>>, RecordError> {
    let Some(Value::Array(items)) = map.get(key) else { return Ok(None) };
    let id = |(at, item): (usize, &Value)| {
        item.as_i64().and_then(|id| i32::try_from(id).ok()).ok_or_else(|| {
            RecordError::refused(rule::TOKEN_ID_RANGE, format!("entry {at} of {key} is {item}, not a token id"))
        })
    };
    items.iter().enumerate().map(id).collect::<Result<_, _>>().map(Some)
}

/// Log-probabilities; null (which NaN and infinities were read as) is NaN. None where the key is missing or null.
///
/// # Errors
/// A value that is no list, or an entry that is no number.
pub(crate) fn logprobs(map: &Map<String, Value>, key: &str) -> Result<Option<Vec<f32>>, RecordError> {
    match map.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Array(items)) => logprob_list(items, key).map(Some),
        Some(other) => {
            Err(RecordError::refused(rule::WRONG_TYPE, format!("{key} is {}, not a list of numbers", kind(other))))
        }
    }
}

/// The entries of a list of log-probabilities.
///
/// # Errors
/// An entry that is no number.
pub(crate) fn logprob_list(items: &[Value], key: &str) -> Result<Vec<f32>, RecordError> {
    let number = |(at, item): (usize, &Value)| match item {
        Value::Null => Ok(f32::NAN),
        Value::Number(number) => Ok(number.as_f64().unwrap_or(f64::NAN) as f32),
        other => Err(RecordError::refused(rule::WRONG_TYPE, format!("entry {at} of {key} is {}", kind(other)))),
    };
    items.iter().enumerate().map(number).collect()
}

/// Everything but these keys, without nulls: what we have no column for.
pub(crate) fn rest(map: Map<String, Value>, known: &[&str]) -> Map<String, Value> {
    map.into_iter().filter(|(key, value)| !value.is_null() && !known.contains(&key.as_str())).collect()
}

/// Flags a rollout whose record held text that is no Unicode, and keeps the record as it came.
pub(crate) fn note_repairs(rollout: &mut Rollout, notes: Notes, record: &[u8]) {
    if notes.lone_surrogates > 0 {
        rollout.flags.push(flag::LONE_SURROGATE);
        if let Some(raw) = raw(record) {
            rollout.extra.insert("raw".to_owned(), raw);
        }
    }
}

/// A record word for word: text where it is text (the broken characters are escapes in it), else base64.
pub(crate) fn raw(record: &[u8]) -> Option<Value> {
    (record.len() <= RAW_BYTES_MAX).then(|| match std::str::from_utf8(record) {
        Ok(text) => Value::from(text),
        Err(_) => json!({"base64": STANDARD.encode(record)}),
    })
}

/// The name of a value's type, for messages.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
