//! Lines that are whole trajectories: the hot path.

use dressage_schemas::words::{Status, flag};
use serde_json::{Map, Value};

use super::line::{Header, SegmentLine, WholeLine};
use super::segment::{Segment, experts_of};
use crate::importer::{Record, RecordError, RecordReader, Sink};
use crate::importers::timestamp::micros;
use crate::importers::verdict::reward_of;
use crate::json::{self, Broken, Notes};
use crate::rollout::{Rollout, RolloutReward};
use crate::rule;

/// Reads lines of whole trajectories.
pub(crate) struct WholeLines;

impl RecordReader for WholeLines {
    fn record(&self, record: &Record<'_>, sink: &mut dyn Sink) -> Result<(), RecordError> {
        if let Ok(line) = sonic_rs::from_slice::<WholeLine<'_>>(record.bytes) {
            return sink.rollout(rollout_of(line, Notes::default(), record)?);
        }
        let (repaired, notes) = repaired(record.bytes)?;
        let line = serde_json::from_slice::<WholeLine<'_>>(&repaired).map_err(|e| wrong_type(&e))?;
        sink.rollout(rollout_of(line, notes, record)?)
    }
}

/// What the fast parser did not take: broken, or not quite JSON (then repaired), or not what the format says (which
/// the exact parser then tells).
pub(crate) fn repaired(bytes: &[u8]) -> Result<(Vec<u8>, Notes), RecordError> {
    let end = json::value_end(bytes, 0).map_err(RecordError::Syntax)?;
    if let Some(at) = bytes[end..].iter().position(|b| !b.is_ascii_whitespace()) {
        let reason = "another value follows the first".to_owned();
        return Err(RecordError::Syntax(Broken { byte_offset: end + at, reason, cut: false }));
    }
    Ok(json::repair(bytes))
}

pub(crate) fn wrong_type(error: &serde_json::Error) -> RecordError {
    RecordError::refused(rule::WRONG_TYPE, error.to_string())
}

fn rollout_of(line: WholeLine<'_>, notes: Notes, record: &Record<'_>) -> Result<Rollout, RecordError> {
    let (mut rollout, status) = header_of(line.header)?;
    let trajectory_id = rollout.trajectory_id.clone();
    let of_trajectory = |error| name_trajectory(error, &trajectory_id);
    if notes.lone_surrogates > 0 {
        rollout.flags.push(flag::LONE_SURROGATE);
        rollout.extra.insert("raw_hex".to_owned(), Value::String(hex(record.bytes)));
    }
    let segments = line
        .segments
        .ok_or_else(|| of_trajectory(RecordError::refused(rule::MISSING_FIELD, "the trajectory has no `segments`")))?;
    rollout.steps_known = false;
    rollout.extent = i64::try_from(segments.len()).unwrap_or(i64::MAX);
    for (position, segment) in segments.into_iter().enumerate() {
        let segment = segment_of(segment).map_err(of_trajectory)?;
        let step = segment.into_step(position, &mut rollout.data);
        rollout.steps.push(step);
    }
    rollout.steps.sort_by_key(|step| step.segment_index);
    settle_status(&mut rollout, status);
    Ok(rollout)
}

/// The line's bytes in a form that JSON can hold: text with a lone surrogate is not text.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        // writing to a string cannot fail
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// Puts the trajectory's name on a refusal.
pub(crate) fn name_trajectory(error: RecordError, id: &str) -> RecordError {
    match error {
        RecordError::Refused { rule, reason, trajectory_id: None } => {
            RecordError::Refused { rule, reason, trajectory_id: Some(id.to_owned()) }
        }
        other => other,
    }
}

/// A trajectory that only has a header so far, and how it ended where the header says so.
pub(crate) fn header_of(header: Header) -> Result<(Rollout, Option<Status>), RecordError> {
    let Some(trajectory_id) = header.trajectory_id else {
        return Err(RecordError::refused(rule::MISSING_FIELD, "the record has no `trajectory_id`"));
    };
    let mut rollout = Rollout::new(trajectory_id);
    rollout.instance_id = header.instance_id;
    rollout.group_id = header.group_id;
    rollout.run_id = header.run_id;
    rollout.parent_trajectory_id = header.parent_trajectory_id;
    rollout.model = header.model;
    rollout.agent = header.agent;
    rollout.created_at = micros(header.created_at.as_ref());
    rollout.extra = header.extra;
    match header.labels {
        Some(Value::Object(labels)) => rollout.labels = labels,
        Some(Value::Null) | None => {}
        Some(other) => drop(rollout.extra.insert("labels".to_owned(), other)),
    }
    rollout.rewards.extend(reward_of(header.reward.as_ref()));
    rollout.rewards.extend(rewards_of(header.rewards));
    let status = header.status.map(|word| {
        Status::parse(&word).ok_or_else(|| {
            let reason = format!("status is `{word}`; known are completed, truncated, aborted and failed");
            name_trajectory(RecordError::refused(rule::UNKNOWN_WORD, reason), &rollout.trajectory_id)
        })
    });
    Ok((rollout, status.transpose()?))
}

