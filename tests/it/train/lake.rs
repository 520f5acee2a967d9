//! What a training run leaves in the lake, and what it takes from it.

use std::path::Path;

use anyhow::{Result, ensure};
use dressage_rig::Weed;

use super::{Setting, report};
use crate::cli::run::dressage as command;
use crate::whole::{local, on_s3};

/// A model of Qwen3's vocabulary that is small enough for a test.
fn tiny_qwen3(folder: &Path) -> Result<()> {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/demo/model/config.json");
    std::fs::create_dir_all(folder)?;
    std::fs::copy(shipped, folder.join("config.json"))?;
    std::fs::write(folder.join("tokenizer_config.json"), "{\"model_max_length\": 32768}\n")?;
    Ok(())
}

#[test]
fn real_rollouts_become_weights_metrics_and_a_checkpoint() {
    let dir = tempfile::tempdir().expect("a folder");
    let lake = local(&dir.path().join("store"));
    let rollouts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/nemo-gym").display().to_string();
    lake.run(&["ingest", &rollouts, "--quiet"]).and_then(|f| f.expect_code(0).map(drop)).expect("ingested");
    let (model, out) = (dir.path().join("model"), dir.path().join("trained"));
    tiny_qwen3(&model).expect("made");
    let (model, out_text) = (model.display().to_string(), out.display().to_string());
    let args = [
        "train",
        "--json",
        "--model",
        &model,
        "--out",
        &out_text,
        "--global-batch-size",
        "4",
        "--max-tokens-per-micro-batch",
        "4096",
        "--set",
        "weights.init=random",
        "--set",
        "loss.kind=cross_entropy",
        "--set",
        "optimizer.learning_rate=1e-2",
        "--set",
        "metrics.logprobs=true",
        "--train-steps-max",
        "3",
    ]
    .map(str::to_owned);
    let trained = report(&lake, &args).expect("trained");
    assert_eq!(trained["train_steps"], 3, "{trained}");
    let loss = |which: &str| trained[which]["loss"].as_f64().expect("a loss");
    assert!(loss("first") > 0.0 && loss("last") < loss("first"), "{trained}");
    for file in ["config.json", "model.safetensors", "tokenizer_config.json", "dressage.json"] {
        assert!(out.join(file).is_file(), "no {file}");
    }
    let marker: serde_json::Value =
        serde_json::from_slice(&std::fs::read(out.join("dressage.json")).expect("read")).expect("JSON");
    assert_eq!(marker["weight_version"], trained["weight_version"]);

    let rows = lake.sql("select metric, count(*) as n from train_metrics group by metric").expect("metrics");
    assert!(rows.iter().any(|row| row["metric"] == "loss" && row["n"] == 3), "{rows:?}");
    let rows = lake.sql("select optimizer_step, weight_version, model from checkpoints").expect("checkpoints");
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!((&rows[0]["optimizer_step"], &rows[0]["weight_version"]), (&3.into(), &trained["weight_version"]));
    // every trained token of the plan's first steps, beside the rollout's log-prob
    let counted = lake
        .sql(
            "select t.n as written, m.n as trained from
               (select count(*) as n from token_mismatch where train_step = 0) t,
               (select cast(sum(value) as bigint) as n from train_metrics
                where metric = 'trained_tokens' and train_step = 0) m",
        )
        .expect("log-probs");
    assert_eq!(counted[0]["written"], counted[0]["trained"], "{counted:?}");
    lake.run(&["store", "check", "--json"]).and_then(|f| f.expect_code(0).map(drop)).expect("sound");
}

#[test]
fn models_are_read_from_buckets_and_published_to_them() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let weed = Weed::shared();
    let place = weed.place("models");
    let setting = Setting::make(on_s3(&place), dir.path(), 16)?;
    let bucket = place.uri.trim_end_matches('/').rsplit_once('/').map_or("", |(bucket, _)| bucket);
    let (first, second) = (format!("{bucket}/models/first"), format!("{bucket}/models/second"));
    let with = |args: Vec<String>, flag: &str, value: &str| -> Vec<String> {
        let at = args.iter().position(|arg| arg == flag).map_or(0, |at| at + 1);
        args.into_iter().enumerate().map(|(nth, arg)| if nth == at { value.to_owned() } else { arg }).collect()
    };
    let to_first = with(setting.planning_args("first", &[]), "--out", &first);
    let trained = report(&setting.dressage, &to_first)?;
    ensure!(trained["train_steps"] == 2, "{trained}");
    // the second run begins with the first one's weights, as they lie in the bucket
    let args = with(with(setting.planning_args("second", &[]), "--model", &first), "--out", &second);
    let loads: Vec<String> =
        args.into_iter().map(|arg| arg.replace("weights.init=random", "weights.init=load")).collect();
    ensure!(report(&setting.dressage, &loads)?["train_steps"] == 2);
    let again = report(&setting.dressage, &loads)?;
    ensure!(again["ended"] == "nothing_left", "{again}");
    Ok(())
}

