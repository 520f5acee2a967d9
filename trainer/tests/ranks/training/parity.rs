//! 1, 2 and 4 ranks that train on the same rows have the same losses and weights, whatever they share out.

use std::path::Path;
use std::sync::Arc;

use dressage_trainer::collective::{Collectives, Rendezvous};
use dressage_trainer::metrics::names;
use dressage_trainer::{Folder, Model, ModelOptions, Trainer, TrainerSettings};
use serde_json::{Value, json};
use tch::{Kind, Tensor};

use crate::processes::{Part, Ranks, join, options};
use crate::training::made::{
    Row, config_json, metric, micro_batch, mixed_config_json, model_of, row, settings, threads,
};

pub(crate) const PARTS: &[(&str, Part)] = &[("trains", trains)];

pub(crate) const FOLDER: &str = "DRESSAGE_TEST_FOLDER";

/// Micro-batches of one rank in a step of all; with more ranks each has fewer.
const N_PARTS: usize = 4;
const N_STEPS: i32 = 20;

/// What is trained, and how.
struct Case {
    name: &'static str,
    config: fn() -> Value,
    settings: &'static str,
    /// Whether the number of micro-batches is said in advance.
    announced: bool,
}

const CASES: &[Case] = &[
    Case { name: "plain", config: config_json, settings: "", announced: false },
    Case { name: "announced", config: config_json, settings: "[parallel]\nbucket_bytes_max = 2000", announced: true },
    Case {
        name: "recomputed",
        config: tied_config_json,
        settings: "[model]\nrecompute = true\n[parallel]\nbucket_bytes_max = 1000",
        announced: true,
    },
    Case { name: "experts", config: mixed_config_json, settings: "[optimizer]\ngrad_norm_max = 0.5", announced: true },
    Case { name: "bf16", config: config_json, settings: "[model]\nkind = \"bf16\"", announced: true },
];

pub(crate) const LEVELS: [&str; 4] = ["none", "optimizer", "gradients", "parameters"];

fn tied_config_json() -> Value {
    let mut config = config_json();
    config["tie_word_embeddings"] = json!(true);
    config
}

fn settings_of(case: &Case, level: &str) -> TrainerSettings {
    let text = "[loss]\nkind = \"reinforce\"\n[schedule]\nwarmup_steps = 3\n[correction]\nkind = \"none\"\n";
    let mut settings = settings(&format!("{text}{}", case.settings));
    settings.parallel.shard = serde_json::from_value(json!(level)).unwrap();
    settings
}

pub(crate) fn model_for(config: Value, settings: &TrainerSettings, seed: i64) -> Model {
    model_of(config, seed, settings.model.kind.into())
}

/// The rows of one part of a step; one is empty now and then.
pub(crate) fn part_of_step(step: i32, part: usize) -> Vec<Row> {
    let number = step * N_PARTS as i32 + part as i32;
    if number % 7 == 3 {
        return Vec::new();
    }
    vec![row(number, 6 + part, 1.0 + 0.1 * f64::from(step)), row(number + 100, 9, 0.3)]
}

/// Steps of the parts that belong to a rank; their losses.
pub(crate) fn run(trainer: &mut Trainer, steps: std::ops::Range<i32>, announced: bool) -> Vec<f64> {
    let (rank, world_size) = trainer.ranks();
    let of_step = |at: i32| {
        let own = (0..N_PARTS).filter(|part| part % world_size == rank);
        let batches: Vec<_> =
            own.zip(0..).map(|(part, n)| micro_batch(trainer, (at, n), &part_of_step(at, part))).collect();
        let n = (N_PARTS / world_size) as u64;
        let mut step = if announced { trainer.begin_step_of(n) } else { trainer.begin_step() };
        for batch in &batches {
            step.micro_batch(batch, None).unwrap();
        }
        metric(&step.finish().unwrap(), names::LOSS)
    };
    steps.map(of_step).collect()
}

/// Every case at every level, one after the other with one group; weights go into a folder a case and rank.
fn trains(rendezvous: &Rendezvous) -> String {
    let group: Arc<dyn Collectives> = Arc::new(join(rendezvous, &options()).unwrap());
    let folder = std::env::var(FOLDER).unwrap();
    let mut losses = serde_json::Map::new();
    for (case, level) in CASES.iter().flat_map(|case| LEVELS.map(|level| (case, level))) {
        let settings = settings_of(case, level);
        // rank 0's weights are everybody's
        let model = model_for((case.config)(), &settings, 1 + group.rank() as i64);
        let mut trainer = Trainer::parallel(model, None, settings, group.clone()).unwrap();
        let found = run(&mut trainer, 0..N_STEPS, case.announced);
        let name = format!("{}-{level}", case.name);
        trainer.save_weights(&mut Folder::at(Path::new(&folder).join(&name).join(group.rank().to_string()))).unwrap();
        losses.insert(name, json!(found));
    }
    Value::Object(losses).to_string()
}

/// |a − b| / |b|, over all numbers of a tensor.
pub(crate) fn relative(found: &Tensor, expected: &Tensor) -> f64 {
    let norm = |t: &Tensor| t.to_kind(Kind::Double).square().sum(Kind::Double).sqrt().double_value(&[]);
    norm(&(found.to_kind(Kind::Double) - expected.to_kind(Kind::Double))) / norm(expected).max(1e-30)
}

#[test]
fn losses_and_weights_are_those_of_one_rank() {
    assert_eq!(threads(), 1);
    for world_size in [2, 4] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display().to_string();
        let said = Ranks::start_with("trains", world_size, &|_| vec![(FOLDER, path.clone())]).said();
        let losses: Value = serde_json::from_str(&said[0]).unwrap();
        assert!(said.iter().all(|other| *other == said[0]), "every rank says the same");
        for (case, level) in CASES.iter().flat_map(|case| LEVELS.map(|level| (case, level))) {
            let name = format!("{}-{level}", case.name);
            let what = format!("{name} of {world_size}");
            let settings = settings_of(case, level);
            // a sum in another order may round a bf16 weight to the one beside it
            let bound = if case.name == "bf16" { 1e-3 } else { 1e-6 };
            let mut alone = Trainer::new(model_for((case.config)(), &settings, 1), None, settings).unwrap();
            let expected = run(&mut alone, 0..N_STEPS, false);
            let found: Vec<f64> = serde_json::from_value(losses[&name].clone()).unwrap();
            for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert!((found - expected).abs() <= bound * expected.abs(), "{what}, step {at}: {found} {expected}");
            }
            let load = |rank: usize| {
                let options = ModelOptions { kind: settings.model.kind.into(), ..ModelOptions::default() };
                Model::load(&Folder::at(folder.path().join(&name).join(rank.to_string())), options).unwrap()
            };
            let first = load(0);
            let mut furthest: f64 = 0.0;
            for (found, expected) in first.parameters().iter().zip(alone.model().parameters()) {
                let off = relative(&found.tensor().detach(), &expected.tensor().detach());
                assert!(off <= bound, "{what}: {} is off by {off:.1e}", found.name());
                furthest = furthest.max(off);
            }
            println!("{what}: weights off by {furthest:.1e} at most");
            for rank in 1..world_size {
                for (own, zero) in load(rank).parameters().iter().zip(first.parameters()) {
                    assert_eq!(own.tensor(), zero.tensor(), "{what}: {} of rank {rank}", own.name());
                }
            }
        }
    }
}
