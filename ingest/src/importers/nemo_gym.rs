//! NeMo Gym rollouts: a Responses request, the response with its output items, a reward, and token ids on the item
//! that ends each model call.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dressage_schemas::message::Content;
use dressage_schemas::words::Status;
use serde_json::{Map, Value};

use super::fields::{self, int, logprobs, note_repairs, object, rest, text, token_ids};
use super::timestamp::micros;
use super::verdict::{parts, reward_of};
use crate::importer::{Confidence, Importer, Reader, Record, RecordError, RecordReader, Sink, Sniff, SourceInfo};
use crate::lineage::{CallExperts, CallOutput, ModelCall, SessionBuilder};
use crate::message_form::{Message, canonical_json, is_reply_item, reply_of_items, responses_context, tools_content};
use crate::rollout::{ExpertDtype, Rollout, derived_id};
use crate::rule;

/// NeMo Gym.
#[derive(Debug)]
pub(super) struct NemoGym;

impl Importer for NemoGym {
    fn name(&self) -> &'static str {
        "nemo-gym"
    }

    fn sniff(&self, sniff: &Sniff<'_>) -> Confidence {
        // without a response it is a task, not a rollout
        let is_rollout = sniff.is_json() && sniff.has_all(&["responses_create_params", "response"]);
        if is_rollout { Confidence::Certain } else { Confidence::No }
    }

    fn reader(&self, _source: &SourceInfo) -> Reader {
        Reader::Records(Box::new(Rows))
    }
}

struct Rows;

impl RecordReader for Rows {
    fn record(&self, record: &Record<'_>, sink: &mut dyn Sink) -> Result<(), RecordError> {
        let (value, notes) = record.json()?;
        // the whole row is the identity: two attempts with the same indices in one file are two trajectories
        let id = derived_id("nemo-gym", canonical_json(&value).as_bytes());
        let mut rollout = rollout(id, object(value, "the row")?)?;
        note_repairs(&mut rollout, notes, record.bytes);
        sink.rollout(rollout)
    }
}

fn rollout(id: String, mut row: Map<String, Value>) -> Result<Rollout, RecordError> {
    let missing = |key: &str| RecordError::refused(rule::MISSING_FIELD, format!("the row has no object {key}"));
    let Some(Value::Object(mut request)) = row.remove("responses_create_params") else {
        return Err(missing("responses_create_params"));
    };
    let Some(Value::Object(mut response)) = row.remove("response") else { return Err(missing("response")) };

    let mut rollout = Rollout::new(id);
    rollout.model = text(&response, "model").or_else(|| text(&request, "model"));
    rollout.created_at = micros(response.get("created_at"));
    let agent = row.get("agent_ref").and_then(|agent| agent.get("name")).and_then(Value::as_str).map(str::to_owned);
    let prompt = prompt(&mut request)?;
    rollout.instance_id = Some(match (int(&row, "_ng_task_index"), &agent) {
        // the index counts within one agent's data set
        (Some(task), Some(agent)) => format!("{agent}/{task}"),
        (Some(task), None) => task.to_string(),
        // rows of environments that count for themselves: the same prompt is the same instance
        (None, _) => derived_id("prompt", &prompt_identity(&prompt)),
    });
    rollout.agent = agent;
    for (label, key) in [("task_index", "_ng_task_index"), ("rollout_index", "_ng_rollout_index")] {
        if let Some(index) = row.remove(key).filter(|index| !index.is_null()) {
            rollout.labels.insert(label.to_owned(), index);
        }
    }
    if let Some(mut reward) = reward_of(row.get("reward").or_else(|| response.get("reward"))) {
        if let Some(Value::Object(metrics)) = response.get("metrics") {
            reward.parts = Some(parts(metrics));
        }
        rollout.rewards.push(reward);
    }

    let tools = tools_content(request.get("tools")).or_else(|| tools_content(response.get("tools")));
    let is_masked = row.get("mask_sample").and_then(Value::as_bool) == Some(true);
    let Some(Value::Array(output)) = response.remove("output") else { return Err(missing("response.output")) };
    let mut session = Session { builder: SessionBuilder::default(), tools, is_masked };
    if output.iter().all(Value::is_array) && !output.is_empty() {
        for transition in output {
            if let Value::Array(items) = transition {
                session.transition(items)?;
            }
        }
    } else {
        session.linear(prompt.clone(), output)?;
    }
    rollout.status = status(&response, session.answered());
    if session.builder.is_empty() {
        // nothing was generated: the prompt is all there is
        session.builder.call(&prompt, ModelCall { untrainable: true, ..ModelCall::default() })?;
    }
    (rollout.steps, rollout.data) = session.builder.finish();

    rollout.extra = rest(row, &["reward", "agent_ref"]);
    for (key, part, known) in [
        ("request", request, &["input", "tools", "instructions"][..]),
        ("response", response, &["model", "created_at", "object", "tools", "reward", "metrics"][..]),
    ] {
        let left = rest(part, known);
        if !left.is_empty() {
            rollout.extra.insert(key.to_owned(), Value::Object(left));
        }
    }
    Ok(rollout)
}

