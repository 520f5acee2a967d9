//! What a rank of four has in memory during a step, beside the formula: bytes a parameter of f32 weights, gradients and two
//! moments, each of them whole or a quarter.

use std::sync::Arc;

use dressage_trainer::collective::{Collectives, Rendezvous};
use dressage_trainer::{Model, ModelConfig, ModelOptions, Trainer};
use serde_json::json;

use crate::processes::{Part, Ranks, join, options};
use crate::training::made::{micro_batch, row, settings};
use crate::training::parity::LEVELS;

pub(crate) const PARTS: &[(&str, Part)] = &[("measures", measures)];

const LEVEL: &str = "DRESSAGE_TEST_LEVEL";
const WORLD_SIZE: usize = 4;
const BUCKET_BYTES_MAX: u64 = 4 << 20;

/// Bytes a parameter.
fn formula(level: &str) -> f64 {
    let ranks = WORLD_SIZE as f64;
    match level {
        "none" => 16.0,
        "optimizer" => 8.0 + 8.0 / ranks,
        "gradients" => 4.0 + 12.0 / ranks,
        "parameters" => 16.0 / ranks,
        other => panic!("{other}"),
    }
}

fn status_bytes(key: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() * 1024.0
}

fn model(hidden: i64, n_layers: i64) -> Model {
    let config = json!({
        "model_type": "qwen3", "vocab_size": 1000, "hidden_size": hidden, "intermediate_size": 2 * hidden,
        "num_hidden_layers": n_layers, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": hidden / 4,
        "max_position_embeddings": 64
    });
    Model::random(ModelConfig::parse(config).unwrap(), 0.02, ModelOptions::default()).unwrap()
}

fn train(group: &Arc<dyn Collectives>, level: &str, model: Model) -> [f64; 2] {
    let mut settings = settings("");
    settings.parallel.shard = serde_json::from_value(json!(level)).unwrap();
    settings.parallel.bucket_bytes_max = BUCKET_BYTES_MAX;
    let mut trainer = Trainer::parallel(model, None, settings, group.clone()).unwrap();
    let batches = [0, 1].map(|n| micro_batch(&trainer, (0, n), &[row(n + 2 * group.rank() as i32, 8, 1.0)]));
    let mut found = [0.0; 2];
    for _ in 0..2 {
        let mut step = trainer.begin_step();
        for batch in &batches {
            step.micro_batch(batch, None).unwrap();
        }
        // moments have their memory since the first update
        found[0] = status_bytes("VmRSS:");
        step.finish().unwrap();
        // from here on
        std::fs::write("/proc/self/clear_refs", "5").unwrap();
        found[1] = status_bytes("VmHWM:");
        let mut step = trainer.begin_step();
        for batch in &batches {
            step.micro_batch(batch, None).unwrap();
        }
        step.finish().unwrap();
        found[1] = status_bytes("VmHWM:").max(found[1]);
    }
    found
}

fn measures(rendezvous: &Rendezvous) -> String {
    let group: Arc<dyn Collectives> = Arc::new(join(rendezvous, &options()).unwrap());
    let level = std::env::var(LEVEL).unwrap();
    // code comes into memory when it is first used
    train(&group, &level, model(64, 2));
    let before = status_bytes("VmRSS:");
    let model = model(384, 8);
    let n: usize = model.parameters().iter().map(|p| p.tensor().numel()).sum();
    let [held, peak] = train(&group, &level, model);
    json!({ "held": (held - before) / n as f64, "peak": (peak - before) / n as f64, "n": n }).to_string()
}

#[test]
fn a_rank_has_what_the_formula_says() {
    for level in LEVELS {
        let variables = |_| {
            // freed tensors go back to the system, so that it knows what is held
            vec![
                (LEVEL, level.to_owned()),
                ("MALLOC_MMAP_THRESHOLD_", "32768".to_owned()),
                ("MALLOC_TRIM_THRESHOLD_", "32768".to_owned()),
            ]
        };
        for (rank, said) in Ranks::start_with("measures", WORLD_SIZE, &variables).said().iter().enumerate() {
            let found: serde_json::Value = serde_json::from_str(said).unwrap();
            let of = |key: &str| found[key].as_f64().unwrap();
            let (held, peak, n) = (of("held"), of("peak"), of("n"));
            let expected = formula(level);
            println!(
                "{level}, rank {rank} of {WORLD_SIZE}: {held:.2} bytes a parameter, {expected} by the formula; {peak:.2} at most"
            );
            // activations, and what the allocator keeps
            let slack = 8e6 / n;
            assert!(held <= expected * 1.05 + slack, "{level}, rank {rank}: {said}");
            assert!(held >= expected * 0.9, "{level}, rank {rank}: {said}");
            // on top of it the copies under way: buckets and, of gloo, their copies; a layer's weights and gradients
            let unit = 10.0 * 384.0 * 384.0 * 4.0;
            let copies = (8.0 * BUCKET_BYTES_MAX as f64 + 2.0 * unit) / n;
            assert!(peak <= expected * 1.05 + slack + copies, "{level}, rank {rank}: {said}");
        }
    }
}
