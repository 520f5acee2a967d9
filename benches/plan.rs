//! Packing and balance of train steps against first-fit-decreasing and Karmarkar–Karp on one long-tailed load, and what
//! planning takes: memory of the command, and bytes that it reads of a store whose payload is a thousand times larger.

#[path = "reference/dp_schedule.rs"]
mod dp_schedule;
mod harness;

use std::time::Instant;

use dp_schedule::{by_first_fit_decreasing, by_karmarkar_karp};
use dressage_segmenter::plan::{CostModel, PackOptions, pack};
use harness::{Bench, MIB, dressage, folder_bytes, ingest, scaled, text};
use serde_json::Value;

/// Tokens of a micro-batch, and the longest sample.
const CAP: u64 = 32_768;
/// Train steps of a load.
const STEPS: u64 = 10;

/// One way of packing over all steps.
#[derive(Default)]
struct Outcome {
    tokens: u64,
    micro_batches: u64,
    over_cap: u64,
    spreads: Vec<f64>,
    seconds: f64,
}

impl Outcome {
    fn add(&mut self, ranks: &[Vec<Vec<usize>>], lengths: &[u64], cost: CostModel, seconds: f64) {
        let tokens = |bin: &[usize]| bin.iter().map(|&i| lengths[i]).sum::<u64>();
        self.tokens += lengths.iter().sum::<u64>();
        self.micro_batches += ranks.iter().map(|r| r.len() as u64).sum::<u64>();
        self.over_cap += ranks.iter().flatten().filter(|bin| tokens(bin) > CAP).count() as u64;
        let costs: Vec<f64> = ranks.iter().map(|r| r.iter().flatten().map(|&i| cost.of(lengths[i])).sum()).collect();
        let most = costs.iter().copied().fold(0.0, f64::max);
        self.spreads.push((most - costs.iter().copied().fold(most, f64::min)) / most);
        self.seconds += seconds;
    }

    fn efficiency(&self) -> f64 {
        self.tokens as f64 / (self.micro_batches * CAP) as f64
    }

    fn worst_spread(&self) -> f64 {
        self.spreads.iter().copied().fold(0.0, f64::max)
    }
}

/// Log-normal lengths, median 4,024 and sigma 1: a mean of 6,100 tokens, one in fifty cut at 32,768.
fn long_tailed(count: u64, seed: u64) -> Vec<u64> {
    let mut state = seed;
    let mut uniform = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    };
    let mut length = move || {
        let normal = (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
        (8.3 + normal).exp().clamp(64.0, CAP as f64) as u64
    };
    (0..count).map(|_| length()).collect()
}

fn packing(bench: &mut Bench) {
    let cost = CostModel::default();
    for (world, samples_per_rank) in [(8, 48), (8, 96), (16, 96), (64, 96)] {
        let options = PackOptions { max_tokens: CAP, world_size: world, cost };
        let (mut ours, mut fit, mut kk) = (Outcome::default(), Outcome::default(), Outcome::default());
        let (mut least, mut fewest) = (0, u64::MAX);
        for step in 0..STEPS {
            let lengths = long_tailed((world * samples_per_rank) as u64, 1 + step);
            let timed = |make: &dyn Fn() -> Vec<Vec<Vec<usize>>>| {
                let start = Instant::now();
                (make(), start.elapsed().as_secs_f64())
            };
            let (ranks, seconds) = timed(&|| pack(&lengths, &options).ranks);
            fewest = fewest.min(ranks[0].len() as u64);
            ours.add(&ranks, &lengths, cost, seconds);
            let (ranks, seconds) = timed(&|| by_first_fit_decreasing(&lengths, CAP, world, |n| cost.of(n)));
            fit.add(&ranks, &lengths, cost, seconds);
            let (ranks, seconds) = timed(&|| by_karmarkar_karp(&lengths, CAP, world, |n| cost.of(n)));
            kk.add(&ranks, &lengths, cost, seconds);
            least += lengths.iter().sum::<u64>().div_ceil(CAP).next_multiple_of(world as u64);
        }
        let of =
            format!("{world} ranks, {} samples a step, from {fewest} micro-batches a rank", world * samples_per_rank);
        // equal counts on every rank leave room that no packing fills: with n micro-batches a rank, half of 1/n on average
        let bound = ours.tokens as f64 / (least * CAP) as f64;
        bench.note(&format!("{of}: the best that equal counts allow"), 100.0 * bound, "%");
        if samples_per_rank >= 96 {
            bench.at_least(&format!("{of}: packing efficiency"), 100.0 * ours.efficiency(), 95.0, "%");
        } else {
            bench.at_least(&format!("{of}: of the best possible"), 100.0 * ours.efficiency() / bound, 98.0, "%");
        }
        bench.at_most(&format!("{of}: rank spread, worst step"), 100.0 * ours.worst_spread(), 3.0, "%");
        bench.note(&format!("{of}: seconds a step"), ours.seconds / STEPS as f64, "s");
        for (name, peer) in [("first-fit-decreasing", &fit), ("Karmarkar-Karp", &kk)] {
            bench.note(&format!("{of}: {name}, packing efficiency"), 100.0 * peer.efficiency(), "%");
            bench.note(&format!("{of}: {name}, rank spread, worst step"), 100.0 * peer.worst_spread(), "%");
            let over = 100.0 * peer.over_cap as f64 / peer.micro_batches as f64;
            bench.note(&format!("{of}: {name}, micro-batches over the cap"), over, "%");
            bench.note(&format!("{of}: {name}, seconds a step"), peer.seconds / STEPS as f64, "s");
        }
        assert_eq!(ours.over_cap, 0, "a micro-batch is over the cap");
    }
}

