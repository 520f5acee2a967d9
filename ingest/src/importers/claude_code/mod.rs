//! Claude Code transcripts: append-only rows, linked by `parentUuid` into a tree.
//!
//! ```text
//!  rows (JSONL) ─▶ row.rs   what one row is
//!               ─▶ tree.rs  links mended, trees sorted into sessions and sub-agents
//!               ─▶ steps.rs rows of one response folded, prompts walked together ─▶ Rollout
//! ```
//!
//! A session is a trajectory; a file of a sub-agent is a child trajectory of its session. Tool schemas and the system
//! prompt are not in a transcript, and there are no token ids.

mod row;
mod steps;
mod tree;

use dressage_schemas::words::Status;
use serde_json::{Map, Value, json};

use self::row::{Row, RowKind};
use self::tree::{Tree, Trees};
use crate::importer::{
    Confidence, Importer, Reader, Record, RecordError, Rejected, SessionReader, Shape, Sink, Sniff, SourceInfo,
};
use crate::importers::fields::raw;
use crate::rollout::{ProvenanceBuilder, Rollout};
use crate::rule;

/// Claude Code.
#[derive(Debug)]
pub(super) struct ClaudeCode;

impl Importer for ClaudeCode {
    fn name(&self) -> &'static str {
        "claude-code"
    }

    fn sniff(&self, sniff: &Sniff<'_>) -> Confidence {
        if sniff.shape != Shape::JsonLines {
            return Confidence::No;
        }
        let is_text = |record: &Value, key: &str| record.get(key).is_some_and(Value::is_string);
        let kind = |record: &Value| record.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        let is_message = |record: &Value| {
            matches!(kind(record).as_str(), "user" | "assistant")
                && is_text(record, "uuid")
                && is_text(record, "sessionId")
                // other harnesses with the same links say their messages in parts
                && record.pointer("/message/content").is_some()
        };
        let is_beside = |record: &Value| match kind(record).as_str() {
            "file-history-snapshot" => record.get("snapshot").is_some(),
            "queue-operation" => is_text(record, "operation"),
            "summary" => is_text(record, "leafUuid"),
            "progress" | "system" => is_text(record, "uuid") && record.get("isSidechain").is_some(),
            _ => false,
        };
        if sniff.records.iter().any(is_message) {
            Confidence::Certain
        } else if sniff.records.iter().any(is_beside) {
            Confidence::Likely
        } else {
            Confidence::No
        }
    }

    fn reader(&self, _source: &SourceInfo) -> Reader {
        Reader::Session(Box::<Transcript>::default())
    }
}

/// The rows of one file.
#[derive(Default)]
struct Transcript {
    rows: Vec<Row>,
    /// How many rows of each type, said or not.
    counts: Map<String, Value>,
    summaries: Vec<Value>,
    /// Rows with text that is no Unicode, as they came.
    raw: Vec<Value>,
    provenance: ProvenanceBuilder,
}

impl SessionReader for Transcript {
    fn record(&mut self, record: &Record<'_>, _sink: &mut dyn Sink) -> Result<(), RecordError> {
        let (value, notes) = record.json()?;
        let row = Row::read(value, notes)?;
        if notes.lone_surrogates > 0 {
            self.raw.extend(raw(record.bytes));
        }
        self.provenance.add(record.bytes, record.byte_offset, record.line);
        let count = self.counts.get(&row.type_name).and_then(Value::as_i64).unwrap_or(0);
        self.counts.insert(row.type_name.clone(), json!(count + 1));
        if let RowKind::Summary(summary) = &row.kind {
            self.summaries.push(Value::from(summary.as_str()));
        }
        if row.uuid.is_some() || row.is_message() {
            self.rows.push(row);
        }
        Ok(())
    }

    fn finish(self: Box<Self>, sink: &mut dyn Sink) -> Result<(), RecordError> {
        let provenance = self.provenance.build();
        let trees = Trees::build(self.rows);
        let sessions = trees.sessions();
        if sessions.is_empty() {
            return sink.reject(Rejected {
                byte_offset: provenance.byte_offset,
                byte_length: provenance.byte_length,
                line: provenance.line,
                trajectory_id: None,
                rule: rule::EMPTY_TRAJECTORY.into(),
                reason: "a transcript without any message".to_owned(),
                raw: Vec::new(),
            });
        }
        let is_alone = sessions.len() == 1;
        for session in sessions {
            let mut rollout = rollout(&trees, &session.id, session.parent, &session.trees)?;
            rollout.provenance = provenance.clone();
            if is_alone {
                // what belongs to no session's tree belongs to the only one there is
                rollout.extra.insert("row_types".to_owned(), Value::Object(self.counts.clone()));
                for (key, values) in [("summaries", &self.summaries), ("raw", &self.raw)] {
                    if !values.is_empty() {
                        rollout.extra.insert(key.to_owned(), Value::Array(values.clone()));
                    }
                }
            }
            sink.rollout(rollout)?;
        }
        Ok(())
    }
}

fn rollout(trees: &Trees, id: &str, parent: Option<String>, members: &[Tree]) -> Result<Rollout, RecordError> {
    let mut rollout = Rollout::new(id);
    rollout.parent_trajectory_id = parent;
    rollout.status = Status::Completed;
    let steps = steps::assemble(trees, members)?;
    rollout.extent = steps.message_rows;
    rollout.flags = steps.flags;
    rollout.model = steps.model;
    (rollout.steps, rollout.data) = steps.builder.finish();
    // a step names its model only where it is another one
    for step in &mut rollout.steps {
        if step.model == rollout.model {
            step.model = None;
        }
    }
    let nodes = || trees.nodes_of(members).filter_map(|node| trees.row(node));
    rollout.created_at = nodes().filter_map(|row| row.timestamp).min();
    if let Some(version) = nodes().find_map(|row| row.version.clone()) {
        rollout.agent = Some(format!("claude-code {version}"));
    }
    let first = |get: fn(&Row) -> &Option<String>| nodes().find_map(|row| get(row).clone());
    for (label, value) in [
        ("cwd", first(|row| &row.cwd)),
        ("git_branch", first(|row| &row.git_branch)),
        ("slug", first(|row| &row.slug)),
        ("agent_id", first(|row| &row.agent_id)),
        ("forked_from", nodes().filter_map(|row| row.session.clone()).find(|session| forked_from(session, id))),
    ] {
        if let Some(value) = value {
            rollout.labels.insert(label.to_owned(), Value::from(value));
        }
    }
    if !steps.client_messages.is_empty() {
        rollout.extra.insert("client_messages".to_owned(), Value::Array(steps.client_messages));
    }
    Ok(rollout)
}

/// Whether rows of a session were copied into this one: a fork keeps the old session id on them.
fn forked_from(session: &str, id: &str) -> bool {
    !id.starts_with(session)
}
