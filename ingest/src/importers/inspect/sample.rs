//! One sample in one epoch: a trajectory.

use std::sync::Arc;

use dressage_schemas::words::{Status, flag};
use serde_json::{Map, Value};

use super::eval::Eval;
use super::events;
use super::references::{References, stored};
use super::score::verdicts;
use crate::importer::RecordError;
use crate::importers::fields::{int, rest, text};
use crate::importers::timestamp::micros;
use crate::json::Notes;
use crate::lineage::{ModelCall, SessionBuilder};
use crate::message_form::{Message, canonical_json};
use crate::rollout::{Rollout, derived_id};
use crate::rule;

/// Keys of a sample that have a column or are read here; `events` hold the calls, `store` is the solver's scratch.
const READ_KEYS: [&str; 14] = [
    "id",
    "epoch",
    "messages",
    "events",
    "transcript",
    "events_data",
    "scores",
    "score",
    "output",
    "started_at",
    "attachments",
    "message_pool",
    "error_retries",
    "expected",
];

pub(super) fn rollout(mut sample: Map<String, Value>, eval: &Eval, notes: Notes) -> Result<Rollout, RecordError> {
    let id = text(&sample, "id");
    let epoch = int(&sample, "epoch").unwrap_or(1);
    let trajectory_id = match (&eval.task_id, &id) {
        (Some(task), Some(id)) => format!("{task}/{id}/{epoch}"),
        _ => text(&sample, "uuid")
            .unwrap_or_else(|| derived_id("inspect", canonical_json(&Value::Object(sample.clone())).as_bytes())),
    };
    let mut rollout = Rollout::new(trajectory_id.clone());
    rollout.instance_id = id.as_ref().map(|id| match &eval.task {
        Some(task) => format!("{task}/{id}"),
        None => id.clone(),
    });
    rollout.model.clone_from(&eval.model);
    rollout.agent = Some(match &eval.version {
        Some(version) => format!("inspect_ai {version}"),
        None => "inspect_ai".to_owned(),
    });
    for (label, value) in [("task", eval.task.clone()), ("sample", id)] {
        if let Some(value) = value {
            rollout.labels.insert(label.to_owned(), Value::from(value));
        }
    }
    rollout.labels.insert("epoch".to_owned(), Value::from(epoch));
    rollout.rewards = verdicts(sample.get("scores").or_else(|| sample.get("score")));
    if notes.lone_surrogates > 0 {
        rollout.flags.push(flag::LONE_SURROGATE);
    }

    let references = References::take(&mut sample);
    let messages = match sample.remove("messages") {
        Some(Value::Array(messages)) => {
            stored(messages.into_iter().map(|message| references.resolve(message)).collect())
        }
        _ => Vec::new(),
    };
    let events =
        match sample.remove("events").or_else(|| sample.get_mut("transcript")?.as_object_mut()?.remove("events")) {
            Some(Value::Array(events)) => events,
            _ => Vec::new(),
        };
    rollout.extent = i64::try_from(events.len().max(messages.len())).unwrap_or(i64::MAX);
    let mut calls = events::Calls::default();
    calls.read(events, &references).map_err(|error| named(error, &trajectory_id))?;
    if calls.builder.is_empty() {
        answered(&mut calls.builder, &messages)?;
    } else {
        calls.end(&messages)?;
    }
    if calls.builder.is_empty() {
        return Err(named(
            RecordError::refused(rule::EMPTY_TRAJECTORY, "neither a model event nor a message"),
            &trajectory_id,
        ));
    }
    rollout.created_at = micros(sample.get("started_at")).or(calls.first_at).or(eval.created_at);
    let last_finish = calls.last_finish.clone();
    (rollout.steps, rollout.data) = calls.builder.finish();
    for step in &mut rollout.steps {
        if step.model == rollout.model {
            step.model = None;
        }
    }
    rollout.status = if sample.get("error").is_some_and(|error| !error.is_null()) {
        Status::Failed
    } else if last_finish.as_deref() == Some("length") {
        Status::Truncated
    } else {
        Status::Completed
    };
    sample.retain(|_, value| !is_empty(value));
    let sample = sample.into_iter().map(|(key, value)| (key, references.resolve(value))).collect();
    rollout.extra = rest(sample, &READ_KEYS);
    Ok(rollout)
}

fn named(error: RecordError, id: &str) -> RecordError {
    match error {
        RecordError::Refused { rule, reason, .. } => {
            RecordError::Refused { rule, reason, trajectory_id: Some(id.to_owned()) }
        }
        other => other,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// The calls of a sample whose log keeps messages only: one for each answer.
fn answered(session: &mut SessionBuilder, messages: &[Arc<Message>]) -> Result<(), RecordError> {
    let mut last = None;
    for (at, message) in messages.iter().enumerate() {
        if message.content.role.as_deref() == Some("assistant") {
            let call = ModelCall { reply: Some(Message::clone(message)), ..ModelCall::default() };
            session.call(messages.get(..at).unwrap_or_default(), call)?;
            last = Some(at);
        }
    }
    if last.map_or(0, |at| at + 1) < messages.len() {
        session.call(messages, ModelCall { untrainable: true, ..ModelCall::default() })?;
    }
    Ok(())
}
