//! Looking after a store changes nothing that a reader sees.

use std::time::Duration;

use dressage_schemas::Table;
use dressage_schemas::ids::TrajectoryKey;

use super::load::{self, Shape};
use super::round_trip::{all_rows, sorted};
use super::{Outcome, below, fresh, holds, same};
use crate::lake::now_micros;
use crate::maintain::check::{CheckOptions, Severity, check};
use crate::maintain::compact::{CompactOptions, compact};
use crate::maintain::versions::{GcOptions, gc, versions};
use crate::maintain::{info, rm_run, snapshots};
use crate::{AsOf, ErrorKind, Lake, ScanOptions, StoreSettings, WriterSettings};

pub(super) async fn compaction_keeps_every_byte(settings: &StoreSettings) -> Outcome {
    let lake = fresh(settings, "compact").await?;
    let mut writer = lake.writer(WriterSettings::default());
    for round in 0..6 {
        // some values inline, some packed, some absent
        let shape = Shape { steps: 2, tokens: if round % 2 == 0 { 30 } else { 30_000 }, routed: round != 4 };
        load::append(&mut writer, "r", round * 2..round * 2 + 2, shape).await?;
        writer.commit().await?;
    }
    let before = lake.snapshot(None).await?;
    let steps_before =
        sorted(&all_rows(&before, Table::Steps, ScanOptions::default()).await?, &["trajectory_key", "step_index"])?;
    holds("there is something to join", before.fragments(Table::Steps).len() == 6)?;
    let report = compact(&lake, &CompactOptions::default()).await?;
    holds("steps were joined", report.tables.iter().any(|t| t.table == "steps" && t.fragments_added == 1))?;

    let reopened = Lake::open(below(settings, "compact")).await?;
    let after = reopened.snapshot(None).await?;
    same("fragments of steps", &after.fragments(Table::Steps).len(), &1)?;
    let steps_after =
        sorted(&all_rows(&after, Table::Steps, ScanOptions::default()).await?, &["trajectory_key", "step_index"])?;
    same("steps", &steps_after, &steps_before)?;
    let pinned =
        sorted(&all_rows(&before, Table::Steps, ScanOptions::default()).await?, &["trajectory_key", "step_index"])?;
    same("steps of a reader that was there before", &pinned, &steps_before)?;
    let found = check(&reopened, &CheckOptions::default()).await?;
    same("what a check finds afterwards", &found.problems, &Vec::new())?;
    // what is large enough is not rewritten again
    let small = CompactOptions { target_bytes: 1, ..CompactOptions::default() };
    same("tables rewritten though their fragments are large", &compact(&reopened, &small).await?.tables, &Vec::new())?;
    // look-ups go through the index that compaction made, and through the one that it extends
    for round in 0..2 {
        let newest = reopened.snapshot(None).await?;
        for (table, column) in crate::index::INDEXED {
            let open = crate::index::unindexed_rows(newest.dataset(table)?, table, column).await?;
            same(&format!("rows of {table} without an index on {column}"), &open, &0)?;
        }
        let filter = "trajectory_id = 'traj-00007'";
        let options = ScanOptions::columns(["run_id", "trajectory_key"]).filter(filter);
        let one = all_rows(&newest, Table::Trajectories, options).await?;
        same("rows found by id", &one.num_rows(), &(1 + round))?;
        let key: &arrow::array::Int64Array = crate::physical::typed(Table::Trajectories, &one, "trajectory_key")?;
        let filter = format!("trajectory_key = {}", key.value(0));
        let steps = all_rows(&newest, Table::Steps, ScanOptions::columns(["step_index"]).filter(filter)).await?;
        same("steps found by key", &steps.num_rows(), &2)?;
        load::append(&mut writer, &format!("again{round}"), 0..12, Shape { steps: 2, ..Shape::default() }).await?;
        writer.commit().await?;
        compact(&reopened, &CompactOptions::default()).await?;
    }
    Ok(())
}

pub(super) async fn snapshots_are_found_by_id_tag_and_time(settings: &StoreSettings) -> Outcome {
    let lake = fresh(settings, "snapshots").await?;
    let mut writer = lake.writer(WriterSettings::default());
    load::append(&mut writer, "r", 0..2, Shape::default()).await?;
    writer.commit().await?;
    let named = snapshots::create(&lake.snapshot(None).await?, Some("baseline")).await?;
    // services give times in whole seconds at worst; manifests carry finer ones
    tokio::time::sleep(Duration::from_millis(50)).await;
    let between = now_micros();
    tokio::time::sleep(Duration::from_millis(50)).await;
    load::append(&mut writer, "r", 2..5, Shape::default()).await?;
    writer.commit().await?;
    for as_of in [AsOf::Snapshot(named.snapshot_id), AsOf::Tag("baseline".into()), AsOf::Time(between)] {
        let then = lake.snapshot(Some(as_of.clone())).await?;
        same(&format!("trajectories {as_of}"), &then.row_count(Table::Trajectories), &2)?;
        same(&format!("steps {as_of}"), &then.row_count(Table::Steps), &6)?;
    }
    let missing = lake.snapshot(Some(AsOf::Tag("none".into()))).await;
    holds("an unknown tag is NotFound", missing.is_err_and(|e| e.kind() == ErrorKind::NotFound))?;
    let before_all = lake.snapshot(Some(AsOf::Time(1))).await;
    holds("a time before the store is NotFound", before_all.is_err_and(|e| e.kind() == ErrorKind::NotFound))
}

