//! A given segment, from JSON or from a row, as the one step that stands for it.

use arrow::buffer::{Buffer, ScalarBuffer};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dressage_schemas::message::Content;
use dressage_schemas::spans::{MaskSpans, VersionSpans};
use dressage_schemas::words::Route;
use serde_json::{Map, Value};

use super::fields::Chunk;
use crate::importer::RecordError;
use crate::message_form::{chat_message, tools_content};
use crate::rollout::{ExpertDtype, RolloutStep, RoutedExperts};
use crate::rule;

/// What a segment says, before it is checked.
#[derive(Debug, Default)]
pub(crate) struct Segment {
    pub(crate) segment_index: Option<i32>,
    pub(crate) segment_reasons: Option<Vec<String>>,
    pub(crate) turn_id: Option<String>,
    pub(crate) finish_reason: Option<String>,
    pub(crate) trainable: Option<bool>,
    pub(crate) weight_version: Option<String>,
    pub(crate) tokens: Option<ScalarBuffer<i32>>,
    pub(crate) mask: Option<MaskSpans>,
    pub(crate) logprobs: Option<ScalarBuffer<f32>>,
    pub(crate) versions: Option<VersionSpans>,
    pub(crate) experts: Option<RoutedExperts>,
    pub(crate) messages: Option<Value>,
    pub(crate) tools: Option<Value>,
    pub(crate) created_at: Option<i64>,
    pub(crate) extra: Map<String, Value>,
}

impl Segment {
    /// The step, and the files that its messages had inlined go to `data`.
    pub(crate) fn into_step(self, position: usize, data: &mut Vec<Content>) -> RolloutStep {
        let mut step = RolloutStep {
            segment_index: self.segment_index.or_else(|| i32::try_from(position).ok()),
            lineage_index: lineage_index(&self.extra),
            lineage_id: text_in(&self.extra, "lineage_id"),
            turn_id: self.turn_id,
            route: Route::Given,
            boundary: true,
            boundary_reasons: self.segment_reasons.unwrap_or_else(|| reasons_in(&self.extra)),
            finish_reason: self.finish_reason,
            weight_version: self.weight_version,
            trainable: self.trainable.unwrap_or(true),
            mask_nonlast_version: masks_older_versions(&self.extra),
            created_at: self.created_at,
            ..RolloutStep::default()
        };
        if let Some(tokens) = self.tokens {
            // without a mask nothing is known to be generated
            let mask = self.mask.unwrap_or_else(|| MaskSpans::context_then_output(tokens.len(), 0));
            step.n_output_tokens = mask.n_trained();
            step.mask = mask;
            step.token_ids = Some(tokens);
        } else if let Some(mask) = self.mask {
            step.mask = mask;
        }
        step.logprobs = self.logprobs;
        step.versions = self.versions;
        step.routed_experts = self.experts;
        step.tools = tools_content(self.tools.as_ref());
        add_messages(&mut step, self.messages, data);
        step.extra = self.extra;
        step
    }
}

/// Messages of a segment: all but a closing reply are context.
fn add_messages(step: &mut RolloutStep, messages: Option<Value>, data: &mut Vec<Content>) {
    let list = match messages {
        None | Some(Value::Null) => return,
        Some(Value::Array(list)) => list,
        Some(one) => vec![one],
    };
    for message in list {
        let message = chat_message(message);
        message.flags.iter().for_each(|f| step.flag(f));
        data.extend(message.data);
        step.messages.push(message.content);
    }
    let ends_in_reply = step.messages.last().is_some_and(|m| m.role.as_deref() == Some("assistant"));
    step.n_context_messages = step.messages.len() - usize::from(ends_in_reply);
}

fn info(extra: &Map<String, Value>) -> &Map<String, Value> {
    extra.get("extra_info").and_then(Value::as_object).unwrap_or(extra)
}

fn text_in(extra: &Map<String, Value>, key: &str) -> Option<String> {
    info(extra).get(key).and_then(Value::as_str).map(str::to_owned)
}

fn lineage_index(extra: &Map<String, Value>) -> i32 {
    let index = info(extra).get("lineage_index").and_then(Value::as_i64);
    index.and_then(|i| i32::try_from(i).ok()).filter(|i| *i >= 0).unwrap_or(0)
}

/// Whether tokens of other than the last version are to be masked: a flag of the reference's `extra_info`.
pub(super) fn masks_older_versions(extra: &Map<String, Value>) -> bool {
    info(extra).get("mask_nonlast_version_tokens").and_then(Value::as_bool).unwrap_or(false)
}

/// `segment_reasons` of the reference's `extra_info`.
fn reasons_in(extra: &Map<String, Value>) -> Vec<String> {
    let reasons = info(extra).get("segment_reasons").and_then(Value::as_array);
    reasons.into_iter().flatten().filter_map(|r| r.as_str().map(str::to_owned)).collect()
}

/// Chunks of routed experts as they stand in JSON, with the shape where the line gives one.
pub(crate) fn experts_of(
    chunks: Vec<Chunk<'_>>,
    layers: u32,
    top_k: u32,
) -> Result<Option<RoutedExperts>, RecordError> {
    let refused = |reason: String| RecordError::refused(rule::ROUTED_EXPERTS_SHAPE, reason);
    let Some(first) = chunks.first() else { return Ok(None) };
    let dtype = ExpertDtype::parse(&first.dtype).ok_or_else(|| {
        refused(format!("routed experts of dtype {}, known are uint8, uint16 and int32", first.dtype))
    })?;
    let mut experts = RoutedExperts { chunks: Vec::with_capacity(chunks.len()), dtype, layers, top_k, rows: 0 };
    for (index, chunk) in chunks.iter().enumerate() {
        if chunk.dtype != dtype.as_str() {
            return Err(refused(format!("chunk {index} is {}, the ones before are {}", chunk.dtype, dtype.as_str())));
        }
        let bytes = STANDARD
            .decode(chunk.data.as_bytes())
            .map_err(|error| refused(format!("chunk {index} is no base64: {error}")))?;
        experts.rows += chunk.row_count;
        experts.chunks.push(Buffer::from_vec(bytes));
    }
    Ok(Some(experts))
}
