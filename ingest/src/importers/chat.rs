//! Chat JSONL: rows of `messages`, or of a prompt and what was answered, with the extras that people add.

use std::sync::Arc;

use dressage_schemas::message::Content;
use dressage_schemas::words::Status;
use serde_json::{Map, Value};

use super::completion::Completion;
use super::fields::{self, note_repairs, object, rest, text};
use super::sampled::Sampled;
use super::timestamp::micros;
use super::verdict::{parts, reward_of};
use crate::importer::{Confidence, Importer, Reader, Record, RecordError, RecordReader, Sink, Sniff, SourceInfo};
use crate::lineage::{ModelCall, SessionBuilder};
use crate::message_form::{Message, canonical_json, chat_message, tools_content};
use crate::rollout::{Rollout, derived_id};
use crate::rule;

/// Chat messages, and plain prompt and completion rows.
#[derive(Debug)]
pub(super) struct Chat;

/// Keys that name an attempt; a row's `id` counts within its file only and is kept as a label.
const TRAJECTORY_KEYS: [&str; 2] = ["trajectory_id", "rollout_id"];
const INSTANCE_KEYS: [&str; 6] = ["instance_id", "task_id", "problem_id", "prompt_id", "example_id", "question_id"];
const GROUP_KEYS: [&str; 3] = ["group_id", "group", "group_index"];
const REWARD_KEYS: [&str; 2] = ["reward", "score"];
/// Keys that have a column, or were looked into.
const READ_KEYS: [&str; 16] = [
    "trajectory_id",
    "rollout_id",
    "run_id",
    "group_id",
    "group",
    "group_index",
    "messages",
    "prompt",
    "completion",
    "response",
    "tools",
    "model",
    "reward",
    "score",
    "status",
    "finish_reason",
];

impl Importer for Chat {
    fn name(&self) -> &'static str {
        "chat"
    }

    fn sniff(&self, sniff: &Sniff<'_>) -> Confidence {
        // other formats have these beside messages
        let is_other = ["segments", "steps", "responses_create_params", "trajectory_format", "samples", "sessionId"];
        if !sniff.is_json() || sniff.root_is_array || is_other.iter().any(|key| sniff.has(key)) {
            return Confidence::No;
        }
        // requests and responses in rows of their own
        let kind = sniff.records.first().and_then(|record| record.get("type")?.as_str());
        if matches!(kind, Some("request" | "response")) {
            return Confidence::No;
        }
        let is_role = |message: &Value| message.get("role").is_some_and(Value::is_string);
        let is_chat =
            |record: &Value| record.get("messages").and_then(Value::as_array).is_some_and(|m| m.iter().any(is_role));
        // a prompt alone is a task
        let is_pair = |record: &Value| {
            let said = |key: &str| record.get(key).is_some_and(|value| value.is_array() || value.is_string());
            said("prompt") && said("completion")
        };
        let has_ids = |record: &Value| record.as_object().is_some_and(Sampled::is_in);
        // logs of other shapes have such a row here and there
        let count = sniff.records.iter().filter(|record| is_chat(record) || is_pair(record) || has_ids(record)).count();
        // a first line or document longer than what was looked at shows its keys only
        let is_cut = sniff.records.is_empty() && sniff.has("messages");
        if count * 2 > sniff.records.len() || is_cut { Confidence::Weak } else { Confidence::No }
    }

    fn reader(&self, _source: &SourceInfo) -> Reader {
        Reader::Records(Box::new(Rows))
    }
}

struct Rows;

impl RecordReader for Rows {
    fn record(&self, record: &Record<'_>, sink: &mut dyn Sink) -> Result<(), RecordError> {
        let (value, notes) = record.json()?;
        let identity = canonical_json(&value);
        let mut rollout = rollout(object(value, "the row")?, &identity)?;
        note_repairs(&mut rollout, notes, record.bytes);
        sink.rollout(rollout)
    }
}