fn status(response: &Map<String, Value>, answered: bool) -> Status {
    let reason = response.get("incomplete_details").and_then(|details| details.get("reason"));
    if reason.and_then(Value::as_str) == Some("max_output_tokens") {
        Status::Truncated
    } else if !answered || response.get("error").is_some_and(|error| !error.is_null()) {
        Status::Failed
    } else {
        Status::Completed
    }
}

/// The request's messages; takes them out of it.
fn prompt(request: &mut Map<String, Value>) -> Result<Vec<Arc<Message>>, RecordError> {
    let mut messages: Vec<Message> = Vec::new();
    if let Some(instructions) = text(request, "instructions") {
        messages.push(Message::plain("system", &instructions));
    }
    match request.remove("input") {
        Some(Value::String(text)) => messages.push(Message::plain("user", &text)),
        Some(Value::Array(items)) => messages.extend(responses_context(items)),
        None | Some(Value::Null) => {}
        Some(other) => {
            let reason = format!("responses_create_params.input is {}", fields::kind(&other));
            return Err(RecordError::refused(rule::WRONG_TYPE, reason));
        }
    }
    Ok(messages.into_iter().map(Arc::new).collect())
}

fn prompt_identity(prompt: &[Arc<Message>]) -> Vec<u8> {
    prompt.iter().flat_map(|message| message.key.0.to_le_bytes()).collect()
}

struct Session {
    builder: SessionBuilder,
    tools: Option<Arc<Content>>,
    is_masked: bool,
}

impl Session {
    fn answered(&self) -> bool {
        !self.builder.is_empty()
    }

    /// `output` as one list: replies, and what the environment said in between.
    fn linear(&mut self, mut history: Vec<Arc<Message>>, output: Vec<Value>) -> Result<(), RecordError> {
        let mut reply: Vec<Value> = Vec::new();
        let mut context: Vec<Value> = Vec::new();
        for item in output {
            if is_sentinel(&item) {
                continue;
            }
            if !is_reply_item(&item) {
                self.end_call(&mut history, &mut context, &mut reply)?;
                context.push(item);
                continue;
            }
            if starts_a_call(&reply, &item) {
                self.end_call(&mut history, &mut context, &mut reply)?;
            }
            let ends = has_tokens(&item);
            reply.push(item);
            if ends {
                self.end_call(&mut history, &mut context, &mut reply)?;
            }
        }
        self.end_call(&mut history, &mut context, &mut reply)?;
        if self.answered() && !context.is_empty() {
            // what came last and was never answered
            history.extend(responses_context(context).into_iter().map(Arc::new));
            self.builder.call(&history, ModelCall { untrainable: true, ..self.about() })?;
        }
        Ok(())
    }

    fn end_call(
        &mut self,
        history: &mut Vec<Arc<Message>>,
        context: &mut Vec<Value>,
        reply: &mut Vec<Value>,
    ) -> Result<(), RecordError> {
        if reply.is_empty() {
            return Ok(());
        }
        history.extend(responses_context(std::mem::take(context)).into_iter().map(Arc::new));
        let said = self.call(history, std::mem::take(reply))?;
        history.push(said);
        Ok(())
    }

    /// One inner list of an output of transitions: the history again, and a new item.
    fn transition(&mut self, mut items: Vec<Value>) -> Result<(), RecordError> {
        let Some(last) = items.pop() else { return Ok(()) };
        // reasoning comes as an item of its own before what it led to
        let is_thought = |item: &Value| item.get("type").and_then(Value::as_str) == Some("reasoning");
        let mut reply = vec![last];
        while items.last().is_some_and(is_thought) {
            reply.extend(items.pop());
        }
        reply.reverse();
        let history: Vec<Arc<Message>> = responses_context(items).into_iter().map(Arc::new).collect();
        self.call(&history, reply)?;
        Ok(())
    }

    fn call(&mut self, history: &[Arc<Message>], reply: Vec<Value>) -> Result<Arc<Message>, RecordError> {
        let mut call = self.about();
        if let Some(Value::Object(item)) = reply.iter().rev().find(|item| has_tokens(item)) {
            call.prompt_ids = token_ids(item, "prompt_token_ids")?.unwrap_or_default();
            call.output = Some(CallOutput {
                ids: token_ids(item, "generation_token_ids")?.unwrap_or_default(),
                logprobs: logprobs(item, "generation_log_probs")?,
                experts: item.get("routed_experts").map(routed_experts).transpose()?.flatten(),
            });
        }
        let message = Arc::new(reply_of_items(reply));
        call.reply = Some(Message::clone(&message));
        self.builder.call(history, call)?;
        Ok(message)
    }

