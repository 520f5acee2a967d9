//! Files beside the tables, and checkpoints made of them.

use std::io::{self, Write};
use std::time::Duration;

use dressage_schemas::Table;
use dressage_schemas::tables::checkpoints::{CheckpointFile, CheckpointRow};
use dressage_schemas::tables::quarantine::QuarantineRow;
use dressage_schemas::tables::train_metrics::TrainMetricRow;
use dressage_schemas::tables::trainer_logprobs::{self, TrainerLogprobRow};

use super::load::Random;
use super::round_trip::all_rows;
use super::{Broken, Outcome, below, fresh, holds, same};
use crate::maintain::check::{CheckOptions, Severity, check};
use crate::maintain::compact::{CompactOptions, compact};
use crate::maintain::versions::{GcOptions, gc};
use crate::maintain::{info, rm_run};
use crate::{ErrorKind, Lake, ObjectFolder, ScanOptions, StoreSettings, checkpoints, training};

type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Bytes that no compression or repetition makes look right by accident.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = Random(seed);
    let mut out: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).collect();
    out.truncate(bytes);
    out
}

/// Writes a file as a trainer does: from a thread of its own, in portions.
pub(super) async fn write(folder: &ObjectFolder, name: &str, content: Vec<u8>) -> Fallible<CheckpointFile> {
    let folder = folder.blocking(tokio::runtime::Handle::current());
    let name = name.to_owned();
    let written = tokio::task::spawn_blocking(move || {
        folder.write(&name, &mut |out: &mut dyn Write| content.chunks(300_007).try_for_each(|part| out.write_all(part)))
    });
    Ok(written.await??)
}

pub(super) async fn files_of_any_size_come_back_as_written(settings: &StoreSettings) -> Outcome {
    let lake = fresh(settings, "files").await?;
    let folder = ObjectFolder::in_store(&lake, "checkpoints/run/one")?;
    same("files of a folder that is not there", &folder.list().await?, &Vec::new())?;
    let part = crate::objects::PART_BYTES;
    let sizes = [0, 1, 70_000, part, part + 1, 3 * part + 12_345];
    let mut written = Vec::new();
    for (at, size) in sizes.into_iter().enumerate() {
        let content = noise(at as u64, size);
        let file = write(&folder, &format!("part {at}/model.bin"), content.clone()).await?;
        same("bytes written", &file.bytes, &(size as i64))?;
        same("hash", &file.hash, &blake3::hash(&content).to_hex().chars().take(32).collect())?;
        let read = folder.read(&file.path).await?;
        holds(format!("{size} bytes come back"), read == content)?;
        written.push(file);
    }
    let listed: Vec<_> = folder.list().await?.into_iter().map(|e| (e.name, e.bytes as i64)).collect();
    same("files listed", &listed, &written.iter().map(|f| (f.path.clone(), f.bytes)).collect())?;
    folder.verify(&written).await?;
    // replaced, it is the new one
    let replaced = write(&folder, "part 1/model.bin", b"new".to_vec()).await?;
    same("a file that was replaced", &folder.read("part 1/model.bin").await?.to_vec(), &b"new".to_vec())?;
    let found = folder.verify(&written).await;
    holds(
        "the old size is found wrong, by name",
        found.is_err_and(|e| e.kind() == ErrorKind::Corrupt && e.to_string().contains("part 1/model.bin")),
    )?;
    let other = CheckpointFile { hash: "0".repeat(32), ..replaced };
    let found = folder.verify(&[other]).await;
    holds("another hash is found wrong", found.is_err_and(|e| e.kind() == ErrorKind::Corrupt))?;
    holds("a file that is there exists", folder.exists("part 0/model.bin").await?)?;
    folder.delete("part 0/model.bin").await?;
    folder.delete("part 0/model.bin").await?;
    holds("a deleted file does not exist", !folder.exists("part 0/model.bin").await?)?;
    let missing = folder.read("part 0/model.bin").await;
    holds("reading it is NotFound", missing.is_err_and(|e| e.kind() == ErrorKind::NotFound))?;
    for bad in ["../outside", "/etc/passwd", ""] {
        holds(format!("{bad:?} is refused"), folder.read(bad).await.is_err_and(|e| e.kind() == ErrorKind::Invalid))?;
    }
    // the same folder by its own address
    if let Some(uri) = (!settings.uri.starts_with("memory://")).then(|| folder.uri().to_owned()) {
        let again = ObjectFolder::open(&uri, settings).await?;
        same("files by address", &again.list().await?, &folder.list().await?)?;
    }
    Ok(())
}

