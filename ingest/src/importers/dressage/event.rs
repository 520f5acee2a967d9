//! The event form: steps, rewards and the end of trajectories, as they happen.
//!
//! The events of one trajectory are in order; those of others may stand between them. `finish` makes a trajectory;
//! one that the source ends without finishing is stored as `aborted` with `"unfinished": true` in its extra keys: it
//! yields no samples, and a longer copy of the stream replaces it.

use std::collections::BTreeMap;

use dressage_schemas::spans::MaskSpans;
use dressage_schemas::words::{Route, Status};
use serde_json::Value;

use super::line::{EventLine, Header, SegmentLine};
use super::segment::masks_older_versions;
use super::whole::{header_of, name_trajectory, repaired, segment_of, settle_status, verdict_of, wrong_type};
use crate::importer::{Record, RecordError, Rejected, SessionReader, Sink, Verdict};
use crate::importers::timestamp::micros;
use crate::rollout::{ProvenanceBuilder, Rollout, RolloutStep};
use crate::rule;

/// The kinds of events.
pub(crate) fn is_kind(word: &str) -> bool {
    matches!(word, "start" | "step" | "reward" | "finish")
}

/// Key in `extra` of a trajectory whose stream ended before its `finish`.
const UNFINISHED: &str = "unfinished";

/// A trajectory that has not finished yet.
#[derive(Debug)]
struct Open {
    rollout: Rollout,
    status: Option<Status>,
    provenance: ProvenanceBuilder,
    events: i64,
    /// Of the source.
    bytes: u64,
}

/// Reads a stream of events.
#[derive(Debug, Default)]
pub(crate) struct EventStream {
    /// By run and trajectory; ordered, so that what is left at the end comes out in a stable order.
    open: BTreeMap<(Option<String>, String), Open>,
    held_bytes: u64,
}

impl SessionReader for EventStream {
    fn record(&mut self, record: &Record<'_>, sink: &mut dyn Sink) -> Result<(), RecordError> {
        if let Ok(line) = sonic_rs::from_slice::<EventLine<'_>>(record.bytes) {
            return self.event(line, record, sink);
        }
        let (repaired, _) = repaired(record.bytes)?;
        let line = serde_json::from_slice::<EventLine<'_>>(&repaired).map_err(|e| wrong_type(&e))?;
        self.event(line, record, sink)
    }

    fn held_bytes(&self) -> Option<u64> {
        Some(self.held_bytes)
    }

    fn finish(mut self: Box<Self>, sink: &mut dyn Sink) -> Result<(), RecordError> {
        while let Some((_, open)) = self.open.pop_first() {
            let mut rollout = close(open);
            rollout.status = Status::Aborted;
            rollout.extra.insert(UNFINISHED.to_owned(), Value::Bool(true));
            sink.rollout(rollout)?;
        }
        Ok(())
    }
}

fn close(open: Open) -> Rollout {
    let mut rollout = open.rollout;
    rollout.extent = open.events;
    rollout.provenance = open.provenance.build();
    settle_status(&mut rollout, open.status);
    rollout
}

impl EventStream {
    fn event(&mut self, line: EventLine<'_>, record: &Record<'_>, sink: &mut dyn Sink) -> Result<(), RecordError> {
        let EventLine { kind, header, step } = line;
        let Some(id) = header.trajectory_id.clone() else {
            return Err(RecordError::refused(rule::MISSING_FIELD, "the event has no `trajectory_id`"));
        };
        if !is_kind(&kind) {
            let reason = format!("kind is `{kind}`; known are start, step, reward and finish");
            return Err(name_trajectory(RecordError::refused(rule::UNKNOWN_WORD, reason), &id));
        }
        let key = (header.run_id.clone(), id.clone());
        // parsed in full before anything is changed
        let given = Event::of(&kind, header, step).map_err(|error| name_trajectory(error, &id))?;
        if !self.open.contains_key(&key) {
            if let Event::Reward(value) = given {
                let reward = verdict_of(value).ok_or_else(|| {
                    let refused = RecordError::refused(rule::MISSING_FIELD, "the reward event has no value");
                    name_trajectory(refused, &id)
                })?;
                let reason = "a reward for a trajectory that is neither in this stream nor in the store";
                let orphan = Rejected::record(record, rule::ORPHAN, reason).of_trajectory(id.clone());
                return sink.verdict(Verdict { run_id: key.0, trajectory_id: id, reward, orphan });
            }
            let rollout = Rollout { run_id: key.0.clone(), ..Rollout::new(id.clone()) };
            let fresh = Open { rollout, status: None, provenance: ProvenanceBuilder::default(), events: 0, bytes: 0 };
            self.open.insert(key.clone(), fresh);
        }
        let Some(open) = self.open.get_mut(&key) else { return Ok(()) };
        open.events += 1;
        open.bytes += record.bytes.len() as u64;
        self.held_bytes += record.bytes.len() as u64;
        open.provenance.add(record.bytes, record.byte_offset, record.line);
        match given {
            Event::Start(header) => merge(open, *header),
            Event::Step { header, step, data } => {
                merge(open, *header);
                open.rollout.data.extend(data);
                place(&mut open.rollout, *step);
            }
            Event::Reward(value) => open.rollout.rewards.extend(verdict_of(value)),
            Event::Finish(header) => {
                merge(open, *header);
                if let Some(open) = self.open.remove(&key) {
                    self.held_bytes -= open.bytes;
                    return sink.rollout(close(open));
                }
            }
        }
        Ok(())
    }
}

