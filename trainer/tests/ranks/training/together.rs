//! What ranks of one step decide together, and what they say when one of them does not keep up.

use std::sync::Arc;
use std::time::Duration;

use dressage_trainer::collective::{CollectiveError, Collectives, GroupOptions, Rendezvous};
use dressage_trainer::metrics::names;
use dressage_trainer::micro_batch::{MicroBatch, Place};
use dressage_trainer::{Error, Folder, StepReport, Trainer, TrainerSettings};
use serde_json::json;

use crate::processes::{Part, Ranks, join, options};
use crate::training::made::{Row, config_json, metric, row, settings};
use crate::training::parity::{LEVELS, model_for, relative};
use crate::training::rows::batch;

pub(crate) const PARTS: &[(&str, Part)] = &[
    ("one_is_bad", one_is_bad),
    ("of_other_counts", of_other_counts),
    ("announces_too_many", announces_too_many),
    ("goes_away", goes_away),
    ("cannot_go_on", cannot_go_on),
];

const BAD: [f64; 2] = [1e300, 1e25];

fn of(level: &str) -> TrainerSettings {
    let mut settings =
        settings("[step]\non_not_finite = \"skip\"\n[loss]\nkind = \"ppo_clip\"\nentropy_coefficient = 0.01");
    settings.parallel.shard = serde_json::from_value(json!(level)).unwrap();
    settings
}

fn trainer(level: &str, group: Option<&Arc<dyn Collectives>>) -> Trainer {
    let settings = of(level);
    let model = model_for(config_json(), &settings, 1);
    match group {
        Some(group) => Trainer::parallel(model, None, settings, group.clone()).unwrap(),
        None => Trainer::new(model, None, settings).unwrap(),
    }
}

fn group_of(rendezvous: &Rendezvous, options: &GroupOptions) -> Arc<dyn Collectives> {
    Arc::new(join(rendezvous, options).unwrap())
}

fn read(trainer: &Trainer, place: Place, rows: &[Row]) -> MicroBatch {
    MicroBatch::read(&batch(rows), place, &trainer.limits(), trainer.needs()).unwrap()
}

/// One micro-batch a rank; of a rank that is alone those of both.
fn take_step(trainer: &mut Trainer, train_step: i32, bad: Option<f64>) -> StepReport {
    let (rank, world_size) = trainer.ranks();
    let ranks = if world_size == 1 { 0..2 } else { rank..rank + 1 };
    let of_rank = |rank: usize| {
        let mut rows = vec![row(10 * train_step + rank as i32, 9, 1.0 - rank as f64), row(50 + train_step, 7, 0.5)];
        if let Some(advantage) = bad.filter(|_| rank == 1) {
            rows[0].advantage = advantage;
        }
        let place = Place { train_step, dp_rank: rank as i32, micro_batch: 0 };
        read(trainer, place, &rows)
    };
    let batches: Vec<MicroBatch> = ranks.map(of_rank).collect();
    let mut step = trainer.begin_step_of(batches.len() as u64);
    for batch in &batches {
        step.micro_batch(batch, batch.trained.logprobs.as_ref()).unwrap();
    }
    step.finish().unwrap()
}

/// Good, bad, good, at every level: the bad one is the same for both ranks, and leaves nothing behind.
fn one_is_bad(rendezvous: &Rendezvous) -> String {
    let group = group_of(rendezvous, &options());
    let mut said = Vec::new();
    for (level, bad) in LEVELS.iter().flat_map(|level| BAD.map(|bad| (*level, bad))) {
        let (mut trainer, mut alone) = (trainer(level, Some(&group)), trainer("none", None));
        for (at, bad) in [(0, None), (1, Some(bad)), (2, None)] {
            let report = take_step(&mut trainer, at, bad);
            let expected = take_step(&mut alone, at, bad);
            match (report.not_finite(), expected.not_finite()) {
                (None, None) => {
                    for (name, expected) in &expected.metrics {
                        let (found, bound) = (metric(&report, name), 1e-5 * expected.abs().max(1e-3));
                        assert!((found - expected).abs() <= bound, "{level}: {name} {found} {expected}");
                    }
                }
                (Some(found), Some(expected)) => {
                    assert_eq!(metric(&report, names::SKIPPED_MICRO_BATCHES), 2.0);
                    assert_eq!((found.place, found.quantity), (expected.place, expected.quantity), "{level}");
                    assert_eq!(found.place.dp_rank, 1);
                    // weights that ranks share out are not run again to find the token
                    if level != "parameters" || bad == Some(1e300) {
                        assert_eq!(found.at, expected.at, "{level}: {found}");
                    }
                    said.push(format!("{level}: {found}"));
                }
                (found, expected) => panic!("{level}: {found:?} {expected:?}"),
            }
        }
        assert_eq!((trainer.train_steps(), trainer.skipped_train_steps()), (3, 1));
        let place = tempfile::tempdir().unwrap();
        trainer.save_weights(&mut Folder::at(place.path())).unwrap();
        let found = dressage_trainer::Model::load(&Folder::at(place.path()), Default::default()).unwrap();
        for (found, expected) in found.parameters().iter().zip(alone.model().parameters()) {
            let off = relative(&found.tensor().detach(), &expected.tensor().detach());
            assert!(off <= 1e-6, "{level}: {} is off by {off:.1e}", found.name());
        }
    }
    said.join(" | ")
}