pub(super) async fn a_file_that_fails_is_not_there(settings: &StoreSettings) -> Outcome {
    let lake = fresh(settings, "failing").await?;
    let folder = ObjectFolder::in_store(&lake, "models/m")?;
    // one that fails before anything was sent, and one that fails when parts were
    for bytes in [100, 3 * crate::objects::PART_BYTES] {
        let blocking = folder.blocking(tokio::runtime::Handle::current());
        let written = tokio::task::spawn_blocking(move || {
            blocking.write("broken.bin", &mut |out: &mut dyn Write| {
                out.write_all(&vec![7; bytes])?;
                Err(io::Error::new(io::ErrorKind::InvalidData, "a tensor without a shape"))
            })
        });
        let error = match written.await? {
            Err(error) => error,
            Ok(_) => return Err(Box::new(Broken("a failed write was acknowledged".to_owned()))),
        };
        same("what to do about it", &error.kind(), &ErrorKind::Invalid)?;
        holds("the file is named", error.to_string().contains("broken.bin"))?;
        let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        holds("the cause is told", cause.contains("a tensor without a shape"))?;
        same("files afterwards", &folder.list().await?, &Vec::new())?;
    }
    Ok(())
}

/// A checkpoint with two small files, written and not yet published.
async fn written(lake: &Lake, run: &str, id: &str, after: Option<&str>, step: i64) -> Fallible<CheckpointRow> {
    let folder = checkpoints::new_files(lake, run, id)?;
    let weights = write(&folder, "model.safetensors", noise(step as u64, 5_000)).await?;
    let optimizer = write(&folder, "trainer/optimizer.safetensors", noise(step as u64 + 1, 9_000)).await?;
    Ok(CheckpointRow {
        checkpoint_id: id.to_owned(),
        train_run: run.to_owned(),
        after_checkpoint_id: after.map(str::to_owned),
        optimizer_step: step,
        weight_version: format!("{run}-{step}"),
        model: "qwen3".to_owned(),
        files: vec![weights, optimizer],
        settings: "{}".to_owned(),
        ..CheckpointRow::default()
    })
}

async fn publish(lake: &Lake, run: &str, id: &str, after: Option<&str>, step: i64) -> Fallible<CheckpointRow> {
    Ok(checkpoints::publish(lake, written(lake, run, id, after, step).await?).await?)
}

fn ids(rows: &[CheckpointRow]) -> Vec<&str> {
    rows.iter().map(|row| row.checkpoint_id.as_str()).collect()
}

