//! Plans streamed, replayed and explained, as a user types it: on real rollouts, on a folder and on S3, beside other
//! work on the store, and through the death of a process.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use dressage_rig::{Dressage, Seed, Weed, Workload};
use serde_json::Value;

use crate::cli::run::dressage as command;
use crate::whole::{local, on_s3};

fn data(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name).display().to_string()
}

fn json(dressage: &Dressage, args: &[&str]) -> Result<Value> {
    let args = [args, &["--json", "--quiet"]].concat();
    dressage.run(&args)?.expect_code(0)?.json()
}

/// Plans over all runs and gives the id.
fn plan(dressage: &Dressage, max_tokens: &str, world_size: &str, more: &[&str]) -> Result<String> {
    let shape = ["--global-batch-size", "4", "--max-tokens-per-micro-batch", max_tokens, "--world-size", world_size];
    let planned = json(dressage, &[&["plan", "--all-runs"], &shape[..], more].concat())?;
    Ok(planned["plan_id"].as_str().context("a plan has an id")?.to_owned())
}

/// Where a micro-batch is: train step, rank, number.
type Place = (i64, i64, i64);

/// The hashes of all micro-batches in a report.
fn hashes(report: &Value) -> Result<BTreeMap<Place, String>> {
    let each = report["micro_batches"].as_array().context("a report names its micro-batches")?;
    let hash = |m: &Value| -> Result<(Place, String)> {
        let int = |key: &str| m[key].as_i64().with_context(|| format!("{key} of {m}"));
        let place = (int("train_step")?, int("dp_rank")?, int("micro_batch")?);
        Ok((place, m["content_hash"].as_str().with_context(|| format!("no hash in {m}"))?.to_owned()))
    };
    each.iter().map(hash).collect()
}

/// Streams every rank of a plan and gives all hashes.
fn stream_all(dressage: &Dressage, plan: &str, world_size: i64) -> Result<BTreeMap<Place, String>> {
    let mut all = BTreeMap::new();
    for rank in 0..world_size {
        let (rank, world_size) = (rank.to_string(), world_size.to_string());
        let args = ["batches", "--plan", plan, "--rank", &rank, "--world-size", &world_size, "--format", "summary"];
        let report = json(dressage, &args)?;
        ensure!(report["hashes_recorded"] == true, "hashes were not recorded: {report}");
        all.extend(hashes(&report)?);
    }
    Ok(all)
}

/// Replays a whole plan: everything is as streamed.
fn replays_the_same(dressage: &Dressage, plan: &str, streamed: &BTreeMap<Place, String>) -> Result<()> {
    let replayed = json(dressage, &["replay", "--plan", plan])?;
    ensure!(replayed["n_same"] == streamed.len(), "not all as streamed: {replayed}");
    ensure!(hashes(&replayed)? == *streamed, "other hashes: {replayed}");
    Ok(())
}

/// From real rollouts to batches, and back after everything that a store goes through.
fn replays_whatever_happens_to_the_store(dressage: &Dressage, dir: &Path) -> Result<()> {
    dressage.run(&["ingest", &data("nemo-gym"), &data("agent-lightning"), "--quiet"])?.expect_code(0)?;
    let first = plan(dressage, "4096", "2", &[])?;
    let streamed = stream_all(dressage, &first[..8], 2)?;
    ensure!(streamed.len() > 2, "too little to speak of: {streamed:?}");
    replays_the_same(dressage, &first[..8], &streamed)?;

    let workload = Workload::make(&Seed::of_run("replay"), "later", 12, 300)?;
    let file = dir.join("later.jsonl");
    workload.write(&file)?;
    dressage.run(&["ingest", &file.display().to_string(), "--run", "later", "--quiet"])?.expect_code(0)?;
    replays_the_same(dressage, &first, &streamed)?;
    dressage.run(&["store", "compact", "--quiet"])?.expect_code(0)?;
    replays_the_same(dressage, &first, &streamed)?;
    dressage.run(&["store", "gc", "--keep-versions", "1", "--yes", "--quiet"])?.expect_code(0)?;
    replays_the_same(dressage, &first, &streamed)?;
    let second = plan(dressage, "4096", "2", &["--set", "estimator=rloo"])?;
    ensure!(first != second, "another store and another estimator make another plan");
    stream_all(dressage, &second, 2)?;
    replays_the_same(dressage, &first, &streamed)?;
    ensure!(stream_all(dressage, &first, 2)? == streamed, "streaming again gives the same");
    dressage.run(&["store", "check", "--json"])?.expect_code(0)?;
    Ok(())
}

