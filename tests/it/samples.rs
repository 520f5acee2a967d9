//! Batches of rollouts with settings and the samples that must come of them, through the command: ingest, then SQL.
//!
//! `tests/samples/reference.jsonl` was made by the reference system, `ours.jsonl` by `ours.py` beside it, for what the
//! first one lacks.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::whole::local;

const COLUMNS: [&str; 9] = [
    "trajectory_id",
    "segment_index",
    "n_tokens",
    "response_length",
    "mask_sum",
    "raw_reward",
    "advantage",
    "denominator",
    "truncated",
];

/// Every batch of a file gives exactly its expected rows.
fn every_batch_holds(file: &str) -> Result<usize> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples").join(file);
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut batches = 0;
    for (number, line) in text.lines().enumerate() {
        let batch: Value = serde_json::from_str(line)?;
        batch_holds(&batch).with_context(|| format!("{file}, batch {number}, settings {}", batch["settings"]))?;
        batches += 1;
    }
    Ok(batches)
}

fn batch_holds(batch: &Value) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let input = dir.path().join("rollouts.jsonl");
    let trajectories = batch["trajectories"].as_array().context("trajectories")?;
    std::fs::write(&input, trajectories.iter().map(|t| format!("{t}\n")).collect::<String>())?;
    let dressage = local(&dir.path().join("store"));
    dressage.run(&["ingest", &input.display().to_string(), "--run", "r", "--quiet"])?.expect_code(0)?;

    let mut flags: Vec<String> = Vec::new();
    for (key, value) in batch["settings"].as_object().context("settings")? {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        flags.extend(["--set".to_owned(), format!("{key}={text}")]);
    }
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    // what was recorded with gradient is in samples or in drops
    let accounts = "select (select coalesce(sum(n_trained_tokens), 0) from trajectories) - \
                    (select coalesce(sum(mask_sum), 0) from samples) - \
                    (select coalesce(sum(n_lost_tokens), 0) from drops) as unaccounted";
    let columns = COLUMNS.join(", ");
    let query = format!("select {columns} from samples order by trajectory_id, segment_index; {accounts}");
    let mut found = dressage.sql_with(&flags, &query)?;
    let unaccounted = found.pop().context("a row of accounts")?;
    ensure!(unaccounted["unaccounted"] == 0, "tokens are in neither samples nor drops: {unaccounted}");

    let mut expected = batch["expected"].as_array().context("expected")?.clone();
    expected.sort_by_key(|row| (row["trajectory_id"].to_string(), row["segment_index"].as_i64()));
    let key = |row: &Value| format!("{} {}", row["trajectory_id"], row["segment_index"]);
    let keys = |rows: &[Value]| rows.iter().map(key).collect::<Vec<_>>();
    ensure!(keys(&found) == keys(&expected), "rows {:?}, not {:?}", keys(&found), keys(&expected));
    for (found, expected) in found.iter().zip(&expected) {
        for column in COLUMNS.iter().skip(1) {
            let (is, should) = (number(&found[column]), number(&expected[column]));
            let same = matches!((is, should), (Some(is), Some(should)) if (is - should).abs() <= 1e-9);
            ensure!(same, "{column} of {} is {}, not {}", key(found), found[column], expected[column]);
        }
    }

    Ok(())
}

/// A number, or a truth as 0 or 1.
fn number(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_bool().map(|truth| f64::from(u8::from(truth))))
}

#[test]
fn the_reference_systems_batches_give_its_samples() -> Result<()> {
    ensure!(every_batch_holds("reference.jsonl")? == 20);
    Ok(())
}

#[test]
fn uneven_groups_missing_rewards_dead_trajectories_and_old_weights_give_the_samples_of_a_second_implementation()
-> Result<()> {
    ensure!(every_batch_holds("ours.jsonl")? == 15);
    Ok(())
}
