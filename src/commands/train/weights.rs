//! Models by name: a folder or `s3://…` to read from, and one to publish weights to.

use anyhow::{Context as _, Result};
use dressage_storage::{BlockingFolder, ObjectFolder, StoreSettings};
use dressage_trainer::checkpoint::{TOKENIZER_FILES, copy_tokenizer_files};
use dressage_trainer::{Model, ModelConfig, ModelFiles, ModelOptions, ModelSink, Trainer};
use serde_json::{Value, json};
use tokio::runtime::Handle;
use xxhash_rust::xxh3::Xxh3;

use super::model_files::{Sink, Stored};
use crate::failure::Failure;

/// What says that a folder's weights are ours, and which: written last.
const MARKER: &str = "dressage.json";

/// What says that weights of ours are on their way to a folder.
const BEGUN: &str = "dressage.begun";

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

/// A hash of a model's weights as they are stored: whether a frozen reference is what it was.
pub(super) fn hash(folder: &BlockingFolder) -> Result<String> {
    let mut hash = Xxh3::new();
    for file in folder.list()?.into_iter().filter(|file| file.name.ends_with(".safetensors")) {
        hash.update(file.name.as_bytes());
        hash.update(&Stored(folder).open(&file.name)?);
    }
    Ok(format!("{:032x}", hash.digest128()))
}

/// Whether a name means the folder of a URI.
pub(super) fn is_same_place(uri: &str, name: &str) -> bool {
    let canonical = |text: &str| -> String {
        let trimmed = text.trim_end_matches('/');
        std::fs::canonicalize(trimmed).map_or_else(|_| trimmed.to_owned(), |path| path.display().to_string())
    };
    canonical(uri) == canonical(name)
}

/// A place that weights are published to: empty, or holding weights that this run published, and nothing else. It is
/// written to once, so that what would fail at the end of a run fails at its beginning.
pub(super) fn open_out(
    uri: &str,
    train_run: &str,
    settings: &StoreSettings,
    handle: &Handle,
) -> Result<BlockingFolder> {
    let folder = handle.block_on(ObjectFolder::open(uri, settings))?.blocking(handle.clone());
    let files = folder.list()?;
    let there = published(&folder)?;
    let whose = there.as_ref().and_then(|marker| marker["train_run"].as_str()).unwrap_or_default();
    if there.is_some() && whose != train_run {
        return Err(Failure::invalid(format!(
            "{} holds the weights of training run `{whose}`: name another folder for those of `{train_run}`",
            folder.uri()
        )));
    }
    let is_ours = |name: &str| {
        let named = there.as_ref().and_then(|marker| marker["files"].as_array());
        [MARKER, BEGUN].contains(&name) || named.is_some_and(|files| files.iter().any(|file| file["path"] == name))
    };
    // without a marker they are what an interrupted publication left
    let left_over = |name: &str| name == "config.json" || name.ends_with(".safetensors") || is_tokenizer_file(name);
    let strange = files.iter().find(|file| match there {
        Some(_) => !is_ours(&file.name),
        None => !(files.iter().any(|f| f.name == BEGUN) && (file.name == BEGUN || left_over(&file.name))),
    });
    if let Some(strange) = strange {
        return Err(Failure::invalid(format!(
            "{} holds {}, which this training run did not write: name an empty folder for --out",
            folder.uri(),
            strange.name
        )));
    }
    if there.is_none() {
        folder.write(BEGUN, &mut |out| writeln!(out, "weights of training run {train_run} come here"))?;
    }
    Ok(folder)
}

fn is_tokenizer_file(name: &str) -> bool {
    TOKENIZER_FILES.contains(&name)
}

/// Publishes the weights: a reader that waits for `dressage.json` sees them whole.
pub(super) fn publish(
    trainer: &Trainer,
    out: &BlockingFolder,
    tokenizer: &dyn ModelFiles,
    (train_run, weight_version, checkpoint_id): (&str, &str, Option<&str>),
) -> Result<()> {
    if published(out)?.is_some_and(|there| there["weight_version"] == weight_version) {
        // the marker is written last but for this
        return if out.exists(BEGUN)? { Ok(out.delete(BEGUN)?) } else { Ok(()) };
    }
    // from here on the old weights are not whole, and nothing says that they are
    let before = out.list()?;
    if !before.iter().any(|file| file.name == BEGUN) {
        out.write(BEGUN, &mut |file| writeln!(file, "weights of training run {train_run} come here"))?;
    }
    if before.iter().any(|file| file.name == MARKER) {
        out.delete(MARKER)?;
    }
    let mut sink = Sink::new(out);
    trainer.save_weights(&mut sink)?;
    copy_tokenizer_files(tokenizer, &mut sink)?;
    for old in before.iter().map(|old| &old.name) {
        if old != MARKER && old != BEGUN && !sink.files.iter().any(|new| new.path == *old) {
            out.delete(old)?;
        }
    }
    let files: Vec<Value> =
        sink.files.iter().map(|f| json!({ "path": f.path, "bytes": f.bytes, "blake3": f.hash })).collect();
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
    out.delete(BEGUN)?;
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
