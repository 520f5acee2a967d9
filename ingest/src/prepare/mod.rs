//! From a rollout to rows: door checks, keys and hashes, encoded payload. Everything that needs no store, so that it
//! runs on many threads.

pub(crate) mod contents;
pub(crate) mod door;
pub(crate) mod experts;
pub(crate) mod identity;
pub(crate) mod retokenise;
pub(crate) mod rows;

use std::borrow::Cow;
use std::sync::Arc;

use dressage_schemas::ids::TrajectoryKey;
use dressage_schemas::tables::contents::ContentRow;
use dressage_schemas::tables::rewards::RewardRow;
use dressage_schemas::tables::steps::StepRow;
use dressage_schemas::tables::trajectories::TrajectoryRow;
use dressage_tokenizer::Tokenizer;
use serde_json::{Map, Value};

use crate::importer::Rejected;
use crate::rollout::{Provenance, Rollout};
use crate::settings::{DEFAULT_RUN, IngestSettings};
use experts::ExpertEncoder;

/// A trajectory as rows, waiting for the committer to say whether it is new. `write_id` and `revision` are not set.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) trajectory: TrajectoryRow,
    pub(crate) steps: Vec<StepRow>,
    pub(crate) rewards: Vec<RewardRow>,
    pub(crate) contents: Vec<ContentRow>,
    /// Versions in order of first use.
    pub(crate) weight_versions: Vec<String>,
    pub(crate) provenance: Provenance,
    /// About how much memory the rows take.
    pub(crate) bytes: u64,
}

/// Why a rollout was refused at the door.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) rule: &'static str,
    pub(crate) reason: String,
}

impl Refusal {
    pub(crate) fn new(rule: &'static str, reason: impl Into<String>) -> Self {
        Self { rule, reason: reason.into() }
    }
}

/// Turns rollouts into rows. One a thread.
pub(crate) struct Preparer {
    settings: Arc<IngestSettings>,
    tokenizer: Option<Arc<Tokenizer>>,
    experts: ExpertEncoder,
    labels: Map<String, Value>,
}

impl Preparer {
    pub(crate) fn new(settings: Arc<IngestSettings>, tokenizer: Option<Arc<Tokenizer>>) -> Self {
        let labels = settings.labels.iter().map(|(k, v)| (k.clone(), Value::String(v.clone()))).collect();
        let experts = ExpertEncoder::new(settings.expert_ranks);
        Self { settings, tokenizer, experts, labels }
    }

    /// Checks and converts one rollout.
    ///
    /// # Errors
    /// The rejection of a rollout that contradicts itself, with its place; `raw` is empty: the caller has the bytes.
    #[allow(clippy::result_large_err, reason = "a refusal goes straight on to quarantine, one a bad record")]
    pub(crate) fn prepare(&mut self, mut rollout: Rollout, source: &str, format: &str) -> Result<Prepared, Rejected> {
        let trajectory_id = rollout.trajectory_id.clone();
        let place = rollout.provenance.clone();
        self.convert(&mut rollout, source, format).map_err(|refusal| Rejected {
            byte_offset: place.byte_offset,
            byte_length: place.byte_length,
            line: place.line,
            trajectory_id: Some(trajectory_id),
            rule: Cow::Borrowed(refusal.rule),
            reason: refusal.reason,
            raw: Vec::new(),
        })
    }

    fn convert(&mut self, rollout: &mut Rollout, source: &str, format: &str) -> Result<Prepared, Refusal> {
        if let Some(tokenizer) = &self.tokenizer {
            retokenise::fill(rollout, tokenizer);
        }
        door::check(rollout)?;
        let run_id = match &self.settings.run {
            Some(run) => run.clone(),
            None => rollout.run_id.take().unwrap_or_else(|| DEFAULT_RUN.to_owned()),
        };
        rollout.labels.extend(self.labels.clone());
        let instance_id = rollout.instance_id.take().unwrap_or_else(|| rollout.trajectory_id.clone());
        let group_id = match &self.settings.group_by {
            Some(path) => identity::group_of(rollout, &instance_id, path)?,
            None => rollout.group_id.take().unwrap_or_else(|| instance_id.clone()),
        };
        let key = TrajectoryKey::of(&run_id, &rollout.trajectory_id).0;
        let names = rows::Names { key, run_id, instance_id, group_id, source, format };
        rows::build(rollout, names, &mut self.experts)
    }
}