/// An event, parsed and checked.
enum Event {
    Start(Box<Headed>),
    Step { header: Box<Headed>, step: Box<RolloutStep>, data: Vec<dressage_schemas::message::Content> },
    Reward(Value),
    Finish(Box<Headed>),
}

/// What an event says of its trajectory, and how that ended where it says so.
type Headed = (Rollout, Option<Status>);

impl Event {
    fn of(kind: &str, mut header: Header, mut step: SegmentLine<'_>) -> Result<Self, RecordError> {
        match kind {
            "step" => {
                let mut data = Vec::new();
                // a step's own time and model; the trajectory's come with start and finish
                let step = step_of(step, &mut data)?;
                Ok(Self::Step { header: Box::new(header_of(header)?), step: Box::new(step), data })
            }
            "reward" => {
                let mut verdict = std::mem::take(&mut step.extra);
                if let Some(value) = header.reward.take() {
                    verdict.entry("value").or_insert(value);
                }
                Ok(Self::Reward(Value::Object(verdict)))
            }
            _ => {
                header.created_at = step.created_at.take();
                header.model = step.extra.shift_remove("model").and_then(|m| m.as_str().map(str::to_owned));
                header.extra = step.extra;
                let header = Box::new(header_of(header)?);
                Ok(if kind == "start" { Self::Start(header) } else { Self::Finish(header) })
            }
        }
    }
}

/// Later events add to what earlier ones said of the trajectory, and win where both speak.
fn merge(open: &mut Open, (from, status): Headed) {
    let into = &mut open.rollout;
    let Rollout { instance_id, group_id, parent_trajectory_id, model, agent, .. } = from;
    open.status = status.or(open.status);
    let take = |old: &mut Option<String>, new: Option<String>| {
        if new.is_some() {
            *old = new;
        }
    };
    take(&mut into.instance_id, instance_id);
    take(&mut into.group_id, group_id);
    take(&mut into.parent_trajectory_id, parent_trajectory_id);
    take(&mut into.model, model);
    take(&mut into.agent, agent);
    into.created_at = into.created_at.or(from.created_at);
    into.labels.extend(from.labels);
    into.extra.extend(from.extra);
    into.rewards.extend(from.rewards);
}

/// A step event's object as a step. Besides the keys of a segment it may have `n_output_tokens`, `n_context_messages`,
/// `lineage_id`, `lineage_index`, `base_step`, `route`, `boundary`, `boundary_reasons`, `model` and `usage`.
fn step_of(
    line: SegmentLine<'_>,
    data: &mut Vec<dressage_schemas::message::Content>,
) -> Result<RolloutStep, RecordError> {
    let given_index = line.segment_index;
    let created_at = micros(line.created_at.as_ref());
    let mut segment = segment_of(line)?;
    let mut extra = std::mem::take(&mut segment.extra);
    let mask_given = segment.mask.is_some();
    let mut step = segment.into_step(0, data);
    step.mask_nonlast_version = masks_older_versions(&extra);
    let mut int = |key: &str| extra.shift_remove(key).and_then(|v| v.as_i64());
    let n_output = int("n_output_tokens");
    let n_context_messages = int("n_context_messages");
    let lineage_index = int("lineage_index");
    let base_step = int("base_step");
    if let (Some(ids), Some(n_output)) = (&step.token_ids, n_output) {
        let n_output = usize::try_from(n_output).ok().filter(|n| *n <= ids.len()).ok_or_else(|| {
            let reason = format!("n_output_tokens is {n_output} and there are {} token ids", ids.len());
            RecordError::refused(rule::TOKEN_COUNT_MISMATCH, reason)
        })?;
        step.n_output_tokens = n_output;
        if !mask_given {
            step.mask = MaskSpans::context_then_output(ids.len() - n_output, n_output);
        }
    }
    if let Some(n) = n_context_messages.and_then(|n| usize::try_from(n).ok()) {
        step.n_context_messages = n;
    }
    step.segment_index = given_index.and_then(|i| i32::try_from(i).ok());
    step.lineage_index = lineage_index.and_then(|i| i32::try_from(i).ok()).unwrap_or(0);
    step.base_step = base_step.and_then(|i| i32::try_from(i).ok());
    step.created_at = created_at;
    let mut text = |key: &str| extra.shift_remove(key).and_then(|v| v.as_str().map(str::to_owned));
    step.lineage_id = text("lineage_id");
    step.model = text("model");
    let route = text("route");
    let boundary = extra.shift_remove("boundary").and_then(|v| v.as_bool());
    let reasons = extra.shift_remove("boundary_reasons");
    if let Some(Value::Array(reasons)) = reasons {
        step.boundary_reasons = reasons.iter().filter_map(|r| r.as_str().map(str::to_owned)).collect();
    }
    // where the event does not say, its place in the lineage does
    step.boundary = boundary.unwrap_or(!step.boundary_reasons.is_empty());
    step.route = match route.as_deref() {
        Some("create") => Route::Create,
        Some("branch") => Route::Branch,
        Some("given") => Route::Given,
        _ => Route::Append,
    };
    if let Some(usage) = extra.get("usage").cloned() {
        let count = |keys: [&str; 2]| keys.iter().find_map(|k| usage.get(*k)?.as_i64());
        step.usage_input_tokens = count(["input_tokens", "prompt_tokens"]);
        step.usage_output_tokens = count(["output_tokens", "completion_tokens"]);
    }
    step.extra = extra;
    Ok(step)
}

