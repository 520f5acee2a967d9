//! `kill -9` of a real ingest, anywhere, then the same command again: nothing acknowledged lost, nothing doubled,
//! nothing half visible at any time. On a folder and on a real S3 server.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use dressage_rig::{Dressage, Seed, Weed, Workload};

use crate::whole::{complete, local, nothing_lost, on_s3, visible_whole};

/// Kills at seeded moments, each on a folder and on S3.
const KILLS: usize = 50;
/// Kills in a row before a run is left to end: later ones would find ever less to interrupt.
const KILLS_A_RUN: usize = 5;
const TRAJECTORIES: usize = 48;
const TOKENS: usize = 160;

/// Small groups, so that one ingest commits many times and a kill falls between, before and after commits.
fn ingest(file: &Path, run: &str) -> Vec<String> {
    let file = file.display().to_string();
    ["ingest", &file, "--run", run, "--commit-bytes", "8KiB", "--jobs", "2", "--json", "--quiet"]
        .map(str::to_owned)
        .to_vec()
}

/// How long an ingest of that shape takes here, from one that is left alone; also makes the store.
fn undisturbed(dressage: &Dressage, dir: &Path, seed: &Seed) -> Result<Duration> {
    let workload = Workload::make(&seed.fork(1), "calm", TRAJECTORIES, TOKENS)?;
    let file = dir.join("calm.jsonl");
    workload.write(&file)?;
    dressage.run(&ingest(&file, "calm"))?.expect_code(0)?;
    complete(dressage, "calm", &workload)?;
    // The second time the store is there, as it is for every run that is killed.
    let again = Workload::make(&seed.fork(2), "calm2", TRAJECTORIES, TOKENS)?;
    again.write(&file)?;
    let finished = dressage.run(&ingest(&file, "calm2"))?;
    finished.expect_code(0)?;
    complete(dressage, "calm2", &again)?;
    Ok(finished.took)
}

/// Kills at moments spread over the whole run, checks what a reader sees after each, and ends each file undisturbed.
fn killed_at_seeded_moments(dressage: &Dressage, dir: &Path, mut seed: Seed) -> Result<()> {
    let whole_run = undisturbed(dressage, dir, &seed)?;
    let (mut kills, mut run_number, mut partial) = (0, 0, 0);
    while kills < KILLS {
        run_number += 1;
        ensure!(run_number <= KILLS * 4, "of {run_number} ingests only {kills} could be killed before their end");
        let run = format!("run-{run_number}");
        let workload = Workload::make(&seed.fork(100 + run_number as u64), &run, TRAJECTORIES, TOKENS)?;
        let file = dir.join(format!("{run}.jsonl"));
        workload.write(&file)?;
        let args = ingest(&file, &run);
        let mut seen = BTreeMap::new();
        for _ in 0..KILLS_A_RUN {
            let (killed, finished) = dressage.spawn(&args)?.kill_after(whole_run.mul_f64(seed.fraction()))?;
            if !killed {
                finished.expect_code(0)?;
                break;
            }
            kills += 1;
            let now = visible_whole(dressage, &run, &workload)?;
            nothing_lost(&seen, &now)?;
            partial += usize::from(!now.is_empty() && now.len() < workload.expected.len());
            seen = now;
        }
        dressage.run(&args)?.expect_code(0)?;
        nothing_lost(&seen, &complete(dressage, &run, &workload)?)?;
    }
    // Otherwise the moments miss what this test is about.
    ensure!(partial > 0, "no kill of {kills} left a file half read: the moments are all at the ends of the run");
    eprintln!("{kills} kills over {run_number} files, {partial} of them with part of the file committed");
    consistent(dressage)
}

