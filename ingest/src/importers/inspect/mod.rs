//! Inspect AI logs: a zip (`.eval`) with one member a sample, or one JSON document with all of them.
//!
//! ```text
//!  header.json, or _journal/start.json where the run did not finish ─▶ Eval (task, model, created)
//!  samples/<id>_epoch_<n>.json, one at a time ─▶ sample.rs ─▶ Rollout
//! ```
//!
//! A sample in an epoch is a trajectory; samples of the same id are of the same instance.

mod eval;
mod events;
mod references;
mod sample;
mod score;

use serde_json::Value;

use self::eval::Eval;
use crate::importer::{
    Archive, ArchiveReader, Confidence, Importer, Reader, Record, RecordError, RecordReader, Rejected, Shape, Sink,
    Sniff, SourceInfo,
};
use crate::importers::fields::object;
use crate::json;
use crate::rule;

/// Inspect AI, `.eval`.
#[derive(Debug)]
pub(super) struct InspectEval;

/// Inspect AI, `.json`.
#[derive(Debug)]
pub(super) struct InspectJson;

impl Importer for InspectEval {
    fn name(&self) -> &'static str {
        "inspect"
    }

    fn sniff(&self, sniff: &Sniff<'_>) -> Confidence {
        let has = |name: &str| sniff.members.iter().any(|member| member == name);
        let has_samples = sniff.members.iter().any(|member| is_sample(member));
        if sniff.shape != Shape::Zip {
            Confidence::No
        } else if has("_journal/start.json") || (has("header.json") && has_samples) {
            Confidence::Certain
        } else {
            Confidence::No
        }
    }

    fn reader(&self, _source: &SourceInfo) -> Reader {
        Reader::Archive(Box::new(Zip))
    }
}

impl Importer for InspectJson {
    fn name(&self) -> &'static str {
        "inspect-json"
    }

    fn sniff(&self, sniff: &Sniff<'_>) -> Confidence {
        if !sniff.is_json() || sniff.root_is_array {
            return Confidence::No;
        }
        let is_event = |event: &Value| {
            matches!(event.get("event").and_then(Value::as_str), Some("model" | "span_begin" | "sample_init"))
        };
        let has_events = sniff
            .records
            .first()
            .and_then(|record| record.get("events")?.as_array())
            .is_some_and(|events| events.iter().any(is_event));
        if sniff.has_all(&["eval", "plan"]) || sniff.has_all(&["eval", "samples"]) {
            Confidence::Certain
        } else if has_events {
            // a sample, or its events, by itself
            Confidence::Likely
        } else {
            Confidence::No
        }
    }

    fn reader(&self, _source: &SourceInfo) -> Reader {
        Reader::Document(Box::new(Document))
    }
}

fn is_sample(member: &str) -> bool {
    member.starts_with("samples/") && member.ends_with(".json")
}

struct Zip;

impl ArchiveReader for Zip {
    fn archive(self: Box<Self>, archive: &mut dyn Archive, sink: &mut dyn Sink) -> Result<(), RecordError> {
        let members = archive.members().to_vec();
        let find = |name: &str| members.iter().position(|member| member.name == name);
        let mut eval = Eval::default();
        // an unfinished run has no header yet
        for name in ["header.json", "_journal/start.json"] {
            if let Some(index) = find(name)
                && let Ok(bytes) = archive.read(index)
                && let Ok((header, _)) = json::parse(&bytes)
            {
                eval = Eval::read(&header);
                break;
            }
        }
        for (index, member) in members.iter().enumerate().filter(|(_, member)| is_sample(&member.name)) {
            let read = archive.read(index).and_then(|bytes| {
                let (value, notes) = json::parse(&bytes).map_err(|broken| {
                    RecordError::refused(rule::NOT_JSON, format!("at byte {}: {}", broken.byte_offset, broken.reason))
                })?;
                let mut rollout = sample::rollout(object(value, "the sample")?, &eval, notes)?;
                rollout.provenance.byte_offset = member.byte_offset;
                rollout.provenance.byte_length = member.byte_length;
                rollout.provenance.record_hash = crate::rollout::hex16(&blake3::hash(&bytes));
                Ok(rollout)
            });
            match read {
                Ok(rollout) => sink.rollout(rollout)?,
                Err(RecordError::Refused { rule, reason, trajectory_id }) => sink.reject(Rejected {
                    byte_offset: member.byte_offset,
                    byte_length: member.byte_length,
                    line: None,
                    trajectory_id,
                    rule: rule.into(),
                    reason: format!("member {}: {reason}", member.name),
                    raw: Vec::new(),
                })?,
                Err(other) => return Err(other),
            }
        }
        Ok(())
    }
}

struct Document;

impl RecordReader for Document {
    fn record(&self, record: &Record<'_>, sink: &mut dyn Sink) -> Result<(), RecordError> {
        let (value, notes) = record.json()?;
        let eval = Eval::read(&value);
        let mut document = object(value, "the document")?;
        let Some(Value::Array(samples)) = document.remove("samples") else {
            if document.get("events").is_some_and(Value::is_array) {
                return sink.rollout(sample::rollout(document, &eval, notes)?);
            }
            return Err(RecordError::refused(rule::EMPTY_TRAJECTORY, "a log without samples"));
        };
        for (at, value) in samples.into_iter().enumerate() {
            let read = object(value, "a sample").and_then(|sample| sample::rollout(sample, &eval, notes));
            match read {
                Ok(rollout) => sink.rollout(rollout)?,
                Err(RecordError::Refused { rule, reason, trajectory_id }) => {
                    let mut rejected = Rejected::record(record, rule, format!("sample {at}: {reason}"));
                    // the other samples of the document are well
                    rejected.raw = Vec::new();
                    rejected.trajectory_id = trajectory_id;
                    sink.reject(rejected)?;
                }
                Err(other) => return Err(other),
            }
        }
        Ok(())
    }
}
