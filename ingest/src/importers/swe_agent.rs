//! SWE-agent `.traj` documents: steps with actions and observations, and the history that was sent.
//!
//! A step's prompt is its own `query` or `messages` where it has one; history processors elide old observations
//! there, so that it often does not extend the step before. Otherwise it is the history up to its reply.

use std::sync::Arc;

use dressage_schemas::words::Status;
use serde_json::{Map, Value, json};

use super::fields::{note_repairs, object, rest, text};
use crate::importer::{Confidence, Importer, Reader, Record, RecordError, RecordReader, Sink, Sniff, SourceInfo};
use crate::lineage::{ModelCall, SessionBuilder};
use crate::message_form::{Message, canonical_json, chat_message};
use crate::rollout::{Rollout, derived_id};
use crate::rule;

/// SWE-agent.
#[derive(Debug)]
pub(super) struct SweAgent;

impl Importer for SweAgent {
    fn name(&self) -> &'static str {
        "swe-agent"
    }

    fn sniff(&self, sniff: &Sniff<'_>) -> Confidence {
        if !sniff.is_json() || sniff.root_is_array {
            return Confidence::No;
        }
        let seen = |key: &str| memchr::memmem::find(sniff.head, key.as_bytes()).is_some();
        let is_row = |row: &Value| {
            row.get("role").is_some_and(Value::is_string)
                && (row.get("agent").is_some() || row.get("message_type").is_some() || row.get("is_demo").is_some())
        };
        let history = sniff.records.first().and_then(|record| record.get("history")).and_then(Value::as_array);
        let has_history = history.is_some_and(|rows| rows.iter().any(is_row));
        if sniff.has_all(&["trajectory", "history", "info"]) || (sniff.has("attempts") && has_history) {
            Confidence::Certain
        } else if sniff.has("trajectory") && seen("\"observation\"") && seen("\"response\"") && seen("\"thought\"") {
            // a document too long to see its other keys
            Confidence::Likely
        } else if has_history {
            Confidence::Likely
        } else {
            Confidence::No
        }
    }

    fn reader(&self, _source: &SourceInfo) -> Reader {
        Reader::Document(Box::new(Document))
    }
}

struct Document;

impl RecordReader for Document {
    fn record(&self, record: &Record<'_>, sink: &mut dyn Sink) -> Result<(), RecordError> {
        let (value, notes) = record.json()?;
        let mut document = object(value, "the document")?;
        // a retry agent's attempts; the document itself repeats the one that was chosen
        if let Some(Value::Array(attempts)) = document.remove("attempts") {
            let instance = instance(&document);
            let mut is_repeated = false;
            for attempt in attempts {
                let attempt = object(attempt, "an attempt")?;
                is_repeated |= attempt.get("history") == document.get("history");
                let mut rollout = rollout(attempt, instance.clone())?;
                note_repairs(&mut rollout, notes, record.bytes);
                sink.rollout(rollout)?;
            }
            if is_repeated {
                return Ok(());
            }
        }
        let mut rollout = rollout(document, None)?;
        note_repairs(&mut rollout, notes, record.bytes);
        sink.rollout(rollout)
    }
}

/// The problem's id, where the document names it.
fn instance(document: &Map<String, Value>) -> Option<String> {
    let replay = parsed(document.get("replay_config"));
    let id = replay.as_ref().and_then(|config| config.pointer("/problem_statement/id")).and_then(Value::as_str);
    id.map(str::to_owned).or_else(|| text(document.get("info")?.as_object()?, "instance_id"))
}

/// An object that may be written as JSON text.
fn parsed(value: Option<&Value>) -> Option<Value> {
    match value? {
        Value::String(text) => serde_json::from_str(text).ok(),
        other => Some(other.clone()),
    }
}

