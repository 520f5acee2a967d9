//! Tiny models, micro-batches and trainers.

use std::sync::{Mutex, MutexGuard, PoisonError};

use dressage_trainer::micro_batch::{MicroBatch, Place};
use dressage_trainer::{Model, ModelConfig, ModelOptions, StepReport, Trainer, TrainerSettings};
use serde_json::{Value, json};
use tch::{Kind, Tensor};

pub(crate) use crate::training::rows::{Row, batch};

pub(crate) const VOCAB_SIZE: i32 = 24;

/// libtorch has one random generator, and tests run beside each other: whoever seeds it holds this.
pub(crate) fn generator() -> MutexGuard<'static, ()> {
    static GENERATOR: Mutex<()> = Mutex::new(());
    GENERATOR.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn config_json() -> Value {
    json!({
        "model_type": "qwen3", "vocab_size": VOCAB_SIZE, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "tie_word_embeddings": false
    })
}

/// With experts in its second layer.
pub(crate) fn mixed_config_json() -> Value {
    let mut config = config_json();
    config["model_type"] = json!("qwen3_moe");
    config["num_experts"] = json!(4);
    config["num_experts_per_tok"] = json!(2);
    config["moe_intermediate_size"] = json!(8);
    config["mlp_only_layers"] = json!([0]);
    config
}

/// A model of random weights, large enough that tokens are told apart.
pub(crate) fn model_of(config: Value, seed: i64, kind: Kind) -> Model {
    let _held = generator();
    tch::set_num_threads(threads());
    tch::manual_seed(seed);
    Model::random(ModelConfig::parse(config).unwrap(), 0.3, ModelOptions { kind, ..ModelOptions::default() }).unwrap()
}

pub(crate) fn model(seed: i64) -> Model {
    model_of(config_json(), seed, Kind::Float)
}

/// One, unless this is the run of a test with more.
pub(crate) fn threads() -> i32 {
    std::env::var("DRESSAGE_TEST_THREADS").map_or(1, |n| n.parse().unwrap())
}

pub(crate) fn settings(text: &str) -> TrainerSettings {
    // an epsilon that is not small, since the sign of a gradient that is nearly 0 is rounding
    let mut settings: TrainerSettings = toml::from_str(text).unwrap();
    settings.model.device = dressage_trainer::settings::DeviceChoice::Cpu;
    settings.optimizer.learning_rate = 1e-2;
    settings.optimizer.eps = 1e-3;
    settings
}

pub(crate) fn trainer(seed: i64, text: &str) -> Trainer {
    Trainer::new(model(seed), None, settings(text)).unwrap()
}

/// A segment of tokens that depend on its name's number: a context of two, and trained ones.
pub(crate) fn row(number: i32, n_tokens: usize, advantage: f64) -> Row {
    let token = |at: usize| (number * 7 + at as i32 * 5 + (at as i32 * at as i32)) % VOCAB_SIZE;
    let token_ids: Vec<i32> = (0..n_tokens).map(token).collect();
    Row {
        loss_mask: (0..n_tokens).map(|at| i8::from(at >= 2)).collect(),
        logprobs: Some((0..n_tokens).map(|at| -2.5 - 0.1 * (at % 5) as f32).collect()),
        advantage,
        loss_weight: 0.25,
        ..Row::of(format!("trajectory-{number}"), &token_ids)
    }
}

pub(crate) fn micro_batch(trainer: &Trainer, place: (i32, i32), rows: &[Row]) -> MicroBatch {
    let place = Place { train_step: place.0, dp_rank: 0, micro_batch: place.1 };
    MicroBatch::read(&batch(rows), place, &trainer.limits(), trainer.needs()).unwrap()
}

/// A whole step.
pub(crate) fn step(trainer: &mut Trainer, batches: &[(&MicroBatch, Option<&Tensor>)]) -> StepReport {
    let mut step = trainer.begin_step();
    for (batch, old) in batches {
        step.micro_batch(batch, *old).unwrap();
    }
    step.finish().unwrap()
}

pub(crate) fn metric(report: &StepReport, name: &str) -> f64 {
    report.metrics.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no {name}")).1
}

/// Copies of all weights.
pub(crate) fn weights(trainer: &Trainer) -> Vec<(String, Tensor)> {
    trainer.model().parameters().iter().map(|p| (p.name().to_owned(), p.tensor().detach().copy())).collect()
}

/// To the bit.
#[track_caller]
pub(crate) fn assert_same_weights(found: &Trainer, expected: &[(String, Tensor)], what: &str) {
    for ((name, found), (_, expected)) in weights(found).iter().zip(expected) {
        assert_eq!(found, expected, "{what}: {name}");
    }
}

pub(crate) fn floats(tensor: &Tensor) -> Vec<f64> {
    Vec::<f64>::try_from(tensor.to_kind(Kind::Double)).unwrap()
}
