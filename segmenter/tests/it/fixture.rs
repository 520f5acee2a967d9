//! A small lake with every shape that the views must handle.
//!
//! | trajectory | what it is |
//! | --- | --- |
//! | run-a / t1 | recorded steps: lineage 0 with a compaction boundary (two segments), lineage 1 a sub-agent (one) |
//! | run-a / t2 | one recorded step, reward 0.0, truncated |
//! | run-a / t3 | ungraded, aborted |
//! | run-b / g1 | two segments as the source gave them, reward 2.5 |
//! | run-a / t1, revision 0 | an earlier, shorter copy of t1 with another reward |
//! | orphan steps | steps of an attempt that never wrote its trajectory row |

use std::sync::Arc;

use dressage_schemas::Table;
use dressage_schemas::ids::TrajectoryKey;
use dressage_schemas::spans::{MaskSpans, VersionSpans};
use dressage_schemas::tables::{contents, rewards, steps, trajectories, weight_versions};
use dressage_segmenter::{LakeSource, MemoryLake, Session, SessionSettings};

/// 2026-01-01T00:00:00Z in microseconds.
pub(crate) const NEW_YEAR: i64 = 1_767_225_600_000_000;

pub(crate) fn session(lake: &Arc<MemoryLake>) -> Session {
    session_with(lake, SessionSettings::default())
}

pub(crate) fn session_with(lake: &Arc<MemoryLake>, settings: SessionSettings) -> Session {
    let source: Arc<dyn LakeSource> = Arc::clone(lake) as _;
    Session::over(source, SessionSettings { target_partitions: 2, ..settings }).unwrap()
}

/// The result as a table, for comparison by eye.
pub(crate) async fn shown(session: &Session, sql: &str) -> String {
    let batches = session.sql(sql).await.unwrap_or_else(|e| panic!("{sql}: {}", chain(&e))).collect().await;
    let batches = batches.unwrap_or_else(|e| panic!("{sql}: {}", chain(&e)));
    arrow::util::pretty::pretty_format_batches(&batches).unwrap().to_string()
}

/// The rows of a result, cells joined by `|`, without a header.
pub(crate) async fn rows(session: &Session, sql: &str) -> Vec<String> {
    let table = shown(session, sql).await;
    let lines = table.lines().filter(|l| l.starts_with('|')).skip(1);
    lines.map(|l| l.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>().join("|")).collect()
}

/// An error and its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

