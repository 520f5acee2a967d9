//! `trainer/state.json`: what the checkpoint is, to be read before anything else of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::STATE;
use super::random::Generators;
use crate::error::{Error, Result};
use crate::files::{FileBytes, ModelFiles};
use crate::settings::TrainerSettings;

/// What this release writes and reads.
pub(super) const FORMAT_VERSION: u32 = 1;

/// The file as it is written.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StateFile {
    pub(super) format_version: u32,
    pub(super) train_steps: u64,
    pub(super) skipped_train_steps: u64,
    pub(super) progress: ProgressFile,
    pub(super) settings: TrainerSettings,
    /// See `fingerprint.rs`.
    pub(super) model: Map<String, Value>,
    /// Sizes of all other files, in bytes.
    pub(super) files: BTreeMap<String, u64>,
    pub(super) rng: Generators,
    /// Where several ranks wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ranks: Option<RanksFile>,
}

/// The ranks that wrote a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RanksFile {
    pub(super) world_size: usize,
    /// Files of the optimiser's state: one, or one a rank.
    pub(super) optimizer_files: usize,
    /// Micro-batches with old log-probs, of each rank.
    pub(super) old_logprobs: Vec<usize>,
}

/// The caller's progress, without its tensors.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProgressFile {
    pub(super) train_run: String,
    #[serde(default)]
    pub(super) plans: Vec<String>,
    pub(super) plan_id: Option<String>,
    pub(super) next_train_step: i32,
    pub(super) epoch: u32,
    /// Micro-batches with old log-probs.
    pub(super) old_logprobs: usize,
}

impl StateFile {
    /// How many ranks wrote it.
    pub(super) fn world_size(&self) -> usize {
        self.ranks.as_ref().map_or(1, |ranks| ranks.world_size)
    }

    /// How many files the optimiser's state is in.
    pub(super) fn optimizer_files(&self) -> usize {
        self.ranks.as_ref().map_or(1, |ranks| ranks.optimizer_files)
    }

    pub(super) fn read(files: &dyn ModelFiles) -> Result<Self> {
        let bytes = files.open(STATE)?;
        let damaged = |error: serde_json::Error| damaged(files, STATE, error.to_string());
        let value: Value = serde_json::from_slice(&bytes).map_err(damaged)?;
        // a later version may have a different everything else
        let version = value.get("format_version").unwrap_or(&Value::Null);
        if version.as_u64() != Some(FORMAT_VERSION.into()) {
            let (place, found) = (files.place(), version.to_string());
            return Err(Error::CheckpointVersion { place, found, known: FORMAT_VERSION });
        }
        serde_json::from_value(value).map_err(damaged)
    }

    /// Opens another file of the checkpoint, which must be as long as it was written.
    pub(super) fn open(&self, files: &dyn ModelFiles, name: &str) -> Result<FileBytes> {
        let bytes = files.open(name)?;
        self.check_size(files, name, &bytes)?;
        Ok(bytes)
    }

    /// Whether a file is as long as it was written.
    pub(super) fn check_size(&self, files: &dyn ModelFiles, name: &str, bytes: &[u8]) -> Result<()> {
        match self.files.get(name) {
            Some(written) if *written == bytes.len() as u64 => Ok(()),
            Some(written) => {
                Err(damaged(files, name, format!("it has {} bytes, and {written} were written", bytes.len())))
            }
            None => Err(damaged(files, name, format!("{STATE} does not know it"))),
        }
    }
}

pub(super) fn damaged(files: &dyn ModelFiles, name: &str, problem: String) -> Error {
    Error::CheckpointDamaged { place: files.place(), name: name.to_owned(), problem }
}

/// What a checkpoint says of itself, without its tensors: to decide whether to restore it.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckpointState {
    /// Train steps that the trainer had taken, skipped ones too.
    pub train_steps: u64,
    /// Of those, the skipped ones.
    pub skipped_train_steps: u64,
    /// The training run's name.
    pub train_run: String,
    /// The plan that was being consumed.
    pub plan_id: Option<String>,
    /// The cursor within the plan.
    pub next_train_step: i32,
    /// Times that the plan was gone through before.
    pub epoch: u32,
    /// The settings that were in force: see [`differences`](super::differences).
    pub settings: TrainerSettings,
    /// Sizes of its files but `trainer/state.json`, in bytes.
    pub files: BTreeMap<String, u64>,
    /// How many ranks wrote it.
    pub world_size: usize,
}

impl CheckpointState {
    /// Reads `trainer/state.json`.
    ///
    /// # Errors
    ///
    /// [`Error::FileMissing`] if it is not there, [`Error::CheckpointVersion`] for a format that this release does not read,
    /// [`Error::CheckpointDamaged`] if it is not what was written.
    pub fn read(files: &dyn ModelFiles) -> Result<Self> {
        let state = StateFile::read(files)?;
        let ProgressFile { train_run, plan_id, next_train_step, epoch, .. } = state.progress;
        Ok(Self {
            train_steps: state.train_steps,
            skipped_train_steps: state.skipped_train_steps,
            train_run,
            plan_id,
            next_train_step,
            epoch,
            settings: state.settings,
            files: state.files,
            world_size: state.ranks.map_or(1, |ranks| ranks.world_size),
        })
    }
}