pub(super) async fn a_checkpoint_is_published_whole_and_once(settings: &StoreSettings) -> Outcome {
    let lake = fresh(settings, "publish").await?;
    same("newest of a run that never was", &checkpoints::latest(&lake, "run").await?, &None)?;
    let row = written(&lake, "run", "c1", None, 10).await?;
    same("checkpoints before the row", &checkpoints::list(&lake, None).await?, &Vec::new())?;
    // a file that its row names and that is not there
    let mut lacking = row.clone();
    lacking.files.push(CheckpointFile { path: "missing".to_owned(), bytes: 1, hash: "0".repeat(32) });
    let refused = checkpoints::publish(&lake, lacking).await;
    holds("a missing file is named", refused.is_err_and(|e| e.to_string().contains("checkpoints/run/c1/missing")))?;
    let stored = checkpoints::publish(&lake, row.clone()).await?;
    same("bytes of a checkpoint", &stored.n_bytes, &14_000)?;
    same("its place", &stored.location.as_str(), &"checkpoints/run/c1")?;
    let reopened = Lake::open(below(settings, "publish")).await?;
    same("published again", &checkpoints::publish(&reopened, row).await?, &stored)?;
    same("checkpoints", &checkpoints::list(&reopened, Some("run")).await?, &vec![stored.clone()])?;
    let next = publish(&reopened, "run", "c2", Some("c1"), 20).await?;
    publish(&reopened, "other", "o1", None, 5).await?;
    same("newest", &checkpoints::latest(&lake, "run").await?, &Some(next.clone()))?;
    same("all", &ids(&checkpoints::list(&lake, None).await?), &vec!["c1", "c2", "o1"])?;
    same("one by the beginning of its id", &checkpoints::find(&lake, "c2").await?, &next)?;
    let several = checkpoints::find(&lake, "c").await;
    holds("an id that fits several is Invalid", several.is_err_and(|e| e.kind() == ErrorKind::Invalid))?;
    let none = checkpoints::find(&lake, "x").await;
    holds("an id that fits none is NotFound", none.is_err_and(|e| e.kind() == ErrorKind::NotFound))?;
    checkpoints::files(&lake, &next).await?.verify(&next.files).await?;
    for (run, id) in [("a/b", "c"), ("..", "c"), ("r", "../c"), ("", "c")] {
        let refused = checkpoints::new_files(&lake, run, id);
        holds(format!("{run:?} {id:?} are refused"), refused.is_err_and(|e| e.kind() == ErrorKind::Invalid))?;
    }
    let report = check(&lake, &CheckOptions::default()).await?;
    same("what a check finds", &report.problems, &Vec::new())?;
    holds("files were verified", report.bytes_verified >= 3 * 14_000)?;
    let summary = info(&lake).await?;
    let table = summary.tables.iter().find(|t| t.table == "checkpoints");
    holds("sizes count the files", table.is_some_and(|t| t.bytes_live >= 42_000 && t.bytes_stored >= t.bytes_live))?;
    let missing = rm_run(&lake, "run", true).await;
    holds("a training run is no run", missing.is_err_and(|e| e.kind() == ErrorKind::NotFound))
}

pub(super) async fn two_trainers_of_one_run_cannot_both_go_on(settings: &StoreSettings) -> Outcome {
    let lake = fresh(settings, "trainers").await?;
    publish(&lake, "run", "first", None, 0).await?;
    let mut after = "first".to_owned();
    for round in 0..3_i64 {
        let mut tasks = Vec::new();
        for trainer in ["a", "b", "c"] {
            // each opens the store for itself, as another process would
            let own = Lake::open(below(settings, "trainers")).await?;
            let row = written(&own, "run", &format!("{trainer}{round}"), Some(&after), round + 1).await?;
            tasks.push(tokio::spawn(async move { checkpoints::publish(&own, row).await }));
        }
        let mut went_on = Vec::new();
        for task in tasks {
            match task.await? {
                Ok(row) => went_on.push(row.checkpoint_id),
                Err(error) => {
                    same("what to do about it", &error.kind(), &ErrorKind::Conflict)?;
                    holds("it says why", error.to_string().contains("another process trains run run"))?;
                }
            }
        }
        same("trainers that went on", &went_on.len(), &1)?;
        after = went_on.remove(0);
        let newest = checkpoints::latest(&lake, "run").await?;
        same("the newest is the winner's", &newest.map(|row| row.checkpoint_id), &Some(after.clone()))?;
        same("checkpoints", &checkpoints::list(&lake, None).await?.len(), &(2 + round as usize))?;
    }
    // a row that came too late and whose process died before it could take it away
    let late = CheckpointRow { created_at: 1, ..written(&lake, "run", "late", Some("first"), 9).await? };
    let late = CheckpointRow { location: "checkpoints/run/late".to_owned(), ..late };
    let batch = dressage_schemas::tables::checkpoints::batch(&[late])?;
    crate::writer::commit::append_rows(&lake, Table::Checkpoints, &[batch]).await?;
    let snapshot = lake.snapshot(None).await?;
    same("hidden rows", &snapshot.duplicates(Table::Checkpoints).await?.len(), &1)?;
    holds("it is in no list", !ids(&checkpoints::list(&lake, None).await?).contains(&"late"))?;
    let report = check(&lake, &CheckOptions { repair: true, ..CheckOptions::default() }).await?;
    same("rows removed", &report.rows_removed.get("checkpoints").copied(), &Some(1))?;
    holds("a leftover is no damage", report.is_sound())?;
    same("hidden rows", &lake.snapshot(None).await?.duplicates(Table::Checkpoints).await?.len(), &0)
}

