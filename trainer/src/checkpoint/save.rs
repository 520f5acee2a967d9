//! Writing a checkpoint: one file after the other, one tensor in memory as bytes at a time.

use std::collections::BTreeMap;
use std::io::{self, Write};

use tch::{Kind, Tensor};

use super::fingerprint::fingerprint;
use super::progress::{Progress, tensor_name};
use super::random::Generators;
use super::state::{FORMAT_VERSION, ProgressFile, RanksFile, StateFile};
use super::{OLD_LOGPROBS, OPTIMIZER, STATE, file_of};
use crate::error::{Error, Result};
use crate::files::ModelSink;
use crate::step::Trainer;
use crate::weights::{FileTensor, write_json, write_tensors};

/// As large as Hugging Face makes its shards.
const SHARD_BYTES_MAX: u64 = 5_000_000_000;

impl Trainer {
    /// Writes a checkpoint between two steps: weights in the model's kind, the optimiser's state, and `trainer/state.json`
    /// as the last file. The tokenizer's files are not the trainer's:
    /// [`copy_tokenizer_files`](crate::checkpoint::copy_tokenizer_files).
    ///
    /// Of several ranks all call it, each with a sink that leads to the same place and with its own progress; rank 0 writes the
    /// weights and `trainer/state.json`, after all others are done. When it gives back, everything is written by all.
    ///
    /// # Errors
    ///
    /// [`Error::FileWrite`] naming the file, from the sink; [`Error::Torch`] if a tensor cannot be copied from the device. What
    /// was written before it stays: a checkpoint without `trainer/state.json` is none. [`Error::Collective`] on every other rank
    /// then.
    pub fn save(&self, sink: &mut dyn ModelSink, progress: &Progress) -> Result<()> {
        match &self.parallel {
            Some(parallel) => self.save_together(parallel, sink, progress),
            None => {
                let mut sink = Measured { sink, bytes: BTreeMap::new() };
                self.save_weights(&mut sink)?;
                self.save_optimizer(&mut sink, 0, 1)?;
                save_old_logprobs(&mut sink, progress, 0, 1)?;
                let Measured { sink, bytes } = sink;
                self.save_state(sink, progress, bytes, None)
            }
        }
    }

    /// The optimiser's state, or this rank's part.
    pub(super) fn save_optimizer(&self, sink: &mut dyn ModelSink, rank: usize, n_files: usize) -> Result<()> {
        let state: Vec<FileTensor> = self.optimizer.state(&self.model).into_iter().map(of_state).collect();
        write_tensors(&file_of(OPTIMIZER, rank, n_files), &state, sink)
    }

    /// The file that makes a checkpoint of the others.
    pub(super) fn save_state(
        &self,
        sink: &mut dyn ModelSink,
        progress: &Progress,
        files: BTreeMap<String, u64>,
        ranks: Option<RanksFile>,
    ) -> Result<()> {
        let old_logprobs = match &ranks {
            Some(ranks) => ranks.old_logprobs.iter().sum(),
            None => progress.old_logprobs.len(),
        };
        let state = StateFile {
            format_version: FORMAT_VERSION,
            train_steps: self.train_steps,
            skipped_train_steps: self.skipped_train_steps,
            progress: ProgressFile {
                train_run: progress.train_run.clone(),
                plans: progress.plans.clone(),
                plan_id: progress.plan_id.clone(),
                next_train_step: progress.next_train_step,
                epoch: progress.epoch,
                old_logprobs,
            },
            settings: self.settings,
            model: fingerprint(self.model.config()),
            files,
            rng: Generators::now(self.model.options().device)?,
            ranks,
        };
        let state = serde_json::to_value(state).map_err(|error| Error::FileWrite {
            place: "the checkpoint".to_owned(),
            name: STATE.to_owned(),
            source: error.into(),
        })?;
        sink.write(STATE, &mut |out| write_json(out, &state))
    }
}

/// Log-probs that a rank still needs, if there are some.
pub(super) fn save_old_logprobs(
    sink: &mut dyn ModelSink,
    progress: &Progress,
    rank: usize,
    n_files: usize,
) -> Result<()> {
    if progress.old_logprobs.is_empty() {
        return Ok(());
    }
    let pending = progress.old_logprobs.iter();
    let pending = pending.map(|(at, logprobs)| of_state((tensor_name(*at), logprobs.shallow_clone())));
    write_tensors(&file_of(OLD_LOGPROBS, rank, n_files), &pending.collect::<Vec<_>>(), sink)
}

fn of_state((name, tensor): (String, Tensor)) -> FileTensor {
    FileTensor { name, kind: Kind::Float, tensor }
}

impl Trainer {
    /// Writes the weights alone, as [`Model::save`](crate::Model::save) does, in the model's kind.
    ///
    /// # Errors
    ///
    /// As [`Trainer::save`].
    pub fn save_weights(&self, sink: &mut dyn ModelSink) -> Result<()> {
        self.model.save(sink, self.model.options().kind, SHARD_BYTES_MAX)
    }
}

/// A sink that remembers how much went into each file.
pub(super) struct Measured<'a> {
    pub(super) sink: &'a mut dyn ModelSink,
    pub(super) bytes: BTreeMap<String, u64>,
}

impl ModelSink for Measured<'_> {
    fn write(&mut self, name: &str, contents: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>) -> Result<()> {
        let mut n_bytes = 0;
        self.sink.write(name, &mut |out| {
            let mut counted = Counted { out, n_bytes: 0 };
            contents(&mut counted)?;
            n_bytes = counted.n_bytes;
            Ok(())
        })?;
        self.bytes.insert(name.to_owned(), n_bytes);
        Ok(())
    }
}

struct Counted<'a> {
    out: &'a mut dyn Write,
    n_bytes: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.out.write(bytes)?;
        self.n_bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
