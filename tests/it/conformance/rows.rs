//! Rows to write: small trajectories whose payload is a function of their id, so that a reader can tell whether what
//! came back is what went in.

use anyhow::Result;
use arrow::array::RecordBatch;
use dressage_ingest::rollout::content_hash;
use dressage_rig::Seed;
use dressage_schemas::ids::TrajectoryKey;
use dressage_schemas::message::Content;
use dressage_schemas::spans::{MaskSpans, VersionSpans};
use dressage_schemas::tables::{contents, ingest_log, rewards, steps, trajectories, weight_versions};
use dressage_storage::{LakeWriter, WriteGroup};

/// The run of all rows here.
pub(super) const RUN: &str = "conformance";
/// Tokens of a step, of them the first quarter context.
pub(super) const STEP_TOKENS: usize = 64;
/// Text of a message that every trajectory has: stored once.
const SHARED_TEXT: &str = "shared";

/// The key of a trajectory.
pub(super) fn key(id: &str) -> i64 {
    TrajectoryKey::of(RUN, id).0
}

/// Token ids of one step, as stored.
pub(super) fn token_bytes(key: i64, step: usize) -> Vec<u8> {
    let mut seed = Seed::new(key as u64).fork(step as u64 + 1);
    (0..STEP_TOKENS).flat_map(|_| (seed.below(151_000) as i32).to_le_bytes()).collect()
}

fn logprob_bytes(key: i64, step: usize) -> Vec<u8> {
    let mut seed = Seed::new(key as u64).fork(1_000 + step as u64);
    (0..STEP_TOKENS).flat_map(|_| (-(seed.fraction() as f32)).to_le_bytes()).collect()
}

/// A whole trajectory of `n_steps` steps, revision `revision`, with a message of its own and one that all share.
pub(super) fn group(writer: &mut LakeWriter, id: &str, n_steps: usize, revision: i32) -> Result<WriteGroup> {
    let (key, write_id) = (key(id), writer.next_write_id().0);
    let (shared, own) = (Content::plain("user", SHARED_TEXT), Content::plain("user", id));
    let names = vec![content_hash(&shared).0, content_hash(&own).0];
    let n_context = STEP_TOKENS / 4;
    let step_rows: Vec<_> = (0..n_steps)
        .map(|index| {
            let mut versions = VersionSpans::default();
            versions.push("-1", n_context);
            versions.push("v1", STEP_TOKENS - n_context);
            steps::StepRow {
                trajectory_key: key,
                write_id,
                revision,
                step_index: index as i32,
                route: if index == 0 { "create" } else { "append" }.to_owned(),
                base_step: index.checked_sub(1).map(|base| base as i32),
                boundary: index == 0,
                boundary_reasons: if index == 0 { vec!["initial".to_owned()] } else { Vec::new() },
                weight_version: Some("v1".to_owned()),
                n_context_tokens: n_context as i32,
                n_output_tokens: (STEP_TOKENS - n_context) as i32,
                mask_spans: MaskSpans::context_then_output(n_context, STEP_TOKENS - n_context),
                version_spans: Some(versions),
                trainable: true,
                messages: names.clone(),
                n_context_messages: 1,
                token_ids: Some(token_bytes(key, index)),
                logprobs: Some(logprob_bytes(key, index)),
                ..steps::StepRow::default()
            }
        })
        .collect();
    let message = |content: &Content| contents::ContentRow {
        content_hash: content_hash(content).0,
        kind: content.kind.as_str().to_owned(),
        role: content.role.clone(),
        text: content.text.clone(),
        n_bytes: content.canonical_bytes().len() as i64,
        ..contents::ContentRow::default()
    };
    Ok(WriteGroup {
        contents: Some(contents::batch(&[message(&shared), message(&own)])?),
        weight_versions: Some(weight_versions::batch(&[weight_versions::WeightVersionRow {
            run_id: RUN.to_owned(),
            weight_version: "v1".to_owned(),
            ..weight_versions::WeightVersionRow::default()
        }])?),
        steps: vec![steps::batch(&step_rows)?],
        rewards: Some(rewards::batch(&[rewards::RewardRow {
            trajectory_key: key,
            write_id: Some(write_id),
            grader: "default".to_owned(),
            stage: "recorded".to_owned(),
            value: Some(0.5),
            ..rewards::RewardRow::default()
        }])?),
        quarantine: None,
        ingest_log: Some(ingest_log::batch(&[ingest_log::IngestLogRow {
            trajectory_key: key,
            write_id,
            source: "conformance".to_owned(),
            format: "dressage".to_owned(),
            outcome: "new".to_owned(),
            ..ingest_log::IngestLogRow::default()
        }])?),
        trajectories: Some(trajectory(id, key, write_id, n_steps, revision)?),
    })
}

fn trajectory(id: &str, key: i64, write_id: i64, n_steps: usize, revision: i32) -> Result<RecordBatch> {
    let n_tokens = (n_steps * STEP_TOKENS) as i64;
    Ok(trajectories::batch(&[trajectories::TrajectoryRow {
        trajectory_key: key,
        write_id,
        trajectory_id: id.to_owned(),
        revision,
        instance_id: "i".to_owned(),
        group_id: "g".to_owned(),
        run_id: RUN.to_owned(),
        parent_trajectory_id: None,
        status: "completed".to_owned(),
        recorded_reward: Some(0.5),
        n_steps: Some(n_steps as i32),
        n_segments: 1,
        n_messages: 2 * n_steps as i32,
        n_tokens,
        n_trained_tokens: n_tokens * 3 / 4,
        model: None,
        agent: None,
        format: "dressage".to_owned(),
        source: "conformance".to_owned(),
        created_at: None,
        extent: n_steps as i64,
        content_hash: format!("{revision:032x}"),
        flags: Vec::new(),
        labels: None,
        extra: None,
    }])?)
}