#[test]
fn a_plan_replays_the_same_after_ingest_compaction_collection_and_other_plans_on_a_folder() {
    let dir = tempfile::tempdir().expect("a folder");
    replays_whatever_happens_to_the_store(&local(&dir.path().join("store")), dir.path()).expect("the same");
}

#[test]
fn a_plan_replays_the_same_after_ingest_compaction_collection_and_other_plans_on_s3() {
    let dir = tempfile::tempdir().expect("a folder");
    replays_whatever_happens_to_the_store(&on_s3(&Weed::shared().place("replay")), dir.path()).expect("the same");
}

/// A store of made-up rollouts.
fn synthetic(dir: &Path, more: &[&str]) -> (PathBuf, Dressage) {
    let (file, store) = (dir.join("load.arrow"), dir.join("store"));
    let dressage = local(&store);
    let file_text = file.display().to_string();
    dressage
        .run(&[&["synth", &file_text, "--quiet"], more].concat())
        .and_then(|f| f.expect_code(0).map(drop))
        .expect("made");
    dressage.run(&["ingest", &file_text, "--quiet"]).and_then(|f| f.expect_code(0).map(drop)).expect("ingested");
    (store, dressage)
}

/// The loss of each train step, with log-probs for losses: over all ranks, the sum of weights times masked sums.
fn losses(dressage: &Dressage, plan: &str, world_size: u32) -> Result<BTreeMap<i64, f64>> {
    let mut losses: BTreeMap<i64, f64> = BTreeMap::new();
    for rank in 0..world_size {
        let (rank, world_size) = (rank.to_string(), world_size.to_string());
        let args =
            ["batches", "--plan", plan, "--rank", &rank, "--world-size", &world_size, "--format", "json", "--quiet"];
        for line in dressage.run(&args)?.expect_code(0)?.stdout.lines() {
            let micro_batch: Value = serde_json::from_str(line)?;
            let loss = losses.entry(micro_batch["train_step"].as_i64().context("a number")?).or_default();
            for sample in micro_batch["samples"].as_array().context("a list")? {
                let list = |key: &str| sample[key].as_array().cloned().unwrap_or_default();
                let number = |value: &Value| value.as_f64().unwrap_or(0.0);
                let masked: f64 =
                    list("loss_mask").iter().zip(&list("logprobs")).map(|(m, x)| number(m) * number(x)).sum();
                *loss += number(&sample["loss_weight"]) * masked;
            }
        }
    }
    Ok(losses)
}

#[test]
fn the_loss_does_not_depend_on_how_samples_are_packed_or_dealt_out() {
    let dir = tempfile::tempdir().expect("a folder");
    let made =
        ["--trajectories", "24", "--group-size", "4", "--tokens", "300", "--segments", "2", "--length-spread", "0.7"];
    let (_, dressage) = synthetic(dir.path(), &made);
    let mut expected: Option<BTreeMap<i64, f64>> = None;
    for (max_tokens, world_size) in [("200", 1), ("1000", 1), ("400", 2), ("100000", 3)] {
        let plan = plan(&dressage, max_tokens, &world_size.to_string(), &[]).expect("plans");
        let losses = losses(&dressage, &plan, world_size).expect("streams");
        assert!(losses.len() > 3 && losses.values().all(|loss| loss.abs() > 0.0), "{losses:?}");
        let expected = expected.get_or_insert_with(|| losses.clone());
        for ((step, loss), (_, wanted)) in losses.iter().zip(expected.iter()) {
            let close = (loss - wanted).abs() <= 1e-9 * wanted.abs();
            assert!(close, "train step {step}: {loss}, {wanted} with other micro-batches");
        }
    }
}

#[test]
fn a_process_killed_while_it_streams_leaves_nothing_that_is_streamed_otherwise_later() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_, dressage) = synthetic(dir.path(), &["--trajectories", "64", "--tokens", "4000", "--segments", "2"]);
    let plan = plan(&dressage, "4000", "1", &[]).expect("plans");
    let out = dir.path().join("out.arrows").display().to_string();
    let args = ["batches", "--plan", &plan, "--rank", "0", "--world-size", "1", "-o", &out, "--quiet"];
    let whole = dressage.run(&args).expect("runs").took;
    let expected = json(&dressage, &["replay", "--plan", &plan]).expect("replays");
    let mut seed = Seed::of_run("stream, killed");
    let mut kills = 0;
    for _ in 0..12 {
        let moment = whole.mul_f64(seed.fraction()).max(Duration::from_millis(20));
        let (killed, finished) = dressage.spawn(&args).expect("starts").kill_after(moment).expect("ends");
        kills += usize::from(killed);
        assert!(killed || finished.code == Some(0), "{finished:?}");
    }
    assert!(kills > 0, "every stream ended before its kill");
    let streamed = stream_all(&dressage, &plan, 1).expect("streams");
    assert_eq!(streamed, hashes(&expected).expect("hashes"));
    replays_the_same(&dressage, &plan, &streamed).expect("the same");
}

