//! What cannot be trained is refused by name, with nothing half published.

use anyhow::{Result, ensure};
use dressage_rig::Finished;
use serde_json::json;

use super::{Setting, game};
use crate::whole::local;

/// A refusal: its exit code, and words that it has to say.
fn refused(finished: &Finished, code: i32, words: &[&str]) -> Result<()> {
    finished.expect_code(code)?;
    for word in words {
        ensure!(finished.stderr.contains(word), "{word} is not in:\n{}", finished.stderr);
    }
    Ok(())
}

/// Nothing of a run is in the store or where its weights would be.
fn nothing_published(setting: &Setting, run: &str) -> Result<()> {
    let rows = setting.dressage.sql(&format!("select * from checkpoints where train_run = '{run}'"))?;
    ensure!(rows.is_empty(), "{rows:?}");
    ensure!(!setting.out(run).join("dressage.json").exists(), "weights of {run} were published");
    Ok(())
}

#[test]
fn settings_that_cannot_be_are_refused_by_name() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let setting = Setting::make(local(&dir.path().join("store")), dir.path(), 8)?;
    let cases: [(&[&str], i32, &[&str]); 7] = [
        (&["--set", "optimizer.learning_rat=1"], 2, &["optimizer", "learning_rat"]),
        (&["--set", "loss.kind=dpo"], 2, &["loss", "dpo", "cispo"]),
        (&["--set", "optimizer.beta1=2"], 2, &["beta1", "2"]),
        (&["--set", "model.device=cuda:7"], 2, &["cuda"]),
        (&["--plan", "abcdef"], 3, &["abcdef"]),
        (&["--train-run", "../elsewhere"], 2, &["../elsewhere"]),
        (&["--model", "no/such/model"], 3, &["no/such/model", "config.json"]),
    ];
    for (more, code, words) in cases {
        let args: Vec<String> = match more[0] {
            "--plan" => setting.args("bad", more),
            "--model" => {
                let mut args = setting.planning_args("bad", &[]);
                let at = args.iter().position(|arg| arg == "--model").map_or(0, |at| at + 1);
                more[1].clone_into(&mut args[at]);
                args
            }
            _ => setting.planning_args("bad", more),
        };
        refused(&setting.dressage.run(&args)?, code, words)?;
    }
    nothing_published(&setting, "bad")
}

#[test]
fn rollouts_that_do_not_fit_the_model_are_named() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let setting = Setting::make(local(&dir.path().join("store")), dir.path(), 8)?;
    let cases = [
        ("vocab_size", json!(11), "of 11"),
        ("max_position_embeddings", json!(5), "5 positions"),
        ("model_type", json!("mamba"), "mamba"),
    ];
    for (key, value, words) in cases {
        let mut config = game::model_config();
        config[key] = value;
        std::fs::write(setting.model().join("config.json"), config.to_string())?;
        refused(&setting.dressage.run(&setting.planning_args(key, &[]))?, 2, &[words])?;
        nothing_published(&setting, key)?;
    }
    Ok(())
}

#[test]
fn an_empty_store_has_nothing_to_plan() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let setting = Setting::make(local(&dir.path().join("store")), dir.path(), 8)?;
    let empty = local(&dir.path().join("empty"));
    empty.run(&["store", "init", "--quiet"])?.expect_code(0)?;
    refused(&empty.run(&setting.planning_args("none", &[]))?, 2, &["nothing", "no trajectories"])
}

#[test]
fn missing_logprobs_are_missed_only_by_a_loss_that_reads_them() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let setting = Setting::make(local(&dir.path().join("store")), dir.path(), 0)?;
    let line = |nth: usize| {
        json!({
            "trajectory_id": format!("t-{nth}"), "group_id": "g", "reward": nth % 2,
            "segments": [{ "tokens": [10, 1, 2, 3], "full_loss_mask": [0, 0, 1, 1], "finish_reason": "stop" }],
        })
        .to_string()
    };
    let file = dir.path().join("bare.jsonl");
    std::fs::write(&file, (0..8).map(line).collect::<Vec<_>>().join("\n"))?;
    setting.dressage.run(&["ingest", &file.display().to_string(), "--quiet"])?.expect_code(0)?;
    let reading = setting.planning_args("reads", &["--set", "loss.old_logprobs=rollout"]);
    refused(&setting.dressage.run(&reading)?, 2, &["logprobs", "t-", "old_logprobs"])?;
    nothing_published(&setting, "reads")?;
    setting.dressage.run(&setting.planning_args("does-not", &[]))?.expect_code(0)?;
    Ok(())
}

#[test]
fn a_checkpoint_of_another_model_is_not_gone_on_with() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let setting = Setting::make(local(&dir.path().join("store")), dir.path(), 32)?;
    setting.dressage.run(&setting.planning_args("run", &["--train-steps-max", "1"]))?.expect_code(0)?;
    let mut config = game::model_config();
    config["num_hidden_layers"] = json!(3);
    std::fs::write(setting.model().join("config.json"), config.to_string())?;
    refused(&setting.dressage.run(&setting.planning_args("run", &[]))?, 2, &["num_hidden_layers", "run-00000001"])
}

#[test]
fn an_out_folder_that_holds_something_else_is_left_alone() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let setting = Setting::make(local(&dir.path().join("store")), dir.path(), 8)?;
    std::fs::create_dir_all(setting.out("mine"))?;
    std::fs::write(setting.out("mine").join("thesis.tex"), "years of work")?;
    refused(&setting.dressage.run(&setting.planning_args("mine", &[]))?, 2, &["thesis.tex", "--out"])?;
    ensure!(std::fs::read_to_string(setting.out("mine").join("thesis.tex"))? == "years of work");
    Ok(())
}

#[test]
fn numbers_that_are_none_stop_before_the_update_and_name_trajectory_and_token() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let setting = Setting::make(local(&dir.path().join("store")), dir.path(), 40)?;
    // the first update throws the weights so far that the second forward pass overflows
    let wild = ["--set", "optimizer.learning_rate=1e30", "--set", "optimizer.weight_decay=0.0"];
    let stopped = setting.dressage.run(&setting.planning_args("wild", &wild))?;
    refused(&stopped, 8, &["round-0-game-", "token", "on_not_finite"])?;
    let rows = setting.dressage.sql("select trajectory_id, rule, reason from quarantine")?;
    ensure!(rows.len() == 1 && rows[0]["rule"] == "not_finite", "{rows:?}");
    ensure!(rows[0]["trajectory_id"].as_str().is_some_and(|id| id.starts_with("round-0-game-")), "{rows:?}");
    // what was trained before is in a checkpoint, in front of the train step that failed
    let rows = setting.dressage.sql("select optimizer_step, next_train_step from checkpoints")?;
    ensure!(rows.len() == 1 && rows[0]["optimizer_step"] == 1 && rows[0]["next_train_step"] == 1, "{rows:?}");

    let skipping = [wild.as_slice(), &["--set", "step.on_not_finite=skip"]].concat();
    let skipped = setting.dressage.run(&setting.planning_args("skips", &skipping))?.expect_code(0)?.json()?;
    ensure!(skipped["train_steps"] == 5 && skipped["skipped_train_steps"] == 4, "{skipped}");
    Ok(())
}
