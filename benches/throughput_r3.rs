//! Token records with router choices, Arrow input: bytes a second into the store.
//!
//! On a RAM disk against TransferQueue's put of the same tensors (which keeps them in memory), time and memory. On
//! disk against what bounds it: the smaller of the disk's own fsynced write rate (stored bytes) and the codec alone
//! (one encoder a core); and against pyarrow writing the same table as zstd Parquet.

mod harness;

use std::path::Path;
use std::time::Instant;

use dressage_codec::synthetic::{RouterShape, SeededRandom, SyntheticRouter};
use dressage_codec::{EncodeOptions, Encoder, Mode, RoutedView};
use harness::{Bench, Ingested, MIB, folder_bytes, forget_cache, fsynced_write_rate, ingest, peer, scaled, text};

const TOKENS: usize = 16_384;

fn main() {
    let mut bench = Bench::new("throughput_r3");
    let trajectories = scaled(192);
    let count = trajectories.to_string();
    let args = ["--trajectories", &count, "--tokens", "16384", "--segments", "1", "--layers", "40", "--no-messages"];
    let ram = Bench::ram();
    let load = ram.path().join("load.arrow");
    bench.synth(&load, &args);
    // Logical bytes: ids, log-probabilities, mask and router choices, as TransferQueue would be given them.
    let logical = trajectories as f64 * (TOKENS as f64 * 9.0 + (TOKENS - 1) as f64 * 320.0);
    bench.note("logical bytes", logical / 1e6, "MB");

    let store = ram.path().join("store");
    let in_ram = ingest(&load, &store, &["--memory-limit", "512MiB"]);
    let ours = rate(&mut bench, "RAM disk, ranked", logical, &in_ram);
    std::fs::remove_dir_all(&store).expect("our own store");
    let as_sets = ingest(&load, &store, &["--memory-limit", "512MiB", "--experts-as-sets"]);
    rate(&mut bench, "RAM disk, sets", logical, &as_sets);
    std::fs::remove_dir_all(&store).expect("our own store");
    if let Some(theirs) = peer("venv-tq", "tq_put.py", &[&count, "16384", "40", "8"]) {
        let number = |key: &str| theirs[key].as_f64().expect("the peer says so");
        let put = logical / number("seconds");
        bench.note("TransferQueue put", put / 1e6, "MB/s");
        bench.note("TransferQueue peak memory of all processes", number("peak_rss_bytes") / MIB, "MiB");
        bench.at_least("RAM disk, of TransferQueue's put", ours / put, 1.0, "x");
        let memory = in_ram.peak_rss_bytes as f64 / number("peak_rss_bytes");
        bench.at_most("peak memory, of TransferQueue's", memory, 0.1, "x");
    }

    let store = bench.path("store");
    let on_disk = ingest(&load, &store, &[]);
    let ours = rate(&mut bench, "disk, ranked", logical, &on_disk);
    let stored = folder_bytes(&store) as f64;
    std::fs::remove_dir_all(&store).expect("our own store");
    let disk = fsynced_write_rate(bench.path("").as_path(), stored as usize) * logical / stored;
    let codec = codec_alone();
    bench.note("disk, logical bytes at its fsynced write rate", disk / 1e6, "MB/s");
    bench.note("codec alone, all cores", codec / 1e6, "MB/s");
    bench.at_least("disk, of the smaller of disk and codec", ours / disk.min(codec), 0.8, "x");
    parquet(&mut bench, &load, logical, ours);
}

fn rate(bench: &mut Bench, what: &str, logical: f64, ingested: &Ingested) -> f64 {
    let rate = logical / ingested.seconds;
    bench.note(what, rate / 1e6, "MB/s");
    bench.note(&format!("{what}, stored of logical"), ingested.number("bytes_stored") / logical, "x");
    bench.note(&format!("{what}, peak memory"), ingested.peak_rss_bytes as f64 / MIB, "MiB");
    rate
}

fn parquet(bench: &mut Bench, load: &Path, logical: f64, ours: f64) {
    let out = bench.path("peer.parquet");
    if let Some(theirs) = peer("venv", "parquet_write.py", &[&text(load), &text(&out)]) {
        let written = logical / theirs["seconds"].as_f64().expect("the peer says so");
        bench.note("pyarrow zstd Parquet", written / 1e6, "MB/s");
        bench.at_least("disk, of pyarrow's Parquet", ours / written, 2.0, "x");
    }
    forget_cache(bench.path("").as_path());
}

/// Logical bytes a second of encoding router choices, an encoder a core.
fn codec_alone() -> f64 {
    let router = SyntheticRouter::new(RouterShape::default(), 1).expect("the shape is in bounds");
    let mut ids = Vec::new();
    router.append(TOKENS - 1, &mut SeededRandom::new(2), &mut ids);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let rounds = 24;
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                let view = RoutedView::new(&ids, router.dtype(), TOKENS - 1, 40, 8).expect("the shape fits");
                let options = EncodeOptions { n_experts: Some(128), ..EncodeOptions::new(Mode::Ranked) };
                let mut encoder = Encoder::new().expect("memory");
                for _ in 0..rounds {
                    drop(encoder.encode(&view, &options).expect("ids are in range"));
                }
            });
        }
    });
    let logical = TOKENS as f64 * 9.0 + ids.len() as f64;
    (cores * rounds) as f64 * logical / start.elapsed().as_secs_f64()
}
