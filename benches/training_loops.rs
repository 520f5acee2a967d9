//! From stored rollouts to micro-batches: SQL, planner and stream, against loops over Python lists and over NumPy
//! arrays that do the same, 512 trajectories of two segments of 8,192 tokens.
//!
//! All three begin with rollouts at rest and end with packed micro-batches in memory: lists from JSON lines, arrays from
//! Parquet, ours from the store; and all give the same numbers. The loops without their reading are noted, too.

mod harness;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{Float32Type, Float64Type, Int8Type, Int32Type};
use dressage_segmenter::plan::{PlanRequest, PlanSettings, Planner, Scope, Trained};
use dressage_segmenter::{Session, SessionSettings, StoredPlan, StreamOptions};
use dressage_storage::maintain::snapshots;
use dressage_storage::{Lake, StoreSettings, plans};
use harness::{Bench, dressage, ingest, median, peer, scaled, text};
use serde_json::Value;

/// The command's own: what runs inside a benchmark is to run as it does there.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const GLOBAL_BATCH_SIZE: u64 = 64;
const MAX_TOKENS_PER_MICRO_BATCH: u64 = 65_536;

/// What came out.
#[derive(Debug, Default, Clone, Copy)]
struct Made {
    samples: u64,
    tokens: u64,
    trained: u64,
    token_id_sum: f64,
    abs_advantage_sum: f64,
    weighted_loss_sum: f64,
}

fn main() {
    let mut bench = Bench::new("training_loops");
    // full train steps of whole groups only: a smaller one would weigh prompts by the order of groups
    let count = (scaled(512) / GLOBAL_BATCH_SIZE * GLOBAL_BATCH_SIZE).max(GLOBAL_BATCH_SIZE).to_string();
    let (load, store) = (bench.path("load.arrow"), bench.path("store"));
    bench.synth(
        &load,
        &["--trajectories", &count, "--segments", "2", "--tokens", "16384", "--layers", "0", "--no-messages"],
    );
    ingest(&load, &store, &[]);
    let (store_text, lists, arrays) = (text(&store), text(&bench.path("lists.jsonl")), text(&bench.path("arrays")));
    dressage(&["export", "--to", "jsonl", &lists, "--store", &store_text]);
    dressage(&["export", "--to", "parquet", &arrays, "--store", &store_text]);

    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut seconds = Vec::new();
    for round in 0..3 {
        // another seed is another plan, so that each round plans and stores anew
        seconds.push(runtime.block_on(ours(&store, round)).0);
    }
    let seconds = median(seconds);
    let made = runtime.block_on(ours(&store, 3)).1;
    bench.note("ours, from the store to the last micro-batch", seconds, "s");
    bench.note("ours", made.tokens as f64 / seconds / 1e6, "Mtok/s");

    let settings = format!(
        "{{\"global_batch_size\": {GLOBAL_BATCH_SIZE}, \"max_tokens_per_micro_batch\": {MAX_TOKENS_PER_MICRO_BATCH}}}"
    );
    for (kind, source, bound) in [("python", &lists, 50.0), ("numpy", &arrays, 5.0)] {
        let mut whole = Vec::new();
        let mut loops = Vec::new();
        for _ in 0..3 {
            let Some(theirs) = peer("venv", "training_loops.py", &[kind, source, &settings]) else { return };
            agree(kind, &theirs, &made);
            let number = |key: &str| theirs[key].as_f64().expect("the peer says so");
            whole.push(number("read_seconds") + number("loop_seconds"));
            loops.push(number("loop_seconds"));
        }
        let (whole, loops) = (median(whole), median(loops));
        bench.note(&format!("{kind}, with reading"), whole, "s");
        bench.note(&format!("{kind}, the loops alone"), loops, "s");
        bench.note(&format!("loops of {kind} alone, of our whole"), loops / seconds, "x");
        bench.at_least(&format!("{kind}, of our time"), whole / seconds, bound, "x");
    }
}

/// Plans, stores the plan and streams all its micro-batches; the numbers are added up after the clock stopped.
async fn ours(store: &Path, seed: i64) -> (f64, Made) {
    let start = Instant::now();
    let lake = Lake::open(StoreSettings::at(text(store))).await.expect("our own store");
    let snapshot = lake.snapshot(None).await.expect("a snapshot");
    let session = Session::open(snapshot.clone(), SessionSettings::default()).expect("a session");
    let request = PlanRequest {
        scope: Scope::OnlyRun,
        trained: Trained::nothing(),
        settings: PlanSettings { seed, ..PlanSettings::new(GLOBAL_BATCH_SIZE, MAX_TOKENS_PER_MICRO_BATCH, 1) },
    };
    let planner =
        Planner::new(&session, Arc::new(snapshot.clone()), snapshot.versions(), request).await.expect("a planner");
    let tag = plans::snapshot_tag(planner.plan_id());
    let named = snapshots::create(&snapshot, Some(&tag)).await.expect("a snapshot");
    let mut plan = planner.plan().await.expect("a plan");
    plan.row.snapshot_id = named.snapshot_id;
    let made = StoredPlan::made(&plan, &snapshot).expect("our own plan");
    let options = StreamOptions { hashes: false, ..StreamOptions::of_rank(0, 1) };
    // reading ahead begins while the plan is stored; no micro-batch is taken before it is
    let (stored, stream) = tokio::join!(plans::append(&lake, plan.row.clone(), &plan.batches), made.stream(options));
    stored.expect("a stored plan");
    let mut stream = stream.expect("a stream");
    let mut all = Vec::new();
    while let Some(micro_batch) = stream.next().await.expect("a micro-batch") {
        all.push(micro_batch.batch);
    }
    let seconds = start.elapsed().as_secs_f64();
    let mut made = Made::default();
    for batch in &all {
        made.samples += batch.num_rows() as u64;
        let advantages = batch["advantage"].as_primitive::<Float64Type>();
        let weights = batch["loss_weight"].as_primitive::<Float64Type>();
        for row in 0..batch.num_rows() {
            let list = |name: &str| batch[name].as_list::<i32>().value(row);
            let (ids, mask, logprobs) = (list("token_ids"), list("loss_mask"), list("logprobs"));
            let mask = mask.as_primitive::<Int8Type>();
            made.tokens += ids.len() as u64;
            made.trained += mask.values().iter().map(|m| u64::from(*m == 1)).sum::<u64>();
            made.token_id_sum += ids.as_primitive::<Int32Type>().values().iter().map(|id| f64::from(*id)).sum::<f64>();
            made.abs_advantage_sum += advantages.value(row).abs();
            let logprobs = logprobs.as_primitive::<Float32Type>();
            let terms = mask.values().iter().zip(logprobs.values()).map(|(m, x)| f64::from(*m) * f64::from(*x));
            made.weighted_loss_sum += advantages.value(row) * weights.value(row) * terms.sum::<f64>();
        }
    }
    (seconds, made)
}

/// The peer made the same.
fn agree(kind: &str, theirs: &Value, ours: &Made) {
    for (key, value) in [("samples", ours.samples), ("tokens", ours.tokens), ("trained", ours.trained)] {
        assert_eq!(theirs[key].as_u64(), Some(value), "{key} of {kind}");
    }
    let close = [
        ("token_id_sum", ours.token_id_sum),
        ("abs_advantage_sum", ours.abs_advantage_sum),
        ("weighted_loss_sum", ours.weighted_loss_sum),
    ];
    for (key, value) in close {
        let their = theirs[key].as_f64().expect("the peer says so");
        assert!((their - value).abs() <= 1e-6 * value.abs().max(1e-9), "{key} of {kind}: {their}, ours {value}");
    }
}
