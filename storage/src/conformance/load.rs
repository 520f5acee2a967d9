//! Known rows for tests: small trajectories with tokens, log-probs, routed experts, messages and a reward, all
//! derived from a number, so that what comes back can be compared with what was written.

use dressage_codec::{Dtype, Mode, RoutedView, encode};
use dressage_schemas::ids::TrajectoryKey;
use dressage_schemas::message::Content;
use dressage_schemas::spans::{MaskSpans, VersionSpans};
use dressage_schemas::tables::contents::{self, ContentRow};
use dressage_schemas::tables::ingest_log::{self, IngestLogRow};
use dressage_schemas::tables::rewards::{self, RewardRow};
use dressage_schemas::tables::steps::{self, StepRow};
use dressage_schemas::tables::trajectories::{self, TrajectoryRow};
use dressage_schemas::tables::weight_versions::{self, WeightVersionRow};

use super::Broken;
use crate::writer::{LakeWriter, WriteGroup};

/// Layers of the routed experts made here.
pub const LAYERS: usize = 3;
/// Ranks of the routed experts made here.
pub const TOPK: usize = 4;
const EXPERTS: u32 = 128;

/// Shape of the rows.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Steps of a trajectory.
    pub steps: usize,
    /// Tokens of a step.
    pub tokens: usize,
    /// Whether steps have routed experts.
    pub routed: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self { steps: 3, tokens: 40, routed: true }
    }
}

/// All rows of one trajectory.
#[derive(Debug, Clone)]
pub struct Rows {
    /// Its row.
    pub trajectory: TrajectoryRow,
    /// Its steps.
    pub steps: Vec<StepRow>,
    /// Its messages.
    pub contents: Vec<ContentRow>,
    /// Its reward.
    pub reward: RewardRow,
    /// Where it came from.
    pub log: IngestLogRow,
    /// Versions it saw.
    pub versions: Vec<WeightVersionRow>,
}

/// The message that every trajectory begins with.
pub const SYSTEM_PROMPT: &str = "you are a careful agent";

/// Rows of the `number`-th trajectory of a run.
///
/// # Errors
/// Where the codec refuses the routes made here.
pub fn rows(run: &str, number: u64, revision: i32, write_id: i64, shape: Shape) -> Result<Rows, Broken> {
    let id = format!("traj-{number:05}");
    let key = TrajectoryKey::of(run, &id).0;
    let system = content(&Content::plain("system", SYSTEM_PROMPT));
    let mut contents = vec![system.clone()];
    let mut steps = Vec::with_capacity(shape.steps);
    for step in 0..shape.steps {
        let reply = content(&Content::plain("assistant", &format!("{id} says {step} at revision {revision}")));
        let first = step == 0;
        let mut row = StepRow {
            trajectory_key: key,
            write_id,
            revision,
            step_index: step as i32,
            route: if first { "create" } else { "append" }.to_owned(),
            base_step: (!first).then(|| step as i32 - 1),
            boundary: first,
            boundary_reasons: if first { vec!["initial".to_owned()] } else { Vec::new() },
            finish_reason: Some("stop".to_owned()),
            weight_version: Some(format!("v{}", number % 3)),
            trainable: true,
            created_at: Some(1_700_000_000_000_000 + number as i64),
            messages: if first {
                vec![system.content_hash.clone(), reply.content_hash.clone()]
            } else {
                vec![reply.content_hash.clone()]
            },
            n_context_messages: i32::from(first),
            ..StepRow::default()
        };
        fill_tokens(&mut row, number, step, shape)?;
        steps.push(row);
        contents.push(reply);
    }
    let n_tokens = (shape.steps * shape.tokens) as i64;
    let trained = steps.iter().map(|s| s.mask_spans.n_trained() as i64).sum();
    let trajectory = TrajectoryRow {
        trajectory_key: key,
        write_id,
        trajectory_id: id.clone(),
        revision,
        instance_id: format!("task-{}", number / 4),
        group_id: format!("{run}/task-{}", number / 4),
        run_id: run.to_owned(),
        parent_trajectory_id: None,
        status: "completed".to_owned(),
        recorded_reward: Some(number as f64 / 8.0),
        n_steps: Some(shape.steps as i32),
        n_segments: 1,
        n_messages: shape.steps as i32 + 1,
        n_tokens,
        n_trained_tokens: trained,
        model: Some("test-model".to_owned()),
        agent: None,
        format: "dressage".to_owned(),
        source: format!("file-{run}"),
        created_at: Some(1_700_000_000_000_000 + number as i64),
        extent: shape.steps as i64,
        content_hash: format!("{:032x}", (u128::from(number) << 64) | u128::from(revision as u32)),
        flags: Vec::new(),
        labels: Some(format!("{{\"number\":{number}}}")),
        extra: None,
    };
    let reward = RewardRow {
        trajectory_key: key,
        write_id: Some(write_id),
        grader: "default".to_owned(),
        stage: "recorded".to_owned(),
        value: Some(number as f64 / 8.0),
        visible_at: 1,
        ..RewardRow::default()
    };
    let log = IngestLogRow {
        trajectory_key: key,
        write_id,
        source: format!("file-{run}"),
        format: "dressage".to_owned(),
        byte_offset: number as i64 * 100,
        byte_length: 100,
        record_hash: format!("{number:032x}"),
        outcome: "new".to_owned(),
        logged_at: 1,
    };
    let versions = vec![WeightVersionRow {
        run_id: run.to_owned(),
        weight_version: format!("v{}", number % 3),
        ordinal: 0,
        first_seen_at: 1 + number as i64,
    }];
    Ok(Rows { trajectory, steps, contents, reward, log, versions })
}