pub(crate) fn ids(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub(crate) fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub(crate) fn trajectory(run: &str, id: &str, write_id: i64) -> trajectories::TrajectoryRow {
    trajectories::TrajectoryRow {
        trajectory_key: TrajectoryKey::of(run, id).0,
        write_id,
        trajectory_id: id.to_owned(),
        revision: 0,
        instance_id: "task-1".to_owned(),
        group_id: "group-1".to_owned(),
        run_id: run.to_owned(),
        parent_trajectory_id: None,
        status: "completed".to_owned(),
        recorded_reward: None,
        n_steps: Some(1),
        n_segments: 1,
        n_messages: 0,
        n_tokens: 0,
        n_trained_tokens: 0,
        model: Some("policy".to_owned()),
        agent: Some("agent 1.0".to_owned()),
        format: "dressage".to_owned(),
        source: "memory".to_owned(),
        created_at: Some(NEW_YEAR),
        extent: 1,
        content_hash: "00".to_owned(),
        flags: vec![],
        labels: None,
        extra: None,
    }
}

/// A step that appended `context` and `output` tokens, ids counting up from 100 × step.
pub(crate) fn step(owner: &trajectories::TrajectoryRow, index: i32, context: usize, output: usize) -> steps::StepRow {
    let n = (context + output) as i32;
    let token_ids: Vec<i32> = (0..n).map(|i| 100 * index + i).collect();
    let logprobs: Vec<f32> = (0..n).map(|i| if (i as usize) < context { 0.0 } else { -0.5 }).collect();
    let mut versions = VersionSpans::default();
    versions.push("-1", context);
    versions.push("7", output);
    steps::StepRow {
        trajectory_key: owner.trajectory_key,
        write_id: owner.write_id,
        revision: owner.revision,
        step_index: index,
        lineage_index: 0,
        route: if index == 0 { "create" } else { "append" }.to_owned(),
        boundary: index == 0,
        boundary_reasons: if index == 0 { vec!["initial".to_owned()] } else { vec![] },
        finish_reason: Some("stop".to_owned()),
        weight_version: Some("7".to_owned()),
        n_context_tokens: context as i32,
        n_output_tokens: output as i32,
        mask_spans: MaskSpans::context_then_output(context, output),
        version_spans: Some(versions),
        trainable: true,
        created_at: Some(NEW_YEAR + i64::from(index) * 1_000_000),
        token_ids: Some(ids(&token_ids)),
        logprobs: Some(floats(&logprobs)),
        ..Default::default()
    }
}

pub(crate) fn message(name: &str, role: &str, text: &str) -> contents::ContentRow {
    contents::ContentRow {
        content_hash: hash(name),
        kind: "message".to_owned(),
        role: Some(role.to_owned()),
        text: Some(text.to_owned()),
        n_bytes: text.len() as i64,
        ..Default::default()
    }
}

/// A content hash that a person can tell from others: its name in hexadecimal, 32 digits.
pub(crate) fn hash(name: &str) -> String {
    let digits: String = name.bytes().map(|b| format!("{b:02x}")).collect();
    format!("{digits:0<32}")
}

/// The lake of the module's table.
pub(crate) fn lake() -> Arc<MemoryLake> {
    let mut t1 = trajectory("run-a", "t1", 11);
    t1.revision = 1;
    t1.recorded_reward = Some(1.0);
    t1.n_steps = Some(4);
    t1.n_segments = 3;
    t1.labels = Some(r#"{"suite":"math","judge":{"score":0.75}}"#.to_owned());
    let mut earlier = trajectory("run-a", "t1", 10);
    earlier.recorded_reward = Some(-9.0);
    let mut t2 = trajectory("run-a", "t2", 12);
    t2.recorded_reward = Some(0.0);
    t2.status = "truncated".to_owned();
    let mut t3 = trajectory("run-a", "t3", 13);
    t3.status = "aborted".to_owned();
    let mut g1 = trajectory("run-b", "g1", 14);
    g1.recorded_reward = Some(2.5);
    g1.n_steps = None;
    g1.n_segments = 2;
    let orphan = trajectory("run-a", "t9", 99);

    let mut s0 = step(&t1, 0, 3, 2);
    s0.messages = vec![hash("m-sys"), hash("m-user"), hash("m-reply")];
    s0.n_context_messages = 2;
    let mut s1 = step(&t1, 1, 1, 3);
    s1.messages = vec![hash("m-tool"), hash("m-reply")];
    s1.n_context_messages = 1;
    let mut s2 = step(&t1, 2, 4, 1);
    s2.lineage_index = 1;
    (s2.route, s2.boundary, s2.boundary_reasons) = ("create".into(), true, vec!["initial".into(), "subagent".into()]);
    s2.weight_version = Some("8".to_owned());
    let mut s3 = step(&t1, 3, 5, 2);
    (s3.boundary, s3.boundary_reasons) = (true, vec!["compaction".into()]);
    let mut t2s0 = step(&t2, 0, 2, 2);
    t2s0.finish_reason = Some("length".to_owned());
    let mut g0 = step(&g1, 0, 1, 1);
    (g0.route, g0.segment_index) = ("given".into(), Some(0));
    let mut g1s = step(&g1, 1, 2, 2);
    (g1s.route, g1s.segment_index, g1s.boundary) = ("given".into(), Some(1), true);
    let old = step(&earlier, 0, 3, 2);

    let recorded = |owner: &trajectories::TrajectoryRow| rewards::RewardRow {
        trajectory_key: owner.trajectory_key,
        write_id: Some(owner.write_id),
        grader: "default".to_owned(),
        stage: "recorded".to_owned(),
        value: owner.recorded_reward,
        visible_at: NEW_YEAR,
        ..Default::default()
    };
    let lake = MemoryLake::new()
        .with(Table::Trajectories, trajectories::batch(&[earlier.clone(), t2.clone(), t3.clone()]).unwrap())
        .with(Table::Trajectories, trajectories::batch(&[t1.clone(), g1.clone()]).unwrap())
        .with(Table::Steps, steps::batch(&[old, s0, s1, t2s0, step(&t3, 0, 2, 1), step(&orphan, 0, 9, 9)]).unwrap())
        .with(Table::Steps, steps::batch(&[s2, s3, g0, g1s]).unwrap())
        .with(
            Table::Rewards,
            rewards::batch(&[recorded(&earlier), recorded(&t1), recorded(&t2), recorded(&g1)]).unwrap(),
        )
        .with(
            Table::Contents,
            contents::batch(&[
                message("m-sys", "system", "be good"),
                message("m-user", "user", "solve it"),
                message("m-reply", "assistant", "done"),
                message("m-tool", "tool", "42"),
            ])
            .unwrap(),
        )
        .with(
            Table::WeightVersions,
            weight_versions::batch(&[
                version("run-a", "7", 4, 1),
                version("run-a", "8", 9, 2),
                version("run-a", "7", 5, 3),
            ])
            .unwrap(),
        );
    Arc::new(lake)
}

fn version(run: &str, name: &str, ordinal: i64, seen: i64) -> weight_versions::WeightVersionRow {
    weight_versions::WeightVersionRow {
        run_id: run.to_owned(),
        weight_version: name.to_owned(),
        ordinal,
        first_seen_at: NEW_YEAR + seen,
    }
}
