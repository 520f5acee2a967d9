//! A checked rollout as rows of every table.

use dressage_schemas::spans::VersionSpans;
use dressage_schemas::tables::rewards::RewardRow;
use dressage_schemas::tables::steps::StepRow;
use dressage_schemas::tables::trajectories::TrajectoryRow;
use dressage_schemas::words::{CONTEXT_VERSION, DEFAULT_GRADER, STAGE_RECORDED};
use serde_json::{Map, Value};

use super::contents::Contents;
use super::experts::ExpertEncoder;
use super::identity::ContentHasher;
use super::{Prepared, Refusal};
use crate::rollout::{Rollout, RolloutReward, RolloutStep, RoutedExperts};
use crate::rule;

/// Memory of a row besides its text and payload.
const ROW_BYTES: u64 = 512;

/// What the rows of one trajectory are called.
pub(crate) struct Names<'a> {
    pub(crate) key: i64,
    pub(crate) run_id: String,
    pub(crate) instance_id: String,
    pub(crate) group_id: String,
    pub(crate) source: &'a str,
    pub(crate) format: &'a str,
}

/// The rows of a rollout; takes its fields.
pub(crate) fn build(rollout: &mut Rollout, names: Names<'_>, encoder: &mut ExpertEncoder) -> Result<Prepared, Refusal> {
    let mut contents = Contents::default();
    for data in std::mem::take(&mut rollout.data) {
        contents.add(data);
    }
    let mut hasher = ContentHasher::new();
    let mut weight_versions: Vec<String> = Vec::new();
    let mut steps = Vec::with_capacity(rollout.steps.len());
    let mut bytes = 0;
    for (index, step) in std::mem::take(&mut rollout.steps).into_iter().enumerate() {
        let experts = step.routed_experts.clone();
        let mut row = step_row(index, step, names.key, &mut contents)?;
        hasher.step(&row);
        if let Some(experts) = experts {
            hash_experts(&mut hasher, &experts);
            row.routed_experts = Some(encoder.encode(&experts)?);
        }
        note_versions(&row, &mut weight_versions);
        bytes += row_bytes(&row);
        steps.push(row);
    }
    let rewards: Vec<RewardRow> = rollout.rewards.drain(..).map(|r| reward_row(r, names.key)).collect();
    rewards.iter().for_each(|r| hasher.reward(r));
    let mut trajectory = trajectory_row(rollout, names, &steps, &rewards);
    trajectory.content_hash = hasher.finish(&trajectory);
    bytes += contents.bytes + ROW_BYTES * (1 + rewards.len() as u64 + contents.rows.len() as u64);
    Ok(Prepared {
        trajectory,
        steps,
        rewards,
        contents: contents.rows,
        weight_versions,
        provenance: std::mem::take(&mut rollout.provenance),
        bytes,
    })
}

fn hash_experts(hasher: &mut ContentHasher, experts: &RoutedExperts) {
    let shape = [experts.layers, experts.top_k, experts.dtype.width() as u32];
    hasher.experts(shape, experts.chunks.iter().map(|c| c.as_slice()));
}

fn small(what: &str, n: usize) -> Result<i32, Refusal> {
    i32::try_from(n).map_err(|_| Refusal::new(rule::TOO_LARGE, format!("{n} {what} in one step")))
}

fn step_row(index: usize, step: RolloutStep, key: i64, contents: &mut Contents) -> Result<StepRow, Refusal> {
    let n_tokens = step.token_ids.as_ref().map_or(0, |ids| ids.len());
    let n_context_messages = small("messages", step.n_context_messages)?;
    let weight_version = step.weight_version.or_else(|| last_version(step.versions.as_ref()));
    Ok(StepRow {
        trajectory_key: key,
        step_index: small("steps", index)?,
        segment_index: step.segment_index,
        turn_id: step.turn_id,
        lineage_id: step.lineage_id,
        lineage_index: step.lineage_index,
        route: step.route.as_str().to_owned(),
        base_step: step.base_step,
        boundary: step.boundary,
        boundary_reasons: step.boundary_reasons,
        finish_reason: step.finish_reason,
        model: step.model,
        weight_version,
        n_context_tokens: small("tokens", n_tokens - step.n_output_tokens)?,
        n_output_tokens: small("tokens", step.n_output_tokens)?,
        mask_spans: step.mask,
        version_spans: step.versions,
        mask_nonlast_version: step.mask_nonlast_version,
        trainable: step.trainable,
        flags: step.flags.iter().map(|f| (*f).to_owned()).collect(),
        usage_input_tokens: step.usage_input_tokens,
        usage_output_tokens: step.usage_output_tokens,
        created_at: step.created_at,
        messages: step.messages.into_iter().map(|m| contents.add(m)).collect(),
        n_context_messages,
        tools: step.tools.map(|t| contents.add(t)),
        extra: object(&step.extra),
        token_ids: step.token_ids.map(|ids| le_bytes(ids.inner())),
        logprobs: step.logprobs.map(|p| le_bytes(p.inner())),
        routed_experts: None,
        ..StepRow::default()
    })
}

