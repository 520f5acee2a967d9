//! agent-lightning archives: one rollout a row with its events; model requests carry the server's token ids.

use std::collections::BTreeMap;
use std::sync::Arc;

use dressage_schemas::words::Status;
use serde_json::{Map, Value};

use super::completion::Completion;
use super::fields::{note_repairs, object, rest, text};
use super::timestamp::micros;
use super::verdict::reward_of;
use crate::importer::{Confidence, Importer, Reader, Record, RecordError, RecordReader, Sink, Sniff, SourceInfo};
use crate::lineage::{ModelCall, SessionBuilder};
use crate::message_form::{Message, canonical_json, chat_message, tools_content};
use crate::rollout::{Rollout, derived_id};
use crate::rule;

/// agent-lightning.
#[derive(Debug)]
pub(super) struct AgentLightning;

impl Importer for AgentLightning {
    fn name(&self) -> &'static str {
        "agent-lightning"
    }

    fn sniff(&self, sniff: &Sniff<'_>) -> Confidence {
        if !sniff.is_json() || !sniff.has_all(&["rollout", "events"]) {
            return Confidence::No;
        }
        let names_rollout = |record: &Value| record.pointer("/rollout/rollout_id").is_some_and(Value::is_string);
        if sniff.records.iter().any(names_rollout) { Confidence::Certain } else { Confidence::Likely }
    }

    fn reader(&self, _source: &SourceInfo) -> Reader {
        Reader::Records(Box::new(Archive))
    }
}

struct Archive;

impl RecordReader for Archive {
    fn record(&self, record: &Record<'_>, sink: &mut dyn Sink) -> Result<(), RecordError> {
        let (value, notes) = record.json()?;
        for mut rollout in rollouts(object(value, "the row")?)? {
            note_repairs(&mut rollout, notes, record.bytes);
            sink.rollout(rollout)?;
        }
        Ok(())
    }
}

/// One trajectory for each attempt: a retry is an interaction of its own.
fn rollouts(mut row: Map<String, Value>) -> Result<Vec<Rollout>, RecordError> {
    let missing = |key: &str| RecordError::refused(rule::MISSING_FIELD, format!("the row has no {key}"));
    let Some(Value::Object(header)) = row.remove("rollout") else { return Err(missing("object rollout")) };
    let Some(Value::Array(events)) = row.remove("events") else { return Err(missing("list events")) };
    let id = text(&header, "rollout_id").ok_or_else(|| missing("rollout.rollout_id"))?;

    let mut attempts: BTreeMap<String, Vec<Map<String, Value>>> = BTreeMap::new();
    let mut order: Vec<String> = Vec::new();
    for event in events {
        let event = object(event, "an event")?;
        let attempt = text(&event, "attempt_id").unwrap_or_default();
        if !order.contains(&attempt) {
            order.push(attempt.clone());
        }
        attempts.entry(attempt).or_default().push(event);
    }
    order
        .into_iter()
        .map(|attempt| {
            let events = attempts.remove(&attempt).unwrap_or_default();
            self::attempt(&id, &attempt, &header, events, row.clone()).map_err(|error| of_trajectory(error, &id))
        })
        .collect()
}

fn of_trajectory(error: RecordError, id: &str) -> RecordError {
    match error {
        RecordError::Refused { rule, reason, .. } => {
            RecordError::Refused { rule, reason, trajectory_id: Some(id.to_owned()) }
        }
        other => other,
    }
}