/// A trajectory whose source does not say how it ended is truncated where its last segment was cut by length.
pub(crate) fn settle_status(rollout: &mut Rollout, status: Option<Status>) {
    let cut = rollout.steps.last().is_some_and(|s| s.finish_reason.as_deref() == Some("length"));
    rollout.status = status.unwrap_or(if cut { Status::Truncated } else { Status::Completed });
}

/// `rewards`: a list of verdicts `{grader, value, parts, graded_at, detail}`.
pub(crate) fn rewards_of(rewards: Option<Value>) -> Vec<RolloutReward> {
    let list = match rewards {
        Some(Value::Array(list)) => list,
        Some(Value::Null) | None => return Vec::new(),
        Some(one) => vec![one],
    };
    list.into_iter().filter_map(verdict_of).collect()
}

/// One verdict: an object that names its grader or its value, or whatever a reward may be.
pub(crate) fn verdict_of(value: Value) -> Option<RolloutReward> {
    let Value::Object(mut map) = value else { return reward_of(Some(&value)) };
    if !map.contains_key("value") && !map.contains_key("grader") {
        return reward_of(Some(&Value::Object(map)));
    }
    let mut verdict = map.get("value").and_then(|v| reward_of(Some(v))).unwrap_or_default();
    verdict.grader = map.get("grader").and_then(Value::as_str).map(str::to_owned);
    verdict.graded_at = micros(map.get("graded_at"));
    if let Some(Value::Object(parts)) = map.shift_remove("parts") {
        verdict.parts = Some(parts);
    }
    verdict.detail = map.shift_remove("detail").or(verdict.detail);
    Some(verdict)
}

/// A segment line as a segment.
pub(crate) fn segment_of(line: SegmentLine<'_>) -> Result<Segment, RecordError> {
    let mut extra: Map<String, Value> = line.extra;
    if let Some((position, value)) = line.mask.as_ref().and_then(|mask| mask.bad.clone()) {
        let reason = format!("the loss mask has {value} at position {position}; only 0 and 1 are masks");
        return Err(RecordError::refused(rule::MASK_VALUE, reason));
    }
    let segment_index = line
        .segment_index
        .map(i32::try_from)
        .transpose()
        .map_err(|_| RecordError::refused(rule::SEGMENT_INDICES, "a segment_index is no 32-bit number"))?;
    let (layers, top_k) = shape_of(&line.layers, &line.top_k, &mut extra);
    Ok(Segment {
        segment_index,
        segment_reasons: line.segment_reasons,
        turn_id: line.turn_id,
        finish_reason: line.finish_reason,
        trainable: line.trainable,
        weight_version: line.weight_version,
        tokens: line.tokens.map(|t| t.0.into()),
        mask: line.mask.map(|m| m.spans),
        logprobs: line.logprobs.map(|l| l.0.into()),
        versions: line.versions.map(|v| v.0),
        experts: experts_of(line.chunks.unwrap_or_default(), layers, top_k)?,
        messages: line.messages,
        tools: line.tools,
        created_at: micros(line.created_at.as_ref()),
        extra,
    })
}

