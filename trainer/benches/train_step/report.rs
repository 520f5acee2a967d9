//! A line a number, printed and kept as JSON, in the form of the other benchmarks (`benches/harness`).

use std::path::Path;

use serde_json::{Value, json};

/// The results so far; written when it goes.
pub(crate) struct Report {
    name: &'static str,
    results: Vec<Value>,
}

impl Report {
    pub(crate) fn new(name: &'static str) -> Self {
        println!("== {name}{}", if cfg!(debug_assertions) { " (UNOPTIMISED)" } else { "" });
        Self { name, results: Vec::new() }
    }

    /// A number that stands for itself.
    pub(crate) fn note(&mut self, what: &str, value: f64, unit: &str) {
        println!("        {what}: {value:.4} {unit}");
        self.results.push(json!({"what": what, "value": value, "unit": unit}));
    }

    /// A claim: `value` is at most `bound`.
    pub(crate) fn at_most(&mut self, what: &str, value: f64, bound: f64, unit: &str) {
        let held = value <= bound;
        println!("  {:5} {what}: {value:.4} {unit} (<= {bound:.4})", if held { "ok" } else { "SHORT" });
        self.results
            .push(json!({"what": what, "value": value, "unit": unit, "bound": bound, "sign": "<=", "held": held}));
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("benchmarks");
        let body = json!({"benchmark": self.name, "results": self.results});
        let written = std::fs::create_dir_all(&dir)
            .and_then(|()| std::fs::write(dir.join(format!("{}.json", self.name)), format!("{body:#}\n")));
        if let Err(error) = written {
            println!("  (results not kept: {error})");
        }
    }
}
