//! Taking a checkpoint back: everything is opened and checked before the first number is changed.

use std::collections::BTreeMap;

use safetensors::{Dtype, SafeTensors};
use tch::{Kind, Tensor, no_grad};

use super::fingerprint::first_difference;
use super::progress::{Progress, parse_tensor_name};
use super::state::{StateFile, damaged};
use super::{OLD_LOGPROBS, OPTIMIZER};
use crate::error::{Error, Result};
use crate::files::ModelFiles;
use crate::step::Trainer;
use crate::weights::{StoredWeights, parse_tensors, shape_of, tensor_of};

impl Trainer {
    /// Takes over a checkpoint: weights, optimiser, steps taken and the random generators. Settings stay those of this
    /// trainer; which ones differ from the saved, [`differences`](crate::checkpoint::differences) says.
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
    /// [`Error::Torch`] for want of memory while tensors are copied leaves the trainer half restored: drop it.
    pub fn restore(&mut self, files: &dyn ModelFiles) -> Result<Progress> {
        let state = StateFile::read(files)?;
        self.check_model(files, &state)?;
        for name in state.files.keys() {
            if !files.has(name)? {
                return Err(Error::FileMissing { place: files.place(), name: name.clone() });
            }
        }
        let weights = StoredWeights::open(files, self.model.config())?;
        weights.files().try_for_each(|(name, bytes)| state.check_size(files, name, bytes))?;
        let optimizer = state.open(files, OPTIMIZER)?;
        let optimizer = parse_tensors(OPTIMIZER, &optimizer)?;
        let shapes: Vec<_> = optimizer.iter().map(|(name, view)| (name, shape_of(&view))).collect();
        self.optimizer.check_state(&self.model, &shapes)?;
        check_all_f32(files, OPTIMIZER, &optimizer)?;
        let old_logprobs = read_old_logprobs(files, &state)?;
        let options = self.model.options();
        state.rng.restore(options.device, &files.place())?;

        if options.kind == Kind::Float {
            let mut parameters = self.model.parameters().iter();
            weights.each(options.kind, options.device, |_, saved| {
                let Some(parameter) = parameters.next() else { return Ok(()) };
                no_grad(|| parameter.tensor().shallow_clone().f_copy_(&saved))?;
                Ok(())
            })?;
        }
        self.optimizer.take_state(&self.model, |name| match optimizer.tensor(name) {
            Ok(view) => tensor_of(name, &view),
            Err(source) => Err(Error::WeightsFile { name: OPTIMIZER.to_owned(), source }),
        })?;
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

fn check_all_f32(files: &dyn ModelFiles, name: &str, tensors: &SafeTensors<'_>) -> Result<()> {
    match tensors.iter().find(|(_, view)| view.dtype() != Dtype::F32) {
        Some((tensor, view)) => Err(damaged(files, name, format!("{tensor} is of type {:?}, not F32", view.dtype()))),
        None => Ok(()),
    }
}

fn read_old_logprobs(files: &dyn ModelFiles, state: &StateFile) -> Result<BTreeMap<(i32, i32), Tensor>> {
    let expected = state.progress.old_logprobs;
    if expected == 0 {
        return Ok(BTreeMap::new());
    }
    let bytes = state.open(files, OLD_LOGPROBS)?;
    let tensors = parse_tensors(OLD_LOGPROBS, &bytes)?;
    check_all_f32(files, OLD_LOGPROBS, &tensors)?;
    let mut found = BTreeMap::new();
    for (name, view) in tensors.iter() {
        let at = parse_tensor_name(name)
            .ok_or_else(|| damaged(files, OLD_LOGPROBS, format!("tensor {name} is of no micro-batch")))?;
        found.insert(at, tensor_of(name, &view)?);
    }
    if found.len() != expected {
        let problem = format!("it has {} micro-batches, and {expected} were written", found.len());
        return Err(damaged(files, OLD_LOGPROBS, problem));
    }
    Ok(found)
}
