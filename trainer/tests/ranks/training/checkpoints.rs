//! Checkpoints of several ranks: the same bits for as many ranks, the same curve for others, and all or nothing.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dressage_schemas::ErrorKind;
use dressage_trainer::checkpoint::CheckpointState;
use dressage_trainer::collective::{CollectiveError, Collectives, Rendezvous};
use dressage_trainer::{Error, Folder, ModelSink, Progress, Result, Trainer, TrainerSettings};
use serde_json::{Value, json};
use tch::Tensor;

use crate::processes::{Part, Ranks, join, options};
use crate::training::made::{config_json, micro_batch, settings, step};
use crate::training::parity::{FOLDER, LEVELS, model_for, part_of_step, relative, run};

pub(crate) const PARTS: &[(&str, Part)] =
    &[("saves", saves), ("resumes", resumes), ("saves_a_window", saves_a_window), ("cannot_write", cannot_write)];

const N_BEFORE: i32 = 4;
const N_STEPS: i32 = 8;
const KINDS: [&str; 2] = ["f32", "bf16"];

fn of(kind: &str, level: &str) -> TrainerSettings {
    let loss = "[loss]\nkind = \"reinforce\"\n[correction]\nkind = \"none\"\n[parallel]\nbucket_bytes_max = 3000\n";
    let mut settings = settings(&format!("{loss}[model]\nkind = \"{kind}\""));
    settings.parallel.shard = serde_json::from_value(json!(level)).unwrap();
    settings
}

fn trainer(kind: &str, level: &str, seed: i64, group: Option<&Arc<dyn Collectives>>) -> Trainer {
    let settings = of(kind, level);
    let model = model_for(config_json(), &settings, seed);
    match group {
        Some(group) => Trainer::parallel(model, None, settings, group.clone()).unwrap(),
        None => Trainer::new(model, None, settings).unwrap(),
    }
}

fn group_of(rendezvous: &Rendezvous) -> Arc<dyn Collectives> {
    Arc::new(join(rendezvous, &options()).unwrap())
}

fn folder() -> PathBuf {
    PathBuf::from(std::env::var(FOLDER).unwrap())
}

fn bits(losses: &[f64]) -> Vec<u64> {
    losses.iter().map(|loss| loss.to_bits()).collect()
}

/// Saves half way, goes on, and restores it: the same bits. Says the losses after it by kind and level.
fn saves(rendezvous: &Rendezvous) -> String {
    let group = group_of(rendezvous);
    let mut all = serde_json::Map::new();
    for (kind, level) in KINDS.iter().flat_map(|kind| LEVELS.map(|level| (*kind, level))) {
        let name = format!("{kind}-{level}");
        let place = folder().join(&name);
        let mut whole = trainer(kind, level, 1, Some(&group));
        run(&mut whole, 0..N_BEFORE, true);
        let progress = Progress { next_train_step: N_BEFORE, ..Progress::new("run") };
        whole.save(&mut Folder::at(&place), &progress).unwrap();
        let losses = run(&mut whole, N_BEFORE..N_STEPS, true);

        let mut resumed = trainer(kind, level, 2, Some(&group));
        run(&mut resumed, 0..1, true);
        let progress = resumed.restore(&Folder::at(&place)).unwrap();
        assert_eq!((progress.next_train_step, resumed.train_steps()), (N_BEFORE, N_BEFORE as u64));
        assert_eq!(bits(&run(&mut resumed, N_BEFORE..N_STEPS, true)), bits(&losses), "{name}");
        // the weights of ranks that share them out are not in the model
        let end = |trainer: &Trainer, what: &str| {
            let end = place.join(format!("{what}-{}", group.rank()));
            trainer.save_weights(&mut Folder::at(&end)).unwrap();
            std::fs::read(end.join("model.safetensors")).unwrap()
        };
        assert!(end(&whole, "end") == end(&resumed, "resumed"), "{name}");
        all.insert(name, json!(losses));
    }
    Value::Object(all).to_string()
}

/// Restores what others saved, each at the next level; the losses after it.
fn resumes(rendezvous: &Rendezvous) -> String {
    let group = group_of(rendezvous);
    let mut all = serde_json::Map::new();
    for (kind, (at, saved)) in KINDS.iter().flat_map(|kind| LEVELS.iter().enumerate().map(move |level| (*kind, level)))
    {
        let name = format!("{kind}-{saved}");
        let mut resumed = trainer(kind, LEVELS[(at + 1) % LEVELS.len()], 3, Some(&group));
        resumed.restore(&Folder::at(folder().join(&name))).unwrap();
        all.insert(name, json!(run(&mut resumed, N_BEFORE..N_STEPS, true)));
    }
    Value::Object(all).to_string()
}

