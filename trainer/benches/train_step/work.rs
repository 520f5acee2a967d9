//! Our side, in a process of its own: prints a JSON line with the seconds and the loss of each step, and its peak memory.

use std::path::Path;
use std::time::Instant;

use dressage_trainer::{
    AdamW, AdamWSettings, Folder, ForwardOptions, Model, ModelConfig, ModelOptions, PackedRow, ScoreOptions, Segment,
};
use serde_json::{Value, json};
use tch::{Kind, Tensor};

use crate::process::{cpu_seconds, peak_bytes, threads};
use crate::shape::{self, LENGTHS, Shape, VOCAB_LARGE};

const LEARNING_RATE: f64 = 1e-5;

/// Steps of the model and the row of a folder: the row at once, or one of its `segments` after the other.
pub(crate) fn step(folder: &Path, n_steps: usize, how: &str) {
    tch::set_num_threads(threads());
    let row: Value = serde_json::from_slice(&std::fs::read(folder.join("row.json")).expect("row")).expect("JSON");
    let ids = row["token_ids"].as_array().expect("list").iter().map(|v| v.as_i64().expect("number") as i32);
    let mut ids: Vec<i32> = ids.collect();
    let segments: Vec<Segment> = LENGTHS.iter().map(|n| Segment::of(ids.drain(..*n).collect())).collect();
    let rows = match how {
        "segments" => segments.into_iter().map(|s| PackedRow::new(vec![s]).expect("row")).collect(),
        _ => vec![PackedRow::new(segments).expect("row")],
    };
    let kind = if how.starts_with("bf16") { Kind::BFloat16 } else { Kind::Float };
    let forward = ForwardOptions { recompute: how.ends_with("recompute"), ..ForwardOptions::default() };
    let model = Model::load(&Folder::at(folder), ModelOptions { kind, ..ModelOptions::default() }).expect("model");
    let settings = AdamWSettings { learning_rate: LEARNING_RATE, ..AdamWSettings::default() };
    let mut optimizer = AdamW::new(&model, settings).expect("optimizer");
    let n_scored: usize = rows.iter().flat_map(PackedRow::has_logprob).filter(|scored| *scored).count();
    let (mut seconds, mut cpu, mut losses) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..n_steps {
        let (start, cpu_start) = (Instant::now(), cpu_seconds());
        let mut total = 0.0;
        for row in &rows {
            let trace = model.forward(row, forward).expect("forward");
            let scores = trace.scores(None, ScoreOptions::default()).expect("scores");
            let loss = -scores.logprobs.sum(Kind::Float) / n_scored as f64;
            loss.backward();
            total += loss.double_value(&[]);
            trace.backward(scores).expect("backward");
            optimizer.accumulate(&model).expect("accumulate");
        }
        optimizer.step(&model, LEARNING_RATE).expect("step");
        seconds.push(start.elapsed().as_secs_f64());
        cpu.push(cpu_seconds() - cpu_start);
        losses.push(total);
    }
    println!("{}", json!({ "seconds": seconds, "cpu_seconds": cpu, "losses": losses, "peak_bytes": peak_bytes() }));
}

/// Log-probs of a large vocabulary, forward and back, of a model that has little but its output matrix: `chunks` keeps none
/// for the way back, `default` as many as are kept by default, `nothing` is all but the log-probs.
pub(crate) fn logprobs(n_tokens: usize, how: &str) {
    tch::set_num_threads(threads());
    let config = ModelConfig::parse(Shape::output_only()).expect("config");
    let model = Model::random(config, 0.02, ModelOptions::default()).expect("model");
    let ids: Vec<i32> = shape::tokens(n_tokens, VOCAB_LARGE).into_iter().map(|t| t as i32).collect();
    let row = PackedRow::new(ids.chunks(512).map(|s| Segment::of(s.to_vec())).collect()).expect("row");
    let (start, cpu_start) = (Instant::now(), cpu_seconds());
    let trace = model.forward(&row, ForwardOptions::default()).expect("forward");
    let loss = if how == "nothing" {
        let gradient = trace.hidden().ones_like();
        trace.backward_from_hidden(gradient).expect("backward");
        0.0
    } else {
        let mut options = ScoreOptions::default();
        if how == "chunks" {
            options.kept_bytes_max = 0;
        }
        let scores = trace.scores(None, options).expect("scores");
        let loss: Tensor = -scores.logprobs.mean(Kind::Float);
        loss.backward();
        trace.backward(scores).expect("backward");
        loss.double_value(&[])
    };
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu_start);
    println!("{}", json!({ "seconds": [seconds], "cpu_seconds": [cpu], "losses": [loss], "peak_bytes": peak_bytes() }));
}
