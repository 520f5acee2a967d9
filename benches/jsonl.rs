//! JSON lines in: our ingest of the dressage format, checked, hashed and stored, against DuckDB and Polars reading
//! the same file into memory, whichever is faster.

mod harness;

use harness::{Bench, ingest, peer, scaled, text};

fn main() {
    let mut bench = Bench::new("jsonl");
    for (what, shape) in [
        ("tokens", &["--tokens", "8192", "--no-messages"][..]),
        ("tokens and messages", &["--tokens", "2048"]),
        ("tokens and routed experts", &["--tokens", "4096", "--layers", "40", "--no-messages"]),
    ] {
        let load = bench.path("load.jsonl");
        let per_trajectory = if shape.contains(&"--layers") { 96 } else { 1_024 };
        let count = scaled(per_trajectory).to_string();
        let mut args = vec!["--trajectories", &count];
        args.extend_from_slice(shape);
        let bytes = bench.synth(&load, &args) as f64;
        let store = bench.path("store");
        let ours = bytes / ingest(&load, &store, &[]).seconds;
        std::fs::remove_dir_all(&store).expect("our own store");
        bench.note(&format!("{what}: dressage ({:.0} MB)", bytes / 1e6), ours / 1e6, "MB/s");
        let mut fastest = 0.0_f64;
        for engine in ["duckdb", "polars"] {
            if let Some(theirs) = peer("venv", "json_read.py", &[engine, &text(&load)]) {
                let rate = bytes / theirs["seconds"].as_f64().expect("the peer says so");
                bench.note(&format!("{what}: {engine}"), rate / 1e6, "MB/s");
                fastest = fastest.max(rate);
            }
        }
        if fastest > 0.0 {
            bench.at_least(&format!("{what}: of the faster reader"), ours / fastest, 1.0, "x");
        }
        std::fs::remove_file(&load).expect("our own load");
    }
}
