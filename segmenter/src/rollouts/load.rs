//! What a chunk of trajectories is made of: their steps, segments and messages, read with a few range queries.

use std::collections::{BTreeMap, HashMap};

use arrow::array::RecordBatch;

use super::conversation::{self, Message};
use crate::columns::Columns;
use crate::error::Result;
use crate::session::Session;

/// Up to so many keys are named one by one; more are read as a range, and those not wanted are dropped.
const KEYS_NAMED_MAX: usize = 512;

/// Tool schemas and inlined files kept between chunks, in bytes.
const CONTENTS_BYTES_MAX: usize = 64 << 20;

/// The scalars of a trajectory.
#[derive(Debug, Clone, Default)]
pub(super) struct Head {
    pub(super) key: i64,
    pub(super) trajectory_id: String,
    pub(super) instance_id: String,
    pub(super) group_id: Option<String>,
    pub(super) run_id: Option<String>,
    pub(super) parent_trajectory_id: Option<String>,
    pub(super) status: Option<String>,
    pub(super) reward: Option<f64>,
    pub(super) model: Option<String>,
    pub(super) agent: Option<String>,
    pub(super) created_at: Option<i64>,
    pub(super) labels: Option<String>,
    pub(super) n_tokens: i64,
}

impl Head {
    pub(super) fn read(columns: &Columns<'_>, row: usize) -> Result<Self> {
        Ok(Self {
            key: columns.needed_int("trajectory_key", row)?,
            trajectory_id: columns.needed_text("trajectory_id", row)?,
            instance_id: columns.needed_text("instance_id", row)?,
            group_id: columns.text("group_id", row)?,
            run_id: columns.text("run_id", row)?,
            parent_trajectory_id: columns.text("parent_trajectory_id", row)?,
            status: columns.text("status", row)?,
            reward: columns.number("reward", row)?,
            model: columns.text("model", row)?,
            agent: columns.text("agent", row)?,
            created_at: columns.time("created_at", row)?,
            labels: columns.text("labels", row)?,
            n_tokens: columns.int("n_tokens", row)?.unwrap_or(0),
        })
    }
}

/// One step's own part.
#[derive(Debug, Clone, Default)]
pub(super) struct Step {
    pub(super) segment_index: Option<i64>,
    pub(super) n_tokens: i64,
    pub(super) mask_spans: Vec<i32>,
    pub(super) version_spans: Option<Vec<(String, i32)>>,
    pub(super) weight_version: Option<String>,
    pub(super) tools: Option<String>,
    pub(super) extra: Option<String>,
    pub(super) token_ids: Option<Vec<i32>>,
    pub(super) logprobs: Option<Vec<f32>>,
    pub(super) routed_experts: Option<Vec<u8>>,
    pub(super) messages: Vec<Message>,
}

/// One segment's scalars and the steps that make it up.
#[derive(Debug, Clone, Default)]
pub(super) struct Segment {
    pub(super) reasons: Vec<String>,
    pub(super) finish_reason: Option<String>,
    pub(super) trainable: bool,
    pub(super) weight_version: Option<String>,
    /// Its steps, in the order of their tokens.
    pub(super) steps: Vec<i64>,
}

/// All parts of a chunk, by (trajectory_key, index).
#[derive(Debug, Default)]
pub(super) struct Parts {
    pub(super) steps: BTreeMap<(i64, i64), Step>,
    pub(super) segments: BTreeMap<(i64, i64), Segment>,
}

/// Tool schemas (JSON text) and inlined files, by content hash.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) tools: HashMap<String, String>,
    pub(super) files: HashMap<String, Vec<u8>>,
    bytes: usize,
}

