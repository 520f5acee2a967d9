//! One train step (forward, backward, clip, update) against the same step in PyTorch eager with transformers: same weights,
//! same packed row, same number of threads, f32, no recomputation. And what log-probs of a large vocabulary take in
//! memory, in chunks and the naive way.
//!
//! Runs are interleaved, each in a process of its own, and the fastest step of each counts: other work on the machine
//! makes steps slower, never faster. `DRESSAGE_ORACLE_PYTHON` is a Python with torch and transformers (`make oracle`
//! makes one), `DRESSAGE_BENCH_THREADS` the number of threads (1).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use dressage_trainer::{
    AdamW, AdamWSettings, Folder, ForwardOptions, Model, ModelConfig, ModelOptions, PackedRow, ScoreOptions, Segment,
};
use serde_json::{Value, json};
use tch::{Kind, Tensor};

const ROUNDS: usize = 3;
const STEPS: usize = 4;
const LENGTHS: [usize; 5] = [512, 96, 700, 256, 484];
const VOCAB_LARGE: i64 = 151_936;

/// Fastest step and peak memory of one process.
struct Measured {
    seconds: f64,
    loss: f64,
    peak_bytes: f64,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["step", folder] => step(Path::new(folder)),
        ["logprobs", n_tokens] => logprobs(n_tokens.parse().expect("a number")),
        _ => compare(),
    }
}

fn compare() {
    let place = tempfile::tempdir().expect("tempdir");
    println!("threads: {}, rows of {} tokens", threads(), LENGTHS.iter().sum::<usize>());
    for (name, config) in [("25 M", config(384, 6, 32_000)), ("100 M", config(768, 10, 32_000))] {
        let folder = place.path().join(name.replace(' ', "_"));
        let vocab_size = config["vocab_size"].as_i64().expect("number") as usize;
        let model = Model::random(ModelConfig::parse(config).expect("config"), 0.02, ModelOptions::default());
        let model = model.expect("model");
        let n: usize = model.parameters().iter().map(|p| p.tensor().numel()).sum();
        model.save(&mut Folder::at(&folder), Kind::Float, u64::MAX).expect("save");
        drop(model);
        write_row(&folder, &json!({ "token_ids": tokens(LENGTHS.iter().sum(), vocab_size), "lengths": LENGTHS }));
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            ours.push(run_ours(&["step", &folder.display().to_string()]));
            theirs.push(run_theirs(&folder, &[]));
        }
        let (ours, theirs) = (best(ours), best(theirs));
        println!(
            "{name} ({:.1} M parameters): {:.3} s against {:.3} s, ratio {:.3}; peak {:.2} against {:.2} GB; loss {:.5} \
             and {:.5}",
            n as f64 / 1e6,
            ours.seconds,
            theirs.seconds,
            ours.seconds / theirs.seconds,
            ours.peak_bytes / 1e9,
            theirs.peak_bytes / 1e9,
            ours.loss,
            theirs.loss,
        );
    }
    let folder = place.path().join("logprobs");
    let row =
        json!({ "token_ids": tokens(2048, VOCAB_LARGE as usize), "hidden_size": 1024, "vocab_size": VOCAB_LARGE });
    write_row(&folder, &row);
    let naive = run_theirs(&folder, &["logprobs"]);
    let chunked = run_ours(&["logprobs", "2048"]);
    let long = run_ours(&["logprobs", "16384"]);
    println!(
        "log-probs at vocabulary {VOCAB_LARGE}: 2,048 tokens {:.2} s and peak {:.2} GB in chunks, {:.2} s and {:.2} GB \
         naive; 16,384 tokens {:.2} s and {:.2} GB in chunks",
        chunked.seconds,
        chunked.peak_bytes / 1e9,
        naive.seconds,
        naive.peak_bytes / 1e9,
        long.seconds,
        long.peak_bytes / 1e9,
    );
}

fn config(hidden_size: i64, n_layers: i64, vocab_size: i64) -> Value {
    json!({
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": vocab_size,
        "hidden_size": hidden_size, "intermediate_size": hidden_size * 3, "num_hidden_layers": n_layers,
        "num_attention_heads": hidden_size / 64, "num_key_value_heads": hidden_size / 192, "head_dim": 64,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0, "hidden_act": "silu",
        "tie_word_embeddings": true
    })
}

fn tokens(n: usize, vocab_size: usize) -> Vec<usize> {
    (0..n).map(|i| (i * 7919 + 13) % vocab_size).collect()
}

fn write_row(folder: &Path, row: &Value) {
    std::fs::create_dir_all(folder).expect("folder");
    std::fs::write(folder.join("row.json"), row.to_string()).expect("row");
}