pub(super) async fn old_checkpoints_are_retired_and_leftovers_found(settings: &StoreSettings) -> Outcome {
    let lake = fresh(settings, "retire").await?;
    let mut after: Option<String> = None;
    for step in 1..=6_i64 {
        let row = publish(&lake, "run", &format!("c{step}"), after.as_deref(), step * 10).await?;
        after = Some(row.checkpoint_id);
    }
    publish(&lake, "other", "o1", None, 1).await?;
    // being written: files without a row
    let writing = written(&lake, "run", "c7", Some("c6"), 70).await?;
    let report = checkpoints::retire(&lake, "run", 2, Some(30)).await?;
    same("retired", &report.checkpoints_removed, &["c1", "c2", "c4"].map(str::to_owned).to_vec())?;
    same("files and bytes removed", &(report.files_removed, report.bytes_removed), &(6, 42_000))?;
    same("left", &ids(&checkpoints::list(&lake, None).await?), &vec!["c3", "c5", "c6", "o1"])?;
    let folder = ObjectFolder::in_store(&lake, checkpoints::FOLDER)?;
    same("files left", &folder.list().await?.len(), &10)?;
    // the line goes on, and so does publishing again what is there
    let next = checkpoints::publish(&lake, writing.clone()).await?;
    same("published again", &checkpoints::publish(&lake, writing).await?, &next)?;
    let stale = publish(&lake, "run", "x", Some("c4"), 50).await;
    holds("going on from a retired one conflicts", stale.is_err())?;
    // x left its files; c6 loses one and another has another size
    let files = checkpoints::new_files(&lake, "run", "c6")?;
    files.delete("model.safetensors").await?;
    write(&files, "trainer/optimizer.safetensors", vec![1]).await?;
    let bad = checkpoints::new_files(&lake, "run", "c5")?;
    write(&bad, "model.safetensors", vec![2; 5_000]).await?;
    let young = check(&lake, &CheckOptions { repair: true, ..CheckOptions::default() }).await?;
    same("young files are no leftovers", &young.files_removed, &0)?;
    let rules: Vec<_> = young.problems.iter().map(|p| (p.rule, p.severity, p.count)).collect();
    same("problems", &rules, &vec![("checkpoint_file", Severity::Damage, 3)])?;
    let named = young.problems.first().map(|p| p.examples.join("\n")).unwrap_or_default();
    for part in ["c6/model.safetensors: it is missing", "c6/trainer/optimizer.safetensors: it has 1 bytes", "c5/model"]
    {
        holds(format!("{part} is in {named}"), named.contains(part))?;
    }
    let quick = check(&lake, &CheckOptions { payload: false, ..CheckOptions::default() }).await?;
    same("without reading files", &quick.problems.first().map(|p| p.count), &Some(2))?;
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let grace = Duration::from_millis(1);
    let found = check(&lake, &CheckOptions { grace, ..CheckOptions::default() }).await?;
    let orphans: Vec<_> = found.problems.iter().filter(|p| p.rule == "orphan_files").collect();
    same("orphans", &orphans.iter().flat_map(|p| &p.examples).collect(), &vec![&"checkpoints/run/x".to_owned()])?;
    let repaired = check(&lake, &CheckOptions { grace, repair: true, ..CheckOptions::default() }).await?;
    same("files removed", &repaired.files_removed, &2)?;
    same("files left", &folder.list().await?.len(), &9)?;
    // all but the newest
    checkpoints::retire(&lake, "run", 0, None).await?;
    same("left", &ids(&checkpoints::list(&lake, Some("run")).await?), &vec!["c7"])?;
    same("published again", &checkpoints::publish(&lake, next.clone()).await?, &next)?;
    let last = check(&lake, &CheckOptions { grace, ..CheckOptions::default() }).await?;
    same("problems in the end", &last.problems, &Vec::new())
}

