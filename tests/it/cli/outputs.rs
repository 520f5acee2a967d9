//! Files that commands write: whole or not at all, whatever ends the writing, and a full disk is told by its path.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use super::run::{Ran, dressage, run};
use crate::whole::local;

/// A store with a load of synthetic trajectories, and a plan over it; gives the plan's id.
fn store(folder: &Path) -> String {
    let load = ["synth", "load.jsonl", "--trajectories", "16", "--tokens", "4000", "--ungraded-share", "0", "--quiet"];
    run(folder, &load).exits(0);
    run(folder, &["ingest", "load.jsonl", "--quiet"]).exits(0);
    let plan = ["plan", "--global-batch-size", "8", "--max-tokens-per-micro-batch", "16384", "--json", "--quiet"];
    run(folder, &plan).exits(0).json()["plan_id"].as_str().expect("an id").to_owned()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Runs a command that takes long, and stops it once it has begun.
fn stopped(folder: &Path, args: &[&str], signal: libc::c_int) -> Ran {
    let child =
        dressage(folder).args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("dressage starts");
    std::thread::sleep(Duration::from_secs(2));
    // SAFETY: the process is ours and not yet waited for.
    unsafe { libc::kill(child.id() as libc::pid_t, signal) };
    let ended = child.wait_with_output().expect("ends");
    Ran {
        stdout: String::from_utf8_lossy(&ended.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&ended.stderr).into_owned(),
        code: ended.status.code().unwrap_or(-1),
    }
}

#[test]
fn a_query_that_fails_halfway_leaves_the_file_that_was_there() {
    let folder = tempfile::tempdir().expect("tempdir");
    store(folder.path());
    std::fs::create_dir(folder.path().join("results")).expect("made");
    std::fs::write(folder.path().join("results/out.csv"), "old").expect("written");
    let failing = "select cast(trajectory_id as int) as n from trajectories";
    for format in ["csv", "json", "ndjson", "table", "parquet"] {
        run(folder.path(), &["sql", failing, "--format", format, "-o", "results/out.csv"]).exits(2);
        let kept = std::fs::read_to_string(folder.path().join("results/out.csv")).expect("there");
        assert_eq!((kept.as_str(), names(&folder.path().join("results"))), ("old", vec!["out.csv".to_owned()]));
    }
    run(folder.path(), &["sql", "select 1 as n", "--format", "csv", "-o", "results/out.csv"]).exits(0);
    assert_eq!(std::fs::read_to_string(folder.path().join("results/out.csv")).expect("there"), "n\n1\n");
    assert_eq!(names(&folder.path().join("results")), ["out.csv"]);
}

#[test]
fn a_stopped_command_exits_with_130_and_leaves_the_file_that_was_there_and_nothing_else() {
    let folder = tempfile::tempdir().expect("tempdir");
    store(folder.path());
    std::fs::create_dir(folder.path().join("results")).expect("made");
    let slow = "select count(*) from range(0, 1000000000) a, range(0, 1000000000) b where a.value + b.value = 7";
    let never = format!("n_tokens > ({slow})");
    let commands: [(&str, Vec<&str>); 4] = [
        ("out.csv", vec!["sql", slow, "-o", "results/out.csv"]),
        ("out.jsonl", vec!["export", "--to", "jsonl", "results/out.jsonl", "--where", &never]),
        ("out.arrow", vec!["export", "--to", "arrow", "results/out.arrow", "--where", &never]),
        ("load.jsonl", vec!["synth", "results/load.jsonl", "--trajectories", "100000000"]),
    ];
    for (nth, (name, args)) in commands.into_iter().enumerate() {
        let file = folder.path().join("results").join(name);
        std::fs::write(&file, "old").expect("written");
        let signal = if nth % 2 == 0 { libc::SIGINT } else { libc::SIGTERM };
        let ended = stopped(folder.path(), &args, signal).exits(130);
        assert!(ended.stderr.contains("what was there before stays"), "{args:?}: {}", ended.stderr);
        assert_eq!(std::fs::read_to_string(&file).expect("there"), "old", "{args:?}");
        assert_eq!(names(&folder.path().join("results")), [name], "{args:?}");
        std::fs::remove_file(&file).expect("removed");
    }
    stopped(folder.path(), &["export", "--to", "parquet", "results/parts", "--where", &never], libc::SIGINT).exits(130);
    assert_eq!(names(&folder.path().join("results")), [""; 0]);
}

#[test]
fn a_full_disk_is_exhausted_and_named_by_the_path_and_what_to_do() {
    let folder = tempfile::tempdir().expect("tempdir");
    let plan = store(folder.path());
    let place = folder.path().join("results");
    std::fs::create_dir(&place).expect("made");
    // a limit on the size of a file stands for a full disk, which only root can have
    let limited = local(&folder.path().join("store")).with_files_bytes_max(20_000);
    let path = |name: &str| place.join(name).display().to_string();
    let tokens = "select token_ids, logprobs from steps";
    let rank = ["--rank", "0", "--world-size", "1"];
    let commands: Vec<(String, Vec<String>)> = [
        ("out.csv", vec!["sql", tokens, "--format", "csv", "-o", "PATH"]),
        ("out.json", vec!["sql", tokens, "--format", "json", "-o", "PATH"]),
        ("out.parquet", vec!["sql", tokens, "--format", "parquet", "-o", "PATH"]),
        ("out.jsonl", vec!["export", "--to", "jsonl", "PATH"]),
        ("out.arrow", vec!["export", "--to", "arrow", "PATH"]),
        ("parts", vec!["export", "--to", "parquet", "PATH"]),
        ("load.jsonl", vec!["synth", "PATH", "--trajectories", "64"]),
        ("load.arrow", vec!["synth", "PATH", "--trajectories", "64"]),
        ("load.parquet", vec!["synth", "PATH", "--trajectories", "64"]),
        ("part.arrows", [&["batches", "--plan", &plan, "-o", "PATH"], &rank[..]].concat()),
        ("part.json", [&["batches", "--plan", &plan, "--format", "json", "-o", "PATH"], &rank[..]].concat()),
    ]
    .into_iter()
    .map(|(name, args)| {
        let args = args.into_iter().map(|arg| if arg == "PATH" { path(name) } else { arg.to_owned() });
        (path(name), args.collect())
    })
    .collect();
    for (path, args) in commands {
        let ran = limited.run(&args).expect("runs");
        assert_eq!(ran.code, Some(7), "{ran:?}");
        assert!(ran.stderr.contains(&path) && ran.stderr.contains("raise that limit"), "{args:?}: {}", ran.stderr);
        assert_eq!(names(&place), [""; 0], "{args:?}");
    }
}

#[test]
fn standard_output_and_devices_are_written_to_as_they_are() {
    let folder = tempfile::tempdir().expect("tempdir");
    store(folder.path());
    run(folder.path(), &["sql", "select 1", "-o", "/dev/null"]).exits(0);
    run(folder.path(), &["export", "--to", "jsonl", "/dev/null"]).exits(0);
    let full = run(folder.path(), &["export", "--to", "jsonl", "/dev/full"]).exits(7);
    assert!(full.stderr.contains("cannot write /dev/full: its disk is full; free some space"), "{}", full.stderr);
    let lines = run(folder.path(), &["export", "--to", "jsonl", "-"]).exits(0).stdout;
    assert_eq!(lines.lines().count(), 16);
    let nowhere = run(folder.path(), &["sql", "select 1", "-o", "no/such/folder.csv"]).exits(3);
    assert!(nowhere.stderr.contains("cannot write no/such/folder.csv"), "{}", nowhere.stderr);
}