/// In this process: the steps of our side.
fn step(folder: &Path) {
    tch::set_num_threads(threads());
    let row: Value = serde_json::from_slice(&std::fs::read(folder.join("row.json")).expect("row")).expect("JSON");
    let ids = row["token_ids"].as_array().expect("list").iter().map(|v| v.as_i64().expect("number") as i32);
    let mut ids: Vec<i32> = ids.collect();
    let segments = LENGTHS.iter().map(|n| Segment::of(ids.drain(..n).collect())).collect();
    let row = PackedRow::new(segments).expect("row");
    let model = Model::load(&Folder::at(folder), ModelOptions::default()).expect("model");
    let settings = AdamWSettings { learning_rate: 1e-5, ..AdamWSettings::default() };
    let mut optimizer = AdamW::new(&model, settings).expect("optimizer");
    let n_scored = row.has_logprob().iter().filter(|b| **b).count() as f64;
    for _ in 0..STEPS {
        let start = Instant::now();
        let trace = model.forward(&row, ForwardOptions::default()).expect("forward");
        let scores = trace.scores(None, ScoreOptions::default()).expect("scores");
        let loss = -scores.logprobs.sum(Kind::Float) / n_scored;
        loss.backward();
        trace.backward(scores).expect("backward");
        optimizer.step(&model, 1e-5).expect("step");
        println!("{} {}", start.elapsed().as_secs_f64(), loss.double_value(&[]));
    }
    println!("{}", peak_bytes());
}

/// In this process: log-probs of a large vocabulary, forward and back, of a model that has nothing but its output matrix.
fn logprobs(n_tokens: usize) {
    tch::set_num_threads(threads());
    let mut config = config(1024, 1, VOCAB_LARGE);
    config["max_position_embeddings"] = json!(65_536);
    config["intermediate_size"] = json!(64);
    let model = Model::random(ModelConfig::parse(config).expect("config"), 0.02, ModelOptions::default());
    let model = model.expect("model");
    let ids = tokens(n_tokens, VOCAB_LARGE as usize).into_iter().map(|t| t as i32);
    let ids: Vec<i32> = ids.collect();
    let row = PackedRow::new(ids.chunks(512).map(|s| Segment::of(s.to_vec())).collect()).expect("row");
    let start = Instant::now();
    let trace = model.forward(&row, ForwardOptions::default()).expect("forward");
    let scores = trace.scores(None, ScoreOptions::default()).expect("scores");
    let loss: Tensor = -scores.logprobs.mean(Kind::Float);
    loss.backward();
    trace.backward(scores).expect("backward");
    println!("{} {}", start.elapsed().as_secs_f64(), loss.double_value(&[]));
    println!("{}", peak_bytes());
}

fn threads() -> i32 {
    std::env::var("DRESSAGE_BENCH_THREADS").ok().and_then(|t| t.parse().ok()).unwrap_or(1)
}

fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).expect("VmHWM");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") * 1024
}

fn best(runs: Vec<Measured>) -> Measured {
    let fastest = runs.into_iter().min_by(|a, b| a.seconds.total_cmp(&b.seconds));
    fastest.expect("at least one")
}

fn run_ours(arguments: &[&str]) -> Measured {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(arguments);
    measured(command)
}

fn run_theirs(folder: &Path, arguments: &[&str]) -> Measured {
    let python = std::env::var_os("DRESSAGE_ORACLE_PYTHON").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").expect("HOME")).join(".cache/dressage/venv-oracle/bin/python"),
        PathBuf::from,
    );
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/peers/train_step.py");
    let mut command = Command::new(python);
    command.arg(script).arg(folder).arg(folder.join("row.json")).arg(threads().to_string()).arg(STEPS.to_string());
    command.args(arguments);
    measured(command)
}

fn measured(mut command: Command) -> Measured {
    // as many threads as asked for, whatever the libraries would choose
    command.env("OMP_NUM_THREADS", threads().to_string()).env("MKL_NUM_THREADS", threads().to_string());
    let output = command.output().expect("can be started");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    let lines: Vec<Vec<f64>> =
        text.lines().map(|l| l.split_whitespace().map(|n| n.parse().expect("a number")).collect()).collect();
    let mut steps = lines.iter().filter(|l| l.len() == 2);
    let seconds = steps.clone().map(|l| l[0]).fold(f64::INFINITY, f64::min);
    let loss = steps.next_back().expect("a step")[1];
    Measured { seconds, loss, peak_bytes: lines.last().expect("a line")[0] }
}
