//! Peak memory of an ingest under `--memory-limit 512MiB`: 1×, 4× and 16× of one load, with router choices and
//! without, and a single line of 64 MiB. The limit plus 200 MiB must hold at every size.

mod harness;

use std::path::Path;

use harness::{Bench, MIB, ingest, scaled};

const BOUND_MIB: f64 = 512.0 + 200.0;

fn main() {
    let mut bench = Bench::new("memory");
    let with = ["--tokens", "16384", "--segments", "1", "--layers", "40", "--no-messages"];
    let without = ["--tokens", "16384", "--segments", "2"];
    let cases = [
        ("routed experts, Arrow", "load.arrow", &with[..], scaled(16)),
        ("routed experts, JSONL", "load.jsonl", &with[..], scaled(16)),
        ("tokens only, Arrow", "load.arrow", &without[..], scaled(128)),
        ("tokens and messages, JSONL", "load.jsonl", &without[..], scaled(128)),
    ];
    for (what, file, shape, trajectories) in cases {
        for factor in [1, 4, 16] {
            let (load, store) = (bench.path(file), bench.path("store"));
            let count = (trajectories * factor).to_string();
            let mut args = vec!["--trajectories", &count];
            args.extend_from_slice(shape);
            let bytes = bench.synth(&load, &args);
            let ingested = ingest(&load, &store, &["--memory-limit", "512MiB"]);
            let what = format!("{what}, {factor}x ({:.0} MiB)", bytes as f64 / MIB);
            bench.at_most(&what, ingested.peak_rss_bytes as f64 / MIB, BOUND_MIB, "MiB");
            std::fs::remove_dir_all(&store).expect("our own store");
            std::fs::remove_file(&load).expect("our own load");
        }
    }
    let (load, store) = (bench.path("line.jsonl"), bench.path("store"));
    write_long_line(&load);
    let ingested = ingest(&load, &store, &["--memory-limit", "512MiB"]);
    assert_eq!(ingested.report["trajectories_new"], 1, "the long line is one trajectory: {}", ingested.report);
    bench.at_most("one line of 64 MiB", ingested.peak_rss_bytes as f64 / MIB, BOUND_MIB, "MiB");
}

/// One trajectory whose only segment is long enough to fill 64 MiB with tokens, mask and log-probabilities.
fn write_long_line(path: &Path) {
    let lists = [("tokens", "123456"), ("full_loss_mask", "1"), ("full_logprobs", "-0.123456")];
    let token_bytes: usize = lists.iter().map(|(_, value)| value.len() + 1).sum();
    let count = (64 << 20) / token_bytes;
    let mut line = String::with_capacity(65 << 20);
    line.push_str(r#"{"trajectory_id":"long","instance_id":"long","reward":1.0,"status":"completed","segments":["#);
    line.push_str(r#"{"segment_index":0"#);
    for (key, value) in lists {
        line.push_str(&format!(r#","{key}":["#));
        for index in 0..count {
            line.push_str(if index == 0 { "" } else { "," });
            line.push_str(value);
        }
        line.push(']');
    }
    line.push_str(r#","finish_reason":"stop"}]}"#);
    line.push('\n');
    std::fs::write(path, line).expect("scratch can be written");
}