fn rollout(mut document: Map<String, Value>, instance_of_all: Option<String>) -> Result<Rollout, RecordError> {
    // what happened is the identity: neither the file's name nor when it was saved
    let mut identity = Vec::new();
    for key in ["trajectory", "history"] {
        identity.extend_from_slice(canonical_json(document.get(key).unwrap_or(&Value::Null)).as_bytes());
    }
    let mut rollout = Rollout::new(derived_id("swe-agent", &identity));
    rollout.instance_id = instance(&document).or(instance_of_all);
    let list = |value: Option<Value>| match value {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    };
    let trajectory = list(document.remove("trajectory"));
    let history = History::read(list(document.remove("history")));
    if trajectory.is_empty() && history.replies.is_empty() {
        return Err(RecordError::refused(rule::EMPTY_TRAJECTORY, "neither a step nor an assistant's message"));
    }
    rollout.extent = i64::try_from(trajectory.len().max(history.replies.len())).unwrap_or(i64::MAX);
    if rollout.instance_id.is_none() {
        rollout.instance_id = history.task().map(|task| derived_id("prompt", &task.key.0.to_le_bytes()));
    }

    let mut session = SessionBuilder::default();
    if trajectory.is_empty() {
        history.steps(&mut session)?;
    } else {
        trajectory_steps(&mut session, trajectory, &history)?;
    }
    (rollout.steps, rollout.data) = session.finish();

    let replay = parsed(document.get("replay_config"));
    let info = document.get("info").and_then(Value::as_object);
    rollout.model = replay.as_ref().and_then(|c| c.pointer("/agent/model/name")?.as_str().map(str::to_owned));
    let version = info.and_then(|info| text(info, "swe_agent_version"));
    rollout.agent = Some(version.map_or_else(|| "swe-agent".to_owned(), |version| format!("swe-agent {version}")));
    let exit_status = info.and_then(|info| text(info, "exit_status"));
    rollout.status = match exit_status.as_deref() {
        // a demonstration says nothing of how it ended
        None if info.is_none() => Status::Completed,
        Some(word) if word.starts_with("submitted") => Status::Completed,
        Some(word) if word.contains("error") => Status::Failed,
        _ => Status::Aborted,
    };
    if let Some(word) = exit_status {
        rollout.labels.insert("exit_status".to_owned(), Value::from(word));
    }
    if let Some(replay) = replay {
        document.insert("replay_config".to_owned(), replay);
    }
    rollout.extra = rest(document, &[]);
    Ok(rollout)
}

/// The messages of `history`, and where the agent's own replies are. Replies of demonstrations are context.
struct History {
    messages: Vec<Arc<Message>>,
    replies: Vec<usize>,
    demonstrations: Vec<bool>,
}

impl History {
    fn read(rows: Vec<Value>) -> Self {
        let is_demo = |row: &Value| row.get("is_demo").and_then(Value::as_bool) == Some(true);
        let is_reply = |row: &Value| row.get("role").and_then(Value::as_str) == Some("assistant") && !is_demo(row);
        Self {
            replies: rows.iter().enumerate().filter(|(_, row)| is_reply(row)).map(|(at, _)| at).collect(),
            demonstrations: rows.iter().map(is_demo).collect(),
            messages: rows.into_iter().map(|row| Arc::new(chat_message(row))).collect(),
        }
    }

    /// What the user asked for, demonstrations aside.
    fn task(&self) -> Option<&Arc<Message>> {
        let said = self.messages.iter().zip(&self.demonstrations).filter(|(_, is_demo)| !**is_demo);
        said.map(|(message, _)| message).find(|message| message.content.role.as_deref() == Some("user"))
    }

    fn steps(&self, session: &mut SessionBuilder) -> Result<(), RecordError> {
        for &at in &self.replies {
            let (prompt, reply) = (self.messages.get(..at).unwrap_or_default(), self.messages.get(at));
            session.call(prompt, ModelCall { reply: reply.map(|m| Message::clone(m)), ..ModelCall::default() })?;
        }
        self.end(session, self.replies.last().map_or(0, |at| at + 1))
    }

