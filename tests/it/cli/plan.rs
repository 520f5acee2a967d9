//! Plans of real rollouts with token ids: what is taken, what is said, and that it is there again.

use std::path::Path;

use serde_json::Value;

use super::run::{Ran, run};

/// A store with the token files that ship here: two formats, two runs.
fn store() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("tempdir");
    for (files, name) in [("nemo-gym", "gym"), ("agent-lightning", "lightning")] {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(files).display().to_string();
        run(folder.path(), &["ingest", &data, "--run", name, "--quiet"]);
    }
    folder
}

fn plan(folder: &Path, more: &[&str]) -> Ran {
    let mut args = vec!["plan", "--global-batch-size", "4", "--max-tokens-per-micro-batch", "16384"];
    args.extend_from_slice(more);
    run(folder, &args)
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

fn sql(folder: &Path, query: &str) -> Value {
    run(folder, &["sql", query, "--json"]).exits(0).json()
}

#[test]
fn real_rollouts_are_planned_once_and_every_sample_has_its_place() {
    let folder = store();
    let told = plan(folder.path(), &["--run", "gym", "--world-size", "2"]).exits(0).stdout;
    assert!(told.contains("train steps") && told.contains("full") && told.contains("ranks differ"), "{told}");
    // with other options it is another plan
    let report = plan(folder.path(), &["--run", "gym", "--world-size", "3", "--json"]).exits(0).json();
    assert_eq!((&report["new"], &report["stored"]), (&true.into(), &true.into()));
    let id = report["plan_id"].as_str().expect("an id");
    let places = sql(
        folder.path(),
        &format!(
            "select count(*) as n, count(distinct (trajectory_key, segment_index)) as different, sum(n_tokens) as tokens, \
             min(cardinality(step_rows)) as steps from batches where plan_id = '{id}'"
        ),
    );
    let samples = sql(folder.path(), "select count(*) as n, sum(n_tokens) as tokens from samples where run_id = 'gym'");
    assert_eq!(places[0]["n"], samples[0]["n"]);
    assert_eq!(places[0]["different"], samples[0]["n"]);
    assert_eq!(places[0]["tokens"], samples[0]["tokens"]);
    assert!(count(&places[0]["steps"]) >= 1);
    let batches = format!(
        "select train_step, count(distinct dp_rank) as ranks, max(micro_batch) as last from batches \
         where plan_id = '{id}' group by train_step"
    );
    assert!(!sql(folder.path(), &batches).as_array().expect("rows").is_empty());

    let again = plan(folder.path(), &["--run", "gym", "--world-size", "3", "--json"]).exits(0);
    assert!(again.stderr.contains("there already"), "{}", again.stderr);
    let again = again.json();
    assert_eq!((&again["new"], &again["plan_id"]), (&false.into(), &report["plan_id"]));
    let plans = sql(folder.path(), "select plan_id, n_samples, world_size from plans order by world_size");
    assert_eq!(plans.as_array().expect("rows").len(), 2);
    assert_eq!(plans[1]["n_samples"], samples[0]["n"]);
    // the snapshot is tagged, so that gc leaves what the plan needs
    let tags = run(folder.path(), &["store", "snapshots", "--json"]).exits(0).stdout;
    assert!(tags.contains(&format!("plan:{id}")), "{tags}");
    run(folder.path(), &["store", "check"]).exits(0);
}

#[test]
fn several_runs_must_be_named() {
    let folder = store();
    let ran = plan(folder.path(), &[]).exits(2);
    assert!(ran.stderr.contains("gym, lightning") && ran.stderr.contains("--all-runs"), "{}", ran.stderr);
    plan(folder.path(), &["--run", "nobody"]).exits(3);
    plan(folder.path(), &["--run", "gym", "--all-runs"]).exits(2);
    let all = plan(folder.path(), &["--all-runs", "--json"]).exits(0).json();
    assert_eq!(all["run_id"], Value::Null);
}

#[test]
fn what_a_plan_carries_the_next_one_takes() {
    let folder = store();
    let scope = ["--run", "gym", "--json", "--remainder", "carry", "--global-batch-size"];
    let with = |size: &str, more: &[&str]| {
        let mut args = vec!["plan", "--max-tokens-per-micro-batch", "16384"];
        args.extend_from_slice(&scope);
        args.push(size);
        args.extend_from_slice(more);
        run(folder.path(), &args)
    };
    let all = sql(folder.path(), "select count(distinct trajectory_key) as n from samples where run_id = 'gym'");
    let all = count(&all[0]["n"]);
    let size = (all - 1).to_string();
    let first = with(&size, &[]).exits(0).json();
    let left = count(&first["remainder"]["n_trajectories"]);
    assert!(left > 0, "{first}");
    assert_eq!(count(&first["n_trajectories"]) + left, all);
    let id = first["plan_id"].as_str().expect("an id");
    let next = with("1", &["--after", &id[..8]]).exits(0).json();
    assert_eq!((count(&next["n_trajectories"]), &next["after_plan_id"]), (left, &first["plan_id"]));
    let both = sql(
        folder.path(),
        "select trajectory_key from batches group by trajectory_key having count(distinct plan_id) > 1",
    );
    assert!(both.as_array().expect("rows").is_empty(), "{both}");
    // nothing is left after both
    let id = next["plan_id"].as_str().expect("an id");
    let done = with("1", &["--after", id]).exits(0);
    assert!(done.stderr.contains("nothing is left to plan"), "{}", done.stderr);
    let done = done.json();
    assert_eq!((&done["plan_id"], &done["new"], count(&done["already_trained"])), (&Value::Null, &false.into(), all));
    with("1", &["--after", id, "--dry-run"]).exits(0);
    with("1", &["--after", "0000"]).exits(3);
}

#[test]
fn a_plan_of_an_earlier_moment_does_not_see_what_came_since() {
    let folder = store();
    run(folder.path(), &["store", "snapshot", "--tag", "before"]).exits(0);
    let before = plan(folder.path(), &["--run", "gym", "--json"]).exits(0).json();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/nemo-gym/tokens_tictactoe.jsonl");
    run(folder.path(), &["ingest", &data.display().to_string(), "--run", "later", "--quiet"]).exits(0);
    run(folder.path(), &["store", "compact", "--quiet"]).exits(0);
    let then = plan(folder.path(), &["--as-of", "before", "--json"]).exits(2);
    assert!(then.stderr.contains("gym, lightning ") || then.stderr.contains("gym, lightning)"), "{}", then.stderr);
    let then = plan(folder.path(), &["--run", "gym", "--as-of", "before", "--json"]).exits(0).json();
    assert_eq!((&then["plan_id"], &then["new"]), (&before["plan_id"], &false.into()));
    // versions differ now, so it is another plan, of the same samples
    let now = plan(folder.path(), &["--run", "gym", "--json"]).exits(0).json();
    assert_ne!(now["plan_id"], before["plan_id"]);
    assert_eq!(now["n_tokens"], before["n_tokens"]);
}

#[test]
fn a_dry_run_compares_estimators_and_stores_nothing() {
    let folder = store();
    let several = ["--run", "gym", "--estimator", "grpo", "--estimator", "reinforce"];
    plan(folder.path(), &several).exits(2);
    let mut dry = several.to_vec();
    dry.extend_from_slice(&["--dry-run", "--plot", "a.svg"]);
    let told = plan(folder.path(), &dry).exits(0);
    assert!(told.stdout.contains("with gradient") && told.stdout.contains("reinforce"), "{}", told.stdout);
    let drawn = std::fs::read_to_string(folder.path().join("a.svg")).expect("drawn");
    assert!(drawn.starts_with("<svg") && drawn.contains("reinforce"), "{drawn}");
    dry.pop();
    dry.extend_from_slice(&["a.png", "--json"]);
    let report = plan(folder.path(), &dry).exits(0).json();
    let estimators = report["estimators"].as_array().expect("a list");
    assert_eq!(estimators.len(), 2);
    for one in estimators {
        let counts: u64 = one["histogram"]["counts"].as_array().expect("counts").iter().map(count).sum();
        assert_eq!(counts, count(&one["n_samples"]));
        assert!(one["advantages"]["effective_batch_size"].is_number());
    }
    assert!(std::fs::read(folder.path().join("a.png")).expect("drawn").starts_with(b"\x89PNG"));
    assert!(sql(folder.path(), "select * from plans").as_array().expect("rows").is_empty());
    let tags = run(folder.path(), &["store", "snapshots", "--json"]).exits(0).json();
    assert!(tags.as_array().expect("rows").is_empty(), "{tags}");
    plan(folder.path(), &["--run", "gym", "--plot", "a.svg"]).exits(2);
}

#[test]
fn a_plan_that_fails_leaves_no_snapshot_behind() {
    let folder = store();
    let ran = run(
        folder.path(),
        &[
            "plan",
            "--run",
            "gym",
            "--max-tokens-per-micro-batch",
            "9",
            "--global-batch-size",
            "100000",
            "--remainder",
            "carry",
        ],
    )
    .exits(2);
    assert!(ran.stderr.contains("not fill"), "{}", ran.stderr);
    let tags = run(folder.path(), &["store", "snapshots", "--json"]).exits(0).json();
    assert!(tags.as_array().expect("rows").is_empty(), "{tags}");
}

#[test]
fn a_plan_is_removed_with_what_it_pins_unless_another_one_goes_on_after_it() {
    let folder = store();
    let all = sql(folder.path(), "select count(distinct trajectory_key) as n from samples where run_id = 'gym'");
    let size = (count(&all[0]["n"]) - 1).to_string();
    let carry = |size: &str, more: &[&str]| {
        let shape = ["plan", "--max-tokens-per-micro-batch", "16384", "--run", "gym", "--remainder", "carry", "--json"];
        let report = run(folder.path(), &[&shape[..], &["--global-batch-size", size], more].concat()).exits(0).json();
        report["plan_id"].as_str().expect("an id").to_owned()
    };
    let first = carry(&size, &[]);
    let next = carry("1", &["--after", &first]);
    let rm = |more: &[&str]| run(folder.path(), &[&["store", "rm-plan"], more].concat());
    let plans = || sql(folder.path(), "select plan_id from plans").as_array().expect("rows").len();

    let kept = rm(&[&first[..8], "--yes"]).exits(4);
    assert!(kept.stderr.contains(&format!("plan {next} goes on after it")) && kept.stderr.contains("--force"));
    assert_eq!(plans(), 2);
    let dry = rm(&[&next[..8]]).exits(0);
    assert!(dry.stdout.contains("plans: 1 row would be removed") && dry.stderr.contains("--yes"), "{}", dry.stdout);
    assert_eq!(plans(), 2);
    rm(&[&next[..8], "--yes"]).exits(0);
    assert_eq!(plans(), 1);
    let tags = run(folder.path(), &["store", "snapshots", "--json"]).exits(0).stdout;
    assert!(tags.contains(&first) && !tags.contains(&next), "{tags}");

    // what was streamed a moment ago may be in use
    let batches = ["batches", "--plan", &first, "--rank", "0", "--world-size", "1", "--format", "summary", "-q"];
    run(folder.path(), &batches).exits(0);
    let kept = rm(&[&first, "--yes"]).exits(4);
    assert!(kept.stderr.contains("was streamed at"), "{}", kept.stderr);
    rm(&[&first, "--yes", "--force"]).exits(0);
    assert_eq!(plans(), 0);
    assert!(sql(folder.path(), "select * from stored.batches").as_array().expect("rows").is_empty());
    rm(&[&first, "--yes"]).exits(3);
    run(folder.path(), &["store", "check"]).exits(0);
    // and the same plan can be made again
    assert_eq!(carry(&size, &[]), first);
}

#[test]
fn explain_runs_the_files_of_a_plan_as_they_were_although_they_are_gone() {
    let folder = store();
    let file = folder.path().join("mine.sql");
    std::fs::write(&file, "SELECT trajectory_key, 2 * reward + 1 AS advantage FROM anchors").expect("written");
    let keep = folder.path().join("keep.sql");
    std::fs::write(&keep, "SELECT trajectory_id, run_id FROM anchors WHERE n_tokens > 0").expect("written");
    let more = ["--run", "gym", "--estimator", "mine.sql", "--filter", "keep.sql", "--json"];
    let planned = plan(folder.path(), &more).exits(0).json();
    let id = planned["plan_id"].as_str().expect("an id");
    let explain =
        |more: &[&str]| run(folder.path(), &[&["explain", "--plan", id, "--train-step", "0"], more].concat()).exits(0);
    std::fs::write(&file, "SELECT trajectory_key, -7 AS advantage FROM anchors").expect("written");
    std::fs::remove_file(&keep).expect("removed");
    let explained = explain(&["--json"]).json();
    let query = &explained["query"];
    assert_eq!(query["stored_files"], serde_json::json!(["estimator", "filter"]), "{explained}");
    assert!(count(&query["n_rows_as_planned"]) > 0, "{explained}");
    assert_eq!(query["n_rows_as_planned"], query["n_rows_of_train_step"], "{explained}");
    let told = explain(&[]).stdout;
    assert!(told.contains("its estimator was a file: run as the plan stores it"), "{told}");
}
