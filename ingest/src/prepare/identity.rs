//! What a trajectory is: the hash over what it says, and the group that the user asked for.

use dressage_schemas::tables::rewards::RewardRow;
use dressage_schemas::tables::steps::StepRow;
use dressage_schemas::tables::trajectories::TrajectoryRow;
use serde_json::Value;

use super::Refusal;
use crate::rollout::{Rollout, hex16};
use crate::rule;

/// The group of a trajectory by the field or key that `--group-by` names.
pub(crate) fn group_of(rollout: &Rollout, instance_id: &str, path: &str) -> Result<String, Refusal> {
    let field = match path {
        "instance_id" => Some(instance_id.to_owned()),
        "trajectory_id" => Some(rollout.trajectory_id.clone()),
        "group_id" => Some(rollout.group_id.clone().unwrap_or_else(|| instance_id.to_owned())),
        "run_id" => rollout.run_id.clone(),
        "model" => rollout.model.clone(),
        "agent" => rollout.agent.clone(),
        "parent_trajectory_id" => rollout.parent_trajectory_id.clone(),
        _ => None,
    };
    let found = field.or_else(|| {
        let in_labels = path.strip_prefix("labels.");
        let in_extra = path.strip_prefix("extra.");
        let mut keys = in_labels.or(in_extra).unwrap_or(path).split('.');
        let first = keys.next()?;
        let label = || rollout.labels.get(first).filter(|_| in_extra.is_none());
        let extra = || rollout.extra.get(first).filter(|_| in_labels.is_none());
        let start = label().or_else(extra)?;
        let value = keys.try_fold(start, |value, key| value.get(key))?;
        match value {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        }
    });
    found.filter(|group| !group.is_empty()).ok_or_else(|| {
        let reason = format!("--group-by {path}: the trajectory has no such field, label or extra key");
        Refusal::new(rule::MISSING_FIELD, reason)
    })
}

/// BLAKE3 over rows, field by field with lengths: free of where the trajectory was read, of its extent, and of how
/// its payload is encoded.
pub(crate) struct ContentHasher(blake3::Hasher);

impl ContentHasher {
    pub(crate) fn new() -> Self {
        Self(blake3::Hasher::new())
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.update(&(bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    fn maybe(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            None => {
                self.0.update(&u64::MAX.to_le_bytes());
            }
            Some(bytes) => self.bytes(bytes),
        }
    }

    fn text(&mut self, text: Option<&str>) {
        self.maybe(text.map(str::as_bytes));
    }

    fn number(&mut self, number: Option<i64>) {
        self.maybe(number.map(i64::to_le_bytes).as_ref().map(<[u8; 8]>::as_slice));
    }

    fn texts(&mut self, texts: &[String]) {
        self.number(Some(texts.len() as i64));
        texts.iter().for_each(|t| self.text(Some(t)));
    }

    /// Router choices as they came, in pieces: the codec may change, what they say does not. They are the bulk of
    /// a trajectory, so they go in as a 128-bit digest that costs next to nothing.
    pub(crate) fn experts(&mut self, shape: [u32; 3], chunks: impl Iterator<Item = impl AsRef<[u8]>>) {
        let mut digest = xxhash_rust::xxh3::Xxh3::new();
        chunks.for_each(|chunk| digest.update(chunk.as_ref()));
        shape.iter().for_each(|n| self.number(Some(i64::from(*n))));
        self.bytes(&digest.digest128().to_le_bytes());
    }

    pub(crate) fn step(&mut self, step: &StepRow) {
        for number in [Some(step.step_index), step.segment_index, Some(step.lineage_index), step.base_step] {
            self.number(number.map(i64::from));
        }
        for text in [&step.turn_id, &step.lineage_id, &step.finish_reason, &step.model, &step.weight_version] {
            self.text(text.as_deref());
        }
        self.text(Some(&step.route));
        self.texts(&step.boundary_reasons);
        self.texts(&step.flags);
        self.texts(&step.messages);
        self.text(step.tools.as_deref());
        self.text(step.extra.as_deref());
        for truth in [step.boundary, step.mask_nonlast_version, step.trainable] {
            self.number(Some(i64::from(truth)));
        }
        for number in [
            Some(i64::from(step.n_context_tokens)),
            Some(i64::from(step.n_output_tokens)),
            Some(i64::from(step.n_context_messages)),
            step.usage_input_tokens,
            step.usage_output_tokens,
            step.created_at,
        ] {
            self.number(number);
        }
        self.number(Some(step.mask_spans.as_slice().len() as i64));
        step.mask_spans.as_slice().iter().for_each(|n| self.number(Some(i64::from(*n))));
        let versions = step.version_spans.iter().flat_map(|v| &v.0);
        for (version, n_tokens) in versions {
            self.text(Some(version));
            self.number(Some(i64::from(*n_tokens)));
        }
        self.maybe(step.token_ids.as_deref());
        self.maybe(step.logprobs.as_deref());
    }

    pub(crate) fn reward(&mut self, reward: &RewardRow) {
        self.text(Some(&reward.grader));
        self.number(reward.value.map(|v| v.to_bits() as i64));
        self.text(reward.parts.as_deref());
        self.number(reward.graded_at);
        self.text(reward.detail.as_deref());
    }

    pub(crate) fn finish(mut self, row: &TrajectoryRow) -> String {
        for text in [&row.trajectory_id, &row.run_id, &row.instance_id, &row.group_id, &row.status] {
            self.text(Some(text));
        }
        for text in [&row.parent_trajectory_id, &row.model, &row.agent, &row.labels, &row.extra] {
            self.text(text.as_deref());
        }
        self.number(row.created_at);
        self.number(row.n_steps.map(i64::from));
        self.texts(&row.flags);
        hex16(&self.0.finalize())
    }
}
