//! Processes that measure, and what they found.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The steps that count, of all processes; the last loss and the largest peak.
#[derive(Default)]
pub(crate) struct Measured {
    seconds: Vec<f64>,
    /// User and system: what is left to compare where others use the machine too.
    cpu_seconds: Vec<f64>,
    pub(crate) loss: f64,
    pub(crate) peak_bytes: f64,
}

impl Measured {
    pub(crate) fn add(&mut self, other: Self) {
        self.seconds.extend(other.seconds);
        self.cpu_seconds.extend(other.cpu_seconds);
        self.loss = other.loss;
        self.peak_bytes = self.peak_bytes.max(other.peak_bytes);
    }

    pub(crate) fn median_seconds(&self) -> f64 {
        median(&self.seconds)
    }

    pub(crate) fn median_cpu_seconds(&self) -> f64 {
        median(&self.cpu_seconds)
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |values: &[f64]| values.iter().map(|s| format!("{s:.3}")).collect::<Vec<_>>().join(" ");
        write!(
            f,
            "{} s; of the processor {} s; peak {:.3} GB, loss {:.6}",
            list(&self.seconds),
            list(&self.cpu_seconds),
            self.peak_bytes / 1e9,
            self.loss
        )
    }
}

/// This program with other arguments.
pub(crate) fn ours(arguments: &[&str]) -> Measured {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(arguments);
    measured(command)
}

/// `benches/peers/train_step.py` with these arguments.
pub(crate) fn theirs(arguments: &[&str]) -> Measured {
    let python = std::env::var_os("DRESSAGE_ORACLE_PYTHON").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").expect("HOME")).join(".cache/dressage/venv-oracle/bin/python"),
        PathBuf::from,
    );
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/peers/train_step.py");
    let mut command = Command::new(python);
    command.arg(script).args(arguments);
    measured(command)
}

fn measured(mut command: Command) -> Measured {
    // as many threads as asked for, whatever the libraries would choose
    for variable in ["OMP_NUM_THREADS", "MKL_NUM_THREADS"] {
        command.env(variable, threads().to_string());
    }
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().rfind(|l| l.starts_with('{')).expect("a line of JSON");
    let found: Value = serde_json::from_str(line).expect("JSON");
    let numbers = |key: &str| -> Vec<f64> {
        found[key].as_array().expect("a list").iter().map(|n| n.as_f64().expect("a number")).collect()
    };
    let (mut seconds, mut cpu_seconds) = (numbers("seconds"), numbers("cpu_seconds"));
    if seconds.len() > 1 {
        // the first step makes the optimiser's state, and brings libraries into memory
        seconds.remove(0);
        cpu_seconds.remove(0);
    }
    let loss = numbers("losses").pop().expect("a step");
    Measured { seconds, cpu_seconds, loss, peak_bytes: found["peak_bytes"].as_f64().expect("a number") }
}

/// Threads of either side.
pub(crate) fn threads() -> i32 {
    number("DRESSAGE_BENCH_THREADS").unwrap_or(1)
}

pub(crate) fn rounds() -> i32 {
    number("DRESSAGE_BENCH_ROUNDS").unwrap_or(3)
}

fn number(variable: &str) -> Option<i32> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

/// Processor time of this process so far, user and system, of all threads.
pub(crate) fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("stat");
    // the name before it may have blanks; hundredths of a second after it
    let (_, fields) = stat.rsplit_once(") ").expect("a name");
    let ticks = |index: usize| fields.split(' ').nth(index).and_then(|n| n.parse::<f64>().ok()).expect("a number");
    (ticks(11) + ticks(12)) / 100.0
}

/// This process's peak resident memory.
pub(crate) fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).expect("VmHWM");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") * 1024
}

/// The processor and what else it is doing, in words.
pub(crate) fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpus = read("/proc/cpuinfo");
    let value = |key: &str| {
        let line = cpus.lines().find(|l| l.starts_with(key)).and_then(|l| l.split_once(": "));
        line.map_or("?", |(_, value)| value).to_owned()
    };
    let n_cpus = cpus.lines().filter(|l| l.starts_with("processor")).count();
    let (family, model) = (value("cpu family"), value("model\t"));
    let instructions = ["avx512_bf16", "avx512f", "avx2"].into_iter().find(|i| cpus.contains(i)).unwrap_or("no AVX2");
    format!(
        "{} (family {family}, model {model}, {instructions}), {n_cpus} processors, {} used; load {}",
        value("model name"),
        threads(),
        read("/proc/loadavg").split_whitespace().take(3).collect::<Vec<_>>().join(" "),
    )
}
