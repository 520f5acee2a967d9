//! What a run is given back after somebody changed the ground under it: files, folders, rollouts, checkpoints.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::{Setting, report};
use crate::whole::local;

#[test]
fn an_estimator_and_a_filter_of_ones_own_are_trained_with() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let setting = Setting::make(local(&dir.path().join("store")), dir.path(), 32)?;
    let (estimator, filter) = (dir.path().join("mine.sql"), dir.path().join("rewarded.sql"));
    std::fs::write(&estimator, "SELECT trajectory_key, reward - 0.5 AS advantage FROM anchors")?;
    std::fs::write(&filter, "SELECT trajectory_id FROM trajectories WHERE reward > 0")?;
    let (estimator, filter) = (estimator.display().to_string(), filter.display().to_string());
    let args = setting.planning_args("own", &["--estimator", &estimator, "--filter", &filter]);
    let trained = report(&setting.dressage, &args)?;
    let rewarded = setting.dressage.sql("select count(*) as n from trajectories where reward > 0")?;
    let planned = setting.dressage.sql("select count(*) as n from batches")?;
    ensure!(trained["train_steps"].as_u64() > Some(0) && rewarded == planned, "{rewarded:?} {planned:?}");
    Ok(())
}

#[test]
fn a_damaged_newest_checkpoint_is_named_and_once_removed_the_run_goes_on_from_the_one_before() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let store = dir.path().join("store");
    let setting = Setting::make(local(&store), dir.path(), 56)?;
    let pieces = |max: &str| {
        setting.planning_args("run", &["--set", "checkpoints.every_train_steps=2", "--train-steps-max", max])
    };
    report(&setting.dressage, &pieces("4"))?;
    let rows = setting.dressage.sql("select checkpoint_id from checkpoints order by optimizer_step")?;
    let newest = rows.last().and_then(|row| row["checkpoint_id"].as_str()).context("a checkpoint")?;
    let file = store.join("checkpoints/run").join(newest).join("trainer/optimizer.safetensors");
    let mut bytes = std::fs::read(&file)?;
    let at = bytes.len() - 5;
    bytes[at] ^= 0x40;
    std::fs::write(&file, bytes)?;
    let refused = setting.dressage.run(&pieces("100"))?;
    refused.expect_code(8)?;
    ensure!(refused.stderr.contains("optimizer.safetensors"), "{}", refused.stderr);
    setting.dressage.run(&["store", "rm-checkpoint", newest, "--yes"])?.expect_code(0)?;
    ensure!(report(&setting.dressage, &pieces("100"))?["train_steps"] == 5);
    report(&setting.dressage, &setting.planning_args("alone", &[]))?;
    setting.same("run", "alone")
}

#[test]
fn weights_of_another_run_and_the_models_own_folder_are_not_written_over() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let setting = Setting::make(local(&dir.path().join("store")), dir.path(), 8)?;
    report(&setting.dressage, &setting.planning_args("one", &[]))?;
    let before = setting.weights("one")?;
    let other = setting.dressage.run(&setting.planning_args("one", &["--train-run", "two"]))?;
    other.expect_code(2)?;
    ensure!(other.stderr.contains("training run `one`"), "{}", other.stderr);
    let model = setting.model().display().to_string();
    let args = setting.planning_args("one", &["--train-run", "three"]);
    let args: Vec<String> =
        args.into_iter().map(|arg| if arg.ends_with("/out/one") { model.clone() } else { arg }).collect();
    let own = setting.dressage.run(&args)?;
    own.expect_code(2)?;
    ensure!(setting.weights("one")? == before);
    Ok(())
}

#[test]
fn a_publication_that_died_at_any_point_is_done_again() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let setting = Setting::make(local(&dir.path().join("store")), dir.path(), 8)?;
    let args = setting.planning_args("run", &[]);
    report(&setting.dressage, &args)?;
    let (out, weights) = (setting.out("run"), setting.weights("run")?);
    // died between its last two files
    std::fs::write(out.join("dressage.begun"), "weights of training run run come here\n")?;
    report(&setting.dressage, &args)?;
    ensure!(!out.join("dressage.begun").exists(), "the publication is over, and its mark is there");
    // died before its marker, in the middle of the weights
    std::fs::write(out.join("dressage.begun"), "weights of training run run come here\n")?;
    std::fs::remove_file(out.join("dressage.json"))?;
    std::fs::write(out.join("model.safetensors"), &weights[..100])?;
    report(&setting.dressage, &args)?;
    ensure!(setting.weights("run")? == weights && out.join("dressage.json").is_file());
    ensure!(!out.join("dressage.begun").exists(), "the publication is over, and its mark is there");
    Ok(())
}

#[test]
fn a_run_goes_on_after_its_rollouts_were_removed() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let setting = Setting::make(local(&dir.path().join("store")), dir.path(), 40)?;
    report(&setting.dressage, &setting.planning_args("run", &["--train-steps-max", "2"]))?;
    setting.dressage.run(&["store", "rm-run", "default", "--yes"])?.expect_code(0)?;
    setting.ingest(&super::random_games(&mut dressage_rig::Seed::new(9), 16), 1)?;
    ensure!(report(&setting.dressage, &setting.planning_args("run", &[]))?["train_steps"] == 2);
    Ok(())
}

#[test]
fn a_second_signal_ends_a_run_at_once_and_without_a_fault() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let setting = Setting::make(local(&dir.path().join("store")), dir.path(), 80)?;
    for _ in 0..4 {
        let running = setting.dressage.spawn(&setting.planning_args("twice", &["--set", "epochs=200"]))?;
        while !running.stderr()?.contains(" train steps  ") {
            std::thread::sleep(Duration::from_millis(20));
        }
        running.signal(libc::SIGTERM)?;
        std::thread::sleep(Duration::from_millis(15));
        // it may have ended in good order by then
        let _ = running.signal(libc::SIGTERM);
        let ended = running.wait()?;
        ensure!(matches!(ended.code, Some(0 | 130)), "{ended:?}");
    }
    Ok(())
}
