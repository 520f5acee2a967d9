//! A restored run is bit-identical to the one that went on: losses, weights, optimiser and random numbers.

use std::collections::BTreeMap;
use std::process::Command;

use dressage_trainer::{Folder, Progress, Trainer};
use serde_json::Value;
use tch::{Device, Kind, Tensor};

use crate::training::made::{
    assert_same_weights, config_json, generator, micro_batch, mixed_config_json, model_of, row, settings, step,
    threads, weights,
};

const WINDOW: u32 = 3;

/// The metrics of one step, to the bit.
type Metrics = Vec<(&'static str, u64)>;

struct Run {
    trainer: Trainer,
    old_logprobs: BTreeMap<(i32, i32), Tensor>,
}

impl Run {
    fn new(config: Value, seed: i64, kind: &str) -> Self {
        let settings = settings(&format!(
            "[model]\nkind = \"{kind}\"\nrecompute = true\n[schedule]\nshape = \"cosine\"\nwarmup_steps = 3\ntotal_steps = 9\n\
             [step]\ntrain_steps_per_policy = {WINDOW}\n[loss]\nentropy_coefficient = 0.01\n[kl]\ncoefficient = 0.05"
        ));
        let model = model_of(config.clone(), seed, settings.model.kind.into());
        // the reference is not part of a checkpoint: every run loads the same
        let reference = model_of(config, 99, settings.model.kind.into());
        Self { trainer: Trainer::new(model, Some(reference), settings).unwrap(), old_logprobs: BTreeMap::new() }
    }

    /// Train steps of two micro-batches each; old log-probs are computed at the beginning of a window and thrown away after
    /// use.
    fn go_on(&mut self, steps: std::ops::Range<i32>) -> Vec<Metrics> {
        steps
            .map(|at| {
                if at % WINDOW as i32 == 0 {
                    for (later, part) in (at..at + WINDOW as i32).flat_map(|s| [(s, 0), (s, 1)]) {
                        let logprobs = self.trainer.logprobs(&self.batch(later, part)).unwrap();
                        self.old_logprobs.insert((later, part), logprobs);
                    }
                }
                let old = [0, 1].map(|part| self.old_logprobs.remove(&(at, part)).unwrap());
                let batches = [0, 1].map(|part| self.batch(at, part));
                let report = step(&mut self.trainer, &[(&batches[0], Some(&old[0])), (&batches[1], Some(&old[1]))]);
                report.metrics.iter().map(|(name, value)| (*name, value.to_bits())).collect()
            })
            .collect()
    }

    fn batch(&self, at: i32, part: i32) -> dressage_trainer::micro_batch::MicroBatch {
        let number = 4 * at + 2 * part;
        let rows = [row(number, 8, 1.0 - f64::from(part)), row(number + 1, 5 + at as usize, -0.5)];
        micro_batch(&self.trainer, (at, part), &rows)
    }

    fn save(&mut self, folder: &Folder, next_train_step: i32) {
        let progress = Progress {
            plans: vec!["plan-0".to_owned(), "plan-1".to_owned()],
            train_run: "run".to_owned(),
            plan_id: Some("plan".to_owned()),
            next_train_step,
            epoch: 2,
            old_logprobs: self.old_logprobs.iter().map(|(at, t)| (*at, t.copy())).collect(),
        };
        self.trainer.save(&mut folder.clone(), &progress).unwrap();
    }
}

fn resume_after(config: Value, kind: &str, n_before: i32, n_all: i32) {
    let place = tempfile::tempdir().unwrap();
    let folder = Folder::at(place.path());
    let what = format!("{kind}, saved after {n_before} steps");
    let mut whole = Run::new(config.clone(), 1, kind);
    whole.go_on(0..n_before);
    whole.save(&folder, n_before);
    let expected = whole.go_on(n_before..n_all);

    // of other weights, and having gone elsewhere
    let mut resumed = Run::new(config, 2, kind);
    resumed.go_on(0..1);
    let progress = resumed.trainer.restore(&folder).unwrap();
    assert_eq!((progress.train_run.as_str(), progress.plan_id.as_deref()), ("run", Some("plan")));
    assert_eq!((progress.next_train_step, progress.epoch), (n_before, 2));
    assert_eq!(resumed.trainer.train_steps(), n_before as u64);
    let in_window = n_before % WINDOW as i32 != 0;
    assert_eq!(!progress.old_logprobs.is_empty(), in_window, "{what}");
    assert_eq!(place.path().join("trainer/old_logprobs.safetensors").exists(), in_window);
    resumed.old_logprobs = progress.old_logprobs;
    assert_eq!(resumed.go_on(n_before..n_all), expected, "{what}");
    assert_same_weights(&resumed.trainer, &weights(&whole.trainer), &what);
}

#[test]
fn a_restored_run_is_bit_identical_also_in_the_middle_of_a_window() {
    for kind in ["f32", "bf16"] {
        for n_before in [2, 3, 4] {
            resume_after(config_json(), kind, n_before, 5);
        }
        resume_after(mixed_config_json(), kind, 4, 5);
    }
}

/// Also run by the test after it, in a process of its own.
#[test]
fn a_restored_run_is_bit_identical_with_this_number_of_threads() {
    resume_after(config_json(), "f32", 1, 2);
    resume_after(mixed_config_json(), "bf16", 1, 2);
}

#[test]
fn a_restored_run_is_bit_identical_with_more_threads_too() {
    if threads() > 1 {
        return;
    }
    // the number of threads is the process's, and other tests count on theirs
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["training::resume::a_restored_run_is_bit_identical_with_this_number_of_threads", "--exact"])
        .env("DRESSAGE_TEST_THREADS", "2")
        // threads that spin while they wait make a busy machine several times slower
        .env("OMP_WAIT_POLICY", "passive")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn random_numbers_go_on_where_they_were_when_the_checkpoint_was_written() {
    let place = tempfile::tempdir().unwrap();
    let folder = Folder::at(place.path());
    let mut run = Run::new(config_json(), 1, "f32");
    let _held = generator();
    tch::manual_seed(11);
    run.save(&folder, 0);
    let expected = Tensor::rand([8], (Kind::Float, Device::Cpu));
    let _ = Tensor::rand([100], (Kind::Float, Device::Cpu));
    run.trainer.restore(&folder).unwrap();
    assert_eq!(Tensor::rand([8], (Kind::Float, Device::Cpu)), expected);
}

#[test]
fn skipped_steps_are_counted_on() {
    let place = tempfile::tempdir().unwrap();
    let mut trainer = crate::training::made::trainer(1, "[step]\non_not_finite = \"skip\"");
    let bad = micro_batch(&trainer, (0, 0), &[row(1, 6, 1e300)]);
    step(&mut trainer, &[(&bad, None)]);
    trainer.save(&mut Folder::at(place.path()), &Progress::default()).unwrap();
    let mut restored = crate::training::made::trainer(2, "");
    restored.restore(&Folder::at(place.path())).unwrap();
    assert_eq!((restored.train_steps(), restored.skipped_train_steps()), (1, 1));
}