#[test]
fn a_number_that_is_none_on_one_rank_is_so_for_all_and_leaves_nothing_behind() {
    let said = Ranks::start("one_is_bad", 2).said();
    assert_eq!(said[0], said[1]);
    assert!(said[0].contains("of rank 1"), "{}", said[0]);
}

fn of_other_counts(rendezvous: &Rendezvous) -> String {
    let group = group_of(rendezvous, &options());
    let mut trainer = trainer("none", Some(&group));
    let batches: Vec<MicroBatch> = (0..=group.rank() as i32)
        .map(|n| read(&trainer, Place { micro_batch: n, ..Place::default() }, &[row(n, 9, 1.0)]))
        .collect();
    let mut step = trainer.begin_step();
    for batch in &batches {
        step.micro_batch(batch, batch.trained.logprobs.as_ref()).unwrap();
    }
    step.finish().unwrap_err().to_string()
}

#[test]
fn ranks_with_other_numbers_of_micro_batches_do_not_update() {
    for said in Ranks::start("of_other_counts", 2).said() {
        assert!(said.contains("some ranks have 2 micro-batches in this train step, others 1"), "{said}");
    }
}

fn announces_too_many(rendezvous: &Rendezvous) -> String {
    let group = group_of(rendezvous, &GroupOptions { timeout: Duration::from_secs(8), ..options() });
    let mut trainer = trainer("optimizer", Some(&group));
    let batch = read(&trainer, Place::default(), &[row(1, 9, 1.0)]);
    let mut step = trainer.begin_step_of(1 + group.rank() as u64);
    step.micro_batch(&batch, batch.trained.logprobs.as_ref()).unwrap();
    let error = step.finish().unwrap_err().to_string();
    if group.rank() == 1 {
        // alive until the other has failed
        std::thread::sleep(Duration::from_secs(8));
    }
    error
}

#[test]
fn a_step_of_another_number_of_micro_batches_than_was_said_is_refused() {
    let said = Ranks::start("announces_too_many", 2).said();
    assert!(said[1].contains("the train step has 1 micro-batches, and 2 were announced"), "{}", said[1]);
    assert!(said[0].contains("rank 1 (") && said[0].contains("gave up: the train step has 1"), "{}", said[0]);
}

/// The last rank ends in the middle of its second step, without a word.
fn goes_away(rendezvous: &Rendezvous) -> String {
    let group = group_of(rendezvous, &GroupOptions { timeout: Duration::from_secs(8), ..options() });
    let mut trainer = trainer("gradients", Some(&group));
    take_step(&mut trainer, 0, None);
    if group.rank() + 1 == group.world_size() {
        std::process::exit(7);
    }
    let place = Place { train_step: 1, dp_rank: group.rank() as i32, micro_batch: 0 };
    let batch = read(&trainer, place, &[row(1, 9, 1.0)]);
    let mut step = trainer.begin_step();
    let sent = step.micro_batch(&batch, batch.trained.logprobs.as_ref());
    let error = sent.map(|_| ()).and_then(|()| step.finish().map(|_| ())).unwrap_err();
    assert!(matches!(error, Error::Collective(CollectiveError::Failed { .. })), "{error}");
    error.to_string()
}

#[test]
fn a_rank_that_goes_away_in_a_step_is_named_with_the_step() {
    let ended = Ranks::start("goes_away", 3).wait_for(&[0, 1, 2]);
    assert!(!ended[2].success);
    for ended in &ended[..2] {
        let words = ["train step 1", "rank 2 (", "no sign of life"];
        assert!(ended.success && words.iter().all(|word| ended.said.contains(word)), "{}", ended.said);
    }
}

/// The last rank has old log-probs missing: its error is told to the others.
fn cannot_go_on(rendezvous: &Rendezvous) -> String {
    let group = group_of(rendezvous, &GroupOptions { timeout: Duration::from_secs(8), ..options() });
    let mut settings = of("none");
    settings.step.train_steps_per_policy = 2;
    let model = model_for(config_json(), &settings, 1);
    let mut trainer = Trainer::parallel(model, None, settings, group.clone()).unwrap();
    let batch = read(&trainer, Place::default(), &[row(1, 9, 1.0)]);
    let old = trainer.logprobs(&batch).unwrap();
    let mut step = trainer.begin_step();
    if group.rank() == 1 {
        let error = step.micro_batch(&batch, None).unwrap_err();
        std::thread::sleep(Duration::from_secs(8));
        return error.to_string();
    }
    step.micro_batch(&batch, Some(&old)).unwrap();
    step.finish().unwrap_err().to_string()
}

#[test]
fn a_rank_that_cannot_go_on_is_quoted_by_the_others() {
    let said = Ranks::start("cannot_go_on", 2).said();
    assert!(said[1].contains("needs old log-probs"), "{}", said[1]);
    assert!(said[0].contains("rank 1 (") && said[0].contains("needs old log-probs"), "{}", said[0]);
}