pub(super) async fn gc_keeps_what_a_tag_names(settings: &StoreSettings) -> Outcome {
    let lake = fresh(settings, "gc").await?;
    let mut writer = lake.writer(WriterSettings::default());
    load::append(&mut writer, "r", 0..2, Shape::default()).await?;
    writer.commit().await?;
    snapshots::create(&lake.snapshot(None).await?, Some("keep")).await?;
    for round in 1..5 {
        load::append(&mut writer, "r", round * 2..round * 2 + 2, Shape::default()).await?;
        writer.commit().await?;
    }
    compact(&lake, &CompactOptions::default()).await?;
    let all = versions(&lake, Some(Table::Trajectories)).await?.len();
    let options = GcOptions { keep_versions: Some(1), older_than: None, dry_run: true };
    let planned = gc(&lake, &options).await?;
    same("versions after a dry run", &versions(&lake, Some(Table::Trajectories)).await?.len(), &all)?;
    holds("the dry run names versions", planned.versions_removed.contains_key("trajectories"))?;
    let done = gc(&lake, &GcOptions { dry_run: false, ..options }).await?;
    same("what went is what was planned", &done.versions_removed, &planned.versions_removed)?;
    holds("bytes were freed", done.bytes_removed > 0)?;
    let reopened = Lake::open(below(settings, "gc")).await?;
    let kept = reopened.snapshot(Some(AsOf::Tag("keep".into()))).await?;
    same("trajectories under the tag", &kept.row_count(Table::Trajectories), &2)?;
    let rows = all_rows(&kept, Table::Steps, ScanOptions::default()).await?;
    same("steps under the tag", &rows.num_rows(), &6)?;
    let newest = reopened.snapshot(None).await?;
    let rows = all_rows(&newest, Table::Steps, ScanOptions::default()).await?;
    same("steps of the newest version", &rows.num_rows(), &30)
}

pub(super) async fn a_run_is_removed_whole_and_alone(settings: &StoreSettings) -> Outcome {
    let lake = fresh(settings, "rm").await?;
    let mut writer = lake.writer(WriterSettings::default());
    load::append(&mut writer, "old's", 0..3, Shape::default()).await?;
    load::append(&mut writer, "new", 0..2, Shape::default()).await?;
    writer.commit().await?;
    let planned = rm_run(&lake, "old's", true).await?;
    same("rows after a dry run", &lake.snapshot(None).await?.row_count(Table::Trajectories), &5)?;
    let done = rm_run(&lake, "old's", false).await?;
    same("rows removed", &done.rows, &planned.rows)?;
    let after = lake.snapshot(None).await?;
    let counts = [Table::Trajectories, Table::Steps, Table::Rewards, Table::IngestLog].map(|t| after.row_count(t));
    same("rows of the other run", &counts, &[2, 6, 2, 2])?;
    let missing = rm_run(&lake, "old's", true).await;
    holds("a run that is not there is NotFound", missing.is_err_and(|e| e.kind() == ErrorKind::NotFound))?;
    let found = check(&lake, &CheckOptions::default()).await?;
    same("what a check finds afterwards", &found.problems, &Vec::new())
}

pub(super) async fn leftovers_are_found_and_removed(settings: &StoreSettings) -> Outcome {
    let lake = fresh(settings, "leftovers").await?;
    let mut writer = lake.writer(WriterSettings::default());
    load::append(&mut writer, "r", 0..3, Shape::default()).await?;
    writer.commit().await?;
    // steps, rewards, log and messages whose trajectory row never came: what a crash before the last table leaves
    let orphan = load::rows("r", 77, 0, writer.next_write_id().0, Shape::default())?;
    let mut group = load::group(std::slice::from_ref(&orphan))?;
    group.trajectories = None;
    writer.append(group).await?;
    writer.commit().await?;
    let young = check(&lake, &CheckOptions { repair: true, ..CheckOptions::default() }).await?;
    same("young rows are not leftovers", &(young.problems.len(), young.rows_removed.len()), &(0, 0))?;
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let grace = Duration::from_millis(1);
    let found = check(&lake, &CheckOptions { grace, ..CheckOptions::default() }).await?;
    let rules: Vec<(&str, Severity)> = found.problems.iter().map(|p| (p.table.as_str(), p.severity)).collect();
    let leftover = |table| (table, Severity::Leftover);
    same("leftovers", &rules, &vec![leftover("ingest_log"), leftover("rewards"), leftover("steps")])?;
    check(&lake, &CheckOptions { grace, repair: true, ..CheckOptions::default() }).await?;
    // once its steps are gone, nothing names its messages any more
    let second = check(&lake, &CheckOptions { grace, repair: true, ..CheckOptions::default() }).await?;
    same("messages removed", &second.rows_removed.get("contents").copied(), &Some(3))?;
    let last = check(&lake, &CheckOptions { grace, ..CheckOptions::default() }).await?;
    same("problems in the end", &last.problems, &Vec::new())?;
    let snapshot = lake.snapshot(None).await?;
    let orphans = format!("trajectory_key = {}", TrajectoryKey::of("r", "traj-00077").0);
    let left = all_rows(&snapshot, Table::Steps, ScanOptions::columns(["step_index"]).filter(orphans)).await?;
    same("orphan steps in the end", &left.num_rows(), &0)?;
    let summary = info(&lake).await?;
    let steps = summary.tables.iter().find(|t| t.table == "steps");
    same("live and deleted steps", &steps.map(|t| (t.rows, t.rows_deleted)), &Some((9, 0)))?;
    holds(
        "live bytes are counted, blobs included",
        steps.is_some_and(|t| t.bytes_live > 0 && t.bytes_live <= t.bytes_stored),
    )
}