pub(super) async fn what_a_trainer_writes_down_survives_compaction(settings: &StoreSettings) -> Outcome {
    let lake = fresh(settings, "training").await?;
    for step in 0..4_i64 {
        let metric = |name: &str, value| TrainMetricRow {
            train_run: "run".to_owned(),
            optimizer_step: step,
            metric: name.to_owned(),
            value,
            ..TrainMetricRow::default()
        };
        training::append_metrics(&lake, &[metric("loss", 1.5), metric("grad_norm", f64::NAN)]).await?;
        let logprobs = TrainerLogprobRow {
            train_run: "run".to_owned(),
            optimizer_step: step,
            trajectory_id: "t".to_owned(),
            token_places: (5..5 + 40).collect(),
            logprobs: (step % 2 == 0).then(|| vec![-0.25; 40]),
            trainer_logprobs: vec![-0.5; 40],
            ..TrainerLogprobRow::default()
        };
        training::append_trainer_logprobs(&lake, &[trainer_logprobs::batch(&[logprobs])?]).await?;
        let refused = QuarantineRow { quarantine_key: 7, rule: "no_tokens".to_owned(), ..QuarantineRow::default() };
        training::append_quarantine(&lake, &[refused]).await?;
        publish(&lake, "run", &format!("c{step}"), (step > 0).then(|| format!("c{}", step - 1)).as_deref(), step)
            .await?;
    }
    let uneven = TrainerLogprobRow { token_places: vec![1, 2], trainer_logprobs: vec![-1.0], ..Default::default() };
    let refused = training::append_trainer_logprobs(&lake, &[trainer_logprobs::batch(&[uneven])?]).await;
    holds("lists of different lengths are refused", refused.is_err_and(|e| e.kind() == ErrorKind::Invalid))?;
    let before = lake.snapshot(None).await?;
    let tables = [Table::TrainMetrics, Table::TrainerLogprobs, Table::Checkpoints];
    let mut rows_before = Vec::new();
    for table in tables {
        rows_before.push(all_rows(&before, table, ScanOptions::default()).await?);
    }
    compact(&lake, &CompactOptions::default()).await?;
    gc(&lake, &GcOptions { keep_versions: Some(1), ..GcOptions::default() }).await?;
    let after = Lake::open(below(settings, "training")).await?.snapshot(None).await?;
    for (table, rows) in tables.into_iter().zip(rows_before) {
        same(&format!("fragments of {table}"), &after.fragments(table).len(), &1)?;
        let now = all_rows(&after, table, ScanOptions::default()).await?;
        // compared as text: a NaN is not equal to itself
        same(&format!("rows of {table}"), &format!("{now:?}"), &format!("{rows:?}"))?;
    }
    same("quarantined records that a reader sees twice", &after.duplicates(Table::Quarantine).await?.len(), &3)?;
    let listed = checkpoints::list(after.lake(), None).await?;
    same("checkpoints in order", &ids(&listed), &vec!["c0", "c1", "c2", "c3"])
}
