//! One train step (forward, backward, clip, update) against the same step in PyTorch eager with transformers: same weights,
//! same packed row, same number of threads, f32, no recomputation. And what log-probs of a large vocabulary take in
//! memory, in chunks and the naive way.
//!
//! ```text
//! cargo bench -p dressage-trainer --bench train_step                     # everything: a quarter of an hour
//! cargo bench -p dressage-trainer --bench train_step -- qwen3-25m        # one model, or `logprobs`, or `more`
//! ```
//!
//! Each measurement is a process of its own, ours and theirs in turn, and medians over all steps but the first of each
//! process are compared. The peer runs the row packed, and one segment after the other, and its faster way counts.
//! `DRESSAGE_ORACLE_PYTHON` is a Python with torch and transformers (`.ci/setup oracle` makes one),
//! `DRESSAGE_BENCH_THREADS` the number of threads (1), `DRESSAGE_BENCH_ROUNDS` how often the two take turns (3).

mod process;
mod report;
mod shape;
mod work;

use std::path::Path;

use dressage_trainer::{Folder, Model, ModelConfig, ModelOptions};
use process::{Measured, ours, theirs};
use report::Report;
use serde_json::json;
use shape::{LENGTHS, Shape, VOCAB_LARGE};
use tch::Kind;

const GB: f64 = 1e9;
/// How much longer than the peer a step may take.
const RATIO_MAX: f64 = 1.05;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["step", folder, n_steps, how] => work::step(Path::new(folder), n_steps.parse().expect("a number"), how),
        ["logprobs", n_tokens, how] => work::logprobs(n_tokens.parse().expect("a number"), how),
        wanted => compare(wanted),
    }
}

fn compare(wanted: &[&str]) {
    let is_wanted = |name: &str| wanted.is_empty() || wanted.contains(&name);
    let place = tempfile::tempdir().expect("tempdir");
    let mut report = Report::new("train_step");
    println!("  {}", process::machine());
    for shape in Shape::all().into_iter().filter(|s| is_wanted(s.name)) {
        steps(&mut report, &place.path().join(shape.name), &shape);
    }
    for shape in Shape::all().into_iter().filter(|s| s.name == "qwen3-25m" && is_wanted("more")) {
        more(&mut report, &place.path().join("more"), &shape);
    }
    if is_wanted("logprobs") {
        logprobs(&mut report, &place.path().join("logprobs"));
    }
    println!("  {}", process::machine());
}

/// Writes a random model and its row; gives its parameters.
fn make(folder: &Path, shape: &Shape) -> f64 {
    tch::manual_seed(1);
    let config = ModelConfig::parse(shape.config()).expect("config");
    let model = Model::random(config, 0.02, ModelOptions::default()).expect("model");
    model.save(&mut Folder::at(folder), Kind::Float, u64::MAX).expect("save");
    let n_tokens = LENGTHS.iter().sum();
    shape::write_row(folder, &json!({ "token_ids": shape::tokens(n_tokens, shape.vocab_size), "lengths": LENGTHS }));
    model.parameters().iter().map(|p| p.tensor().numel() as f64).sum()
}

