//! From files to answers: ingest, sql, ls, show, stats, export, store, as a user types them.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use super::run::{Ran, dressage, finish, run};

fn data(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name).display().to_string()
}

/// Two trajectories of our own format: one of two segments, one that nobody graded.
const OURS: &str = concat!(
    r#"{"trajectory_id":"t-1","instance_id":"sum","run_id":"r","reward":1.0,"status":"completed","segments":["#,
    r#"{"segment_index":0,"tokens":[1,2,3,4],"full_loss_mask":[0,0,1,1],"full_logprobs":[0,0,-0.5,-0.25],"#,
    r#""messages":[{"role":"user","content":"2+2?"},{"role":"assistant","content":"4"}],"finish_reason":"stop"},"#,
    r#"{"segment_index":1,"tokens":[9,8],"full_loss_mask":[0,1],"full_logprobs":[0,-1],"messages":[{"role":"user","#,
    r#""content":"sure?"},{"role":"assistant","content":"yes"}],"finish_reason":"length"}]}"#,
    "\n",
    r#"{"trajectory_id":"t-2","instance_id":"sum","run_id":"r","reward":null,"status":"aborted","segments":["#,
    r#"{"segment_index":0,"tokens":[1,2],"full_loss_mask":[0,0],"full_logprobs":[0,0],"messages":[{"role":"user","#,
    r#""content":"2+2?"}]}]}"#,
    "\n",
);

/// A folder with the two trajectories of [`OURS`] in `./store`.
fn small_store() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("tempdir");
    let file = folder.path().join("ours.jsonl");
    std::fs::write(&file, OURS).expect("write");
    run(folder.path(), &["ingest", "ours.jsonl", "--quiet"]).exits(0);
    (folder, file)
}

fn sql(folder: &Path, query: &str) -> Value {
    run(folder, &["sql", query, "--json"]).exits(0).json()
}

#[test]
fn an_ingest_makes_its_store_and_reports_one_json_object() {
    let folder = tempfile::tempdir().expect("tempdir");
    std::fs::write(folder.path().join("ours.jsonl"), OURS).expect("write");
    let first = run(folder.path(), &["ingest", "ours.jsonl", "--json"]).exits(0);
    assert!(first.stderr.contains("made a store"), "{}", first.stderr);
    let report = first.json();
    for (key, wanted) in [("files", 1), ("trajectories_new", 2), ("tokens", 8), ("quarantined", 0)] {
        assert_eq!(report[key], wanted, "{key} of {report}");
    }
    for key in ["records", "trajectories_updated", "steps", "bytes_in", "bytes_stored", "peak_rss_bytes", "seconds"] {
        assert!(report[key].is_number(), "{key} of {report}");
    }
    assert_eq!(report["bytes_in"], OURS.len());
    let again = run(folder.path(), &["ingest", "ours.jsonl", "--json"]).exits(0).json();
    assert_eq!((&again["trajectories_new"], &again["trajectories_unchanged"]), (&0.into(), &2.into()));
}

#[test]
fn quarantined_records_exit_with_9_and_are_in_the_table() {
    let folder = tempfile::tempdir().expect("tempdir");
    let bad = OURS.replace("[0,0,1,1]", "[0,0,1]");
    std::fs::write(folder.path().join("ours.jsonl"), bad).expect("write");
    let report = run(folder.path(), &["ingest", "ours.jsonl", "--json"]).exits(9).json();
    assert_eq!((&report["trajectories_new"], &report["quarantined"]), (&1.into(), &1.into()));
    let rows = sql(folder.path(), "select line, trajectory_id, rule, reason from quarantine");
    assert_eq!(rows[0]["line"], 1);
    assert_eq!(rows[0]["trajectory_id"], "t-1");
    let reason = rows[0]["reason"].as_str().expect("text");
    assert!(reason.contains('4') && reason.contains('3'), "both lengths are named: {reason}");
}