/// Buffers of 32-bit values are little-endian bytes on every machine that we build for.
fn le_bytes(buffer: &arrow::buffer::Buffer) -> Vec<u8> {
    const { assert!(cfg!(target_endian = "little")) };
    buffer.as_slice().to_vec()
}

fn last_version(versions: Option<&VersionSpans>) -> Option<String> {
    let spans = &versions?.0;
    spans.iter().rev().map(|(version, _)| version).find(|v| *v != CONTEXT_VERSION).cloned()
}

fn note_versions(row: &StepRow, seen: &mut Vec<String>) {
    let spans = row.version_spans.iter().flat_map(|v| v.0.iter().map(|(version, _)| version));
    for version in spans.chain(row.weight_version.iter()) {
        if version != CONTEXT_VERSION && !seen.contains(version) {
            seen.push(version.clone());
        }
    }
}

fn row_bytes(row: &StepRow) -> u64 {
    let payload = [&row.token_ids, &row.logprobs, &row.routed_experts];
    let payload: usize = payload.iter().filter_map(|p| p.as_ref().map(Vec::len)).sum();
    let lists = row.messages.len() * 48 + row.mask_spans.as_slice().len() * 4;
    payload as u64 + lists as u64 + row.extra.as_ref().map_or(0, String::len) as u64 + ROW_BYTES
}

pub(crate) fn reward_row(reward: RolloutReward, key: i64) -> RewardRow {
    RewardRow {
        trajectory_key: key,
        grader: reward.grader.unwrap_or_else(|| DEFAULT_GRADER.to_owned()),
        stage: STAGE_RECORDED.to_owned(),
        value: reward.value.filter(|v| v.is_finite()),
        parts: reward.parts.as_ref().and_then(object),
        graded_at: reward.graded_at,
        detail: reward.detail.filter(|d| !d.is_null()).map(|d| d.to_string()),
        ..RewardRow::default()
    }
}

fn object(map: &Map<String, Value>) -> Option<String> {
    if map.is_empty() {
        return None;
    }
    serde_json::to_string(map).ok()
}

fn trajectory_row(rollout: &mut Rollout, names: Names<'_>, steps: &[StepRow], rewards: &[RewardRow]) -> TrajectoryRow {
    let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let total = |get: fn(&StepRow) -> i64| steps.iter().map(get).sum::<i64>();
    TrajectoryRow {
        trajectory_key: names.key,
        write_id: 0,
        trajectory_id: std::mem::take(&mut rollout.trajectory_id),
        revision: 0,
        instance_id: names.instance_id,
        group_id: names.group_id,
        run_id: names.run_id,
        parent_trajectory_id: rollout.parent_trajectory_id.take(),
        status: rollout.status.as_str().to_owned(),
        recorded_reward: rewards.iter().find_map(|r| r.value),
        n_steps: rollout.steps_known.then(|| count(steps.len())),
        n_segments: count(segments_of(steps)),
        n_messages: count(steps.iter().map(|s| s.messages.len()).sum()),
        n_tokens: total(|s| i64::from(s.n_context_tokens) + i64::from(s.n_output_tokens)),
        n_trained_tokens: total(|s| if s.trainable { s.mask_spans.n_trained() as i64 } else { 0 }),
        model: rollout.model.take(),
        agent: rollout.agent.take(),
        format: names.format.to_owned(),
        source: names.source.to_owned(),
        created_at: rollout.created_at,
        extent: rollout.extent,
        content_hash: String::new(),
        flags: rollout.flags.iter().map(|f| (*f).to_owned()).collect(),
        labels: object(&rollout.labels),
        extra: object(&rollout.extra),
    }
}

/// Given segments by their numbers; else islands between boundaries, one at least where there is a step.
fn segments_of(steps: &[StepRow]) -> usize {
    match steps.iter().filter_map(|s| s.segment_index).max() {
        Some(last) => usize::try_from(last).unwrap_or(0) + 1,
        None => steps.iter().enumerate().filter(|(i, s)| *i == 0 || s.boundary).count(),
    }
}
