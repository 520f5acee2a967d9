//! What an OpenAI-compatible server answered: one completion, or the chunks of a streamed one.

use serde_json::{Map, Value, json};

use super::fields::{int, logprob_list, text, token_ids};
use crate::importer::RecordError;
use crate::lineage::{CallOutput, ModelCall};
use crate::message_form::chat_message;

/// A whole response.
#[derive(Debug, Default)]
pub(crate) struct Completion {
    pub(crate) model: Option<String>,
    pub(crate) prompt_ids: Vec<i32>,
    pub(crate) usage_input_tokens: Option<i64>,
    pub(crate) usage_output_tokens: Option<i64>,
    pub(crate) choices: Vec<Choice>,
}

/// One answer of a response.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    pub(crate) message: Option<Value>,
    pub(crate) finish_reason: Option<String>,
    pub(crate) ids: Option<Vec<i32>>,
    pub(crate) logprobs: Option<Vec<f32>>,
}

impl Completion {
    /// A `chat.completion` object, a completion, or a list of `chat.completion.chunk`s.
    ///
    /// # Errors
    /// Token ids or log-probs that are no numbers.
    pub(crate) fn read(response: &Value) -> Result<Self, RecordError> {
        match response {
            Value::Object(map) => Self::whole(map),
            Value::Array(chunks) => Self::streamed(chunks),
            _ => Ok(Self::default()),
        }
    }

    fn whole(map: &Map<String, Value>) -> Result<Self, RecordError> {
        let mut completion = Self::default();
        completion.add_head(map)?;
        for choice in map.get("choices").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object) {
            let (ids, logprobs) = tokens_of(choice)?;
            completion.choices.push(Choice {
                message: choice.get("message").cloned().or_else(|| text_message(choice)),
                finish_reason: text(choice, "finish_reason"),
                ids,
                logprobs,
            });
        }
        Ok(completion)
    }

    /// Chunks in order: the first has the prompt's ids, each further one the ids that it adds, the last the reason.
    fn streamed(chunks: &[Value]) -> Result<Self, RecordError> {
        let mut completion = Self::default();
        let mut messages: Vec<Map<String, Value>> = Vec::new();
        for chunk in chunks.iter().filter_map(Value::as_object) {
            completion.add_head(chunk)?;
            for part in chunk.get("choices").and_then(Value::as_array).into_iter().flatten() {
                let Some(part) = part.as_object() else { continue };
                // an engine numbers the choices of one response from 0; anything larger is not an index
                let index = int(part, "index").and_then(|index| usize::try_from(index).ok()).unwrap_or(0).min(1023);
                if completion.choices.len() <= index {
                    completion.choices.resize_with(index + 1, Choice::default);
                    messages.resize_with(index + 1, Map::new);
                }
                let (Some(choice), Some(message)) = (completion.choices.get_mut(index), messages.get_mut(index)) else {
                    continue;
                };
                choice.finish_reason = text(part, "finish_reason").or(choice.finish_reason.take());
                let (ids, logprobs) = tokens_of(part)?;
                if let Some(ids) = ids {
                    choice.ids.get_or_insert_default().extend(ids);
                }
                if let Some(logprobs) = logprobs {
                    choice.logprobs.get_or_insert_default().extend(logprobs);
                }
                if let Some(Value::Object(delta)) = part.get("delta") {
                    add_delta(message, delta);
                }
            }
        }
        for (choice, mut message) in completion.choices.iter_mut().zip(messages) {
            message.entry("role").or_insert_with(|| Value::from("assistant"));
            choice.message = Some(Value::Object(message));
        }
        Ok(completion)
    }

    fn add_head(&mut self, map: &Map<String, Value>) -> Result<(), RecordError> {
        self.model = text(map, "model").or(self.model.take());
        if let Some(ids) = token_ids(map, "prompt_token_ids")?.filter(|ids| !ids.is_empty()) {
            self.prompt_ids = ids;
        }
        if let Some(Value::Object(usage)) = map.get("usage") {
            self.usage_input_tokens = int(usage, "prompt_tokens").or(self.usage_input_tokens);
            self.usage_output_tokens = int(usage, "completion_tokens").or(self.usage_output_tokens);
        }
        Ok(())
    }

    /// The calls that the response makes of one prompt: one for each choice.
    pub(crate) fn into_calls(self) -> Vec<ModelCall> {
        let Self { model, prompt_ids, usage_input_tokens, usage_output_tokens, choices } = self;
        let call = |choice: Choice| ModelCall {
            reply: choice.message.map(chat_message),
            prompt_ids: prompt_ids.clone(),
            output: choice.ids.map(|ids| CallOutput { ids, logprobs: choice.logprobs, experts: None }),
            finish_reason: choice.finish_reason,
            model: model.clone(),
            usage_input_tokens,
            usage_output_tokens,
            ..ModelCall::default()
        };
        choices.into_iter().map(call).collect()
    }
}

fn text_message(choice: &Map<String, Value>) -> Option<Value> {
    choice.get("text").and_then(Value::as_str).map(|text| json!({"role": "assistant", "content": text}))
}

type Tokens = (Option<Vec<i32>>, Option<Vec<f32>>);

