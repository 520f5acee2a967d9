//! Micro-batches from local disk, against the loaders that people use over the same rows: PyTorch's `DataLoader` over
//! Parquet, the Lance reader, MosaicML Streaming.
//!
//! The peers get files that hold the rows in the very order in which they give them out; ours takes them by address from
//! the store that was ingested. Packed tensors in all: ids, positions, mask, log-probs, weights. A peer's rate is the
//! best over its numbers of workers. What all read is compared: samples, tokens, sums.

mod harness;

use std::path::Path;
use std::time::Instant;

use arrow::array::AsArray;
use arrow::datatypes::{Float32Type, Float64Type, Int8Type, Int32Type};
use dressage_segmenter::{MicroBatch, StoredPlan, StreamOptions};
use dressage_storage::{Lake, StoreSettings};
use harness::{Bench, MIB, dressage, forget_cache, ingest, median, peer, scaled, text};
use serde_json::Value;

/// The command's own: what runs inside a benchmark is to run as it does there.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUNDS: usize = 5;
const PEERS: [(&str, &[&str]); 3] = [("parquet", &["0", "2"]), ("lance", &["0"]), ("mds", &["0", "2"])];

/// One load.
struct Load {
    name: &'static str,
    trajectories: u64,
    layers: &'static str,
    max_tokens: &'static str,
}

/// What a pass over all micro-batches saw.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
struct Seen {
    samples: u64,
    tokens: u64,
    trained: u64,
    token_id_sum: f64,
    weighted_loss_sum: f64,
    expert_bytes: u64,
}

fn main() {
    let mut bench = Bench::new("batches");
    let loads = [
        Load { name: "tokens", trajectories: scaled(512), layers: "0", max_tokens: "65536" },
        Load { name: "tokens and routed experts", trajectories: scaled(96), layers: "40", max_tokens: "32768" },
    ];
    for load in loads {
        measure(&mut bench, &load);
    }
}

fn measure(bench: &mut Bench, load: &Load) {
    let folder = bench.path(if load.layers == "0" { "tokens" } else { "experts" });
    std::fs::create_dir_all(&folder).expect("scratch can be written");
    let (file, store, rows) = (folder.join("load.arrow"), folder.join("store"), folder.join("rows.arrows"));
    let count = load.trajectories.to_string();
    bench.synth(
        &file,
        &["--trajectories", &count, "--segments", "2", "--tokens", "16384", "--layers", load.layers, "--no-messages"],
    );
    ingest(&file, &store, &[]);
    std::fs::remove_file(&file).expect("our own file");
    let store_text = text(&store);
    let planned = dressage(&[
        "plan",
        "--store",
        &store_text,
        "--global-batch-size",
        "64",
        "--max-tokens-per-micro-batch",
        load.max_tokens,
        "--shuffle",
        "--json",
    ]);
    let from = planned.stdout.find('{').unwrap_or_default();
    let planned: Value = serde_json::from_str(&planned.stdout[from..]).expect("--json prints one object");
    let plan_id = planned["plan_id"].as_str().expect("a plan has an id").to_owned();
    let with_experts = load.layers != "0";
    let rows_text = text(&rows);
    let mut args = vec![
        "batches",
        "--store",
        &store_text,
        "--plan",
        &plan_id,
        "--rank",
        "0",
        "--world-size",
        "1",
        "-o",
        &rows_text,
    ];
    if with_experts {
        args.push("--with-experts");
    }
    let piped = dressage(&args);
    let logical = std::fs::metadata(&rows).expect("written").len() as f64;
    bench.note(&format!("{}, as an Arrow stream", load.name), logical / 1e6, "MB");
    bench.note(
        &format!("{}, the command writing it, peak memory", load.name),
        piped.peak_rss_bytes as f64 / MIB,
        "MiB",
    );

    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let seen = runtime.block_on(look(&store, &plan_id, with_experts));
    let mut warm = Vec::new();
    let mut cold = Vec::new();
    for round in 0..ROUNDS {
        if round < 2 {
            forget_cache(&store);
            cold.push(runtime.block_on(pass(&store, &plan_id, with_experts, false)));
        }
        warm.push(runtime.block_on(pass(&store, &plan_id, with_experts, false)));
    }
    let hashed = runtime.block_on(pass(&store, &plan_id, with_experts, true));
    let (warm, cold) = (median(warm), median(cold));
    let rate = |seconds: f64| seen.tokens as f64 / seconds / 1e6;
    bench.note(&format!("{}, ours, warm", load.name), rate(warm), "Mtok/s");
    bench.note(&format!("{}, ours, warm, with hashes", load.name), rate(hashed), "Mtok/s");
    bench.note(&format!("{}, ours, cold", load.name), rate(cold), "Mtok/s");

    let (mut best_warm, mut best_cold) = (f64::INFINITY, f64::INFINITY);
    for (kind, workers) in PEERS {
        let target = text(&folder.join(kind));
        if peer("venv-stream", "stream_rows.py", &["write", kind, &rows_text, &target]).is_none() {
            continue;
        }
        for workers in workers {
            let read = || peer("venv-stream", "stream_rows.py", &["read", kind, &target, workers]);
            forget_cache(&folder);
            let Some(first) = read() else { continue };
            agree(kind, &first, &seen);
            let seconds = |answer: &Value| answer["seconds"].as_f64().expect("the peer says so");
            let again: Vec<f64> = (0..2).filter_map(|_| read()).map(|answer| seconds(&answer)).collect();
            let fastest = again.into_iter().fold(f64::INFINITY, f64::min);
            bench.note(&format!("{}, {kind}, {workers} workers, warm", load.name), rate(fastest), "Mtok/s");
            bench.note(&format!("{}, {kind}, {workers} workers, cold", load.name), rate(seconds(&first)), "Mtok/s");
            best_warm = best_warm.min(fastest);
            best_cold = best_cold.min(seconds(&first));
        }
    }
    if best_warm.is_finite() {
        bench.at_least(&format!("{}, warm, of the best loader", load.name), best_warm / warm, 3.0, "x");
        bench.note(&format!("{}, cold, of the best loader", load.name), best_cold / cold, "x");
    }
    std::fs::remove_dir_all(&folder).expect("our own folder");
}