#[test]
fn ranks_that_stream_at_once_record_all_their_hashes() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_, dressage) = synthetic(dir.path(), &["--trajectories", "24", "--tokens", "600"]);
    let plan = plan(&dressage, "1200", "3", &[]).expect("plans");
    let running: Vec<_> = ["0", "1", "2", "0", "1"]
        .map(|rank| {
            let args = ["batches", "--plan", &plan, "--rank", rank, "--world-size", "3", "--format", "summary"];
            dressage.spawn(&args).expect("starts")
        })
        .into_iter()
        .collect();
    for one in running {
        one.wait().and_then(|f| f.expect_code(0).map(drop)).expect("ends well");
    }
    let replayed = json(&dressage, &["replay", "--plan", &plan]).expect("replays");
    assert_eq!(replayed["n_not_recorded"], 0, "{replayed}");
    assert_eq!(replayed["n_different"], 0, "{replayed}");
}

#[test]
fn a_record_that_says_otherwise_fails_the_replay_and_the_stream() {
    let dir = tempfile::tempdir().expect("a folder");
    let (store, dressage) = synthetic(dir.path(), &["--trajectories", "8", "--tokens", "100"]);
    let plan = plan(&dressage, "1000", "1", &[]).expect("plans");
    let row = dressage_schemas::tables::streamed::StreamedRow {
        plan_id: plan.clone(),
        content_hash: "00".repeat(32),
        streamed_at: 1,
        ..Default::default()
    };
    tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
        let lake = dressage_storage::Lake::open(dressage_storage::StoreSettings::at(store.display().to_string()));
        dressage_storage::plans::append_streamed(&lake.await.expect("opens"), &[row]).await.expect("appends");
    });
    let replayed = dressage.run(&["replay", "--plan", &plan, "--train-step", "0"]).expect("runs");
    replayed.expect_code(8).expect("found out");
    assert!(replayed.stdout.contains("DIFFERENT") && replayed.stderr.contains("1 of"), "{replayed:?}");
    let args = ["batches", "--plan", &plan, "--rank", "0", "--world-size", "1", "--format", "summary"];
    let streamed = dressage.run(&args).expect("runs");
    streamed.expect_code(8).expect("found out");
    assert!(streamed.stderr.contains("train step 0, rank 0, micro-batch 0"), "{streamed:?}");
}

#[test]
fn explain_shows_the_query_and_what_each_rank_reads() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_, dressage) = synthetic(dir.path(), &["--trajectories", "16", "--group-size", "4", "--tokens", "500"]);
    let plan = plan(&dressage, "1000", "2", &[]).expect("plans");
    let explained = json(&dressage, &["explain", "--plan", &plan[..6], "--train-step", "1"]).expect("explains");
    let ranks = explained["ranks"].as_array().expect("a list");
    assert_eq!(ranks.len(), 2);
    let sum = |key: &str| ranks.iter().map(|r| r[key].as_i64().expect("a number")).sum::<i64>();
    let query = &explained["query"];
    assert_eq!(query["n_rows"], 32, "{explained}");
    assert_eq!(query["n_rows_of_train_step"], sum("n_samples"));
    assert_eq!(query["n_rows_as_planned"], sum("n_samples"), "the query gives the advantages that the plan has");
    assert_eq!(query["spills"]["count"], 0);
    assert!(sum("read_bytes") > sum("n_tokens"), "{explained}");
    let shown = dressage.run(&["explain", "--plan", &plan, "--train-step", "1", "--sql"]).expect("runs");
    shown.expect_code(0).expect("shows");
    assert!(shown.stdout.contains("FROM samples") && shown.stdout.contains("SELECT"), "{}", shown.stdout);
    dressage
        .run(&["explain", "--plan", &plan, "--train-step", "99"])
        .and_then(|f| f.expect_code(2).map(drop))
        .expect("refused");
}