#[test]
fn a_run_trains_what_came_since_and_nothing_twice() {
    let dir = tempfile::tempdir().expect("a folder");
    let setting = Setting::make(local(&dir.path().join("store")), dir.path(), 40).expect("made");
    let args = setting.planning_args("run", &[]);
    assert_eq!(report(&setting.dressage, &args).expect("trained")["train_steps"], 5);
    let again = report(&setting.dressage, &args).expect("again");
    assert_eq!((&again["train_steps"], &again["ended"]), (&0.into(), &"nothing_left".into()));
    setting.ingest(&super::random_games(&mut dressage_rig::Seed::new(8), 16), 1).expect("more");
    let more = report(&setting.dressage, &args).expect("more");
    assert_eq!(more["train_steps"], 2, "{more}");
    let twice = setting
        .dressage
        .sql("select b.trajectory_key from batches b group by b.trajectory_key having count(distinct b.plan_id) > 1");
    assert!(twice.expect("asked").is_empty());
    assert_eq!(setting.metric("run", "loss").expect("losses").len(), 7);
}

#[test]
fn old_checkpoints_are_removed_with_their_files_but_for_those_that_are_kept() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let store = dir.path().join("store");
    let setting = Setting::make(local(&store), dir.path(), 64)?;
    let kept = ["checkpoints.every_train_steps=1", "checkpoints.keep_last=2", "checkpoints.keep_every_train_steps=3"];
    let more: Vec<&str> = kept.iter().flat_map(|set| ["--set", set]).collect();
    ensure!(report(&setting.dressage, &setting.planning_args("thin", &more))?["train_steps"] == 8);
    let rows = setting.dressage.sql("select optimizer_step as n, checkpoint_id as id from checkpoints order by n")?;
    let steps: Vec<i64> = rows.iter().filter_map(|row| row["n"].as_i64()).collect();
    ensure!(steps == [3, 6, 7, 8], "{rows:?}");
    let mut folders: Vec<String> = std::fs::read_dir(store.join("checkpoints/thin"))?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    folders.sort();
    let named: Vec<&str> = rows.iter().filter_map(|row| row["id"].as_str()).collect();
    ensure!(folders == named, "{folders:?} are there, {named:?} have rows");
    Ok(())
}

#[test]
fn epochs_go_through_the_same_plans_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let setting = Setting::make(local(&dir.path().join("store")), dir.path(), 24).expect("made");
    let args = setting.planning_args("warm", &["--set", "epochs=3", "--set", "loss.kind=cross_entropy"]);
    let trained = report(&setting.dressage, &args).expect("trained");
    assert_eq!(trained["train_steps"], 9, "{trained}");
    assert_eq!(trained["plans"].as_array().map(Vec::len), Some(1));
    let losses: Vec<f64> = setting.metric("warm", "loss").expect("losses").into_values().collect();
    assert!(losses[8] < losses[0], "{losses:?}");
}

#[test]
fn curves_are_drawn_and_events_are_written() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let setting = Setting::make(local(&dir.path().join("store")), dir.path(), 24)?;
    let events = dir.path().join("events");
    let tensorboard = events.display().to_string();
    report(&setting.dressage, &setting.planning_args("drawn", &["--tensorboard", &tensorboard]))?;
    ensure!(std::fs::read_dir(&events)?.count() == 1, "one event file");
    for name in ["curves.svg", "curves.png"] {
        let file = dir.path().join(name);
        let drawn = command(dir.path())
            .args(["plot", "--store"])
            .arg(dir.path().join("store"))
            .args(["--train-run", "drawn", "-o"])
            .arg(&file)
            .output()?;
        ensure!(drawn.status.success(), "{}", String::from_utf8_lossy(&drawn.stderr));
        ensure!(std::fs::metadata(&file)?.len() > 1_000, "{name} is empty");
    }
    let told = setting.dressage.run(&["plot", "--json", "--metrics", "loss"])?.expect_code(0)?.json()?;
    ensure!(told["series"][0]["value"].as_array().map(Vec::len) == Some(3), "{told}");
    let nobody = setting.dressage.run(&["plot", "--json", "--train-run", "nobody"])?;
    nobody.expect_code(3)?;
    ensure!(nobody.stderr.contains("nobody"), "{}", nobody.stderr);
    Ok(())
}
