//! The files of a checkpoint: what they are to others, and that a wrong, missing or damaged one is named and changes nothing.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use dressage_schemas::ErrorKind;
use dressage_trainer::checkpoint::{CheckpointState, TOKENIZER_FILES, copy_tokenizer_files, differences};
use dressage_trainer::{Error, Folder, Model, ModelOptions, ModelSink, Progress, Result, Trainer};
use serde_json::{Value, json};
use tch::{Kind, Tensor};

use crate::cases::distance;
use crate::training::made::{
    assert_same_weights, config_json, micro_batch, model_of, row, settings, step, trainer, weights,
};

const TEXT: &str = "[step]\ntrain_steps_per_policy = 2";

/// A trainer after one step, its checkpoint, and a progress with old log-probs.
fn saved(kind: &str) -> (Trainer, tempfile::TempDir) {
    let settings = settings(&format!("{TEXT}\n[model]\nkind = \"{kind}\""));
    let mut trainer = Trainer::new(model_of(config_json(), 1, settings.model.kind.into()), None, settings).unwrap();
    let batch = micro_batch(&trainer, (0, 0), &[row(1, 9, 1.0)]);
    let old = trainer.logprobs(&batch).unwrap();
    step(&mut trainer, &[(&batch, Some(&old))]);
    let place = tempfile::tempdir().unwrap();
    trainer.save(&mut Folder::at(place.path()), &progress()).unwrap();
    (trainer, place)
}

fn progress() -> Progress {
    Progress {
        train_run: "run".to_owned(),
        next_train_step: 1,
        old_logprobs: BTreeMap::from([((1, 0), Tensor::from_slice(&[-0.5_f32, -1.5]))]),
        ..Progress::default()
    }
}

/// The error of a checkpoint that cannot be restored into a trainer, which stays as it was.
#[track_caller]
fn refused(trainer: &mut Trainer, place: &Path) -> Error {
    let (before, steps) = (weights(trainer), trainer.train_steps());
    let error = trainer.restore(&Folder::at(place)).unwrap_err();
    assert_same_weights(trainer, &before, "unchanged");
    assert_eq!(trainer.train_steps(), steps);
    assert!(
        error.to_string().contains(&place.display().to_string())
            || matches!(error, Error::WeightsFile { .. } | Error::OptimizerState { .. }),
        "{error}"
    );
    error
}

fn change_state(place: &Path, change: impl FnOnce(&mut Value)) {
    let path = place.join("trainer/state.json");
    let mut state: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut state);
    std::fs::write(path, state.to_string()).unwrap();
}

fn files_of(place: &Path) -> Vec<String> {
    let mut files = vec!["trainer/state.json".to_owned()];
    files.extend(CheckpointState::read(&Folder::at(place)).unwrap().files.into_keys());
    files
}

#[test]
fn a_checkpoint_is_a_model_that_others_read() {
    for (kind, kind_of) in [("f32", Kind::Float), ("bf16", Kind::BFloat16)] {
        let (trainer, place) = saved(kind);
        let options = ModelOptions { kind: kind_of, ..ModelOptions::default() };
        let model = Model::load(&Folder::at(place.path()), options).unwrap();
        for (found, expected) in model.parameters().iter().zip(trainer.model().parameters()) {
            assert_eq!(distance(found.tensor(), expected.tensor()), 0.0, "{}", found.name());
        }
        let config: Value = serde_json::from_slice(&std::fs::read(place.path().join("config.json")).unwrap()).unwrap();
        assert_eq!(config["torch_dtype"], json!(if kind == "f32" { "float32" } else { "bfloat16" }));
    }
}

#[test]
fn a_checkpoint_says_what_it_is_before_it_is_restored() {
    let (trainer, place) = saved("f32");
    let state = CheckpointState::read(&Folder::at(place.path())).unwrap();
    assert_eq!((state.train_steps, state.next_train_step, state.train_run.as_str()), (1, 1, "run"));
    assert_eq!(differences(&state.settings, trainer.settings()), Vec::<String>::new());
    let other = settings(&format!("{TEXT}\n[model]\ntemperature = 0.5"));
    assert_eq!(differences(&state.settings, &other), ["[model] temperature: 1.0 in the checkpoint, 0.5 now"]);
    for (name, bytes) in &state.files {
        assert_eq!(std::fs::metadata(place.path().join(name)).unwrap().len(), *bytes, "{name}");
    }
}