#[test]
fn nul_bytes_after_the_last_record_are_quarantined_once_and_the_records_are_read() {
    let folder = tempfile::tempdir().expect("tempdir");
    let mut bytes = OURS.as_bytes().to_vec();
    bytes.resize(bytes.len() + 3_000_000, 0);
    std::fs::write(folder.path().join("ours.jsonl"), bytes).expect("write");
    let report = run(folder.path(), &["ingest", "ours.jsonl", "--json"]).exits(9).json();
    assert_eq!((&report["trajectories_new"], &report["quarantined"]), (&2.into(), &1.into()));
    let rows = sql(folder.path(), "select line, byte_offset, byte_length, rule, reason from quarantine");
    assert_eq!((&rows[0]["rule"], &rows[0]["line"]), (&"nul_bytes".into(), &3.into()), "{rows}");
    assert_eq!((&rows[0]["byte_offset"], &rows[0]["byte_length"]), (&OURS.len().into(), &3_000_000.into()), "{rows}");
    // from a copy with another name it is the same rejection
    std::fs::rename(folder.path().join("ours.jsonl"), folder.path().join("copy.jsonl")).expect("renamed");
    run(folder.path(), &["ingest", "copy.jsonl", "--quiet"]).exits(9);
    assert_eq!(sql(folder.path(), "select count(*) as n from quarantine")[0]["n"], 1);
}

#[test]
fn a_strict_ingest_stops_at_the_first_bad_record() {
    let folder = tempfile::tempdir().expect("tempdir");
    std::fs::write(folder.path().join("bad.jsonl"), OURS.replace("[0,0,1,1]", "[0,0,1]")).expect("write");
    let ran = run(folder.path(), &["ingest", "bad.jsonl", "--strict"]).exits(2);
    assert!(ran.stderr.contains("bad.jsonl"), "{}", ran.stderr);
}

#[test]
fn standard_input_is_a_source() {
    let folder = tempfile::tempdir().expect("tempdir");
    std::fs::write(folder.path().join("ours.jsonl"), OURS).expect("write");
    let input = std::fs::File::open(folder.path().join("ours.jsonl")).expect("open");
    let report = finish(dressage(folder.path()).args(["ingest", "-", "--json"]).stdin(input)).exits(0).json();
    assert_eq!(report["trajectories_new"], 2);
}