async fn open(store: &Path, plan_id: &str) -> StoredPlan {
    let lake = Lake::open(StoreSettings::at(text(store))).await.expect("our own store");
    StoredPlan::open(&lake, plan_id).await.expect("our own plan")
}

/// Seconds of one pass over all micro-batches, from opening the store on.
async fn pass(store: &Path, plan_id: &str, with_experts: bool, hashes: bool) -> f64 {
    let start = Instant::now();
    let plan = open(store, plan_id).await;
    let options = StreamOptions { with_experts, hashes, ..StreamOptions::of_rank(0, 1) };
    let mut stream = plan.stream(options).await.expect("a stream");
    let mut tokens = 0;
    while let Some(micro_batch) = stream.next().await.expect("a micro-batch") {
        tokens += micro_batch.n_tokens;
    }
    assert!(tokens > 0);
    start.elapsed().as_secs_f64()
}

/// What there is to see; not timed.
async fn look(store: &Path, plan_id: &str, with_experts: bool) -> Seen {
    let plan = open(store, plan_id).await;
    let options = StreamOptions { with_experts, ..StreamOptions::of_rank(0, 1) };
    let mut stream = plan.stream(options).await.expect("a stream");
    let mut seen = Seen::default();
    while let Some(micro_batch) = stream.next().await.expect("a micro-batch") {
        add(&mut seen, &micro_batch);
    }
    seen
}

fn add(seen: &mut Seen, micro_batch: &MicroBatch) {
    let batch = &micro_batch.batch;
    seen.samples += batch.num_rows() as u64;
    let weights = batch["loss_weight"].as_primitive::<Float64Type>();
    for row in 0..batch.num_rows() {
        let list = |name: &str| batch[name].as_list::<i32>().value(row);
        let (ids, mask, logprobs) = (list("token_ids"), list("loss_mask"), list("logprobs"));
        let ids = ids.as_primitive::<Int32Type>();
        let mask = mask.as_primitive::<Int8Type>();
        let logprobs = logprobs.as_primitive::<Float32Type>();
        seen.tokens += ids.len() as u64;
        seen.trained += mask.values().iter().map(|m| u64::from(*m == 1)).sum::<u64>();
        seen.token_id_sum += ids.values().iter().map(|id| f64::from(*id)).sum::<f64>();
        let terms = mask.values().iter().zip(logprobs.values()).map(|(m, x)| f64::from(*m) * f64::from(*x));
        seen.weighted_loss_sum += weights.value(row) * terms.sum::<f64>();
        if let Some(experts) = batch.column_by_name("routed_experts") {
            seen.expert_bytes += experts.as_binary::<i64>().value(row).len() as u64;
        }
    }
}

/// The peer read the same rows.
fn agree(kind: &str, theirs: &Value, ours: &Seen) {
    let exact = [
        ("samples", ours.samples),
        ("tokens", ours.tokens),
        ("trained", ours.trained),
        ("expert_bytes", ours.expert_bytes),
    ];
    for (key, value) in exact {
        assert_eq!(theirs[key].as_u64(), Some(value), "{key} of {kind}");
    }
    for (key, value) in [("token_id_sum", ours.token_id_sum), ("weighted_loss_sum", ours.weighted_loss_sum)] {
        let their = theirs[key].as_f64().expect("the peer says so");
        assert!((their - value).abs() <= 1e-6 * value.abs().max(1e-12), "{key} of {kind}: {their}, ours {value}");
    }
}