/// Layers and top-k: of the segment, or of its `extra_info` under the names that trainers use; 0 where unknown.
fn shape_of(layers: &Option<u32>, top_k: &Option<u32>, extra: &mut Map<String, Value>) -> (u32, u32) {
    let info = extra.get("extra_info");
    let named = |name: &str| {
        let value = info.and_then(|i| i.get(name))?.as_u64()?;
        u32::try_from(value).ok()
    };
    let layers = layers.or_else(|| named("num_layers"));
    let top_k = top_k.or_else(|| named("moe_router_topk"));
    match (layers, top_k) {
        (Some(layers), Some(top_k)) => (layers, top_k),
        _ => (0, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::importer::Rejected;

    #[derive(Default)]
    struct Seen(Vec<Rollout>);

    impl Sink for Seen {
        fn rollout(&mut self, rollout: Rollout) -> Result<(), RecordError> {
            self.0.push(rollout);
            Ok(())
        }

        fn reject(&mut self, _rejected: Rejected) -> Result<(), RecordError> {
            Ok(())
        }
    }

    fn read(line: &str) -> Result<Rollout, RecordError> {
        let mut seen = Seen::default();
        let record = Record { bytes: line.as_bytes(), byte_offset: 0, line: Some(1) };
        WholeLines.record(&record, &mut seen)?;
        Ok(seen.0.remove(0))
    }

    const LINE: &str = r#"{"trajectory_id":"t","instance_id":7,"reward":0.5,"status":"completed","colour":"red",
        "segments":[{"segment_index":0,"tokens":[1,2,3],"full_loss_mask":[0,1,1],"full_logprobs":[0.0,-0.5,NAN],
        "full_versions":["-1","3","3"],"routed_experts_chunks":[{"data":"AAECAwQFBgc=","row_count":2,"dtype":"uint8"}],
        "messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"ho"}],"finish_reason":"stop",
        "extra_info":{"num_layers":2,"moe_router_topk":2,"segment_reasons":["initial"]},"uid":"u"}]}"#;

    #[test]
    fn a_line_keeps_everything_it_says() {
        let rollout = read(&LINE.replace("NAN", "-0.25")).unwrap();
        assert_eq!((rollout.instance_id.as_deref(), rollout.rewards[0].value), (Some("7"), Some(0.5)));
        assert_eq!(rollout.extra["colour"], "red");
        let step = &rollout.steps[0];
        assert_eq!(step.token_ids.as_ref().unwrap().to_vec(), [1, 2, 3]);
        assert_eq!(step.mask.as_slice(), &[1, 2]);
        assert_eq!(step.versions.as_ref().unwrap().0, [("-1".into(), 1), ("3".into(), 2)]);
        assert_eq!((step.messages.len(), step.n_context_messages, step.n_output_tokens), (2, 1, 2));
        assert_eq!(step.boundary_reasons, ["initial"]);
        assert_eq!(step.extra["uid"], "u");
        let experts = step.routed_experts.as_ref().unwrap();
        assert_eq!((experts.rows, experts.layers, experts.top_k, experts.byte_length()), (2, 2, 2, 8));
        assert!(!rollout.steps_known && step.segment_index == Some(0));
    }

    #[test]
    fn bare_nan_and_null_are_the_same_missing_log_prob() {
        for spelling in ["NaN", "null"] {
            let rollout = read(&LINE.replace("NAN", spelling)).unwrap();
            assert!(rollout.steps[0].logprobs.as_ref().unwrap()[2].is_nan(), "{spelling}");
        }
    }

    #[test]
    fn what_the_format_does_not_allow_is_refused_by_name() {
        let refused = |line: &str| match read(line) {
            Err(RecordError::Refused { rule, trajectory_id, .. }) => (rule, trajectory_id),
            other => panic!("{other:?}"),
        };
        let t = Some("t".to_owned());
        assert_eq!(refused(r#"{"instance_id":"i","segments":[]}"#).0, rule::MISSING_FIELD);
        assert_eq!(refused(r#"{"trajectory_id":"t"}"#), (rule::MISSING_FIELD, t.clone()));
        assert_eq!(refused(r#"{"trajectory_id":"t","status":"fine","segments":[]}"#), (rule::UNKNOWN_WORD, t.clone()));
        let mask = r#"{"trajectory_id":"t","segments":[{"tokens":[1],"full_loss_mask":[2]}]}"#;
        assert_eq!(refused(mask), (rule::MASK_VALUE, t));
        assert_eq!(refused(r#"{"trajectory_id":"t","segments":[{"tokens":"x"}]}"#).0, rule::WRONG_TYPE);
    }

    #[test]
    fn a_missing_status_follows_from_the_last_segment() {
        let line = r#"{"trajectory_id":"t","segments":[{"tokens":[1],"full_loss_mask":[1],"finish_reason":"length"}]}"#;
        let rollout = read(line).unwrap();
        assert_eq!(rollout.status, Status::Truncated);
        assert!(rollout.extra.is_empty());
    }

    #[test]
    fn a_cut_line_is_a_syntax_error_so_that_it_can_be_taken_apart() {
        let line = LINE.replace("NAN", "-0.25");
        assert!(matches!(read(&line[..300]), Err(RecordError::Syntax(Broken { cut: true, .. }))));
    }
}