/// Reads the parts of these trajectories, which are in key order.
pub(super) async fn parts(session: &Session, heads: &[Head], tokens: bool, contents: &mut Contents) -> Result<Parts> {
    let (Some(first), Some(last)) = (heads.first(), heads.last()) else { return Ok(Parts::default()) };
    let wanted = if heads.len() <= KEYS_NAMED_MAX {
        let keys: Vec<String> = heads.iter().map(|h| h.key.to_string()).collect();
        format!("trajectory_key IN ({})", keys.join(", "))
    } else {
        format!("trajectory_key BETWEEN {} AND {}", first.key, last.key)
    };
    let has = |key: i64| heads.binary_search_by_key(&key, |h| h.key).is_ok();
    let mut parts = Parts::default();
    let payload = if tokens { "token_ids, logprobs, routed_experts" } else { "NULL AS token_ids" };
    let sql = format!(
        "SELECT trajectory_key, step_index, segment_index, n_tokens, mask_spans, version_spans, weight_version, tools, extra, {payload} \
         FROM steps WHERE {wanted}"
    );
    for_each(session, &sql, |columns, row| {
        let key = columns.needed_int("trajectory_key", row)?;
        if !has(key) {
            return Ok(());
        }
        let mut step = Step {
            segment_index: columns.int("segment_index", row)?,
            n_tokens: columns.int("n_tokens", row)?.unwrap_or(0),
            mask_spans: columns.ints("mask_spans", row)?.unwrap_or_default(),
            version_spans: columns.version_spans("version_spans", row)?,
            weight_version: columns.text("weight_version", row)?,
            tools: columns.text("tools", row)?,
            extra: columns.text("extra", row)?,
            ..Step::default()
        };
        if tokens {
            step.token_ids = columns.ints("token_ids", row)?;
            step.logprobs = columns.floats("logprobs", row)?;
            step.routed_experts = columns.bytes("routed_experts", row)?;
        }
        parts.steps.insert((key, columns.needed_int("step_index", row)?), step);
        Ok(())
    })
    .await?;
    let sql = format!(
        "SELECT trajectory_key, segment_index, reasons, finish_reason, trainable, last_weight_version \
         FROM segments WHERE {wanted}"
    );
    for_each(session, &sql, |columns, row| {
        let key = columns.needed_int("trajectory_key", row)?;
        if has(key) {
            let segment = Segment {
                reasons: columns.texts("reasons", row)?,
                finish_reason: columns.text("finish_reason", row)?,
                trainable: columns.truth("trainable", row)?,
                weight_version: columns.text("last_weight_version", row)?,
                steps: Vec::new(),
            };
            parts.segments.insert((key, columns.needed_int("segment_index", row)?), segment);
        }
        Ok(())
    })
    .await?;
    for (&(key, step_index), step) in &parts.steps {
        let segment = step.segment_index.and_then(|index| parts.segments.get_mut(&(key, index)));
        if let Some(segment) = segment {
            segment.steps.push(step_index);
        }
    }
    let sql = format!(
        "SELECT trajectory_key, step_index, position, role, text, reasoning, tool_calls, tool_call_id, body \
         FROM messages WHERE {wanted} ORDER BY trajectory_key, position"
    );
    for_each(session, &sql, |columns, row| {
        let place = (columns.needed_int("trajectory_key", row)?, columns.needed_int("step_index", row)?);
        if let Some(step) = parts.steps.get_mut(&place) {
            step.messages.push(Message::read(columns, row)?);
        }
        Ok(())
    })
    .await?;
    contents.load(session, &parts).await?;
    Ok(parts)
}

impl Contents {
    /// Reads the tool schemas and files that these parts name and that are not at hand.
    async fn load(&mut self, session: &Session, parts: &Parts) -> Result<()> {
        if self.bytes > CONTENTS_BYTES_MAX {
            *self = Self::default();
        }
        let mut missing: Vec<String> = Vec::new();
        for step in parts.steps.values() {
            missing.extend(step.tools.iter().filter(|h| !self.tools.contains_key(*h)).cloned());
            for message in &step.messages {
                missing.extend(message.files().into_iter().filter(|h| !self.files.contains_key(h)));
            }
        }
        missing.sort();
        missing.dedup();
        for hashes in missing.chunks(KEYS_NAMED_MAX) {
            let names: Vec<String> = hashes.iter().map(|h| conversation::literal(h)).collect();
            let sql =
                format!("SELECT content_hash, body, data FROM contents WHERE content_hash IN ({})", names.join(", "));
            for_each(session, &sql, |columns, row| {
                let hash = columns.needed_text("content_hash", row)?;
                if let Some(data) = columns.bytes("data", row)? {
                    self.bytes += data.len();
                    self.files.insert(hash, data);
                } else if let Some(body) = columns.text("body", row)? {
                    self.bytes += body.len();
                    self.tools.insert(hash, body);
                }
                Ok(())
            })
            .await?;
        }
        Ok(())
    }
}

async fn for_each(session: &Session, sql: &str, mut each: impl FnMut(&Columns<'_>, usize) -> Result<()>) -> Result<()> {
    let mut rows = session.sql(sql).await?;
    while let Some(batch) = rows.next_batch().await? {
        visit(&batch, &mut each)?;
    }
    Ok(())
}

fn visit(batch: &RecordBatch, each: &mut impl FnMut(&Columns<'_>, usize) -> Result<()>) -> Result<()> {
    let columns = Columns::of(batch);
    (0..batch.num_rows()).try_for_each(|row| each(&columns, row))
}
