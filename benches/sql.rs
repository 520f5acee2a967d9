//! Metadata queries over a million trajectories: our SQL on the lake against DuckDB on the Parquet that `export`
//! wrote of it. Each side opens once and runs each query several times; the best time counts.

mod harness;

use std::time::{Duration, Instant};

use dressage_segmenter::{Session, SessionSettings};
use dressage_storage::{Lake, StoreSettings};
use harness::{Bench, dressage, ingest, peer, scaled, text};

/// The command's own: what runs inside a benchmark is to run as it does there.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUNDS: usize = 5;

/// Name, the SQL of both sides, and the least of DuckDB's speed that we claim.
const QUERIES: [(&str, &str, f64); 6] = [
    ("count", "SELECT count(*) AS n FROM trajectories", 1.0),
    (
        "group statistics",
        "SELECT group_id, count(*) AS n, avg(reward) AS mean, stddev_samp(reward) AS spread FROM trajectories \
         GROUP BY group_id",
        1.0,
    ),
    (
        "window and join back",
        "SELECT t.trajectory_id, (t.reward - g.mean) / (g.spread + 1e-6) AS advantage FROM trajectories t JOIN \
         (SELECT group_id, avg(reward) AS mean, stddev_samp(reward) AS spread FROM trajectories GROUP BY group_id) g \
         ON t.group_id = g.group_id",
        1.0,
    ),
    (
        "window over groups",
        "SELECT trajectory_id, reward - avg(reward) OVER (PARTITION BY group_id) AS centred FROM trajectories",
        1.0,
    ),
    ("selective filter", "SELECT trajectory_id, n_tokens FROM trajectories WHERE n_tokens > 220", 1.0 / 3.0),
    ("point look-up", "SELECT trajectory_id, reward FROM trajectories WHERE trajectory_id = '{known}'", 1.0 / 3.0),
];

fn main() {
    let mut bench = Bench::new("sql");
    let trajectories = scaled(1_000_000);
    let count = trajectories.to_string();
    let load = bench.path("load.arrow");
    bench.synth(
        &load,
        &["--trajectories", &count, "--tokens", "64", "--segments", "1", "--no-messages", "--length-spread", "0.5"],
    );
    let store = bench.path("store");
    let ingested = ingest(&load, &store, &[]);
    bench.note("ingest of the load", trajectories as f64 / ingested.seconds, "trajectories/s");
    std::fs::remove_file(&load).expect("our own load");
    dressage(&["store", "compact", "--store", &text(&store)]);
    let table = bench.path("trajectories.parquet");
    dressage(&[
        "sql",
        "SELECT * FROM trajectories",
        "--store",
        &text(&store),
        "--format",
        "parquet",
        "--output",
        &text(&table),
    ]);

    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let settings = SessionSettings { time_limit_ms: Some(60_000), ..SessionSettings::default() };
    let session = runtime.block_on(async {
        let lake = Lake::open(StoreSettings::at(text(&store))).await.expect("the store opens");
        Session::open(lake.snapshot(None).await.expect("a snapshot"), settings).expect("a session")
    });
    // An id from the middle of the load, whatever its size.
    let known = format!("synth-0-{:08}", trajectories * 7 / 9);
    let queries = QUERIES.map(|(name, sql, least)| (name, sql.replace("{known}", &known), least));
    let texts = serde_json::to_string(&queries.each_ref().map(|query| &query.1)).expect("text");
    let theirs = peer("venv", "duckdb_sql.py", &[&text(&table), &texts]);
    for (index, (name, sql, least)) in queries.iter().enumerate() {
        let mut best = Duration::MAX;
        let mut rows = 0;
        for _ in 0..ROUNDS {
            let start = Instant::now();
            rows = runtime.block_on(async {
                let mut stream = session.sql(sql).await.expect("the query plans");
                let mut rows = 0;
                while let Some(batch) = stream.next_batch().await.expect("the query runs") {
                    rows += batch.num_rows();
                }
                rows
            });
            best = best.min(start.elapsed());
        }
        let ours = best.as_secs_f64();
        bench.note(&format!("{name}: dressage, {rows} rows"), ours * 1e3, "ms");
        if let Some(theirs) = &theirs {
            let answer = &theirs["queries"][index];
            assert_eq!(answer["rows"].as_u64(), Some(rows as u64), "{name}: the two engines disagree");
            let seconds = answer["seconds"].as_f64().expect("the peer says so");
            bench.note(&format!("{name}: DuckDB"), seconds * 1e3, "ms");
            bench.at_least(&format!("{name}: of DuckDB's speed"), seconds / ours, *least, "x");
        }
    }
}
