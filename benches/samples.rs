//! Samples of a million segments (125,000 groups of eight trajectories, metadata only): our views on the lake against
//! DuckDB running the same SQL files over Parquet of the same metadata. Each side opens once and runs each query
//! several times; the best time counts. Then the same under a memory limit of 256 MB.

mod harness;

use std::time::{Duration, Instant};

use arrow::array::AsArray;
use arrow::datatypes::{Float64Type, Int64Type};
use dressage_segmenter::{Session, SessionSettings};
use dressage_storage::{Lake, StoreSettings};
use harness::{Bench, dressage, ingest, peer, scaled, text};

/// The command's own: what runs inside a benchmark is to run as it does there.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUNDS: usize = 3;

/// What a million segments may take, in seconds.
const SECONDS_MAX: f64 = 5.0;

const QUERIES: [(&str, &str); 2] = [
    ("samples, all columns", "SELECT * FROM samples"),
    (
        "samples, what a planner reads",
        "SELECT trajectory_key, segment_index, run_id, instance_id, group_id, n_tokens, mask_sum, advantage, denominator \
         FROM samples",
    ),
];

/// The sums by which the two engines are compared.
const SUMS: &str = "SELECT sum(advantage), sum(denominator), sum(mask_sum), sum(raw_reward) FROM samples";

/// Every column of steps that no trainer reads on its way to the device.
const STEP_COLUMNS: &str = "trajectory_key, write_id, step_index, segment_index, turn_id, lineage_id, lineage_index, route, \
     base_step, boundary, boundary_reasons, finish_reason, model, weight_version, n_context_tokens, n_output_tokens, \
     mask_spans, version_spans, mask_nonlast_version, trainable, flags, usage_input_tokens, usage_output_tokens, \
     created_at, messages, n_context_messages, tools, extra, \
     NULL::bytea AS token_ids, NULL::bytea AS logprobs, NULL::bytea AS routed_experts";

fn main() {
    let mut bench = Bench::new("samples");
    let trajectories = scaled(1_000_000);
    let count = trajectories.to_string();
    let load = bench.path("load.arrow");
    bench.synth(
        &load,
        &[
            "--trajectories",
            &count,
            "--group-size",
            "8",
            "--tokens",
            "16",
            "--segments",
            "1",
            "--no-messages",
            "--length-spread",
            "0.5",
            "--weight-versions",
            "8",
        ],
    );
    let store = bench.path("store");
    ingest(&load, &store, &[]);
    std::fs::remove_file(&load).expect("our own load");
    dressage(&["store", "compact", "--store", &text(&store)]);
    let tables = bench.path("tables");
    std::fs::create_dir(&tables).expect("scratch can be written");
    for (name, columns) in [("trajectories", "*"), ("steps", STEP_COLUMNS), ("weight_versions", "*")] {
        let query = format!("SELECT {columns} FROM stored.{name}");
        let file = text(&tables.join(format!("{name}.parquet")));
        dressage(&["sql", &query, "--store", &text(&store), "--format", "parquet", "--output", &file]);
    }

    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let open = |memory_limit_bytes: u64| {
        let settings =
            SessionSettings { memory_limit_bytes, time_limit_ms: Some(600_000), ..SessionSettings::default() };
        runtime.block_on(async {
            let lake = Lake::open(StoreSettings::at(text(&store))).await.expect("the store opens");
            Session::open(lake.snapshot(None).await.expect("a snapshot"), settings).expect("a session")
        })
    };
    let session = open(1 << 30);
    let in_force = serde_json::to_string(&session.settings_in_force()).expect("text");
    let queries = serde_json::to_string(&QUERIES.map(|(_, sql)| sql)).expect("text");
    let threads = std::thread::available_parallelism().map_or(1, usize::from).to_string();
    let sql_dir = concat!(env!("CARGO_MANIFEST_DIR"), "/segmenter/sql");
    let theirs = peer("venv", "duckdb_samples.py", &[sql_dir, &text(&tables), &threads, &in_force, &queries]);

    for (index, (name, sql)) in QUERIES.iter().enumerate() {
        let (ours, rows) = (0..ROUNDS).map(|_| run(&runtime, &session, sql)).min().expect("a round");
        let ours = ours.as_secs_f64();
        bench.at_most(&format!("{name}: {rows} segments"), ours, SECONDS_MAX, "s");
        if let Some(theirs) = &theirs {
            let answer = &theirs["queries"][index];
            assert_eq!(answer["rows"].as_u64(), Some(rows as u64), "{name}: the two engines disagree");
            let seconds = answer["seconds"].as_f64().expect("the peer says so");
            bench.note(&format!("{name}: DuckDB"), seconds, "s");
            bench.at_least(&format!("{name}: of DuckDB's speed"), seconds / ours, 1.0, "x");
        }
    }
    let wanted = sums(&runtime, &session);
    if let Some(theirs) = &theirs {
        for (ours, theirs) in wanted.iter().zip(theirs["sums"].as_array().expect("sums")) {
            let theirs = theirs.as_f64().expect("a sum");
            assert!((ours - theirs).abs() <= 1e-9 * theirs.abs().max(1e3), "the sums differ: {ours} and {theirs}");
        }
    }

    let small = open(256 << 20);
    let (time, rows) = run(&runtime, &small, QUERIES[0].1);
    assert_eq!(rows as u64, trajectories, "segments are lost under a memory limit");
    bench.note("all columns under a memory limit of 256 MiB", time.as_secs_f64(), "s");
    for (ours, wanted) in sums(&runtime, &small).iter().zip(&wanted) {
        assert!((ours - wanted).abs() <= 1e-9 * wanted.abs().max(1e3), "the sums differ under a memory limit");
    }
}

/// How long a query takes, and its rows.
fn run(runtime: &tokio::runtime::Runtime, session: &Session, sql: &str) -> (Duration, usize) {
    let start = Instant::now();
    let rows = runtime.block_on(async {
        let mut stream = session.sql(sql).await.expect("the query plans");
        let mut rows = 0;
        while let Some(batch) = stream.next_batch().await.expect("the query runs") {
            rows += batch.num_rows();
        }
        rows
    });
    (start.elapsed(), rows)
}

/// The four sums.
fn sums(runtime: &tokio::runtime::Runtime, session: &Session) -> Vec<f64> {
    let batches = runtime.block_on(async { session.sql(SUMS).await.expect("plans").collect().await.expect("runs") });
    let batch = batches.iter().find(|batch| batch.num_rows() == 1).expect("one row");
    let value = |column: &arrow::array::ArrayRef| match column.as_primitive_opt::<Float64Type>() {
        Some(doubles) => doubles.value(0),
        None => column.as_primitive::<Int64Type>().value(0) as f64,
    };
    batch.columns().iter().map(value).collect()
}
