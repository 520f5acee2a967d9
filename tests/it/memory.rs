//! `--memory-limit` bounds the process, whatever the size of the input.

use dressage_rig::{Seed, Workload};

use crate::whole::{field, local};

const LIMIT: &str = "160MiB";
const LIMIT_BYTES: i64 = 160 << 20;
/// What the process may hold beyond the limit: code, runtime, metadata.
const ALLOWANCE_BYTES: i64 = 200 << 20;

#[test]
fn four_times_the_input_takes_no_more_memory_than_the_limit_and_its_allowance() {
    let dir = tempfile::tempdir().expect("a folder");
    let seed = Seed::of_run("memory");
    let mut peaks = Vec::new();
    for (name, trajectories) in [("small", 20), ("large", 80)] {
        // 40,000 tokens a trajectory, about 0.7 MB of JSON each.
        let workload = Workload::make(&seed.fork(trajectories), name, trajectories as usize, 40_000).expect("makes");
        let file = dir.path().join(format!("{name}.jsonl"));
        workload.write(&file).expect("writes");
        let dressage = local(&dir.path().join(name));
        let file = file.display().to_string();
        let args = ["ingest", &file, "--memory-limit", LIMIT, "--jobs", "2", "--json", "--quiet"];
        let finished = dressage.run(&args).expect("runs");
        let report = finished.expect_code(0).and_then(|f| f.json()).expect("ends well");
        assert_eq!(field(&report, "trajectories_new").expect("a count"), trajectories as i64);
        peaks.push(field(&report, "peak_rss_bytes").expect("a peak"));
    }
    eprintln!("peak RSS: {peaks:?}");
    let bound = LIMIT_BYTES + ALLOWANCE_BYTES;
    assert!(peaks.iter().all(|peak| *peak > 0 && *peak <= bound), "peaks {peaks:?} beyond {bound}");
}
