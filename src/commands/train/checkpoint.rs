//! Checkpoints of a training run: written beside, published by one row, gone on from, and thinned out.

use std::hash::{BuildHasher, Hasher, RandomState};

use anyhow::{Context as _, Result};
use dressage_schemas::tables::checkpoints::CheckpointRow;
use dressage_storage::{BlockingFolder, Lake, checkpoints};
use dressage_trainer::checkpoint::copy_tokenizer_files;
use dressage_trainer::{ModelFiles, Progress, Trainer};
use tokio::runtime::Handle;

use super::file::TrainFile;
use super::model_files::{Sink, Stored};
use crate::commands::batches::record::now_micros;

/// The key under which a checkpoint's settings keep the hash of the reference.
pub(super) const REFERENCE_HASH: &str = "reference_hash";

/// Where a run's checkpoints go, and the newest of them.
#[derive(Debug)]
pub(super) struct Publisher<'a> {
    handle: Handle,
    lake: Lake,
    file: &'a TrainFile,
    train_run: String,
    newest: Option<CheckpointRow>,
    /// Hash of the frozen reference's weights, where there is one.
    pub(super) reference_hash: Option<String>,
}

impl<'a> Publisher<'a> {
    /// Looks for the newest checkpoint of the run.
    pub(super) fn open(handle: &Handle, lake: &Lake, file: &'a TrainFile, train_run: &str) -> Result<Self> {
        let newest = handle.block_on(checkpoints::latest(lake, train_run))?;
        Ok(Self {
            handle: handle.clone(),
            lake: lake.clone(),
            file,
            train_run: train_run.to_owned(),
            newest,
            reference_hash: None,
        })
    }

    /// The checkpoint that the run goes on from; none for a first start.
    pub(super) fn newest(&self) -> Option<&CheckpointRow> {
        self.newest.as_ref()
    }

    /// The files of the newest checkpoint.
    pub(super) fn files(&self) -> Result<Option<BlockingFolder>> {
        let Some(row) = &self.newest else { return Ok(None) };
        let files = self.handle.block_on(checkpoints::files(&self.lake, row))?;
        Ok(Some(files.blocking(self.handle.clone())))
    }

    /// Writes and publishes where the run stands. `tokenizer` is where the tokenizer's files are.
    ///
    /// # Errors
    /// The store's, naming the file; nothing is visible then, and the checkpoint before is untouched.
    pub(super) fn publish(
        &mut self,
        trainer: &Trainer,
        progress: &Progress,
        tokenizer: &dyn ModelFiles,
    ) -> Result<&CheckpointRow> {
        let optimizer_step = i64::try_from(trainer.train_steps()).unwrap_or(i64::MAX);
        let checkpoint_id = checkpoint_id(&self.train_run, optimizer_step);
        let folder = checkpoints::new_files(&self.lake, &self.train_run, &checkpoint_id)?.blocking(self.handle.clone());
        let mut sink = Sink::new(&folder);
        trainer.save(&mut sink, progress).with_context(|| {
            format!("checkpoint {checkpoint_id} was not published; the one before it is what the run goes on from")
        })?;
        copy_tokenizer_files(tokenizer, &mut sink)?;
        let files = sink.files;
        let row = CheckpointRow {
            checkpoint_id,
            train_run: self.train_run.clone(),
            after_checkpoint_id: self.newest.as_ref().map(|row| row.checkpoint_id.clone()),
            plan_id: progress.plan_id.clone(),
            next_train_step: progress.next_train_step,
            optimizer_step,
            weight_version: weight_version(&self.train_run, optimizer_step),
            model: trainer.model().config().family.model_type().to_owned(),
            files,
            settings: self.settings()?,
            created_at: now_micros(),
            // where they lie and how much they are follows from the rest
            ..CheckpointRow::default()
        };
        let published = self.handle.block_on(checkpoints::publish(&self.lake, row))?;
        Ok(self.newest.insert(published))
    }

    /// What a checkpoint remembers of what it was made under.
    fn settings(&self) -> Result<String> {
        let mut settings = self.file.to_json()?;
        if let Some(hash) = &self.reference_hash {
            settings[REFERENCE_HASH] = hash.as_str().into();
        }
        Ok(settings.to_string())
    }

    /// Removes the checkpoints that the settings do not keep. What fails here is tried again after the next one.
    pub(super) fn thin_out(&self) -> Result<()> {
        let settings = &self.file.checkpoints;
        let every = settings.keep_every_train_steps.and_then(|n| i64::try_from(n).ok());
        let retired = checkpoints::retire(&self.lake, &self.train_run, settings.keep_last, every);
        self.handle.block_on(retired)?;
        Ok(())
    }
}

/// The checkpoint after so many train steps of a run. Sorts as it counts; two processes that train the same run do not
/// write over each other's files.
fn checkpoint_id(train_run: &str, optimizer_step: i64) -> String {
    let attempt = RandomState::new().build_hasher().finish() as u32;
    format!("{train_run}-{optimizer_step:08}-{attempt:08x}")
}

/// The name under which an inference engine is given the weights after so many train steps.
pub(super) fn weight_version(train_run: &str, optimizer_step: i64) -> String {
    format!("{train_run}-{optimizer_step}")
}

/// Brings a trainer to where a checkpoint was made. Its files are compared with their hashes first: a flipped bit in an
/// optimiser's state would show as a curve that nobody can explain.
///
/// # Errors
/// A missing or damaged file, or a checkpoint of another model, naming it.
pub(super) fn restore(trainer: &mut Trainer, row: &CheckpointRow, folder: &BlockingFolder) -> Result<Progress> {
    folder.verify(&row.files)?;
    Ok(trainer.restore(&Stored(folder))?)
}