    /// What came after the last reply and was never answered.
    fn end(&self, session: &mut SessionBuilder, from: usize) -> Result<(), RecordError> {
        if self.messages.len() > from {
            session.call(&self.messages, ModelCall { untrainable: true, ..ModelCall::default() })?;
        }
        Ok(())
    }
}

fn trajectory_steps(
    session: &mut SessionBuilder,
    trajectory: Vec<Value>,
    history: &History,
) -> Result<(), RecordError> {
    // where a step has neither a prompt of its own nor a reply in the history, it goes on from here
    let mut so_far: Vec<Arc<Message>> = Vec::new();
    let mut last_reply = None;
    let mut observation = String::new();
    for (k, step) in trajectory.into_iter().enumerate() {
        let mut step = object(step, "a step")?;
        let response = text(&step, "response").unwrap_or_default();
        let own = own_prompt(&mut step);
        let recorded = history.replies.get(k).copied();
        let reply = recorded
            .and_then(|at| history.messages.get(at))
            .filter(|message| said(message, &response))
            .cloned()
            .unwrap_or_else(|| Arc::new(Message::plain("assistant", &response)));
        let (prompt, reply) = match own {
            Some(own) => split(own, &response, reply),
            None => {
                let prompt = match recorded {
                    Some(at) => history.messages.get(..at).unwrap_or_default().to_vec(),
                    None => std::mem::take(&mut so_far),
                };
                (prompt, reply)
            }
        };
        last_reply = recorded;
        observation = text(&step, "observation").unwrap_or_default();
        let call = ModelCall {
            reply: Some(Message::clone(&reply)),
            // thought, action and response are in the message; the observation is in the next prompt
            extra: rest(step, &["thought", "action", "response", "observation"]),
            ..ModelCall::default()
        };
        session.call(&prompt, call)?;
        so_far = prompt;
        if !observation.is_empty() {
            so_far.extend([Arc::clone(&reply), observed(&reply, &observation)]);
        } else {
            so_far.push(reply);
        }
    }
    match last_reply {
        Some(at) if history.messages.len() > at + 1 => history.end(session, at + 1),
        _ if !observation.is_empty() => {
            session.call(&so_far, ModelCall { untrainable: true, ..ModelCall::default() }).map(|_| ())
        }
        _ => Ok(()),
    }
}

/// What the environment answered: to the call, if the reply made exactly one.
fn observed(reply: &Message, observation: &str) -> Arc<Message> {
    Arc::new(match reply.call_ids().as_slice() {
        [Some(id)] => chat_message(json!({"role": "tool", "content": observation, "tool_call_id": id})),
        _ => Message::plain("user", observation),
    })
}

/// A message says this response: all of it, or the text beside its tool calls.
fn said(message: &Message, response: &str) -> bool {
    response.is_empty() || message.content.text.as_deref().is_some_and(|text| text.trim() == response.trim())
}

/// `query` (before the reply) or `messages` (which the history went on to write into), if not empty.
fn own_prompt(step: &mut Map<String, Value>) -> Option<Vec<Arc<Message>>> {
    ["query", "messages"].iter().find_map(|key| match step.remove(*key) {
        Some(Value::Array(rows)) if !rows.is_empty() => {
            Some(rows.into_iter().map(|row| Arc::new(chat_message(row))).collect())
        }
        _ => None,
    })
}

/// A step's own messages may go on to its reply and what followed: the prompt ends before the reply.
fn split(own: Vec<Arc<Message>>, response: &str, reply: Arc<Message>) -> (Vec<Arc<Message>>, Arc<Message>) {
    let is_reply = |message: &Arc<Message>| message.content.role.as_deref() == Some("assistant");
    let last = own.iter().rposition(is_reply);
    // after the reply comes at most what it led to
    match last.filter(|&at| at + 2 >= own.len() && !response.is_empty()) {
        Some(at) if own.get(at).is_some_and(|message| said(message, response)) => {
            let reply = own.get(at).cloned().unwrap_or(reply);
            (own.into_iter().take(at).collect(), reply)
        }
        _ => (own, reply),
    }
}
