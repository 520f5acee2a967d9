//! How long a train step waits for its micro-batches, reading from a folder and from an S3 server on this machine: a 24 M
//! parameter model, one thread of computation.

mod harness;

use std::path::Path;

use dressage_rig::{Dressage, Weed};
use harness::{Bench, scaled, text};
use serde_json::{Value, json};

/// Trajectories of a train step.
const GLOBAL_BATCH_SIZE: &str = "8";
const MAX_TOKENS: &str = "4096";

/// Of the model and of the made-up rollouts.
const VOCABULARY: u32 = 32_768;

/// 24 M parameters.
fn config() -> Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCABULARY,
        "hidden_size": 320,
        "intermediate_size": 1280,
        "num_hidden_layers": 8,
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "head_dim": 64,
        "max_position_embeddings": 32_768,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": true,
        "attention_bias": false,
        "torch_dtype": "float32",
    })
}

fn report(lake: &Dressage, args: &[&str]) -> Value {
    let finished = lake.run(args).and_then(|f| f.expect_code(0).and_then(|f| f.json()));
    finished.unwrap_or_else(|error| panic!("{args:?}: {error:?}"))
}

/// Seconds of stepping and of waiting for input.
fn train(lake: &Dressage, rollouts: &Path, dir: &Path) -> (f64, f64) {
    lake.run(&["ingest", &text(rollouts), "--quiet"]).expect("ingests");
    let (model, out) = (dir.join("model"), dir.join("out"));
    std::fs::create_dir_all(&model).expect("made");
    std::fs::write(model.join("config.json"), config().to_string()).expect("written");
    let (model, out) = (text(&model), text(&out));
    let told = report(
        lake,
        &[
            "train",
            "--json",
            "--quiet",
            "--model",
            &model,
            "--out",
            &out,
            "--global-batch-size",
            GLOBAL_BATCH_SIZE,
            "--max-tokens-per-micro-batch",
            MAX_TOKENS,
            "--set",
            "weights.init=random",
        ],
    );
    let number = |key: &str| told[key].as_f64().unwrap_or_else(|| panic!("no {key} in {told}"));
    (number("seconds"), number("input_stall_seconds"))
}

fn main() {
    let mut bench = Bench::new("input_stall");
    let rollouts = bench.path("load.arrow");
    let (trajectories, vocabulary) = (scaled(48).to_string(), VOCABULARY.to_string());
    let shape = ["--trajectories", &trajectories, "--tokens", "1024", "--vocabulary", &vocabulary, "--layers", "0"];
    bench.synth(&rollouts, &shape);
    let binary = std::env::var_os("DRESSAGE_BENCH_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_dressage").into());
    let weed = Weed::start().expect("an S3 server: make setup-python");
    let places = [
        ("folder", Dressage::local(&binary, &bench.path("store"))),
        ("s3", Dressage::on_s3(&binary, &weed.place("stall"))),
    ];
    for (place, lake) in places {
        let (seconds, stall) = train(&lake.with("OMP_NUM_THREADS", "1"), &rollouts, &bench.path(place));
        bench.note(&format!("{place}: stepping"), seconds, "s");
        bench.at_most(&format!("{place}: input stall, of step time"), 100.0 * stall / seconds, 1.0, "%");
    }
}
