//! Rows of single calls: a session's id, and either token ids or a request with its response (what proxies log).

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use dressage_schemas::words::{Status, flag};
use serde_json::{Map, Value};

use super::completion::Completion;
use super::fields::{object, raw, rest, text};
use super::sampled::Sampled;
use super::timestamp::micros;
use super::verdict::reward_of;
use crate::importer::{Confidence, Importer, Reader, Record, RecordError, SessionReader, Sink, Sniff, SourceInfo};
use crate::lineage::{ModelCall, SessionBuilder};
use crate::message_form::{Message, chat_message, tools_content};
use crate::rollout::{ProvenanceBuilder, Rollout};
use crate::rule;

/// One call a row.
#[derive(Debug)]
pub(super) struct Calls;

const SESSION_KEYS: [&str; 2] = ["session", "session_id"];

/// Sessions whose rows are still being collected. Rows of parallel sessions mix in a log; what was not heard of for
/// longest is taken to be over.
const OPEN_SESSIONS_MAX: usize = 256;

impl Importer for Calls {
    fn name(&self) -> &'static str {
        "calls"
    }

    fn sniff(&self, sniff: &Sniff<'_>) -> Confidence {
        let is_call = |record: &Value| {
            let Some(map) = record.as_object() else { return false };
            let names_session = SESSION_KEYS.iter().any(|key| map.get(*key).is_some_and(Value::is_string));
            names_session && (Sampled::is_in(map) || (map.contains_key("request") && map.contains_key("response")))
        };
        if sniff.is_json() && !sniff.records.is_empty() && sniff.records.iter().all(is_call) {
            Confidence::Likely
        } else {
            Confidence::No
        }
    }

    fn reader(&self, _source: &SourceInfo) -> Reader {
        Reader::Session(Box::<Log>::default())
    }
}

struct Open {
    rollout: Rollout,
    session: SessionBuilder,
    provenance: ProvenanceBuilder,
    last_finish: Option<String>,
}

/// A log that is being read; sessions in order of their last row.
#[derive(Default)]
struct Log {
    open: VecDeque<Open>,
    closed: BTreeSet<String>,
}

impl SessionReader for Log {
    fn record(&mut self, record: &Record<'_>, sink: &mut dyn Sink) -> Result<(), RecordError> {
        let (value, notes) = record.json()?;
        let mut row = object(value, "the row")?;
        let Some(id) = SESSION_KEYS.iter().find_map(|key| text(&row, key)) else {
            return Err(RecordError::refused(rule::MISSING_FIELD, "the row names no session"));
        };
        if self.closed.contains(&id) {
            return Err(RecordError::Refused {
                rule: rule::EVENT_ORDER,
                reason: format!("more than {OPEN_SESSIONS_MAX} other sessions came between this row and the last one"),
                trajectory_id: Some(id),
            });
        }
        let call = read_call(&mut row)?;
        let index = self.open.iter().position(|open| open.rollout.trajectory_id == id);
        let mut open = index.and_then(|index| self.open.remove(index)).unwrap_or_else(|| Open {
            rollout: Rollout::new(id.clone()),
            session: SessionBuilder::default(),
            provenance: ProvenanceBuilder::default(),
            last_finish: None,
        });
        let raw = (notes.lone_surrogates > 0).then(|| raw(record.bytes)).flatten();
        row.extend(raw.map(|raw| ("raw".to_owned(), raw)));
        let added = open.add(call, &mut row);
        if notes.lone_surrogates > 0 && !open.rollout.flags.contains(&flag::LONE_SURROGATE) {
            open.rollout.flags.push(flag::LONE_SURROGATE);
        }
        if added.is_ok() {
            open.provenance.add(record.bytes, record.byte_offset, record.line);
        }
        if added.is_ok() || index.is_some() {
            self.open.push_back(open);
        }
        added?;
        if self.open.len() > OPEN_SESSIONS_MAX
            && let Some(oldest) = self.open.pop_front()
        {
            self.closed.insert(oldest.rollout.trajectory_id.clone());
            sink.rollout(oldest.close())?;
        }
        Ok(())
    }

    fn finish(self: Box<Self>, sink: &mut dyn Sink) -> Result<(), RecordError> {
        for open in self.open {
            sink.rollout(open.close())?;
        }
        Ok(())
    }
}

/// What one row says, before it goes into its session.
struct CallRow {
    prompt: Vec<Arc<Message>>,
    tools: Option<Arc<dressage_schemas::message::Content>>,
    said: Said,
}

enum Said {
    Tokens(Sampled),
    Response(Box<Completion>),
}

fn read_call(row: &mut Map<String, Value>) -> Result<CallRow, RecordError> {
    let mut request = match row.remove("request") {
        Some(Value::Object(request)) => request,
        _ => Map::new(),
    };
    let prompt = match request.remove("messages").or_else(|| row.remove("messages")) {
        Some(Value::Array(messages)) => messages.into_iter().map(|m| Arc::new(chat_message(m))).collect(),
        _ => Vec::new(),
    };
    let tools = tools_content(request.get("tools").or_else(|| row.get("tools")));
    let said = match row.remove("response") {
        Some(response) => Said::Response(Box::new(Completion::read(&response)?)),
        None => Said::Tokens(Sampled::take(row)?.unwrap_or_default()),
    };
    Ok(CallRow { prompt, tools, said })
}

impl Open {
    fn add(&mut self, row: CallRow, fields: &mut Map<String, Value>) -> Result<(), RecordError> {
        let about = ModelCall {
            tools: row.tools,
            turn_id: text(fields, "turn_id"),
            created_at: ["timestamp", "created_at"].iter().find_map(|key| micros(fields.get(*key))),
            finish_reason: text(fields, "finish_reason"),
            weight_version: text(fields, "weight_version"),
            ..ModelCall::default()
        };
        if let Some(reward) = reward_of(fields.get("reward")) {
            self.rollout.rewards.push(reward);
        }
        let known = ["session", "session_id", "turn_id", "timestamp", "created_at", "finish_reason", "reward", "tools"];
        let extra = rest(std::mem::take(fields), &known);
        match row.said {
            Said::Tokens(sampled) => {
                self.last_finish = about.finish_reason.clone().or(self.last_finish.take());
                sampled.call(&mut self.session, &row.prompt, ModelCall { extra, ..about })?;
            }
            Said::Response(completion) => {
                for call in completion.into_calls() {
                    self.last_finish = call.finish_reason.clone().or(self.last_finish.take());
                    self.rollout.model = self.rollout.model.take().or_else(|| call.model.clone());
                    let call = ModelCall {
                        tools: about.tools.clone(),
                        turn_id: about.turn_id.clone(),
                        created_at: about.created_at,
                        weight_version: about.weight_version.clone(),
                        extra: extra.clone(),
                        ..call
                    };
                    self.session.call(&row.prompt, call)?;
                }
            }
        }
        Ok(())
    }

    fn close(mut self) -> Rollout {
        (self.rollout.steps, self.rollout.data) = self.session.finish();
        self.rollout.extent = i64::try_from(self.rollout.steps.len()).unwrap_or(i64::MAX);
        self.rollout.created_at = self.rollout.steps.iter().filter_map(|step| step.created_at).min();
        if self.last_finish.as_deref() == Some("length") {
            self.rollout.status = Status::Truncated;
        }
        for step in &mut self.rollout.steps {
            if step.model == self.rollout.model {
                step.model = None;
            }
        }
        self.rollout.provenance = self.provenance.build();
        self.rollout
    }
}