/// `dressage plan --json` as a process of its own: its report, peak memory in MiB, seconds.
fn plan(store: &str, more: &[&str]) -> (Value, f64, f64) {
    let mut args = vec!["plan", "--store", store, "--json", "--quiet", "--global-batch-size", "256"];
    args.extend_from_slice(&["--max-tokens-per-micro-batch", "131072", "--world-size", "8"]);
    args.extend_from_slice(more);
    let finished = dressage(&args);
    let report = serde_json::from_str(&finished.stdout).expect("--json prints one object");
    (report, finished.peak_rss_bytes as f64 / MIB, finished.seconds)
}

/// Trajectories that one load file holds: the load is ingested piece by piece, so that the disk need not hold it twice.
const PIECE: u64 = 64;

/// Long trajectories with router choices: planning must not touch the payload.
fn long_trajectories(bench: &mut Bench) {
    let trajectories = scaled(4_096);
    let store = bench.path("store");
    let mut payload = 0;
    for piece in 0..trajectories.div_ceil(PIECE) {
        let count = PIECE.min(trajectories - piece * PIECE).to_string();
        let (seed, run) = (piece.to_string(), "r");
        let load = bench.path("load.arrow");
        let shape = ["--tokens", "65536", "--segments", "2", "--layers", "40", "--topk", "8", "--no-messages"];
        let mut args = vec!["--trajectories", &count, "--seed", &seed, "--run", run];
        args.extend_from_slice(&shape);
        payload += bench.synth(&load, &args);
        ingest(&load, &store, &[]);
        std::fs::remove_file(&load).expect("our own load");
    }
    let stored = folder_bytes(&store);
    let what = format!("{trajectories} trajectories of 65,536 tokens, 40 layers, top 8");
    bench.note(&format!("{what}: raw"), payload as f64 / MIB, "MiB");
    bench.note(&format!("{what}: stored"), stored as f64 / MIB, "MiB");
    let store = text(&store);
    let (report, peak, seconds) = plan(&store, &["--dry-run"]);
    let first = &report["estimators"][0];
    assert_eq!(first["n_trajectories"].as_u64(), Some(trajectories), "{first}");
    let read = report["read_bytes"].as_u64().expect("the report says how much was read");
    bench.note(&format!("{what}: planned in"), seconds, "s");
    bench.at_most(&format!("{what}: peak memory"), peak, 1_024.0, "MiB");
    bench.at_most(&format!("{what}: bytes read, of those stored"), 100.0 * read as f64 / stored as f64, 1.0, "%");
    let (again, limited, _) = plan(&store, &["--dry-run", "--memory-limit", "256MiB"]);
    bench.note(&format!("{what}: peak memory under 256 MiB"), limited, "MiB");
    assert_eq!(again["estimators"][0]["plan_id"], first["plan_id"], "a limit of memory changed the plan");
    assert_eq!(again["estimators"][0]["train_steps"], first["train_steps"], "a limit of memory changed the plan");
}

/// Many short trajectories: what the planner holds grows with samples, not with tokens.
fn many_samples(bench: &mut Bench) {
    let trajectories = scaled(500_000);
    let (load, store) = (bench.path("many.arrow"), bench.path("many"));
    let count = trajectories.to_string();
    let shape = ["--tokens", "64", "--segments", "2", "--no-messages", "--length-spread", "0.5"];
    let mut args = vec!["--trajectories", &count];
    args.extend_from_slice(&shape);
    bench.synth(&load, &args);
    ingest(&load, &store, &[]);
    std::fs::remove_file(&load).expect("our own load");
    let store = text(&store);
    let (report, peak, seconds) = plan(&store, &["--memory-limit", "1GiB"]);
    let samples = report["n_samples"].as_u64().expect("a count");
    bench.note(&format!("{samples} samples: planned and stored in"), seconds, "s");
    bench.note(&format!("{samples} samples: peak memory"), peak, "MiB");
}

fn main() {
    let mut bench = Bench::new("plan");
    packing(&mut bench);
    many_samples(&mut bench);
    long_trajectories(&mut bench);
}
