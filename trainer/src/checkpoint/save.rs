//! Writing a checkpoint: one file after the other, one tensor in memory as bytes at a time.

use std::collections::BTreeMap;
use std::io::{self, Write};

use tch::Kind;

use super::fingerprint::fingerprint;
use super::progress::{Progress, tensor_name};
use super::random::Generators;
use super::state::{FORMAT_VERSION, ProgressFile, StateFile};
use super::{OLD_LOGPROBS, OPTIMIZER, STATE};
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
    /// # Errors
    ///
    /// [`Error::FileWrite`] naming the file, from the sink; [`Error::Torch`] if a tensor cannot be copied from the device. What
    /// was written before it stays: a checkpoint without `trainer/state.json` is none.
    pub fn save(&self, sink: &mut dyn ModelSink, progress: &Progress) -> Result<()> {
        let mut sink = Measured { sink, bytes: BTreeMap::new() };
        self.save_weights(&mut sink)?;
        let of = |(name, tensor)| FileTensor { name, kind: Kind::Float, tensor };
        let optimizer: Vec<FileTensor> = self.optimizer.state(&self.model).into_iter().map(of).collect();
        write_tensors(OPTIMIZER, &optimizer, &mut sink)?;
        if !progress.old_logprobs.is_empty() {
            let pending =
                progress.old_logprobs.iter().map(|(at, logprobs)| of((tensor_name(*at), logprobs.shallow_clone())));
            write_tensors(OLD_LOGPROBS, &pending.collect::<Vec<_>>(), &mut sink)?;
        }
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
                old_logprobs: progress.old_logprobs.len(),
            },
            settings: self.settings,
            model: fingerprint(self.model.config()),
            files: sink.bytes,
            rng: Generators::now(self.model.options().device)?,
        };
        let state = serde_json::to_value(state).map_err(|error| Error::FileWrite {
            place: "the checkpoint".to_owned(),
            name: STATE.to_owned(),
            source: error.into(),
        })?;
        sink.sink.write(STATE, &mut |out| write_json(out, &state))
    }
}

impl Trainer {
    /// Writes the weights alone, as Hugging Face lays them out, in the model's kind.
    ///
    /// # Errors
    ///
    /// As [`Trainer::save`].
    pub fn save_weights(&self, sink: &mut dyn ModelSink) -> Result<()> {
        self.model.save(sink, self.model.options().kind, SHARD_BYTES_MAX)
    }
}

/// A sink that remembers how much went into each file.
struct Measured<'a> {
    sink: &'a mut dyn ModelSink,
    bytes: BTreeMap<String, u64>,
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
