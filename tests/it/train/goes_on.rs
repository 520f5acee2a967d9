//! A run that is stopped and started again is the run that was left alone, to the last bit.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use dressage_rig::{Dressage, Weed};

use super::{Setting, report};
use crate::whole::{local, on_s3};

/// In three pieces, one of them ending inside of a policy's train steps.
fn in_pieces(dressage: Dressage, dir: &Path, more: &[&str]) -> Result<()> {
    let setting = Setting::make(dressage, dir, 56)?;
    let whole = setting.planning_args("whole", more);
    ensure!(report(&setting.dressage, &whole)?["train_steps"] == 7);
    for max in ["2", "5", "100"] {
        let piece = setting.planning_args("pieces", &[more, &["--train-steps-max", max]].concat());
        report(&setting.dressage, &piece)?;
    }
    setting.same("whole", "pieces")
}

#[test]
fn a_run_in_pieces_is_the_run_in_one_on_a_folder() {
    let dir = tempfile::tempdir().expect("a folder");
    in_pieces(local(&dir.path().join("store")), dir.path(), &[]).expect("the same");
}

#[test]
fn a_run_in_pieces_is_the_run_in_one_on_s3() {
    let dir = tempfile::tempdir().expect("a folder");
    in_pieces(on_s3(&Weed::shared().place("pieces")), dir.path(), &[]).expect("the same");
}

#[test]
fn a_run_in_pieces_is_the_run_in_one_in_bf16_with_a_schedule_and_several_steps_a_policy() {
    let dir = tempfile::tempdir().expect("a folder");
    let more = [
        "--set",
        "model.kind=bf16",
        "--set",
        "step.train_steps_per_policy=3",
        "--set",
        "schedule.shape=cosine",
        "--set",
        "schedule.warmup_steps=2",
        "--set",
        "schedule.total_steps=7",
        "--set",
        "kl.coefficient=0.01",
    ];
    in_pieces(local(&dir.path().join("store")), dir.path(), &more).expect("the same");
}

#[test]
fn sigterm_finishes_the_step_makes_a_checkpoint_and_exits_0() {
    let dir = tempfile::tempdir().expect("a folder");
    let setting = Setting::make(local(&dir.path().join("store")), dir.path(), 400).expect("made");
    let args = setting.planning_args("stopped", &[]);
    let running = setting.dressage.spawn(&args).expect("starts");
    while !running.stderr().expect("read").contains(" train steps  ") {
        std::thread::sleep(Duration::from_millis(20));
    }
    running.signal(libc::SIGTERM).expect("there");
    let stopped = running.wait().expect("ends");
    let told = stopped.expect_code(0).and_then(|f| f.json()).expect("a report");
    assert_eq!(told["ended"], "stopped");
    let steps = told["train_steps"].as_u64().expect("a number");
    assert!((1..50).contains(&steps), "{told}");
    let rows = setting.dressage.sql("select max(optimizer_step) as n from checkpoints").expect("asked");
    assert_eq!(rows[0]["n"], steps);
    let rest = report(&setting.dressage, &args).expect("goes on");
    assert_eq!(rest["train_steps"], 50 - steps);
    report(&setting.dressage, &setting.planning_args("alone", &[])).expect("trained");
    setting.same("stopped", "alone").expect("the same");
}