#[test]
fn a_world_size_other_than_the_plans_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_, dressage) = synthetic(dir.path(), &["--trajectories", "8", "--tokens", "100"]);
    let plan = plan(&dressage, "1000", "2", &[]).expect("plans");
    let refused = |args: &[&str], code: i32, says: &str| {
        let finished = dressage.run(&[&["batches"], args].concat()).expect("runs");
        finished.expect_code(code).expect("refused");
        assert!(finished.stderr.contains(says), "{}", finished.stderr);
    };
    refused(&["--plan", &plan, "--rank", "0", "--world-size", "4"], 2, "world size of 2, not 4");
    refused(&["--plan", &plan, "--rank", "2", "--world-size", "2"], 2, "ranks count from 0");
    refused(&["--plan", &plan, "--rank", "0", "--world-size", "2", "--train-step", "77"], 2, "train steps");
    refused(&["--plan", &plan, "--rank", "0", "--world-size", "2", "--columns", "ids"], 2, "token_ids");
    refused(&["--plan", "zz", "--rank", "0", "--world-size", "2"], 3, "no plan");
}

#[test]
fn a_store_that_takes_no_records_is_streamed_from_all_the_same() {
    let dir = tempfile::tempdir().expect("a folder");
    let (store, dressage) = synthetic(dir.path(), &["--trajectories", "8", "--tokens", "100"]);
    let plan = plan(&dressage, "1000", "1", &[]).expect("plans");
    // nothing can be written where a file is in the way of the folder
    let folder = store.join("streamed.lance");
    std::fs::remove_dir_all(folder.join("data")).ok();
    std::fs::write(folder.join("data"), "").expect("in the way");
    let args = ["batches", "--plan", &plan, "--rank", "0", "--world-size", "1", "--format", "summary"];
    let finished = dressage.run(&args).expect("runs");
    finished.expect_code(0).expect("streams");
    assert!(finished.stderr.contains("hashes were not recorded"), "{}", finished.stderr);
    assert!(finished.stdout.lines().count() > 1, "{}", finished.stdout);
}

/// The command on a store, its stdout a pipe that the test holds.
fn piped(store: &Path, plan: &str) -> std::process::Child {
    command(store)
        .args(["batches", "--plan", plan, "--rank", "0", "--world-size", "1", "--store"])
        .arg(store)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts")
}

#[test]
fn a_consumer_that_leaves_is_no_failure_and_ctrl_c_ends_a_stream() {
    let dir = tempfile::tempdir().expect("a folder");
    let (store, dressage) = synthetic(dir.path(), &["--trajectories", "32", "--tokens", "8000"]);
    let plan = plan(&dressage, "8000", "1", &[]).expect("plans");
    let mut child = piped(&store, &plan);
    let mut some = [0_u8; 4096];
    let mut out = child.stdout.take().expect("piped");
    out.read_exact(&mut some).expect("a schema and more");
    drop(out);
    let mut stderr = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("text");
    assert_eq!(child.wait().expect("ends").code(), Some(0), "{stderr}");
    assert!(!stderr.contains("error"), "{stderr}");

    let mut child = piped(&store, &plan);
    let mut out = child.stdout.take().expect("piped");
    out.read_exact(&mut some).expect("it streams");
    // SAFETY: the process is ours and not yet waited for.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) };
    // nobody reads: it is stuck in a write
    assert_eq!(child.wait().expect("ends").code(), Some(130));
    drop(out);
}

#[test]
fn a_small_budget_bounds_the_memory_of_a_large_stream() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_, dressage) = synthetic(dir.path(), &["--trajectories", "320", "--tokens", "20000", "--no-messages"]);
    let plan = plan(&dressage, "20000", "1", &[]).expect("plans");
    let peak = |prefetch_bytes: &str, train_step: &str| {
        let shape = ["batches", "--plan", &plan, "--rank", "0", "--world-size", "1", "--format", "summary"];
        let part = ["--prefetch-bytes", prefetch_bytes, "--train-step", train_step];
        let report = json(&dressage, &[&shape[..], &part].concat()).expect("streams");
        report["peak_rss_bytes"].as_i64().expect("a number")
    };
    let (least, small, large) = (peak("4MiB", "0"), peak("4MiB", "0..40"), peak("1GiB", "0..40"));
    eprintln!("peak RSS: {least} for one train step, {small} for 40 of them, {large} without a bound");
    // 6.4 million tokens take 134 MB while they are read and given out, and the bound is 4 MiB; what the allocator keeps
    // of both differs from run to run by tens of megabytes
    assert!(large >= least + (64 << 20), "{large} bytes without a bound, {least}: the stream is too small to tell");
    assert!(
        (small - least) * 4 <= (large - least) * 3,
        "{small} bytes, {least} for one train step, {large} without a bound"
    );
}
