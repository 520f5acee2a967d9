//! Taking a checkpoint back: everything is opened and checked before the first number is changed.

use std::collections::BTreeMap;

use safetensors::{Dtype, SafeTensors};
use tch::{Kind, Tensor, no_grad};

use super::fingerprint::first_difference;
use super::optimizer_files::OptimizerFiles;
use super::progress::{Progress, parse_tensor_name};
use super::state::{RanksFile, StateFile, damaged};
use super::together::together;
use super::{OLD_LOGPROBS, file_of};
use crate::error::{Error, Result};
use crate::files::ModelFiles;
use crate::step::Trainer;
use crate::weights::{StoredWeights, parse_tensors, tensor_of};

impl Trainer {
    /// Takes over a checkpoint: weights, optimiser, steps taken and the random generators. Settings stay those of this
    /// trainer; which ones differ from the saved, [`differences`](crate::checkpoint::differences) says. Of several ranks all call
    /// it, and each is given its own progress back; how many ranks wrote the checkpoint, and what they shared out, does not
    /// matter but for old log-probs.
    ///
    /// # Errors
    ///
    /// Nothing is changed by any of these:
    ///
    /// * [`Error::FileMissing`] and [`Error::FileRead`] naming the file;
    /// * [`Error::CheckpointVersion`] for a format that this release does not read;
    /// * [`Error::CheckpointModel`] naming the first thing in which the saved model is another one, its kind (f32, bf16)
    ///   included;
    /// * [`Error::CheckpointDamaged`], [`Error::WeightsFile`], [`Error::OptimizerState`] and what [`crate::Model::load`] says of
    ///   weights for files that are not what was written.
    ///
    /// [`Error::CheckpointWindow`] for one that other ranks wrote in the middle of a window of steps; [`Error::Collective`] if
    /// another rank cannot restore it, for whatever reason.
    ///
    /// [`Error::Torch`] for want of memory while tensors are copied leaves the trainer half restored: drop it.
    pub fn restore(&mut self, files: &dyn ModelFiles) -> Result<Progress> {
        if let Some(parallel) = &self.parallel {
            parallel.group().enter("restore of a checkpoint");
        }
        let checked = self.check_checkpoint(files);
        // nothing is changed anywhere if one of the ranks cannot
        let checked = together(self.parallel.as_ref(), "the restore of a checkpoint", checked)?;
        self.take(files, checked)
    }

    /// Opens and checks everything.
    fn check_checkpoint(&self, files: &dyn ModelFiles) -> Result<Checked> {
        let state = StateFile::read(files)?;
        self.check_model(files, &state)?;
        for name in state.files.keys() {
            if !files.has(name)? {
                return Err(Error::FileMissing { place: files.place(), name: name.clone() });
            }
        }
        let weights = StoredWeights::open(files, self.model.config())?;
        weights.files().try_for_each(|(name, bytes)| state.check_size(files, name, bytes))?;
        let optimizer = OptimizerFiles::open(files, &state)?;
        optimizer.parse()?.check(files, &self.optimizer, &self.model)?;
        let old_logprobs = read_old_logprobs(files, &state, self.ranks())?;
        Ok(Checked { state, weights, optimizer, old_logprobs })
    }

    fn take(&mut self, files: &dyn ModelFiles, checked: Checked) -> Result<Progress> {
        let Checked { state, weights, optimizer, old_logprobs } = checked;
        let options = self.model.options();
        state.rng.restore(options.device, &files.place())?;

        // of a bf16 model the optimiser has the weights: those of its part
        if options.kind == Kind::Float || self.parallel.is_some() {
            let mut at = 0;
            weights.each(options.kind, options.device, |_, saved| {
                no_grad(|| self.model.take_weights(at, &saved))?;
                at += 1;
                Ok(())
            })?;
        }
        let optimizer = optimizer.parse()?;
        self.optimizer.take_state(&self.model, |name, range| optimizer.read(name, range))?;
        self.has_gradients = true;
        self.forget_gradients()?;
        self.train_steps = state.train_steps;
        self.skipped_train_steps = state.skipped_train_steps;
        let progress = state.progress;
        Ok(Progress {
            train_run: progress.train_run,
            plans: progress.plans,
            plan_id: progress.plan_id,
            next_train_step: progress.next_train_step,
            epoch: progress.epoch,
            old_logprobs,
        })
    }

    fn check_model(&self, files: &dyn ModelFiles, state: &StateFile) -> Result<()> {
        let kinds = (state.settings.model.kind, self.settings.model.kind);
        let difference = first_difference(&state.model, self.model.config()).or_else(|| {
            let (saved, here) = kinds;
            (saved != here).then(|| ("kind".to_owned(), saved.as_str().to_owned(), here.as_str().to_owned()))
        });
        match difference {
            Some((field, saved, here)) => Err(Error::CheckpointModel { place: files.place(), field, saved, here }),
            None => Ok(()),
        }
    }
}

/// A checkpoint that can be restored.
struct Checked {
    state: StateFile,
    weights: StoredWeights,
    optimizer: OptimizerFiles,
    old_logprobs: BTreeMap<(i32, i32), Tensor>,
}

pub(super) fn check_all_f32(files: &dyn ModelFiles, name: &str, tensors: &SafeTensors<'_>) -> Result<()> {
    match tensors.iter().find(|(_, view)| view.dtype() != Dtype::F32) {
        Some((tensor, view)) => Err(damaged(files, name, format!("{tensor} is of type {:?}, not F32", view.dtype()))),
        None => Ok(()),
    }
}

fn read_old_logprobs(
    files: &dyn ModelFiles,
    state: &StateFile,
    (rank, world_size): (usize, usize),
) -> Result<BTreeMap<(i32, i32), Tensor>> {
    if state.progress.old_logprobs == 0 {
        return Ok(BTreeMap::new());
    }
    if state.world_size() != world_size {
        return Err(Error::CheckpointWindow { place: files.place(), saved: state.world_size(), here: world_size });
    }
    let of_rank = |ranks: &RanksFile| ranks.old_logprobs.get(rank).copied().unwrap_or(0);
    let expected = state.ranks.as_ref().map_or(state.progress.old_logprobs, of_rank);
    if expected == 0 {
        return Ok(BTreeMap::new());
    }
    let name = file_of(OLD_LOGPROBS, rank, world_size);
    let bytes = state.open(files, &name)?;
    let tensors = parse_tensors(&name, &bytes)?;
    check_all_f32(files, &name, &tensors)?;
    let mut found = BTreeMap::new();
    for (tensor, view) in tensors.iter() {
        let at = parse_tensor_name(tensor)
            .ok_or_else(|| damaged(files, &name, format!("tensor {tensor} is of no micro-batch")))?;
        found.insert(at, tensor_of(tensor, &view)?);
    }
    if found.len() != expected {
        let problem = format!("it has {} micro-batches, and {expected} were written", found.len());
        return Err(damaged(files, &name, problem));
    }
    Ok(found)
}