#[test]
fn the_same_number_of_ranks_goes_on_to_the_bit_and_another_along_the_same_curve() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().display().to_string();
    let with_folder = |_| vec![(FOLDER, path.clone())];
    let saved = Ranks::start_with("saves", 4, &with_folder).said();
    let resumed = Ranks::start_with("resumes", 2, &with_folder).said();
    let read = |text: &str| serde_json::from_str::<BTreeMap<String, Vec<f64>>>(text).unwrap();
    let (saved, resumed) = (read(&saved[0]), read(&resumed[0]));
    assert_eq!(saved.len(), KINDS.len() * LEVELS.len());
    for (name, expected) in &saved {
        let (kind, level) = name.split_once('-').unwrap();
        let folder = Folder::at(place.path().join(name));
        let state = CheckpointState::read(&folder).unwrap();
        assert_eq!(state.world_size, 4);
        let optimizer = |n: &&String| n.starts_with("trainer/optimizer");
        let files: Vec<&String> = state.files.keys().filter(optimizer).collect();
        match level {
            "none" => assert_eq!(files, ["trainer/optimizer.safetensors"]),
            _ => assert_eq!(
                files,
                [1, 2, 3, 4]
                    .map(|n| format!("trainer/optimizer-{n:05}-of-00004.safetensors"))
                    .iter()
                    .collect::<Vec<_>>()
            ),
        }
        for (name, bytes) in &state.files {
            assert_eq!(
                std::fs::metadata(place.path().join(kind.to_owned() + "-" + level).join(name)).unwrap().len(),
                *bytes
            );
        }

        let mut alone = trainer(kind, "none", 5, None);
        alone.restore(&folder).unwrap();
        let of_one = run(&mut alone, N_BEFORE..N_STEPS, true);
        let bound = if kind == "bf16" { 1e-3 } else { 1e-6 };
        for (ranks, found) in [(1, &of_one), (2, &resumed[name])] {
            for (found, expected) in found.iter().zip(expected) {
                let off = (found - expected).abs() / expected.abs();
                assert!(off <= bound, "{name}, {ranks} ranks: {found} {expected}");
            }
        }
        let options = dressage_trainer::ModelOptions { kind: of(kind, level).model.kind.into(), ..Default::default() };
        let end = dressage_trainer::Model::load(&Folder::at(place.path().join(name).join("end-0")), options).unwrap();
        for (found, expected) in alone.model().parameters().iter().zip(end.parameters()) {
            let off = relative(&found.tensor().detach(), &expected.tensor().detach());
            assert!(off <= bound, "{name}: {} is off by {off:.1e}", found.name());
        }
    }
}

/// Each rank has old log-probs of its own.
fn saves_a_window(rendezvous: &Rendezvous) -> String {
    let group = group_of(rendezvous);
    let own = group.rank() as f32;
    let mut trainer = trainer("f32", "optimizer", 1, Some(&group));
    let old_logprobs = match group.rank() {
        // the last one has none
        rank if rank + 1 == group.world_size() => BTreeMap::new(),
        _ => BTreeMap::from([((1, 0), Tensor::from_slice(&[own, own + 0.5]))]),
    };
    let progress = Progress { old_logprobs, ..Progress::new("run") };
    trainer.save(&mut Folder::at(folder()), &progress).unwrap();
    let restored = trainer.restore(&Folder::at(folder())).unwrap();
    let same = restored.old_logprobs.len() == progress.old_logprobs.len()
        && restored.old_logprobs.iter().all(|(at, found)| *found == progress.old_logprobs[at]);
    format!("{same}")
}

#[test]
fn old_log_probs_belong_to_their_rank_and_to_no_other_number_of_ranks() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().display().to_string();
    let said = Ranks::start_with("saves_a_window", 3, &|_| vec![(FOLDER, path.clone())]).said();
    assert_eq!(said, ["true", "true", "true"]);
    let mut alone = trainer("f32", "none", 1, None);
    let error = alone.restore(&Folder::at(place.path())).unwrap_err();
    assert!(matches!(error, Error::CheckpointWindow { saved: 3, here: 1, .. }), "{error}");
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

/// A disk that is full for one file.
struct FullDisk(Folder);

impl ModelSink for FullDisk {
    fn write(&mut self, name: &str, contents: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>) -> Result<()> {
        if name.contains("optimizer-00002") {
            let source = io::Error::from_raw_os_error(28);
            return Err(Error::FileWrite { place: "disk".to_owned(), name: name.to_owned(), source });
        }
        self.0.write(name, contents)
    }
}

fn cannot_write(rendezvous: &Rendezvous) -> String {
    let group = group_of(rendezvous);
    let mut trainer = trainer("f32", "gradients", 1, Some(&group));
    let error = trainer.save(&mut FullDisk(Folder::at(folder())), &Progress::new("run")).unwrap_err();
    assert!(!Path::new(&folder()).join("trainer/state.json").exists());
    if group.rank() == 1 {
        assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
    } else {
        let Error::Collective(CollectiveError::PeerFailed { reasons, .. }) = &error else { panic!("{error}") };
        assert!(reasons.contains("rank 1: cannot write trainer/optimizer-00002-of-00002.safetensors"), "{reasons}");
    }
    // the ranks are still at the same place
    let batch = micro_batch(&trainer, (0, 0), &part_of_step(0, group.rank()));
    step(&mut trainer, &[(&batch, None)]);
    let missing = trainer.restore(&Folder::at(folder())).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
    "told".to_owned()
}

#[test]
fn a_rank_that_cannot_write_is_told_to_all_and_there_is_no_checkpoint() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().display().to_string();
    assert_eq!(Ranks::start_with("cannot_write", 2, &|_| vec![(FOLDER, path.clone())]).said(), ["told", "told"]);
}