    fn about(&self) -> ModelCall {
        ModelCall { tools: self.tools.clone(), untrainable: self.is_masked, ..ModelCall::default() }
    }
}

/// Whether the item has token data. Empty lists and the sentinel `[0]` mean that it has none.
fn has_tokens(item: &Value) -> bool {
    let ids = |key: &str| item.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let generated = ids("generation_token_ids");
    let is_sentinel = is_zero(generated) && is_zero(ids("prompt_token_ids"));
    !generated.is_empty() && !is_sentinel
}

fn is_zero(ids: &[Value]) -> bool {
    matches!(ids, [id] if id.as_i64() == Some(0))
}

/// The message that NeMo Gym adds where a rollout ended without one: no text, sentinel ids. The model did not say it.
fn is_sentinel(item: &Value) -> bool {
    item.get("id").and_then(Value::as_str) == Some("msg_empty") && !has_tokens(item)
}

/// Whether the item cannot belong to the same call as those before it. Where there are ids they end each call; else
/// one call says at most one message, and its thought comes first.
fn starts_a_call(reply: &[Value], item: &Value) -> bool {
    let kind = |item: &Value| item.get("type").and_then(Value::as_str).unwrap_or("message").to_owned();
    let has_said = reply.iter().any(|said| kind(said) != "reasoning");
    has_said && matches!(kind(item).as_str(), "message" | "reasoning")
}

/// `routed_experts`: nested lists `[tokens][layers][top_k]`, or `nrlre1:<dtype>:<SxLxK>:<base64>`.
fn routed_experts(value: &Value) -> Result<Option<CallExperts>, RecordError> {
    let refused = |reason: String| RecordError::refused(rule::ROUTED_EXPERTS_SHAPE, reason);
    match value {
        Value::Null => Ok(None),
        Value::String(packed) => {
            let parts: Vec<&str> = packed.splitn(4, ':').collect();
            let &["nrlre1", dtype, shape, encoded] = parts.as_slice() else {
                return Err(refused("routed_experts is text that does not begin with nrlre1:".to_owned()));
            };
            let dtype = ExpertDtype::parse(dtype)
                .ok_or_else(|| refused(format!("routed_experts has the unknown type {dtype}")))?;
            let sizes: Option<Vec<u32>> = shape.split('x').map(|size| size.parse().ok()).collect();
            let Some(&[rows, layers, top_k]) = sizes.as_deref() else {
                return Err(refused(format!("routed_experts has the shape {shape}, not SxLxK")));
            };
            let bytes = STANDARD.decode(encoded).map_err(|_| refused("routed_experts is no base64".to_owned()))?;
            let expected = u128::from(rows) * u128::from(layers) * u128::from(top_k) * dtype.width() as u128;
            if bytes.len() as u128 != expected {
                return Err(refused(format!("{} bytes for routed_experts of {shape} {}", bytes.len(), dtype.as_str())));
            }
            Ok(Some(CallExperts { bytes, dtype, layers, top_k }))
        }
        Value::Array(rows) => nested_experts(rows).map_err(refused),
        other => Err(refused(format!("routed_experts is {}", fields::kind(other)))),
    }
}