fn rollout(mut row: Map<String, Value>, identity: &str) -> Result<Rollout, RecordError> {
    let first = |row: &Map<String, Value>, keys: &[&str]| keys.iter().find_map(|key| text(row, key));
    let id = first(&row, &TRAJECTORY_KEYS).unwrap_or_else(|| derived_id("chat", identity.as_bytes()));
    let mut rollout = Rollout::new(id);
    rollout.run_id = text(&row, "run_id");
    rollout.group_id = first(&row, &GROUP_KEYS);
    rollout.model = text(&row, "model");
    rollout.created_at = ["created_at", "timestamp", "created"].iter().find_map(|key| micros(row.get(*key)));
    if let Some(id) = row.remove("id").filter(|id| !id.is_null()) {
        rollout.labels.insert("id".to_owned(), id);
    }
    if let Some(reward) = REWARD_KEYS.iter().find_map(|key| reward_of(row.get(*key))) {
        rollout.rewards.push(reward);
        if let (Some(reward), Some(Value::Object(metrics))) = (rollout.rewards.last_mut(), row.get("metrics")) {
            reward.parts.get_or_insert_with(|| parts(metrics));
        }
    }

    let sampled = Sampled::take(&mut row)?;
    let tools = tools_content(row.get("tools").or_else(|| row.pointer_to("info", "oai_tools")));
    let finish_reason = text(&row, "finish_reason");
    let about = ModelCall { tools, finish_reason: finish_reason.clone(), ..ModelCall::default() };
    let is_empty_answer = row.get("completion").and_then(Value::as_array).is_some_and(Vec::is_empty);
    let mut conversation = Conversation::of(&mut row)?;
    rollout.instance_id = first(&row, &INSTANCE_KEYS).or_else(|| {
        let prompt = conversation.prompt();
        let keys: Vec<u8> = prompt.iter().flat_map(|message| message.key.0.to_le_bytes()).collect();
        (!keys.is_empty()).then(|| derived_id("prompt", &keys))
    });
    rollout.extent = i64::try_from(conversation.messages.len().max(1)).unwrap_or(i64::MAX);

    let mut session = SessionBuilder::default();
    match row.get("response").or_else(|| row.get("choices").map(|_| &Value::Null)) {
        // the row is a request and its response, or a bare response
        Some(response) if response.is_object() || response.is_null() || response.is_array() => {
            let completion = if response.is_null() {
                Completion::read(&Value::Object(row.clone()))?
            } else {
                Completion::read(response)?
            };
            rollout.model = rollout.model.take().or_else(|| completion.model.clone());
            conversation.answered_by(&mut session, completion, &about)?;
            row.remove("choices");
        }
        _ => conversation.steps(&mut session, sampled, about)?,
    }
    if session.is_empty() {
        return Err(RecordError::refused(
            rule::EMPTY_TRAJECTORY,
            "no message and no token ids: a prompt, not a rollout",
        ));
    }
    (rollout.steps, rollout.data) = session.finish();
    let last_finish = rollout.steps.iter().rev().find_map(|step| step.finish_reason.as_deref());
    rollout.status = match text(&row, "status").as_deref().and_then(Status::parse) {
        Some(status) => status,
        None if last_finish == Some("length") => Status::Truncated,
        // an answer that is there and empty: the generation failed
        None if is_empty_answer => Status::Failed,
        None => Status::Completed,
    };
    for step in &mut rollout.steps {
        if step.model == rollout.model {
            step.model = None;
        }
    }
    rollout.extra = rest(row, &READ_KEYS);
    Ok(rollout)
}

/// Looking one level into an object.
trait PointerTo {
    fn pointer_to(&self, key: &str, inner: &str) -> Option<&Value>;
}

impl PointerTo for Map<String, Value> {
    fn pointer_to(&self, key: &str, inner: &str) -> Option<&Value> {
        self.get(key)?.get(inner)
    }
}

/// What was said, and from where on the model answers (before that, an assistant's message is part of the prompt).
struct Conversation {
    messages: Vec<Arc<Message>>,
    answers_from: usize,
    /// Whether this is what happened, answered or not. A prompt without anything else is a task.
    is_log: bool,
}

