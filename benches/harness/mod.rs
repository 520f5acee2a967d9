//! What every benchmark of this folder needs: the command as a subprocess with its peak memory, Python peers, the
//! disk's own rate, and a line a claim that is also kept as JSON.
//!
//! A claim that falls short prints `SHORT` and does not fail the run: on a loaded machine that is weather, and the
//! numbers are there to be read. `DRESSAGE_BENCH_SCALE` (default 1.0) makes every load smaller or larger;
//! `DRESSAGE_BENCH_BIN` measures another build of the command; `DRESSAGE_BENCH_DIR` is the disk to measure on.

#![allow(dead_code, reason = "each benchmark is a program of its own and uses a part of this")]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

/// A finished subprocess.
pub(crate) struct Finished {
    pub(crate) stdout: String,
    pub(crate) seconds: f64,
    pub(crate) peak_rss_bytes: u64,
}

/// One benchmark: its scratch space and its results.
pub(crate) struct Bench {
    name: &'static str,
    scratch: tempfile::TempDir,
    results: Vec<Value>,
}

pub(crate) const MIB: f64 = 1_048_576.0;

/// The load factor.
pub(crate) fn scale() -> f64 {
    std::env::var("DRESSAGE_BENCH_SCALE").ok().and_then(|text| text.parse().ok()).unwrap_or(1.0)
}

/// `count` under the load factor, at least 1.
pub(crate) fn scaled(count: u64) -> u64 {
    ((count as f64 * scale()) as u64).max(1)
}

fn command() -> Command {
    let path = std::env::var_os("DRESSAGE_BENCH_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_dressage").into());
    Command::new(path)
}

/// Runs to the end; a failure ends the benchmark, with the program's own words.
fn finish(command: Command) -> Finished {
    let shown = format!("{command:?}");
    let (status, finished) = run(command);
    assert!(status == 0, "{shown} ended with status {status}:\n{}", finished.stdout);
    finished
}

/// Runs to the end; also the wait status, 0 for success.
#[expect(clippy::zombie_processes, reason = "wait4 waits for it, and says what it used")]
fn run(mut command: Command) -> (i32, Finished) {
    let start = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    let mut stdout = String::new();
    if let Some(mut pipe) = child.stdout.take() {
        pipe.read_to_string(&mut stdout).expect("output is text");
    }
    let mut status = 0;
    // SAFETY: all-zero is a valid rusage, and both pointers are to live values.
    let (waited, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::wait4(child.id() as libc::pid_t, &raw mut status, 0, &raw mut usage), usage)
    };
    assert!(waited > 0, "{command:?} cannot be waited for");
    let seconds = start.elapsed().as_secs_f64();
    (status, Finished { stdout, seconds, peak_rss_bytes: usage.ru_maxrss as u64 * 1024 })
}

/// The last line of a program's output as JSON.
fn last_json(finished: &Finished) -> Value {
    let line = finished.stdout.lines().rfind(|line| line.starts_with('{')).unwrap_or("{}");
    serde_json::from_str(line).unwrap_or_else(|error| panic!("not JSON ({error}): {line}"))
}

/// Runs `dressage` with these arguments.
pub(crate) fn dressage(args: &[&str]) -> Finished {
    let mut command = command();
    command.args(args);
    finish(command)
}

/// An ingest and its own report.
pub(crate) struct Ingested {
    pub(crate) seconds: f64,
    pub(crate) peak_rss_bytes: u64,
    pub(crate) report: Value,
}

impl Ingested {
    pub(crate) fn number(&self, key: &str) -> f64 {
        self.report[key].as_f64().unwrap_or_else(|| panic!("the report has no {key}: {}", self.report))
    }
}

/// `dressage ingest SOURCE --store STORE --json …`, timed without the time that `store init` takes.
pub(crate) fn ingest(source: &Path, store: &Path, more: &[&str]) -> Ingested {
    let (source, store) = (text(source), text(store));
    let mut args = vec!["ingest", &source, "--store", &store, "--json"];
    args.extend_from_slice(more);
    let finished = dressage(&args);
    // The one JSON object may be printed over several lines.
    let from = finished.stdout.find('{').unwrap_or_default();
    let report: Value = serde_json::from_str(&finished.stdout[from..]).expect("--json prints one object");
    let seconds = report["seconds"].as_f64().unwrap_or(finished.seconds);
    Ingested { seconds, peak_rss_bytes: finished.peak_rss_bytes, report }
}

pub(crate) fn text(path: &Path) -> String {
    path.to_str().expect("scratch paths are text").to_owned()
}

/// Where the Python peers live: made by `benches/peers/setup.sh`.
fn python(venv: &str) -> PathBuf {
    let cache = std::env::var_os("DRESSAGE_CACHE")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").expect("a home folder")).join(".cache/dressage"));
    cache.join(venv).join("bin/python")
}

/// Longest that a peer may take, in seconds.
const PEER_SECONDS_MAX: &str = "600";