#[test]
fn a_checkpoint_of_another_model_names_the_first_difference() {
    let (_, place) = saved("f32");
    let other = |change: fn(&mut Value), text: &str| {
        let settings = settings(text);
        let mut config = config_json();
        change(&mut config);
        Trainer::new(model_of(config, 3, settings.model.kind.into()), None, settings).unwrap()
    };
    for (change, text, field) in [
        ((|c| c["hidden_size"] = json!(24)) as fn(&mut Value), TEXT, "hidden_size is 16, here it is 24"),
        (|c| c["num_hidden_layers"] = json!(3), TEXT, "num_hidden_layers is 2, here it is 3"),
        (|c| c["tie_word_embeddings"] = json!(true), TEXT, "tie_word_embeddings is false"),
        (|c| c["rope_theta"] = json!(5e5), TEXT, "rope_theta is \"10000\", here it is \"500000\""),
        (|c| c["model_type"] = json!("llama"), TEXT, "model_type is \"qwen3\", here it is \"llama\""),
        (|_| {}, "[model]\nkind = \"bf16\"", "kind is f32, here it is bf16"),
    ] {
        let error = refused(&mut other(change, text), place.path());
        assert!(matches!(error, Error::CheckpointModel { .. }), "{error}");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(field), "{error}");
    }
}

#[test]
fn a_missing_file_is_named() {
    let (mut trainer, place) = saved("f32");
    for name in files_of(place.path()) {
        let (path, aside) = (place.path().join(&name), place.path().join("aside"));
        std::fs::rename(&path, &aside).unwrap();
        let error = refused(&mut trainer, place.path());
        assert!(matches!(&error, Error::FileMissing { name: missing, .. } if *missing == name), "{name}: {error}");
        std::fs::rename(&aside, &path).unwrap();
    }
    trainer.restore(&Folder::at(place.path())).unwrap();
}

#[test]
fn a_file_that_was_cut_off_is_named_with_its_sizes() {
    for name in ["trainer/optimizer.safetensors", "trainer/old_logprobs.safetensors", "model.safetensors"] {
        let (mut trainer, place) = saved("bf16");
        let path = place.path().join(name);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 7]).unwrap();
        let error = refused(&mut trainer, place.path());
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains(name), "{error}");
        if name.starts_with("trainer/") {
            let sizes = [bytes.len() - 7, bytes.len()].map(|n| n.to_string());
            assert!(sizes.iter().all(|size| error.to_string().contains(size)), "{error}");
        }
    }
}

#[test]
fn a_file_that_holds_something_else_is_named() {
    let (mut trainer, place) = saved("f32");
    let optimizer = place.path().join("trainer/optimizer.safetensors");
    let bytes = std::fs::read(&optimizer).unwrap();
    std::fs::write(&optimizer, vec![b'x'; bytes.len()]).unwrap();
    let error = refused(&mut trainer, place.path());
    assert!(matches!(&error, Error::WeightsFile { name, .. } if name == "trainer/optimizer.safetensors"), "{error}");
    // another optimiser's, of the same length
    let text = String::from_utf8_lossy(&bytes[..200]).replace("first.model.embed_tokens", "third.model.embed_tokens");
    let mut other = bytes.clone();
    other[8..200].copy_from_slice(&text.as_bytes()[text.len() - 192..]);
    std::fs::write(&optimizer, other).unwrap();
    let error = refused(&mut trainer, place.path());
    assert!(error.to_string().contains("first.model.embed_tokens.weight"), "{error}");
    std::fs::write(&optimizer, bytes).unwrap();

    let state = place.path().join("trainer/state.json");
    let text = std::fs::read_to_string(&state).unwrap();
    std::fs::write(&state, &text[..text.len() / 2]).unwrap();
    let error = refused(&mut trainer, place.path());
    assert!(matches!(&error, Error::CheckpointDamaged { name, .. } if name == "trainer/state.json"), "{error}");
    std::fs::write(&state, text).unwrap();
    change_state(place.path(), |state| state["rng"]["cpu"] = json!("00"));
    assert!(refused(&mut trainer, place.path()).to_string().contains("rng"));
    change_state(place.path(), |state| state["rgn"] = json!("00"));
    assert!(refused(&mut trainer, place.path()).to_string().contains("rgn"));
}