impl Conversation {
    fn of(row: &mut Map<String, Value>) -> Result<Self, RecordError> {
        if let Some(messages) = row.remove("messages") {
            let messages = messages_of(messages, "user", "messages")?;
            return Ok(Self { messages, answers_from: 0, is_log: true });
        }
        let mut messages = match row.remove("prompt") {
            Some(prompt) => messages_of(prompt, "user", "prompt")?,
            None => Vec::new(),
        };
        let answers_from = messages.len();
        let answer = match row.remove("completion") {
            Some(completion) => Some(completion),
            // text rows of token dumps; an object is a server's response
            None if row.get("response").is_some_and(Value::is_string) => row.remove("response"),
            None => row.get("text").filter(|text| text.is_string()).cloned(),
        };
        let is_log = answer.is_some();
        if let Some(answer) = answer {
            messages.extend(messages_of(answer, "assistant", "completion")?);
        }
        Ok(Self { messages, answers_from, is_log })
    }

    /// What was asked: all before the first answer.
    fn prompt(&self) -> &[Arc<Message>] {
        self.messages.get(..self.replies().next().unwrap_or(self.messages.len())).unwrap_or_default()
    }

    fn replies(&self) -> impl Iterator<Item = usize> {
        let is_reply = |&at: &usize| {
            self.messages.get(at).is_some_and(|message| message.content.role.as_deref() == Some("assistant"))
        };
        (self.answers_from..self.messages.len()).filter(is_reply)
    }

    fn steps(
        self,
        session: &mut SessionBuilder,
        sampled: Option<Sampled>,
        about: ModelCall,
    ) -> Result<(), RecordError> {
        let replies: Vec<usize> = self.replies().collect();
        // ids of a row stand for one call: its only one, or that of a row without messages
        if let Some(sampled) = sampled {
            let at = replies.first().copied().unwrap_or(self.messages.len());
            if replies.len() > 1 {
                return Err(RecordError::refused(
                    rule::TOKEN_COUNT_MISMATCH,
                    format!("one list of token ids for {} assistant's messages", replies.len()),
                ));
            }
            let reply = self.messages.get(at).map(|message| Message::clone(message));
            let tools = about.tools.clone();
            sampled.call(session, self.messages.get(..at).unwrap_or_default(), ModelCall { reply, ..about })?;
            return self.end(session, at, tools);
        }
        let Some(&last) = replies.last() else {
            if self.is_log && !self.messages.is_empty() {
                session.call(&self.messages, ModelCall { untrainable: true, ..about })?;
            }
            return Ok(());
        };
        for &at in &replies {
            let call = ModelCall {
                reply: self.messages.get(at).map(|message| Message::clone(message)),
                tools: about.tools.clone(),
                finish_reason: about.finish_reason.clone().filter(|_| at == last),
                ..ModelCall::default()
            };
            session.call(self.messages.get(..at).unwrap_or_default(), call)?;
        }
        self.end(session, last, about.tools)
    }

    /// What came after the last reply and was never answered.
    fn end(&self, session: &mut SessionBuilder, last: usize, tools: Option<Arc<Content>>) -> Result<(), RecordError> {
        if last + 1 < self.messages.len() {
            session.call(&self.messages, ModelCall { tools, untrainable: true, ..ModelCall::default() })?;
        }
        Ok(())
    }

    fn answered_by(
        &mut self,
        session: &mut SessionBuilder,
        completion: Completion,
        about: &ModelCall,
    ) -> Result<(), RecordError> {
        for call in completion.into_calls() {
            session.call(&self.messages, ModelCall { tools: about.tools.clone(), ..call })?;
        }
        Ok(())
    }
}

/// Messages from a list of them, a bare text, or either of these written as JSON text.
fn messages_of(value: Value, role: &str, key: &str) -> Result<Vec<Arc<Message>>, RecordError> {
    match value {
        Value::Array(messages) => Ok(messages.into_iter().map(|message| Arc::new(chat_message(message))).collect()),
        Value::String(text) => {
            if text.starts_with("[{")
                && let Ok(Value::Array(messages)) = serde_json::from_str(&text)
            {
                return messages_of(Value::Array(messages), role, key);
            }
            Ok(vec![Arc::new(chat_message(serde_json::json!({"role": role, "content": text})))])
        }
        Value::Null => Ok(Vec::new()),
        Value::Object(_) => Ok(vec![Arc::new(chat_message(value))]),
        other => Err(RecordError::refused(rule::WRONG_TYPE, format!("{key} is {}", fields::kind(&other)))),
    }
}