fn attempt(
    id: &str,
    attempt: &str,
    header: &Map<String, Value>,
    events: Vec<Map<String, Value>>,
    row: Map<String, Value>,
) -> Result<Rollout, RecordError> {
    let mut rollout = Rollout::new(if attempt.is_empty() { id.to_owned() } else { format!("{id}/{attempt}") });
    if let Some(input) = header.get("input").filter(|input| !input.is_null()) {
        rollout.instance_id = Some(derived_id("input", canonical_json(input).as_bytes()));
    }
    rollout.created_at = micros(header.get("created_at"));
    rollout.extent = i64::try_from(events.len()).unwrap_or(i64::MAX);
    rollout.labels.insert("rollout_id".to_owned(), Value::from(id));
    for key in ["batch_idx", "sample_idx_in_batch", "trial_idx_in_group"] {
        if let Some(index) = header.get("metadata").and_then(|m| m.get(key)).filter(|index| !index.is_null()) {
            rollout.labels.insert(key.to_owned(), index.clone());
        }
    }

    let mut session = SessionBuilder::default();
    let mut last_finish = None;
    let mut others: Vec<Value> = Vec::new();
    for mut event in events {
        let at = micros(event.get("timestamp"));
        let data = event.remove("data").unwrap_or_default();
        match (text(&event, "event_type").as_deref(), data) {
            (Some("model_request"), Value::Object(data)) => {
                last_finish = model_request(&mut session, &mut rollout, data, at)?;
            }
            (Some("reward"), Value::Object(data)) => {
                if let Some(mut reward) = reward_of(data.get("value")) {
                    reward.graded_at = at;
                    reward.detail = Some(Value::Object(data));
                    rollout.rewards.push(reward);
                }
            }
            (_, data) => {
                event.insert("data".to_owned(), data);
                others.push(Value::Object(rest(event, &["rollout_id", "attempt_id"])));
            }
        }
    }
    rollout.status = status(header, attempt, last_finish.as_deref());
    (rollout.steps, rollout.data) = session.finish();
    for step in &mut rollout.steps {
        if step.model == rollout.model {
            step.model = None;
        }
    }
    rollout.extra = rest(row, &[]);
    rollout.extra.insert("rollout".to_owned(), Value::Object(rest(header.clone(), &["rollout_id"])));
    if !others.is_empty() {
        rollout.extra.insert("events".to_owned(), Value::Array(others));
    }
    Ok(rollout)
}

/// One event of a request and its response; gives the last finish reason.
fn model_request(
    session: &mut SessionBuilder,
    rollout: &mut Rollout,
    mut data: Map<String, Value>,
    at: Option<i64>,
) -> Result<Option<String>, RecordError> {
    let Some(Value::Object(mut request)) = data.remove("request") else {
        return Err(RecordError::refused(rule::MISSING_FIELD, "a model_request has no object data.request"));
    };
    let prompt: Vec<Arc<Message>> = match request.remove("messages") {
        Some(Value::Array(messages)) => messages.into_iter().map(|m| Arc::new(chat_message(m))).collect(),
        _ => Vec::new(),
    };
    let tools = tools_content(request.get("tools"));
    let completion = Completion::read(data.get("response").unwrap_or(&Value::Null))?;
    let server = data.get("server").and_then(Value::as_object);
    let version = server.and_then(|server| text(server, "version"));
    let model = completion.model.clone().or_else(|| text(&request, "model"));
    rollout.model = rollout.model.take().or_else(|| model.clone());
    let mut extra = Map::new();
    for (key, part) in [("request", Some(rest(request, &["model", "tools"]))), ("server", server.cloned())] {
        if let Some(part) = part.filter(|part| !part.is_empty()) {
            extra.insert(key.to_owned(), Value::Object(part));
        }
    }

    let mut calls = completion.into_calls();
    if calls.is_empty() {
        // the server never answered
        calls.push(ModelCall { untrainable: true, ..ModelCall::default() });
    }
    let mut last = None;
    for call in calls {
        last.clone_from(&call.finish_reason);
        session.call(
            &prompt,
            ModelCall {
                tools: tools.clone(),
                weight_version: version.clone(),
                created_at: at,
                model: call.model.clone().or_else(|| model.clone()),
                extra: extra.clone(),
                ..call
            },
        )?;
    }
    Ok(last)
}

fn status(header: &Map<String, Value>, attempt: &str, last_finish: Option<&str>) -> Status {
    let succeeded = text(header, "succeeded_attempt_id");
    match text(header, "status").as_deref() {
        Some("succeeded") if succeeded.is_none_or(|one| one == attempt) => {
            if last_finish == Some("length") {
                Status::Truncated
            } else {
                Status::Completed
            }
        }
        // an attempt beside the one that succeeded
        Some("succeeded" | "failed") => Status::Failed,
        _ => Status::Aborted,
    }
}