#[test]
fn ctrl_c_commits_what_came_through_a_pipe() {
    let folder = tempfile::tempdir().expect("tempdir");
    let mut child = dressage(folder.path())
        .args(["ingest", "-", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut input = child.stdin.take().expect("piped");
    input.write_all(OURS.as_bytes()).expect("it reads");
    // the first words come when the store is there, and the pipe is read right after
    let mut said = [0_u8; 4];
    child.stderr.as_mut().expect("piped").read_exact(&mut said).expect("made a store");
    std::thread::sleep(Duration::from_secs(1));
    // SAFETY: the process is ours and not yet waited for.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) };
    // the pipe stays open: nobody says that no more will come
    let ended = child.wait_with_output().expect("ends");
    drop(input);
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("goes on from there"), "{stderr}");
    let report: Value = serde_json::from_slice(&ended.stdout).expect("a report");
    assert_eq!((&report["stopped"], &report["trajectories_new"]), (&true.into(), &2.into()));
    assert_eq!(sql(folder.path(), "select count(*) as n from trajectories")[0]["n"], 2);
}

#[test]
fn the_exit_code_says_what_to_do() {
    let folder = tempfile::tempdir().expect("tempdir");
    let nothing = run(folder.path(), &["sql", "select 1"]).exits(3);
    assert!(nothing.stderr.contains("store init"), "{}", nothing.stderr);
    run(folder.path(), &["ingest", "not-there.jsonl"]).exits(3);
    let (folder, _) = small_store();
    run(folder.path(), &["sql", "select nothing from trajectories"]).exits(2);
    run(folder.path(), &["sql", "delete from trajectories"]).exits(2);
    run(folder.path(), &["show", "nobody"]).exits(3);
    run(folder.path(), &["show", "t-"]).exits(2);
    run(folder.path(), &["sql", "--as-of", "never", "select 1"]).exits(3);
    let slow = "select count(*) from range(0, 1000000000) a, range(0, 1000000000) b where a.value + b.value = 7";
    let ran = run(folder.path(), &["sql", "--time-limit", "200ms", slow]).exits(7);
    assert!(ran.stderr.contains("--time-limit"), "{}", ran.stderr);
}

#[test]
fn every_format_of_a_result_says_the_same() {
    let (folder, _) = small_store();
    let query = "select trajectory_id, reward from trajectories order by 1";
    let ask = |format: &str| run(folder.path(), &["sql", query, "--format", format]).exits(0).stdout;
    assert_eq!(ask("csv"), "trajectory_id,reward\nt-1,1.0\nt-2,\n");
    let lines: Vec<Value> = ask("ndjson").lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    let array: Vec<Value> = serde_json::from_str(&ask("json")).expect("JSON");
    assert_eq!(lines.len(), 2);
    assert_eq!(array[0], lines[0]);
    assert_eq!(array[0]["reward"], 1.0);
    assert!(ask("table").contains("t-2"));
    run(folder.path(), &["sql", query, "--format", "parquet", "-o", "r.parquet"]).exits(0);
    let attached = "select count(*) as n from trajectories join r using (trajectory_id)";
    let joined = run(folder.path(), &["sql", "--attach", "r=r.parquet", attached, "--json"]).exits(0).json();
    assert_eq!(joined[0]["n"], 2);
}

#[test]
fn files_of_statements_run_before_the_query() {
    let (folder, _) = small_store();
    std::fs::write(folder.path().join("v.sql"), "create view good as select * from trajectories where reward > 0;")
        .expect("write");
    let rows = run(folder.path(), &["sql", "-f", "v.sql", "select trajectory_id from good", "--json"]).exits(0).json();
    assert_eq!(rows, serde_json::json!([{ "trajectory_id": "t-1" }]));
    // and standard input is a file like any other
    let query = folder.path().join("q.sql");
    std::fs::write(&query, "select 41 + 1 as answer").expect("write");
    let input = std::fs::File::open(query).expect("open");
    let piped = finish(dressage(folder.path()).args(["sql", "--json"]).stdin(input)).exits(0).json();
    assert_eq!(piped[0]["answer"], 42);
}

#[test]
fn ls_filters_sorts_and_counts() {
    let (folder, _) = small_store();
    let ls = |args: &[&str]| {
        let mut all = vec!["ls", "--json"];
        all.extend(args);
        run(folder.path(), &all).exits(0).json()
    };
    assert_eq!(ls(&[]).as_array().map(Vec::len), Some(2));
    assert_eq!(ls(&["--status", "aborted"])[0]["trajectory_id"], "t-2");
    assert_eq!(ls(&["--where", "reward > 0", "--instance", "sum"])[0]["trajectory_id"], "t-1");
    assert_eq!(ls(&["--sort", "-n_tokens", "-n", "1"])[0]["trajectory_id"], "t-1");
    let text = run(folder.path(), &["ls", "-n", "1"]).exits(0);
    assert!(text.stdout.starts_with("trajectory"), "{}", text.stdout);
    assert!(text.stderr.contains("1 of 2 shown"), "{}", text.stderr);
}

#[test]
fn show_tells_a_trajectory_by_segments_messages_and_tokens() {
    let (folder, _) = small_store();
    let page = run(folder.path(), &["show", "t-1", "--logprobs"]).exits(0).stdout;
    for part in
        ["t-1  completed  reward 1", "segment 0", "segment 1", "2+2?", "ended by length", "⟦3 (-0.500)4 (-0.250)⟧"]
    {
        assert!(page.contains(part), "`{part}` in:\n{page}");
    }
    let shown = run(folder.path(), &["show", "t-1", "--tokens", "--json"]).exits(0).json();
    assert_eq!(shown["trajectory"]["trajectory_id"], "t-1");
    assert_eq!(shown["segments"].as_array().map(Vec::len), Some(2));
    let step = &shown["segments"][0]["steps"][0];
    assert_eq!(step["tokens"]["token_ids"], serde_json::json!([1, 2, 3, 4]));
    assert_eq!(step["tokens"]["loss_mask"], serde_json::json!([0, 0, 1, 1]));
    assert_eq!(step["messages"][1]["text"], "4");
    let second = run(folder.path(), &["show", "t-1", "--segment", "1"]).exits(0).stdout;
    assert!(second.contains("sure?") && !second.contains("2+2?"), "{second}");
    run(folder.path(), &["show", "t-1", "--segment", "7"]).exits(3);
}

#[test]
fn stats_add_up() {
    let (folder, _) = small_store();
    let stats = run(folder.path(), &["stats", "--json"]).exits(0).json();
    assert_eq!(stats["totals"]["trajectories"], 2);
    assert_eq!(stats["totals"]["tokens"], 8);
    assert_eq!(stats["totals"]["trained_tokens"], 3);
    assert_eq!((&stats["rewards"]["graded"], &stats["rewards"]["ungraded"]), (&1.into(), &1.into()));
    let sizes = stats["columns"].as_array().expect("a list");
    assert!(sizes.iter().any(|c| c["column"] == "token_ids" && c["bytes"].as_u64() > Some(0)), "{sizes:?}");
    let page = run(folder.path(), &["stats"]).exits(0).stdout;
    assert!(page.starts_with("2 trajectories; runs 1, instances 1"), "{page}");
}

/// Exports, reads the copy, and compares what the views say of it.
fn comes_back_the_same(to: &str, path: &str) {
    let (folder, _) = small_store();
    run(folder.path(), &["export", "--to", to, path]).exits(0);
    let report = run(folder.path(), &["ingest", path, "--store", "copy", "--json"]).exits(0).json();
    assert_eq!(report["trajectories_new"], 2);
    let query = "select t.trajectory_id, t.run_id, t.instance_id, t.group_id, t.status, t.reward, s.segment_index, \
                 s.n_tokens, s.n_trained_tokens, s.n_messages, s.finish_reason, p.token_ids, p.logprobs, p.mask_spans \
                 from trajectories t join segments s using (trajectory_key) \
                 join steps p on p.trajectory_key = s.trajectory_key and p.step_index = s.first_step order by 1, 7";
    let before = sql(folder.path(), query);
    let after = run(folder.path(), &["sql", query, "--store", "copy", "--json"]).exits(0).json();
    assert_eq!(before, after);
    assert_eq!(before.as_array().map(Vec::len), Some(3));
}

#[test]
fn parquet_comes_back_the_same() {
    comes_back_the_same("parquet", "out");
}

#[test]
fn arrow_comes_back_the_same() {
    comes_back_the_same("arrow", "out.arrow");
}

#[test]
fn our_json_lines_come_back_the_same() {
    comes_back_the_same("jsonl", "out.jsonl");
}

#[test]
fn chats_go_out_a_segment_a_line() {
    let (folder, _) = small_store();
    let lines =
        run(folder.path(), &["export", "--to", "hf-chat", "-", "--where", "reward is not null"]).exits(0).stdout;
    let rows: Vec<Value> = lines.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    assert_eq!(rows.len(), 2);
    assert_eq!(
        rows[0]["messages"],
        serde_json::json!([
            { "role": "user", "content": "2+2?" }, { "role": "assistant", "content": "4" }
        ])
    );
}

#[test]
fn router_choices_come_back_through_every_format() {
    let folder = tempfile::tempdir().expect("tempdir");
    let shape = ["--trajectories", "3", "--tokens", "200", "--layers", "3", "--topk", "4", "--experts", "32"];
    let mut args = vec!["synth", "load.jsonl"];
    args.extend(shape);
    run(folder.path(), &args).exits(0);
    run(folder.path(), &["ingest", "load.jsonl", "--quiet"]).exits(0);
    run(folder.path(), &["export", "--to", "parquet", "a"]).exits(0);
    for (to, path) in [("jsonl", "b.jsonl"), ("arrow", "c.arrow")] {
        run(folder.path(), &["export", "--to", to, path]).exits(0);
        run(folder.path(), &["ingest", path, "--store", "copy", "--quiet"]).exits(0);
        run(folder.path(), &["export", "--to", "parquet", to, "--store", "copy"]).exits(0);
        let compare = "select count(*) as n from first join second using (trajectory_id, segment_index) \
                       where first.routed_experts = second.routed_experts and first.tokens = second.tokens";
        let (first, second) =
            ("first=a/run=synth/part-0000.parquet", format!("second={to}/run=synth/part-0000.parquet"));
        let same =
            run(folder.path(), &["sql", "--attach", first, "--attach", &second, compare, "--json"]).exits(0).json();
        assert_eq!(same[0]["n"], 6, "{to}");
        std::fs::remove_dir_all(folder.path().join("copy")).expect("remove");
    }
}

#[test]
fn the_same_seed_makes_the_same_bytes() {
    let folder = tempfile::tempdir().expect("tempdir");
    for name in ["a.jsonl", "b.jsonl"] {
        run(folder.path(), &["synth", name, "--trajectories", "4", "--tokens", "64", "--seed", "7"]).exits(0);
    }
    let read = |name: &str| std::fs::read(folder.path().join(name)).expect("read");
    assert_eq!(read("a.jsonl"), read("b.jsonl"));
    let report =
        run(folder.path(), &["synth", "c.jsonl", "--trajectories", "4", "--seed", "8", "--json"]).exits(0).json();
    assert_eq!(report["trajectories"], 4);
}

#[test]
fn time_travel_reads_the_store_as_it_was() {
    let (folder, file) = small_store();
    run(folder.path(), &["store", "snapshot", "--tag", "two"]).exits(0);
    std::fs::write(&file, OURS.replace("\"t-1\"", "\"t-3\"")).expect("write");
    run(folder.path(), &["ingest", "ours.jsonl", "--quiet"]).exits(0);
    let count = |args: &[&str]| {
        let mut all = vec!["sql", "select count(*) as n from trajectories", "--json"];
        all.extend(args);
        run(folder.path(), &all).exits(0).json()[0]["n"].clone()
    };
    assert_eq!(count(&[]), 3);
    assert_eq!(count(&["--as-of", "two"]), 2);
    assert_eq!(count(&["--as-of", "1"]), 2);
    let named = run(folder.path(), &["store", "snapshots", "--json"]).exits(0).json();
    assert_eq!(named[0]["tag"], "two");
}

#[test]
fn destructive_verbs_change_nothing_without_yes() {
    let (folder, _) = small_store();
    let count = || sql(folder.path(), "select count(*) as n from trajectories")[0]["n"].clone();
    let dry = run(folder.path(), &["store", "rm-run", "r"]).exits(0);
    assert!(dry.stderr.contains("--yes"), "{}", dry.stderr);
    assert_eq!(count(), 2);
    run(folder.path(), &["store", "gc", "--keep-versions", "1"]).exits(0);
    run(folder.path(), &["store", "rm-run", "r", "--yes"]).exits(0);
    assert_eq!(count(), 0);
    run(folder.path(), &["store", "rm-run", "r"]).exits(3);
}

#[test]
fn a_store_says_what_it_is_and_checks_out() {
    let (folder, _) = small_store();
    let info = run(folder.path(), &["store", "info", "--json"]).exits(0).json();
    let rows = |table: &str| {
        info["tables"].as_array().and_then(|all| all.iter().find(|t| t["table"] == table)).map(|t| t["rows"].clone())
    };
    assert_eq!(rows("trajectories"), Some(2.into()));
    assert_eq!(rows("steps"), Some(3.into()));
    let check = run(folder.path(), &["store", "check", "--json"]).exits(0).json();
    assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
    assert!(check["bytes_verified"].as_u64() > Some(0), "{check}");
    run(folder.path(), &["store", "compact"]).exits(0);
    run(folder.path(), &["store", "versions", "--table", "trajectories", "--json"]).exits(0);
    run(folder.path(), &["store", "versions", "--table", "nothing"]).exits(2);
    let findings = run(folder.path(), &["doctor", "--json"]).exits(0).json();
    assert!(findings.as_array().is_some_and(|all| !all.is_empty()), "{findings}");
}

#[test]
fn colours_are_for_terminals() {
    let (folder, _) = small_store();
    let plain: Ran = run(folder.path(), &["show", "t-1"]).exits(0);
    assert!(!plain.stdout.contains('\x1b'));
    let forced = run(folder.path(), &["show", "t-1", "--color", "always"]).exits(0);
    assert!(forced.stdout.contains('\x1b'));
}

#[test]
fn real_rollouts_are_told_by_their_content_under_any_name() {
    let folder = tempfile::tempdir().expect("tempdir");
    let renamed = folder.path().join("some.bin");
    std::fs::copy(data("nemo-gym/tokens_blackjack.jsonl"), &renamed).expect("copy");
    run(folder.path(), &["ingest", "some.bin", "--quiet"]).exits(0);
    let rows = sql(
        folder.path(),
        "select format, count(*) as n, sum(n_trained_tokens) as trained from trajectories group by 1",
    );
    assert_eq!(rows.as_array().map(Vec::len), Some(1), "{rows}");
    assert_eq!((&rows[0]["n"], &rows[0]["trained"]), (&5.into(), &48.into()), "{rows}");
}