fn fill_tokens(row: &mut StepRow, number: u64, step: usize, shape: Shape) -> Result<(), Broken> {
    let n_output = shape.tokens / 4;
    let n_context = shape.tokens - n_output;
    row.n_context_tokens = n_context as i32;
    row.n_output_tokens = n_output as i32;
    row.mask_spans = MaskSpans::context_then_output(n_context, n_output);
    let mut spans = VersionSpans::default();
    spans.push("-1", n_context);
    spans.push(&format!("v{}", number % 3), n_output);
    row.version_spans = Some(spans);
    let mut random = Random(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ step as u64);
    let ids: Vec<u8> = (0..shape.tokens).flat_map(|_| ((random.next() % 150_000) as i32).to_le_bytes()).collect();
    let logprob = |i: usize, r: u64| if i < n_context { 0.0 } else { -((r % 1_000) as f32) / 250.0 };
    let logprobs: Vec<u8> = (0..shape.tokens).flat_map(|i| logprob(i, random.next()).to_le_bytes()).collect();
    row.token_ids = Some(ids);
    row.logprobs = Some(logprobs);
    let n_rows = if row.boundary { shape.tokens.saturating_sub(1) } else { shape.tokens };
    if shape.routed && n_rows > 0 {
        let routes: Vec<u8> = (0..n_rows * LAYERS)
            .flat_map(|_| {
                let start = random.next();
                // distinct within a top-k, as a router's are
                (0..TOPK).map(move |k| ((start + k as u64 * 31) % u64::from(EXPERTS)) as u8)
            })
            .collect();
        let view = RoutedView::new(&routes, Dtype::Uint8, n_rows, LAYERS, TOPK).map_err(|e| Broken(e.to_string()))?;
        row.routed_experts = Some(encode(&view, Mode::Ranked, Some(EXPERTS)).map_err(|e| Broken(e.to_string()))?);
    }
    Ok(())
}

/// A row of `contents` with its hash.
pub fn content(content: &Content) -> ContentRow {
    let bytes = content.canonical_bytes();
    let hash = blake3::hash(&bytes).to_hex();
    ContentRow {
        content_hash: hash.chars().take(32).collect(),
        kind: content.kind.as_str().to_owned(),
        role: content.role.clone(),
        text: content.text.clone(),
        reasoning: content.reasoning.clone(),
        tool_calls: content.tool_calls.clone(),
        tool_call_id: content.tool_call_id.clone(),
        body: content.body.clone(),
        data: content.data.clone(),
        n_bytes: bytes.len() as i64,
    }
}

/// A group of all rows of some trajectories.
///
/// # Errors
/// Arrow's, if the rows do not fit their schemas.
pub fn group(all: &[Rows]) -> Result<WriteGroup, arrow::error::ArrowError> {
    let flat = |pick: fn(&Rows) -> &Vec<ContentRow>| all.iter().flat_map(pick).cloned().collect::<Vec<_>>();
    let steps: Vec<StepRow> = all.iter().flat_map(|r| r.steps.clone()).collect();
    Ok(WriteGroup {
        contents: Some(contents::batch(&flat(|r| &r.contents))?),
        weight_versions: Some(weight_versions::batch(
            &all.iter().flat_map(|r| r.versions.clone()).collect::<Vec<_>>(),
        )?),
        steps: vec![steps::batch(&steps)?],
        rewards: Some(rewards::batch(&all.iter().map(|r| r.reward.clone()).collect::<Vec<_>>())?),
        quarantine: None,
        ingest_log: Some(ingest_log::batch(&all.iter().map(|r| r.log.clone()).collect::<Vec<_>>())?),
        trajectories: Some(trajectories::batch(&all.iter().map(|r| r.trajectory.clone()).collect::<Vec<_>>())?),
    })
}

/// Appends trajectories `numbers` of a run, one group each, and gives their rows.
///
/// # Errors
/// What the writer answered.
pub async fn append(
    writer: &mut LakeWriter,
    run: &str,
    numbers: std::ops::Range<u64>,
    shape: Shape,
) -> Result<Vec<Rows>, Box<dyn std::error::Error + Send + Sync>> {
    let mut all = Vec::new();
    for number in numbers {
        let write_id = writer.next_write_id().0;
        let one = rows(run, number, 0, write_id, shape)?;
        writer.append(group(std::slice::from_ref(&one))?).await?;
        all.push(one);
    }
    Ok(all)
}

/// A small generator (splitmix64): the same numbers on every machine.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