/// `store check` finds no damage; what it calls leftovers of interrupted attempts it can take away, and then nothing
/// that a reader sees has changed.
fn consistent(dressage: &Dressage) -> Result<()> {
    let before = dressage.sql("select count(*) as n, sum(n_tokens) as tokens from trajectories")?;
    dressage.run(&["store", "check", "--repair", "--json"])?.expect_code(0)?;
    dressage.run(&["store", "check", "--json"])?.expect_code(0)?;
    ensure!(
        before == dressage.sql("select count(*) as n, sum(n_tokens) as tokens from trajectories")?,
        "repairing leftovers changed what a reader sees"
    );
    Ok(())
}

/// Dies at every named point of the commit protocol, in the first commit and in a later one.
fn killed_at_every_named_point(dressage: &Dressage, dir: &Path, seed: &Seed) -> Result<()> {
    let tables = ["contents", "steps", "rewards", "ingest_log", "trajectories"];
    let points = tables.iter().flat_map(|table| ["written", "after"].map(|when| format!("{when}:{table}")));
    for (index, point) in points.enumerate() {
        // In the first commit of the run and in a later one by turns.
        let point = format!("{point}:{}", 1 + index % 2);
        let run = format!("at-{index}");
        let workload = Workload::make(&seed.fork(500 + index as u64), &run, 12, TOKENS)?;
        let file = dir.join(format!("{run}.jsonl"));
        workload.write(&file)?;
        let args = ingest(&file, &run);
        let died = dressage.clone().with("DRESSAGE_FAULT", &point).run(&args)?;
        ensure!(died.signal == Some(libc::SIGABRT), "at {point} the command did not die: {died:?}");
        let seen = visible_whole(dressage, &run, &workload)?;
        dressage.run(&args)?.expect_code(0)?;
        nothing_lost(&seen, &complete(dressage, &run, &workload)?)?;
    }
    consistent(dressage)
}

#[test]
fn a_kill_at_fifty_moments_loses_and_doubles_nothing_on_a_folder() {
    let dir = tempfile::tempdir().expect("a folder");
    let seed = Seed::of_run("crash, folder");
    killed_at_seeded_moments(&local(&dir.path().join("store")), dir.path(), seed).expect("exactly once");
}

#[test]
fn a_kill_at_fifty_moments_loses_and_doubles_nothing_on_s3() {
    let dir = tempfile::tempdir().expect("a folder");
    let seed = Seed::of_run("crash, S3");
    killed_at_seeded_moments(&on_s3(&Weed::shared().place("crash")), dir.path(), seed).expect("exactly once");
}

#[test]
fn a_death_at_every_named_point_of_a_commit_leaves_nothing_half_visible() {
    let dir = tempfile::tempdir().expect("a folder");
    let seed = Seed::of_run("named points");
    killed_at_every_named_point(&local(&dir.path().join("store")), dir.path(), &seed).expect("exactly once");
}

#[test]
fn a_reader_beside_an_ingest_never_sees_half_a_trajectory() {
    let dir = tempfile::tempdir().expect("a folder");
    let dressage = local(&dir.path().join("store"));
    let seed = Seed::of_run("reader beside");
    undisturbed(&dressage, dir.path(), &seed).expect("makes the store");
    let workload = Workload::make(&seed.fork(9), "beside", TRAJECTORIES * 6, TOKENS).expect("makes");
    let file = dir.path().join("beside.jsonl");
    workload.write(&file).expect("writes");
    let mut running = dressage.spawn(&ingest(&file, "beside")).expect("starts");
    let (mut seen, mut looks) = (BTreeMap::new(), 0);
    while running.is_running().expect("can be asked") {
        let now = visible_whole(&dressage, "beside", &workload).expect("whole");
        nothing_lost(&seen, &now).expect("nothing lost");
        seen = now;
        looks += 1;
    }
    assert!(looks > 0, "the reader never looked while the ingest ran");
    running.wait().and_then(|finished| finished.expect_code(0).map(drop)).expect("ends well");
    nothing_lost(&seen, &complete(&dressage, "beside", &workload).expect("complete")).expect("nothing lost");
}