/// Attaches a step: the first of its lineage starts a segment, later ones extend the last one unless they say
/// otherwise.
fn place(rollout: &mut Rollout, mut step: RolloutStep) {
    let last = rollout.steps.iter().rposition(|s| s.lineage_index == step.lineage_index);
    match last {
        None => {
            if step.route == Route::Append {
                step.route = Route::Create;
            }
            if !step.boundary {
                step.boundary = true;
                step.boundary_reasons = vec![dressage_schemas::words::boundary::INITIAL.to_owned()];
            }
        }
        Some(last) if step.base_step.is_none() && step.route == Route::Append => {
            step.base_step = i32::try_from(last).ok();
        }
        Some(_) => {}
    }
    rollout.steps.push(step);
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn read(lines: &[&str]) -> (Vec<Rollout>, Vec<RecordError>) {
        let mut seen = Seen::default();
        let mut errors = Vec::new();
        let mut stream = Box::<EventStream>::default();
        let mut byte_offset = 0;
        for line in lines {
            let record = Record { bytes: line.as_bytes(), byte_offset, line: None };
            errors.extend(stream.record(&record, &mut seen).err());
            byte_offset += line.len() as u64 + 1;
        }
        stream.finish(&mut seen).unwrap();
        (seen.0, errors)
    }

    #[test]
    fn interleaved_events_become_whole_trajectories() {
        let (rollouts, errors) = read(&[
            r#"{"kind":"step","trajectory_id":"a","instance_id":"i","tokens":[1,2,3],"n_output_tokens":1,"logprobs":[0,0,-1]}"#,
            r#"{"kind":"step","trajectory_id":"b","tokens":[9],"n_output_tokens":1}"#,
            r#"{"kind":"step","trajectory_id":"a","tokens":[4,5],"n_output_tokens":1,"weight_version":3}"#,
            r#"{"kind":"reward","trajectory_id":"a","grader":"judge","value":0.25}"#,
            r#"{"kind":"finish","trajectory_id":"a","status":"completed"}"#,
        ]);
        assert!(errors.is_empty(), "{errors:?}");
        let a = &rollouts[0];
        assert_eq!((a.trajectory_id.as_str(), a.instance_id.as_deref(), a.extent), ("a", Some("i"), 4));
        assert_eq!(a.steps[0].mask.as_slice(), &[2, 1]);
        assert!(a.steps[0].boundary && !a.steps[1].boundary);
        assert_eq!((a.steps[1].base_step, a.steps[1].route), (Some(0), Route::Append));
        assert_eq!((a.rewards[0].grader.as_deref(), a.rewards[0].value), (Some("judge"), Some(0.25)));
        let b = &rollouts[1];
        assert_eq!((b.trajectory_id.as_str(), b.status), ("b", Status::Aborted));
        assert_eq!(b.extra[UNFINISHED], true);
    }

    #[test]
    fn an_event_that_belongs_to_nothing_is_refused() {
        let (rollouts, errors) = read(&[
            r#"{"kind":"reward","trajectory_id":"x","value":1}"#,
            r#"{"kind":"stop","trajectory_id":"x"}"#,
            r#"{"kind":"step","tokens":[1]}"#,
        ]);
        assert!(rollouts.is_empty());
        let rules: Vec<_> = errors
            .iter()
            .map(|e| match e {
                RecordError::Refused { rule, .. } => *rule,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(rules, [rule::ORPHAN, rule::UNKNOWN_WORD, rule::MISSING_FIELD]);
    }
}
