//! Models by name: a folder or `s3://…` to read from, and one to publish weights to.

use anyhow::{Context as _, Result};
use dressage_storage::{BlockingFolder, ObjectFolder, StoreSettings};
use dressage_trainer::checkpoint::copy_tokenizer_files;
use dressage_trainer::{Model, ModelConfig, ModelFiles, ModelOptions, ModelSink, Trainer};
use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::model_files::{Sink, Stored};
use crate::failure::Failure;

/// What says that a folder's weights are ours, and which: written last.
const MARKER: &str = "dressage.json";

/// A model's folder.
pub(super) fn open(uri: &str, settings: &StoreSettings, handle: &Handle) -> Result<BlockingFolder> {
    let folder = handle.block_on(ObjectFolder::open(uri, settings))?.blocking(handle.clone());
    if !folder.exists("config.json")? {
        return Err(Failure::not_found(format!(
            "there is no model at {}: a folder is needed that has config.json and *.safetensors, as Hugging Face lays it out",
            folder.uri()
        )));
    }
    Ok(folder)
}

/// Loads a model.
pub(super) fn load(folder: &BlockingFolder, options: ModelOptions) -> Result<Model> {
    Model::load(&Stored(folder), options).with_context(|| format!("cannot load the model at {}", folder.uri()))
}

/// A model whose weights nobody trained yet, from the shape of one.
pub(super) fn random(folder: &BlockingFolder, seed: i64, deviation: f64, options: ModelOptions) -> Result<Model> {
    let config = ModelConfig::load(&Stored(folder))?;
    dressage_trainer::seed(seed);
    Ok(Model::random(config, deviation, options)?)
}

/// A place that weights are published to: empty, or holding weights that we published.
pub(super) fn open_out(uri: &str, settings: &StoreSettings, handle: &Handle) -> Result<BlockingFolder> {
    let folder = handle.block_on(ObjectFolder::open(uri, settings))?.blocking(handle.clone());
    let files = folder.list()?;
    if !files.is_empty() && !files.iter().any(|file| file.name == MARKER) {
        return Err(Failure::invalid(format!(
            "{} holds {} files that dressage did not write ({}, …): name an empty folder for --out",
            folder.uri(),
            files.len(),
            files[0].name
        )));
    }
    Ok(folder)
}

/// Publishes the weights: a reader that waits for `dressage.json` sees them whole.
pub(super) fn publish(
    trainer: &Trainer,
    out: &BlockingFolder,
    tokenizer: &dyn ModelFiles,
    (train_run, weight_version, checkpoint_id): (&str, &str, Option<&str>),
) -> Result<()> {
    if published(out)?.is_some_and(|there| there["weight_version"] == weight_version) {
        return Ok(());
    }
    // from here on the old weights are not whole, and nothing says that they are
    let before = out.list()?;
    if before.iter().any(|file| file.name == MARKER) {
        out.delete(MARKER)?;
    }
    let mut sink = Sink::new(out);
    trainer.save_weights(&mut sink)?;
    copy_tokenizer_files(tokenizer, &mut sink)?;
    for old in before.iter().map(|old| &old.name) {
        if old != MARKER && !sink.files.iter().any(|new| new.path == *old) {
            out.delete(old)?;
        }
    }
    let files: Vec<Value> = sink.files.iter().map(|f| json!({ "path": f.path, "bytes": f.bytes, "blake3": f.hash })).collect();
    let marker = json!({
        "weight_version": weight_version,
        "train_run": train_run,
        "checkpoint_id": checkpoint_id,
        "files": files,
    });
    sink.write(MARKER, &mut |out| {
        serde_json::to_writer_pretty(&mut *out, &marker)?;
        out.write_all(b"\n")
    })?;
    Ok(())
}

/// What was published there; none where nothing is whole.
fn published(out: &BlockingFolder) -> Result<Option<Value>> {
    if !out.exists(MARKER)? {
        return Ok(None);
    }
    let text = out.read(MARKER)?;
    serde_json::from_slice(&text).map(Some).with_context(|| format!("{MARKER} of {} is no JSON", out.uri()))
}
