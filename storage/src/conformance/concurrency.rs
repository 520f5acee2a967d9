//! Many writers, and readers who do not move.

use std::collections::BTreeMap;

use arrow::array::Int64Array;
use dressage_schemas::Table;

use super::load::{self, Shape};
use super::round_trip::all_rows;
use super::{Outcome, below, fresh, holds, same};
use crate::physical::{row_addresses, typed};
use crate::{Lake, ScanOptions, StoreSettings, WriterSettings};

const WRITERS: u64 = 6;
const COMMITS: u64 = 4;
const PER_COMMIT: u64 = 3;

pub(super) async fn many_writers_lose_and_double_nothing(settings: &StoreSettings) -> Outcome {
    fresh(settings, "many").await?;
    let shape = Shape { steps: 2, tokens: 12, routed: true };
    let mut tasks = Vec::new();
    for writer_number in 0..WRITERS {
        // each opens the store for itself, as another process would
        let place = below(settings, "many");
        tasks.push(tokio::spawn(async move {
            let lake = Lake::open(place).await?;
            let mut writer = lake.writer(WriterSettings::default());
            for commit in 0..COMMITS {
                let first = commit * PER_COMMIT;
                load::append(&mut writer, &format!("r{writer_number}"), first..first + PER_COMMIT, shape).await?;
                writer.commit().await?;
            }
            writer.close().await?;
            Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    let snapshot = Lake::open(below(settings, "many")).await?.snapshot(None).await?;
    let trajectories = WRITERS * COMMITS * PER_COMMIT;
    same("trajectories", &(snapshot.row_count(Table::Trajectories) as u64), &trajectories)?;
    same("steps", &(snapshot.row_count(Table::Steps) as u64), &(trajectories * 2))?;
    let rows = all_rows(&snapshot, Table::Steps, ScanOptions::columns(["trajectory_key", "write_id"])).await?;
    let keys: &Int64Array = typed(Table::Steps, &rows, "trajectory_key")?;
    let mut steps: BTreeMap<i64, usize> = BTreeMap::new();
    for key in keys.values() {
        *steps.entry(*key).or_default() += 1;
    }
    same("trajectories that have steps", &(steps.len() as u64), &trajectories)?;
    holds("each has both of its steps", steps.values().all(|n| *n == 2))
}

pub(super) async fn a_pinned_reader_sees_one_moment(settings: &StoreSettings) -> Outcome {
    let lake = fresh(settings, "pinned").await?;
    let mut writer = lake.writer(WriterSettings::default());
    load::append(&mut writer, "r", 0..5, Shape::default()).await?;
    writer.commit().await?;
    let pinned = lake.snapshot(None).await?;
    let before = all_rows(&pinned, Table::Steps, ScanOptions::default()).await?;
    load::append(&mut writer, "r", 5..9, Shape::default()).await?;
    writer.commit().await?;
    crate::maintain::rm_run(&lake, "r", false).await?;
    crate::maintain::compact(&lake, &crate::maintain::CompactOptions::default()).await?;
    let after = all_rows(&pinned, Table::Steps, ScanOptions::default()).await?;
    same("steps of the pinned reader", &after, &before)?;
    let newest = lake.snapshot(None).await?;
    same("trajectories of a new reader", &newest.row_count(Table::Trajectories), &0)?;
    let again = lake.snapshot_of(pinned.versions().clone()).await?;
    same("the same versions pinned again", &again.row_count(Table::Steps), &15)
}

pub(super) async fn the_longest_copy_is_the_effective_one(settings: &StoreSettings) -> Outcome {
    let lake = fresh(settings, "copies").await?;
    let mut writer = lake.writer(WriterSettings::default());
    load::append(&mut writer, "r", 0..3, Shape::default()).await?;
    // trajectory 1 again, longer; trajectory 2 twice at the same revision, as two racing ingests would
    let mut ids = Vec::new();
    for (number, revision, steps) in [(1, 1, 5), (2, 0, 3)] {
        let write_id = writer.next_write_id().0;
        ids.push(write_id);
        let rows = load::rows("r", number, revision, write_id, Shape { steps, ..Shape::default() })?;
        let known = writer.known_trajectories(&[rows.trajectory.trajectory_key]).await?;
        same("known while pending", &known.first().map(|k| k.revision), &Some(0))?;
        writer.append(load::group(&[rows])?).await?;
    }
    writer.commit().await?;
    let snapshot = lake.snapshot(None).await?;
    same("stored rows", &snapshot.row_count(Table::Trajectories), &5)?;
    let superseded = snapshot.superseded().await?;
    same("superseded rows", &superseded.len(), &2)?;
    let options = ScanOptions::columns(["write_id", "trajectory_key"]).with_row_address();
    let rows = all_rows(&snapshot, Table::Trajectories, options).await?;
    let write_ids: &Int64Array = typed(Table::Trajectories, &rows, "write_id")?;
    let addresses = row_addresses(Table::Trajectories, &rows)?;
    for (row, write_id) in write_ids.values().iter().enumerate() {
        if ids.contains(write_id) {
            holds("the later copy is effective", !superseded.contains(addresses.value(row)))?;
        }
    }
    let known = writer.known_trajectories(&[dressage_schemas::ids::TrajectoryKey::of("r", "traj-00001").0]).await?;
    same("revision known afterwards", &known.first().map(|k| (k.revision, k.extent)), &Some((1, 5)))
}
