//! Names that are not there: what looks like an answer, or like a failure of the store, is told for what it is.

use std::path::Path;

use super::run::run;

/// Two runs of two trajectories each.
fn store() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("tempdir");
    let line = |id: &str| {
        format!(
            "{{\"trajectory_id\":\"{id}\",\"reward\":1.0,\"segments\":[{{\"segment_index\":0,\"tokens\":[1,2],\
             \"full_loss_mask\":[0,1],\"full_logprobs\":[0,-1]}}]}}\n"
        )
    };
    std::fs::write(folder.path().join("two.jsonl"), [line("a"), line("b")].concat()).expect("written");
    for name in ["nightly", "weekly"] {
        run(folder.path(), &["ingest", "two.jsonl", "--run", name, "--quiet"]).exits(0);
    }
    folder
}

/// What a command that ends so says on stderr.
fn said(folder: &Path, code: i32, args: &[&str]) -> String {
    run(folder, args).exits(code).stderr
}

#[test]
fn a_run_or_grader_that_is_not_there_is_said_beside_the_empty_answer() {
    let folder = store();
    let count = "select count(*) as n from trajectories";
    let note = said(folder.path(), 0, &["sql", count, "--run", "nighly"]);
    assert!(note.contains("no run `nighly` is in this store: did you mean `nightly`?"), "{note}");
    let note = said(folder.path(), 0, &["ls", "--run", "nobody"]);
    assert!(note.contains("no run `nobody` is in this store: it has nightly, weekly"), "{note}");
    let note = said(folder.path(), 0, &["stats", "--no-bytes", "--set", "grader=nobody"]);
    assert!(note.contains("no grader `nobody` is in this store: it has "), "{note}");
    let shape = ["plan", "--run", "weekly", "--global-batch-size", "2", "--max-tokens-per-micro-batch", "64"];
    let note = said(folder.path(), 2, &[&shape[..], &["--set", "grader=nobody"]].concat());
    assert!(note.contains("no grader `nobody`") && note.contains("ungraded"), "{note}");
    assert_eq!(said(folder.path(), 0, &["sql", count, "--run", "nightly"]), "");
    assert_eq!(said(folder.path(), 0, &["sql", count, "--run", "nobody", "--quiet"]), "");
}

#[test]
fn what_a_flag_says_is_refused_as_a_variable_that_would_change_nothing() {
    let folder = store();
    let told = said(folder.path(), 2, &["sql", "select 1", "--set", "memory_limit_bytes=1000"]);
    assert!(told.contains("memory_limit_bytes is a limit") && told.contains("use --memory-limit"), "{told}");
    let told = said(folder.path(), 2, &["sql", "set time_limit_ms = 5; select 1"]);
    assert!(told.contains("use --time-limit"), "{told}");
    let told = said(folder.path(), 2, &["sql", "select 1", "--run", "weekly", "--set", "run=nightly"]);
    assert!(told.contains("--run and --set run="), "{told}");
    let shape = ["plan", "--run", "weekly", "--global-batch-size", "2", "--max-tokens-per-micro-batch", "64"];
    let told = said(folder.path(), 2, &[&shape[..], &["--set", "global_batch_size=8"]].concat());
    assert!(told.contains("use --global-batch-size"), "{told}");
}

#[test]
fn a_misspelt_table_or_column_names_the_one_that_is_meant() {
    let folder = store();
    for (query, says) in [
        ("select rewrad from trajectories", "there is no column `rewrad`: did you mean `reward`?"),
        ("select t.rewrad from trajectories t", "there is no column `t.rewrad`: did you mean `reward`?"),
        ("select count(*) from trajectorys", "there is no table `trajectorys`: did you mean `trajectories`?"),
        ("select * from stored.step", "there is no table `stored.step`: did you mean `stored.steps`?"),
        ("select zzzzzz from steps", "there is no column `zzzzzz`; there are "),
        ("create view v as select rewrad from trajectories", "did you mean `reward`?"),
    ] {
        let told = said(folder.path(), 2, &["sql", query]);
        assert!(told.contains(says), "{query}\n{told}");
    }
    let told = said(folder.path(), 2, &["ls", "--where", "rewrad > 0"]);
    assert!(told.contains("did you mean `reward`?"), "{told}");
}

#[test]
fn a_limit_of_memory_is_told_in_our_words() {
    let folder = tempfile::tempdir().expect("tempdir");
    run(folder.path(), &["synth", "load.jsonl", "--trajectories", "400", "--tokens", "400", "--quiet"]).exits(0);
    run(folder.path(), &["ingest", "load.jsonl", "--quiet"]).exits(0);
    let all = "select array_agg(token_ids), array_agg(logprobs) from steps";
    let told = said(folder.path(), 7, &["sql", all, "--memory-limit", "1MiB"]);
    assert!(told.contains("reached memory_limit, which is 1 MiB: raise it (--memory-limit"), "{told}");
    assert!(!told.contains("because") && !told.contains("consumer"), "no engine internals: {told}");
}

#[test]
fn a_plan_that_is_not_there_is_no_failure_of_the_store() {
    let folder = store();
    let replay = |plan: &str| said(folder.path(), 3, &["replay", "--plan", plan]);
    let told = replay("4f2a");
    assert!(told.starts_with("error: there is no plan whose id begins with `4f2a`: the store has no plans"), "{told}");
    let shape = ["plan", "--run", "weekly", "--global-batch-size", "2", "--max-tokens-per-micro-batch", "64"];
    let report = run(folder.path(), &[&shape[..], &["--json"]].concat()).exits(0).json();
    let id = report["plan_id"].as_str().expect("an id");
    // its first digits with one changed
    let digit = if id.as_bytes()[6] == b'0' { '1' } else { '0' };
    let told = replay(&format!("{}{digit}{}", &id[..6], &id[7..8]));
    assert!(told.contains(&format!("did you mean {id}?")), "{told}");
    let told = said(folder.path(), 3, &[&shape[..], &["--after", "zzzz"]].concat());
    assert!(told.contains(&id[..8]) && told.contains("select plan_id"), "{told}");
}

#[test]
fn quiet_silences_notes_and_not_the_result() {
    let folder = store();
    let shape = ["plan", "--run", "weekly", "--global-batch-size", "2", "--max-tokens-per-micro-batch", "64", "-q"];
    let ran = run(folder.path(), &shape).exits(0);
    assert!(ran.stdout.contains("1 train step of 2 trajectories") && ran.stderr.is_empty(), "{}", ran.stdout);
    let again = run(folder.path(), &shape).exits(0);
    assert!(again.stdout.contains("1 train step") && again.stderr.is_empty(), "{}", again.stderr);
}

#[test]
fn reasons_in_quarantine_are_shown_as_they_are() {
    let folder = tempfile::tempdir().expect("tempdir");
    let bad = "{\"trajectory_id\":\"a\",\"segments\":[{\"tok\n";
    let good = "{\"trajectory_id\":\"b\",\"segments\":[{\"segment_index\":0,\"tokens\":[1],\"full_loss_mask\":[1],\
                \"full_logprobs\":[0]}]}\n";
    std::fs::write(folder.path().join("x.jsonl"), [good, bad].concat()).expect("written");
    run(folder.path(), &["ingest", "x.jsonl", "--format", "dressage", "--quiet"]).exits(9);
    let shown = run(folder.path(), &["sql", "select reason from quarantine", "--format", "csv"]).exits(0).stdout;
    assert!(!shown.contains('\\'), "{shown}");
}