fn steps(report: &mut Report, folder: &Path, shape: &Shape) {
    let n_parameters = make(folder, shape);
    let n_tokens: usize = LENGTHS.iter().sum();
    println!("  {}: {:.1} M parameters, {n_tokens} tokens in segments of {LENGTHS:?}", shape.name, n_parameters / 1e6);
    let folder = folder.display().to_string();
    let n_steps = shape.n_steps.to_string();
    let (mut own, mut packed, mut split) = (Measured::default(), Measured::default(), Measured::default());
    for round in 0..process::rounds() {
        own.add(ours(&["step", &folder, &n_steps, "plain"]));
        // the slower of their ways is not run again
        if round == 0 || packed.median_seconds() <= split.median_seconds() {
            packed.add(theirs(&["step", &folder, &n_steps, "packed"]));
        }
        if round == 0 || split.median_seconds() < packed.median_seconds() {
            split.add(theirs(&["step", &folder, &n_steps, "segments"]));
        }
    }
    // for its memory: it takes as long
    let own_split = ours(&["step", &folder, "2", "segments"]);
    let name = shape.name;
    for (who, measured) in
        [("ours", &own), ("ours by segments", &own_split), ("theirs packed", &packed), ("theirs by segments", &split)]
    {
        println!("  {name}, {who}: {measured}");
    }
    let difference = (own.loss - packed.loss).abs() / packed.loss.abs();
    report.at_most(&format!("{name}, loss after {n_steps} steps, difference"), difference, 1e-4, "of theirs");
    let best = packed.median_seconds().min(split.median_seconds());
    report.note(&format!("{name}, ours"), own.median_seconds(), "s a step");
    report.note(&format!("{name}, theirs packed"), packed.median_seconds(), "s a step");
    report.note(&format!("{name}, theirs by segments"), split.median_seconds(), "s a step");
    report.at_most(&format!("{name}, step time"), own.median_seconds() / best, RATIO_MAX, "of theirs");
    let best = packed.median_cpu_seconds().min(split.median_cpu_seconds());
    report.note(&format!("{name}, ours, processor time"), own.median_cpu_seconds(), "s a step");
    report.note(&format!("{name}, processor time"), own.median_cpu_seconds() / best, "of theirs");
    report.at_most(&format!("{name}, packed, peak memory"), own.peak_bytes / GB, packed.peak_bytes / GB, "GB");
    report.at_most(
        &format!("{name}, by segments, peak memory"),
        own_split.peak_bytes / GB,
        split.peak_bytes / GB,
        "GB",
    );
}

/// What the other ways to run a step cost: for information.
fn more(report: &mut Report, folder: &Path, shape: &Shape) {
    make(folder, shape);
    let folder = folder.display().to_string();
    let ways = ["plain", "recompute", "bf16", "bf16-recompute"];
    let mut measured: Vec<Measured> = ways.iter().map(|_| Measured::default()).collect();
    for _ in 0..process::rounds() {
        for (way, measured) in ways.iter().zip(&mut measured) {
            measured.add(ours(&["step", &folder, &shape.n_steps.to_string(), way]));
        }
    }
    for (way, measured) in ways.iter().zip(&measured) {
        report.note(&format!("{}, {way}", shape.name), measured.median_seconds(), "s a step");
        report.note(&format!("{}, {way}, peak memory", shape.name), measured.peak_bytes / GB, "GB");
    }
}

fn logprobs(report: &mut Report, folder: &Path) {
    let n_naive = 2048;
    let row = json!({ "token_ids": shape::tokens(n_naive, VOCAB_LARGE), "hidden_size": shape::HIDDEN_LARGE,
        "vocab_size": VOCAB_LARGE });
    shape::write_row(folder, &row);
    let naive = theirs(&["logprobs", &folder.display().to_string(), "1", "log_softmax"]);
    println!("  log-probs of vocabulary {VOCAB_LARGE}, hidden size {}, forward and back", shape::HIDDEN_LARGE);
    println!("  naive, {n_naive} tokens: {naive}");
    report.note(&format!("naive, {n_naive} tokens, peak memory"), naive.peak_bytes / GB, "GB");
    for n_tokens in [n_naive, 16_384] {
        let nothing = ours(&["logprobs", &n_tokens.to_string(), "nothing"]);
        let logits = (n_tokens * VOCAB_LARGE * 4) as f64;
        report.note(&format!("one matrix of logits, {n_tokens} tokens, computed"), logits / GB, "GB");
        report.note(&format!("all but the log-probs, {n_tokens} tokens, peak memory"), nothing.peak_bytes / GB, "GB");
        for how in ["chunks", "default"] {
            let measured = ours(&["logprobs", &n_tokens.to_string(), how]);
            println!("  {how}, {n_tokens} tokens: {measured}");
            report.note(&format!("{how}, {n_tokens} tokens, peak memory"), measured.peak_bytes / GB, "GB");
        }
    }
}