fn nested_experts(rows: &[Value]) -> Result<Option<CallExperts>, String> {
    let (mut layers, mut top_k) = (None, None);
    let mut bytes = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let row = row.as_array().ok_or_else(|| format!("row {at} of routed_experts is no list"))?;
        let ragged = || format!("row {at} of routed_experts has another shape than the rows before it");
        if *layers.get_or_insert(row.len()) != row.len() {
            return Err(ragged());
        }
        for layer in row {
            let layer = layer.as_array().ok_or_else(|| format!("a layer of row {at} of routed_experts is no list"))?;
            if *top_k.get_or_insert(layer.len()) != layer.len() {
                return Err(ragged());
            }
            for id in layer {
                let id = id.as_u64().and_then(|id| u16::try_from(id).ok());
                let id =
                    id.ok_or_else(|| format!("row {at} of routed_experts holds something that is no expert id"))?;
                bytes.extend_from_slice(&id.to_le_bytes());
            }
        }
    }
    let size = |n: Option<usize>| u32::try_from(n.unwrap_or(0)).unwrap_or(u32::MAX);
    let experts = CallExperts { bytes, dtype: ExpertDtype::Uint16, layers: size(layers), top_k: size(top_k) };
    Ok((!experts.bytes.is_empty()).then_some(experts))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::importer::Rejected;

    struct Collected(Vec<Rollout>);

    impl Sink for Collected {
        fn rollout(&mut self, rollout: Rollout) -> Result<(), RecordError> {
            self.0.push(rollout);
            Ok(())
        }

        fn reject(&mut self, rejected: Rejected) -> Result<(), RecordError> {
            panic!("{}", rejected.reason)
        }
    }

    fn read(row: &Value) -> Result<Rollout, RecordError> {
        let bytes = row.to_string();
        let mut sink = Collected(Vec::new());
        let record = Record { bytes: bytes.as_bytes(), byte_offset: 0, line: Some(1) };
        Rows.record(&record, &mut sink).map(|()| sink.0.remove(0))
    }

    fn item(prompt: &[i32], output: &[i32], experts: Value) -> Value {
        json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}],
               "prompt_token_ids": prompt, "generation_token_ids": output,
               "generation_log_probs": vec![-0.5; output.len()], "routed_experts": experts})
    }

    fn row(output: Value) -> Value {
        json!({"responses_create_params": {"input": "q"}, "response": {"output": output}, "reward": 1.0})
    }

    #[test]
    fn routed_experts_of_both_forms_are_cut_to_what_each_call_appended() {
        let nested: Vec<Value> = (0..5).map(|r| json!([[r, r + 10]])).collect();
        let packed = STANDARD.encode((0..7).flat_map(|r| [r, r + 10]).collect::<Vec<u8>>());
        let rollout = read(&row(json!([
            item(&[1, 2, 3], &[4, 5], json!(nested)),
            item(&[1, 2, 3, 4, 5, 6], &[7], json!(format!("nrlre1:uint8:7x1x2:{packed}"))),
        ])))
        .unwrap();
        let experts: Vec<_> = rollout.steps.iter().map(|step| step.routed_experts.clone().unwrap()).collect();
        assert_eq!((experts[0].rows, experts[0].dtype, experts[0].top_k), (4, ExpertDtype::Uint16, 2));
        assert_eq!((experts[1].rows, experts[1].dtype), (2, ExpertDtype::Uint8));
        assert_eq!(experts[1].chunks[0].as_slice(), [4, 14, 5, 15]);
    }

    #[test]
    fn routed_experts_that_do_not_fit_are_refused() {
        for bad in [
            json!("nrlre1:uint8:2x1x2:AAAA"),
            json!("nrlre1:float:1x1x1:AAAA"),
            json!("other"),
            json!([[[1, 2]], [[1]]]),
            json!([[[1, -2]]]),
            json!(7),
        ] {
            let result = read(&row(json!([item(&[1], &[2], bad.clone())])));
            assert!(matches!(result, Err(RecordError::Refused { .. })), "{bad} was accepted");
        }
    }

    #[test]
    fn items_without_ids_belong_to_the_call_that_the_next_ids_end() {
        let mut call = item(&[1, 2], &[3], Value::Null);
        call["type"] = json!("function_call");
        let rollout = read(&row(json!([
            {"type": "reasoning", "summary": [{"text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I call"}]},
            call,
        ])))
        .unwrap();
        assert_eq!(rollout.steps.len(), 1);
        assert_eq!(rollout.steps[0].messages.len(), 2, "the question and one reply");
    }

    #[test]
    fn messages_in_a_row_without_ids_are_calls_of_their_own() {
        let said = |text: &str| json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]});
        let call = json!({"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"});
        let output = json!({"type": "function_call_output", "call_id": "c", "output": "r"});
        let rollout = read(&row(json!([said("a"), said("b"), call, call, output, said("c"), output]))).unwrap();
        assert_eq!(rollout.steps.len(), 4, "three calls and what was never answered");
        assert_eq!(rollout.steps[3].n_context_messages, rollout.steps[3].messages.len());
        assert!(rollout.steps.iter().skip(1).all(|step| !step.boundary));
    }

    #[test]
    fn a_list_of_transitions_repeats_history_and_adds_one_item_each() {
        let user = json!({"role": "user", "content": "q", "type": "message"});
        let first = item(&[1, 2], &[3], Value::Null);
        let second = item(&[1, 2, 3, 4], &[5], Value::Null);
        let rollout = read(&row(json!([[user, first], [user, first, user, second]]))).unwrap();
        assert_eq!(rollout.steps.len(), 2);
        assert_eq!(rollout.steps[1].token_ids.clone().unwrap().to_vec(), [4, 5]);
        assert_eq!(rollout.steps[1].messages.len(), 2);
    }
}