#[test]
fn a_format_that_is_not_known_is_refused_whatever_else_it_holds() {
    let (mut trainer, place) = saved("f32");
    for version in [json!(2), json!("new"), Value::Null] {
        change_state(place.path(), |state| *state = json!({ "format_version": version, "something": "else" }));
        let error = refused(&mut trainer, place.path());
        assert!(matches!(&error, Error::CheckpointVersion { known: 1, .. }), "{error}");
        assert!(error.to_string().contains(&version.to_string()), "{error}");
    }
}

/// A disk with room for so many bytes.
struct FullDisk {
    left: Cell<usize>,
    file: String,
}

impl ModelSink for FullDisk {
    fn write(&mut self, name: &str, contents: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>) -> Result<()> {
        name.clone_into(&mut self.file);
        let written = contents(&mut Room(&self.left));
        written.map_err(|source| Error::FileWrite { place: "disk".to_owned(), name: name.to_owned(), source })
    }
}

struct Room<'a>(&'a Cell<usize>);

impl Write for Room<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.0.get();
        if left == 0 {
            // ENOSPC
            return Err(io::Error::from_raw_os_error(28));
        }
        let n = left.min(bytes.len());
        self.0.set(left - n);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_an_error_that_names_the_file_wherever_it_fills_up() {
    let (trainer, place) = saved("f32");
    let sizes: Vec<(String, u64)> = files_of(place.path())
        .into_iter()
        .map(|name| {
            let n = std::fs::metadata(place.path().join(&name)).unwrap().len();
            (name, n)
        })
        .collect();
    let all: u64 = sizes.iter().map(|(_, n)| n).sum();
    let mut named = Vec::new();
    for room in (0..all).step_by(all as usize / 200).chain([all - 1]) {
        let mut disk = FullDisk { left: Cell::new(room as usize), file: String::new() };
        let error = trainer.save(&mut disk, &progress()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
        let Error::FileWrite { name, source, .. } = error else { panic!("{error}") };
        assert_eq!((&name, source.raw_os_error()), (&disk.file, Some(28)));
        named.push(name);
    }
    named.dedup();
    let order = ["model.safetensors", "trainer/optimizer.safetensors", "trainer/state.json"];
    assert!(order.iter().all(|name| named.iter().any(|n| n == name)), "{named:?}");
    assert_eq!(named.last().map(String::as_str), Some("trainer/state.json"), "it says that the rest is whole");
    let mut disk = FullDisk { left: Cell::new(all as usize), file: String::new() };
    trainer.save(&mut disk, &progress()).unwrap();
}

#[test]
fn a_tokenizers_files_travel_byte_for_byte() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let some = ["tokenizer.json", "merges.txt", "chat_template.jinja"];
    for name in some {
        std::fs::write(from.path().join(name), format!("{name}\r\n\0\u{fe}")).unwrap();
    }
    std::fs::write(from.path().join("tokenizer.py"), "no file of a tokenizer").unwrap();
    let copied = copy_tokenizer_files(&Folder::at(from.path()), &mut Folder::at(to.path())).unwrap();
    assert_eq!(copied, some);
    for name in some {
        assert_eq!(std::fs::read(to.path().join(name)).unwrap(), std::fs::read(from.path().join(name)).unwrap());
    }
    assert_eq!(std::fs::read_dir(to.path()).unwrap().count(), 3);
    assert!(TOKENIZER_FILES.contains(&"generation_config.json"));
}

#[test]
fn what_an_unfinished_step_left_is_not_in_a_restored_trainer() {
    let (mut whole, place) = saved("f32");
    let mut trainer = trainer(2, TEXT);
    let batch = micro_batch(&trainer, (0, 0), &[row(4, 9, 1.0)]);
    let old = trainer.logprobs(&batch).unwrap();
    trainer.begin_step().micro_batch(&batch, Some(&old)).unwrap();
    trainer.restore(&Folder::at(place.path())).unwrap();
    for trainer in [&mut whole, &mut trainer] {
        step(trainer, &[(&batch, Some(&old))]);
    }
    assert_same_weights(&trainer, &weights(&whole), "after a step");
}