/// Runs a peer; `None` (said aloud) where its environment is not set up or it fails. Its last line is a JSON object,
/// to which the process's own peak memory is added.
pub(crate) fn peer(venv: &str, script: &str, args: &[&str]) -> Option<Value> {
    let python = python(venv);
    if !python.exists() {
        println!("  ({script} not run: no {}; benches/peers/setup.sh makes it)", python.display());
        return None;
    }
    let mut command = Command::new("timeout");
    let script_path = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers").join(script);
    command.arg(PEER_SECONDS_MAX).arg(python).arg(script_path).args(args).stderr(Stdio::null());
    let (status, finished) = run(command);
    if status != 0 {
        println!("  ({script} failed or took longer than {PEER_SECONDS_MAX} s: no comparison)");
        return None;
    }
    let mut answer = last_json(&finished);
    answer["process_peak_rss_bytes"] = json!(finished.peak_rss_bytes);
    Some(answer)
}

/// Sequential write with one fsync at the end, in bytes a second: what the disk itself can promise.
pub(crate) fn fsynced_write_rate(dir: &Path, bytes: usize) -> f64 {
    let path = dir.join("rate");
    // Not zeros: a file system may store those for nothing.
    let mut block = vec![0_u8; 4 << 20];
    let mut state = 1_u64;
    for word in block.as_chunks_mut::<8>().0 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *word = state.to_le_bytes();
    }
    let start = Instant::now();
    let mut file = File::create(&path).expect("scratch can be written");
    let mut written = 0;
    while written < bytes {
        file.write_all(&block).expect("scratch can be written");
        written += block.len();
    }
    file.sync_all().expect("fsync");
    let rate = written as f64 / start.elapsed().as_secs_f64();
    fs::remove_file(path).expect("our own file");
    rate
}

/// Bytes of all files under `dir`.
pub(crate) fn folder_bytes(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => folder_bytes(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

/// Asks the kernel to forget the cached pages of every file under `dir`.
pub(crate) fn forget_cache(dir: &Path) {
    use std::os::fd::AsRawFd;
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            forget_cache(&path);
        } else if let Ok(file) = File::open(&path) {
            // Dirty pages cannot be dropped, so they are written first.
            let _ = file.sync_all();
            // SAFETY: the descriptor is open; the call touches no memory of ours.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        }
    }
}

/// The median.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

impl Bench {
    /// Opens scratch space on the disk to measure.
    pub(crate) fn new(name: &'static str) -> Self {
        let parent = std::env::var_os("DRESSAGE_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let scratch = tempfile::Builder::new().prefix("dressage-bench-").tempdir_in(parent).expect("scratch space");
        let build = if cfg!(debug_assertions) { ", UNOPTIMISED" } else { "" };
        println!("== {name} (scale {}{build})", scale());
        Self { name, scratch, results: Vec::new() }
    }

    /// A path on the disk to measure.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Scratch space in memory.
    pub(crate) fn ram() -> tempfile::TempDir {
        tempfile::Builder::new().prefix("dressage-bench-").tempdir_in("/dev/shm").expect("/dev/shm can be written")
    }

    /// Makes a load.
    pub(crate) fn synth(&self, path: &Path, args: &[&str]) -> u64 {
        let path_text = text(path);
        let mut all = vec!["synth", &path_text];
        all.extend_from_slice(args);
        dressage(&all);
        fs::metadata(path).expect("synth wrote it").len()
    }

    /// A number that stands for itself.
    pub(crate) fn note(&mut self, what: &str, value: f64, unit: &str) {
        println!("  {what}: {value:.4} {unit}");
        self.results.push(json!({"what": what, "value": value, "unit": unit}));
    }

    /// A claim: `value` is at most `bound`.
    pub(crate) fn at_most(&mut self, what: &str, value: f64, bound: f64, unit: &str) {
        self.claim(what, value, bound, unit, "<=", value <= bound);
    }

    /// A claim: `value` is at least `bound`.
    pub(crate) fn at_least(&mut self, what: &str, value: f64, bound: f64, unit: &str) {
        self.claim(what, value, bound, unit, ">=", value >= bound);
    }

    fn claim(&mut self, what: &str, value: f64, bound: f64, unit: &str, sign: &str, held: bool) {
        let verdict = if held { "ok" } else { "SHORT" };
        println!("  {verdict:5} {what}: {value:.4} {unit} ({sign} {bound:.4})");
        self.results
            .push(json!({"what": what, "value": value, "unit": unit, "bound": bound, "sign": sign, "held": held}));
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("benchmarks");
        let body = json!({"benchmark": self.name, "scale": scale(), "results": self.results});
        let written = fs::create_dir_all(&dir)
            .and_then(|()| fs::write(dir.join(format!("{}.json", self.name)), format!("{body:#}\n")));
        if let Err(error) = written {
            println!("  (results not kept: {error})");
        }
    }
}
