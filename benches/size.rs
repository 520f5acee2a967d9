//! Bytes a token: real token files with made-up log-probabilities, and router choices as sets and in rank order,
//! against raw uint8 and against the reference's JSON with base64 of int32.

mod harness;

use std::io::Write;
use std::path::Path;

use dressage_codec::synthetic::SeededRandom;
use harness::{Bench, folder_bytes, ingest, scaled};
use serde_json::{Value, json};

const TOKENS: usize = 16_384;

fn main() {
    let mut bench = Bench::new("size");
    real_tokens(&mut bench);
    for (experts, layers, set_bound, ranked_bound) in [(128, 40, 0.66, 0.875), (256, 58, 0.8, 1.0)] {
        let trajectories = scaled(16);
        let count = trajectories.to_string();
        let (experts_text, layers_text) = (experts.to_string(), layers.to_string());
        let mut args = vec!["--trajectories", &count, "--tokens", "16384", "--segments", "1", "--no-messages"];
        let load = bench.path("load.arrow");
        bench.synth(&load, &args);
        let store = bench.path("store");
        ingest(&load, &store, &[]);
        let without = folder_bytes(&store) as f64;
        std::fs::remove_dir_all(&store).expect("our own store");
        args.extend_from_slice(&["--layers", &layers_text, "--experts", &experts_text]);
        bench.synth(&load, &args);
        let ids = trajectories as f64 * (TOKENS - 1) as f64 * layers as f64 * 8.0;
        for (mode, flags, bound) in [("ranked", &[][..], ranked_bound), ("sets", &["--experts-as-sets"][..], set_bound)]
        {
            ingest(&load, &store, flags);
            // The whole store with them less the whole store without: everything they cost, not the column alone.
            let ratio = (folder_bytes(&store) as f64 - without) / ids;
            bench.at_most(&format!("{experts} experts, {mode}: of raw uint8"), ratio, bound, "x");
            bench.note(&format!("{experts} experts, {mode}: of base64 int32"), ratio * 3.0 / 16.0, "x");
            std::fs::remove_dir_all(&store).expect("our own store");
        }
    }
}

/// Token ids of real rollouts (NeMo Gym files of the repository) as one segment each, so that tokens are what is
/// stored; log-probabilities are drawn, because those files' are few.
fn real_tokens(bench: &mut Bench) {
    let data = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut lists = Vec::new();
    for folder in [data.join("tests/data"), data.join("../shared/data")] {
        collect(&folder, &mut lists);
    }
    let lists = longest_of_each_prefix(lists);
    if lists.is_empty() {
        println!("  (no real token files found)");
        return;
    }
    let tokens: usize = lists.iter().map(Vec::len).sum();
    let mut random = SeededRandom::new(3);
    let load = bench.path("real.jsonl");
    let mut out = std::io::BufWriter::new(std::fs::File::create(&load).expect("scratch can be written"));
    let mut json_bytes = 0;
    for (index, ids) in lists.iter().enumerate() {
        let logprobs: Vec<f32> = ids.iter().map(|_| (random.unit().ln() * 0.5) as f32).collect();
        let mask = vec![1; ids.len()];
        let segment = json!({"segment_index": 0, "tokens": ids, "full_loss_mask": mask, "full_logprobs": logprobs});
        let line = json!({
            "trajectory_id": format!("real-{index}"), "instance_id": format!("real-{index}"), "reward": 1.0,
            "status": "completed", "segments": [segment],
        });
        let line = line.to_string();
        json_bytes += line.len() + 1;
        writeln!(out, "{line}").expect("scratch can be written");
    }
    out.flush().expect("scratch can be written");
    drop(out);
    let store = bench.path("real-store");
    ingest(&load, &store, &[]);
    let steps = folder_bytes(&store.join("steps.lance"));
    bench.note("real tokens", tokens as f64, "tokens");
    bench.at_most("real tokens with log-probabilities, steps table", steps as f64 / tokens as f64, 9.0, "B/token");
    let store_bytes = folder_bytes(&store) as f64;
    bench.note("real tokens, the whole store", store_bytes / tokens as f64, "B/token");
    bench.note("real tokens, JSON", json_bytes as f64 / tokens as f64, "B/token");
}

/// An agent's log repeats its whole prompt at every step; keeping every copy would flatter the compressor. Of the lists
/// that begin alike, the longest stays.
fn longest_of_each_prefix(lists: Vec<Vec<i64>>) -> Vec<Vec<i64>> {
    let mut by_prefix = std::collections::BTreeMap::<Vec<i64>, Vec<i64>>::new();
    for list in lists {
        let kept = by_prefix.entry(list[..64].to_vec()).or_default();
        if list.len() > kept.len() {
            *kept = list;
        }
    }
    by_prefix.into_values().collect()
}

/// Every list of at least 64 token ids under keys that token files use, from `.jsonl` and `.json` files.
fn collect(folder: &Path, lists: &mut Vec<Vec<i64>>) {
    let mut entries: Vec<_> = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            collect(&path, lists);
        } else if path.extension().is_some_and(|ending| ending == "jsonl" || ending == "json")
            && let Ok(body) = std::fs::read_to_string(&path)
        {
            for line in body.lines() {
                if let Ok(value) = serde_json::from_str::<Value>(line) {
                    token_lists(&value, lists);
                }
            }
        }
    }
}

fn token_lists(value: &Value, lists: &mut Vec<Vec<i64>>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match value.as_array() {
                    Some(ids) if key.ends_with("token_ids") && ids.len() >= 64 => {
                        lists.extend(ids.iter().map(Value::as_i64).collect::<Option<Vec<_>>>());
                    }
                    _ => token_lists(value, lists),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| token_lists(value, lists)),
        _ => {}
    }
}