/// Ids and log-probs of a choice, whole or of one chunk. Ids also come as text, `token_id:123`.
fn tokens_of(choice: &Map<String, Value>) -> Result<Tokens, RecordError> {
    let mut ids = token_ids(choice, "token_ids")?;
    let Some(Value::Object(given)) = choice.get("logprobs") else {
        let bare = choice.get("logprobs").and_then(Value::as_array);
        return Ok((ids, bare.map(|list| logprob_list(list, "logprobs")).transpose()?));
    };
    if let Some(Value::Array(list)) = given.get("token_logprobs") {
        return Ok((ids, Some(logprob_list(list, "logprobs.token_logprobs")?)));
    }
    let Some(Value::Array(content)) = given.get("content") else { return Ok((ids, None)) };
    let values: Vec<Value> = content.iter().map(|token| token.get("logprob").cloned().unwrap_or_default()).collect();
    if ids.is_none() {
        let numbered = |token: &Value| token.get("token")?.as_str()?.strip_prefix("token_id:")?.parse().ok();
        ids = content.iter().map(numbered).collect::<Option<Vec<i32>>>().filter(|ids| !ids.is_empty());
    }
    Ok((ids, Some(logprob_list(&values, "logprobs.content")?)))
}

/// Adds what one chunk says: text goes to the end of its field, tool calls to the call of their index.
fn add_delta(message: &mut Map<String, Value>, delta: &Map<String, Value>) {
    for (key, value) in delta {
        match value {
            Value::Null => {}
            Value::String(_) if key == "role" => {
                message.insert(key.clone(), value.clone());
            }
            Value::String(more) => append(message, key, more),
            Value::Array(calls) if key == "tool_calls" => {
                let known = message.entry("tool_calls").or_insert_with(|| json!([]));
                for call in calls.iter().filter_map(Value::as_object) {
                    add_call(known, call);
                }
            }
            _ => {
                message.insert(key.clone(), value.clone());
            }
        }
    }
}

fn add_call(known: &mut Value, delta: &Map<String, Value>) {
    let Value::Array(calls) = known else { return };
    let index = int(delta, "index").and_then(|index| usize::try_from(index).ok()).unwrap_or(0).min(1023);
    while calls.len() <= index {
        calls.push(json!({"type": "function", "function": {"name": "", "arguments": ""}}));
    }
    let Some(Value::Object(call)) = calls.get_mut(index) else { return };
    if let Some(id) = text(delta, "id") {
        call.insert("id".to_owned(), Value::from(id));
    }
    if let (Some(Value::Object(function)), Some(Value::Object(more))) =
        (call.get_mut("function"), delta.get("function"))
    {
        for key in ["name", "arguments"] {
            if let Some(more) = more.get(key).and_then(Value::as_str) {
                append(function, key, more);
            }
        }
    }
}

fn append(map: &mut Map<String, Value>, key: &str, more: &str) {
    match map.get_mut(key) {
        Some(Value::String(text)) => text.push_str(more),
        _ => {
            map.insert(key.to_owned(), Value::from(more));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_give_what_the_whole_response_would_have() {
        let chunks = json!([
            {"model": "m", "prompt_token_ids": [1, 2], "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
            {"choices": [{"index": 0, "delta": {"content": "a"}, "token_ids": [3],
                          "logprobs": {"content": [{"token": "a", "logprob": -0.5}]}}]},
            {"choices": [{"index": 0, "delta": {"content": "b", "tool_calls": [
                {"index": 0, "id": "c1", "function": {"name": "f", "arguments": "{\"x\""}}]}, "token_ids": [4, 5],
                "logprobs": {"content": [{"logprob": -0.1}, {"logprob": null}]}}]},
            {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]},
                          "finish_reason": "stop", "token_ids": [6]}], "usage": {"prompt_tokens": 2, "completion_tokens": 4}},
        ]);
        let completion = Completion::read(&chunks).unwrap();
        assert_eq!((completion.prompt_ids.as_slice(), completion.usage_output_tokens), (&[1, 2][..], Some(4)));
        let choice = &completion.choices[0];
        assert_eq!(choice.ids.as_deref(), Some(&[3, 4, 5, 6][..]));
        assert_eq!(choice.logprobs.as_ref().map(Vec::len), Some(3), "what is missing is not made up");
        assert_eq!(choice.finish_reason.as_deref(), Some("stop"));
        assert_eq!(
            choice.message,
            Some(json!({"role": "assistant", "content": "ab", "tool_calls": [
                {"type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}, "id": "c1"}]}))
        );
    }

    #[test]
    fn ids_written_as_text_are_ids() {
        let response = json!({"choices": [{"message": {"role": "assistant", "content": "x"}, "logprobs": {"content": [
            {"token": "token_id:123", "logprob": -0.5}, {"token": "token_id:7", "logprob": -0.1}]}}]});
        assert_eq!(Completion::read(&response).unwrap().choices[0].ids.as_deref(), Some(&[123, 7][..]));
    }

    #[test]
    fn null_log_probs_keep_their_place() {
        let response = json!({"choices": [{"text": "x", "token_ids": [10, 11, 12],
                                           "logprobs": {"token_logprobs": [-0.5, null, -0.7]}}]});
        let logprobs = Completion::read(&response).unwrap().choices.remove(0).logprobs.unwrap();
        assert!(logprobs[1].is_nan() && logprobs.len() == 3);
    }
}
