//! Long strings and repeated messages that a sample keeps once and refers to.

use std::sync::Arc;

use serde_json::{Map, Value};

/// What a sample's events refer to.
#[derive(Debug, Default)]
pub(super) struct References {
    texts: Map<String, Value>,
    pool: Vec<Value>,
}

impl References {
    /// Takes `attachments` (before 2024-11: `transcript.content`) and `message_pool` out of a sample.
    pub(super) fn take(sample: &mut Map<String, Value>) -> Self {
        let mut references = Self::default();
        if let Some(Value::Object(texts)) = sample.remove("attachments") {
            references.texts = texts;
        }
        if let Some(Value::Object(transcript)) = sample.get_mut("transcript")
            && let Some(Value::Object(texts)) = transcript.remove("content")
        {
            references.texts.extend(texts);
        }
        let pool = sample.remove("message_pool");
        let pool = pool.or_else(|| match sample.get_mut("events_data") {
            Some(Value::Object(data)) => data.remove("messages"),
            _ => None,
        });
        if let Some(Value::Array(pool)) = pool {
            references.pool = pool.into_iter().map(|message| references.resolve(message)).collect();
        }
        references
    }

    /// The value with every `attachment://<hash>` (`tc://<hash>`) replaced by its text. A reference to a text that is
    /// not there stays as it is.
    pub(super) fn resolve(&self, mut value: Value) -> Value {
        self.resolve_in(&mut value);
        value
    }

    fn resolve_in(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                let hash = text.strip_prefix("attachment://").or_else(|| text.strip_prefix("tc://"));
                if let Some(found) = hash.and_then(|hash| self.texts.get(hash)) {
                    *value = found.clone();
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.resolve_in(item)),
            Value::Object(map) => map.values_mut().for_each(|item| self.resolve_in(item)),
            _ => {}
        }
    }

    /// The messages of a model event: `input`, with numbers standing for messages of the pool, or `input_refs`, ranges
    /// of the pool.
    pub(super) fn input(&self, event: &mut Map<String, Value>) -> Vec<Value> {
        let mut messages = Vec::new();
        if let Some(Value::Array(ranges)) = event.get("input_refs") {
            let number = |value: Option<&Value>| value.and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
            for range in ranges {
                match (number(range.get(0)), number(range.get(1)), number(Some(range))) {
                    (Some(start), Some(end), _) => {
                        messages.extend(self.pool.get(start..end).unwrap_or_default().iter().cloned());
                    }
                    (_, _, Some(index)) => messages.extend(self.pool.get(index).cloned()),
                    _ => {}
                }
            }
        }
        match event.remove("input") {
            Some(Value::Array(items)) => {
                for item in items {
                    let pooled = item.as_u64().and_then(|index| self.pool.get(usize::try_from(index).ok()?));
                    messages.push(pooled.cloned().unwrap_or_else(|| self.resolve(item)));
                }
            }
            Some(Value::String(text)) => {
                messages.push(serde_json::json!({"role": "user", "content": self.resolve(Value::String(text))}));
            }
            _ => {}
        }
        messages
    }
}

/// Messages of a sample in stored form.
pub(super) fn stored(messages: Vec<Value>) -> Vec<Arc<crate::message_form::Message>> {
    messages.into_iter().map(|message| Arc::new(crate::message_form::chat_message(message))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_of_every_age_are_followed() {
        let Value::Object(mut sample) = json!({
            "attachments": {"a": "long"}, "transcript": {"content": {"b": "old"}},
            "message_pool": [{"role": "system", "content": "attachment://a"}, {"role": "user", "content": "q"}]
        }) else {
            panic!()
        };
        let references = References::take(&mut sample);
        assert_eq!(references.resolve(json!(["tc://b", "attachment://gone"])), json!(["old", "attachment://gone"]));
        let input = |event: Value| match event {
            Value::Object(mut event) => references.input(&mut event),
            _ => panic!(),
        };
        let pool = [json!({"role": "system", "content": "long"}), json!({"role": "user", "content": "q"})];
        assert_eq!(input(json!({"input": [], "input_refs": [[0, 2]]})), pool);
        assert_eq!(input(json!({"input": [0, 1]})), pool);
        assert_eq!(input(json!({"input": [], "input_refs": [[5, 9]]})), Vec::<Value>::new());
        assert_eq!(input(json!({"input": "attachment://a"})), [json!({"role": "user", "content": "long"})]);
    }
}
