//! A store that begins to ignore conditional writes after it was found sound is noticed by the writer whose commit it
//! overwrote.

use std::path::{Path, PathBuf};

use dressage_schemas::ErrorKind;
use dressage_storage::conformance::load::{self, Shape};
use dressage_storage::{Error, Lake, LakeWriter, StoreSettings, WriterSettings};

async fn committed(folder: &Path, run: &str) -> LakeWriter {
    let lake = Lake::init(StoreSettings::at(folder.to_str().unwrap())).await.unwrap();
    let mut writer = lake.writer(WriterSettings::default());
    load::append(&mut writer, run, 0..2, Shape::default()).await.unwrap();
    writer.commit().await.unwrap();
    writer
}

/// The newest manifest of a table: names count down, so that the newest is listed first.
fn newest_manifest(folder: &Path, table: &str) -> PathBuf {
    let entries = std::fs::read_dir(folder.join(format!("{table}.lance/_versions"))).unwrap();
    let manifests = entries.map(|e| e.unwrap().path()).filter(|p| p.extension().is_some_and(|e| e == "manifest"));
    manifests.min().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_was_overwritten_is_noticed_at_the_next_one() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut writer = committed(ours.path(), "ours").await;
    committed(theirs.path(), "theirs").await;
    // what a store that ignores If-None-Match does when another writer commits the same version
    let target = newest_manifest(ours.path(), "trajectories");
    assert_eq!(target.file_name(), newest_manifest(theirs.path(), "trajectories").file_name());
    std::fs::copy(newest_manifest(theirs.path(), "trajectories"), &target).unwrap();
    load::append(&mut writer, "ours", 2..3, Shape::default()).await.unwrap();
    let error = writer.commit().await.unwrap_err();
    assert!(matches!(error, Error::FenceBroken { .. }), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(matches!(writer.commit().await, Err(Error::WriterBroken)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_noticed_when_the_writer_closes_with_nothing_more_to_write() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let writer = committed(ours.path(), "ours").await;
    committed(theirs.path(), "theirs").await;
    std::fs::copy(newest_manifest(theirs.path(), "steps"), newest_manifest(ours.path(), "steps")).unwrap();
    assert!(matches!(writer.close().await, Err(Error::FenceBroken { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_are_committed_by_size_without_being_asked() {
    let folder = tempfile::tempdir().unwrap();
    let lake = Lake::init(StoreSettings::at(folder.path().to_str().unwrap())).await.unwrap();
    let mut writer = lake.writer(WriterSettings { commit_bytes: 20_000, ..WriterSettings::default() });
    load::append(&mut writer, "r", 0..40, Shape::default()).await.unwrap();
    let seen = lake.snapshot(None).await.unwrap().row_count(dressage_schemas::Table::Trajectories);
    assert!((1..40).contains(&seen), "{seen} of 40 trajectories are visible before the writer closes");
    let totals = writer.close().await.unwrap();
    assert!(totals.commits > 2, "{totals:?}");
    assert_eq!(totals.rows["trajectories"], 40);
    assert_eq!(lake.snapshot(None).await.unwrap().row_count(dressage_schemas::Table::Steps), 120);
}
