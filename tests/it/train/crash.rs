//! `kill -9` of a training run, anywhere, then the same command again: no train step twice, none skipped, and the numbers
//! of the run that was left alone. On a folder and on a real S3 server; and disks that fill up, and stores that are away.

use std::path::Path;

use anyhow::{Result, ensure};
use dressage_rig::{Credentials, Dressage, Fault, FaultPlan, FaultProxy, FaultRule, Seed, Weed};

use super::{Setting, report};
use crate::whole::{local, on_s3};

/// Kills at seeded moments of one run, on a folder and on S3 each.
const KILLS: usize = 6;

const EVERY_STEP: [&str; 4] = ["--set", "checkpoints.every_train_steps=2", "--set", "metrics.logprobs=true"];

fn killed_anywhere(dressage: Dressage, dir: &Path, mut seed: Seed) -> Result<()> {
    let setting = Setting::make(dressage, dir, 96)?;
    let whole = setting.dressage.run(&setting.planning_args("whole", &EVERY_STEP))?;
    ensure!(whole.expect_code(0)?.json()?["train_steps"] == 12);
    let args = setting.planning_args("killed", &EVERY_STEP);
    let mut killed = 0;
    for _ in 0..KILLS {
        let (was_killed, finished) = setting.dressage.spawn(&args)?.kill_after(whole.took.mul_f64(seed.fraction()))?;
        if !was_killed {
            finished.expect_code(0)?;
        }
        killed += usize::from(was_killed);
        whole_checkpoints(&setting)?;
    }
    ensure!(killed > 0, "every run ended before it was killed");
    report(&setting.dressage, &args)?;
    setting.same("whole", "killed")?;
    setting.dressage.run(&["store", "check", "--repair", "--json"])?.expect_code(0)?;
    setting.dressage.run(&["store", "check", "--json"])?.expect_code(0)?;
    setting.same("whole", "killed")
}

/// What is published is there, all of it: `store check` compares sizes of files with their rows.
fn whole_checkpoints(setting: &Setting) -> Result<()> {
    let checked = setting.dressage.run(&["store", "check", "--json"])?;
    ensure!(checked.code == Some(0), "after a kill: {}", checked.stdout);
    Ok(())
}

#[test]
fn a_kill_anywhere_trains_nothing_twice_and_skips_nothing_on_a_folder() {
    let dir = tempfile::tempdir().expect("a folder");
    killed_anywhere(local(&dir.path().join("store")), dir.path(), Seed::of_run("train, folder")).expect("exactly once");
}

#[test]
fn a_kill_anywhere_trains_nothing_twice_and_skips_nothing_on_s3() {
    let dir = tempfile::tempdir().expect("a folder");
    let place = Weed::shared().place("train-crash");
    killed_anywhere(on_s3(&place), dir.path(), Seed::of_run("train, S3")).expect("exactly once");
}

#[test]
fn a_full_disk_while_checkpointing_leaves_the_checkpoint_before() {
    let dir = tempfile::tempdir().expect("a folder");
    let setting = Setting::make(local(&dir.path().join("store")), dir.path(), 32).expect("made");
    let args = setting.planning_args("full", &["--train-steps-max", "2"]);
    report(&setting.dressage, &args).expect("trained");
    // the optimiser's state is the largest file
    let full = setting.dressage.clone().with_files_bytes_max(150_000);
    let failed = full.run(&setting.planning_args("full", &[])).expect("runs");
    failed.expect_code(7).expect("a limit");
    assert!(failed.stderr.contains("trainer/optimizer.safetensors"), "{}", failed.stderr);
    let rows = setting.dressage.sql("select optimizer_step from checkpoints").expect("asked");
    assert_eq!(rows.len(), 1, "{rows:?}");
    report(&setting.dressage, &setting.planning_args("full", &[])).expect("goes on");
    report(&setting.dressage, &setting.planning_args("alone", &[])).expect("trained");
    setting.same("full", "alone").expect("the same");
}

#[test]
fn a_store_that_answers_503_for_a_while_is_waited_for() {
    let dir = tempfile::tempdir().expect("a folder");
    let weed = Weed::shared();
    let place = weed.place("train-503");
    let credentials: Credentials = weed.credentials();
    let proxy = FaultProxy::start(weed.address(), credentials, FaultPlan::none()).expect("a proxy");
    let dressage = on_s3(&place.through(&proxy.endpoint()));
    let setting = Setting::make(dressage, dir.path(), 48).expect("made");
    report(&setting.dressage, &setting.planning_args("calm", &EVERY_STEP)).expect("trained");
    proxy.set_plan(FaultPlan::new(&Seed::of_run("503"), vec![FaultRule::any(Fault::Busy, 150)]));
    report(&setting.dressage, &setting.planning_args("stormy", &EVERY_STEP)).expect("trained all the same");
    assert!(proxy.counts().faults() > 0, "no fault was injected");
    proxy.set_plan(FaultPlan::none());
    setting.same("calm", "stormy").expect("the same");
}

#[test]
fn two_processes_do_not_train_one_run() {
    let dir = tempfile::tempdir().expect("a folder");
    let setting = Setting::make(local(&dir.path().join("store")), dir.path(), 240).expect("made");
    let args = setting.planning_args("shared", &["--set", "checkpoints.every_train_steps=1"]);
    let one = setting.dressage.spawn(&args).expect("starts");
    let other = setting.dressage.spawn(&args).expect("starts");
    let (one, other) = (one.wait().expect("ends"), other.wait().expect("ends"));
    let codes = [one.code, other.code];
    assert!(codes.contains(&Some(4)), "{codes:?}\n{}\n{}", one.stderr, other.stderr);
    // whoever is left, or comes later, brings it to its end
    report(&setting.dressage, &args).expect("goes on");
    report(&setting.dressage, &setting.planning_args("alone", &[])).expect("trained");
    setting.same("shared", "alone").expect("the same");
}
