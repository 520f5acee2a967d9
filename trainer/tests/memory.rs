//! What does not fit if it is done the obvious way: the scores of a long segment against itself, and the logits of a large
//! vocabulary. Peak memory of this process is looked at, so these two have a program of their own and run one after the
//! other, the smaller peak first.

use dressage_trainer::{ForwardOptions, Model, ModelConfig, ModelOptions, PackedRow, ScoreOptions, Segment};
use serde_json::json;
use tch::Kind;

fn model(vocab_size: i64) -> Model {
    let config = json!({
        "model_type": "qwen3", "vocab_size": vocab_size, "hidden_size": 32, "intermediate_size": 32,
        "num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 8,
        "max_position_embeddings": 65536, "tie_word_embeddings": true
    });
    Model::random(ModelConfig::parse(config).expect("config"), 0.02, ModelOptions::default()).expect("model")
}

/// Growth of the process's peak over one pass forward and back, in bytes.
fn growth_of_pass(model: &Model, segments: Vec<Segment>, options: ScoreOptions) -> u64 {
    let row = PackedRow::new(segments).expect("row");
    let before = peak_bytes();
    let trace = model.forward(&row, ForwardOptions::default()).expect("forward");
    let scores = trace.scores(None, options).expect("scores");
    scores.logprobs.sum(Kind::Float).backward();
    trace.backward(scores).expect("backward");
    peak_bytes() - before
}

fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).expect("VmHWM");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") * 1024
}

#[test]
fn memory_grows_neither_with_the_square_of_a_segment_nor_with_the_logits_of_a_row() {
    tch::set_num_threads(1);
    let segment = |n: i32| vec![Segment::of((0..n).map(|t| t % 256).collect())];
    let small = model(256);
    // libtorch's own code comes into memory when it is first used
    let _ = growth_of_pass(&small, segment(64), ScoreOptions::default());
    let half = growth_of_pass(&small, segment(4096), ScoreOptions::default());
    println!("4,096 tokens: {} MB", half / 1_000_000);
    let growth = growth_of_pass(&small, segment(8192), ScoreOptions::default());
    // scores of 8 heads in f32
    let quadratic = 8 * 8192 * 8192 * 4;
    println!("8,192 tokens: {} MB, {} MB if scores were kept", growth / 1_000_000, quadratic / 1_000_000);
    assert!(growth < quadratic / 8, "{growth} bytes");

    let tokens = (0..1024).map(|t| t * 131).collect();
    let options = ScoreOptions { chunk_bytes_max: 64 << 20, kept_bytes_max: 0, ..ScoreOptions::default() };
    let model = model(151_936);
    let growth = growth_of_pass(&model, vec![Segment::of(tokens)], options);
    let logits = 1024 * 151_936 * 4;
    println!("vocabulary 151,936: {} MB, {} MB are the logits", growth / 1_000_000, logits / 1_000_000);
    assert!(growth < logits / 2, "{growth} bytes");
}
