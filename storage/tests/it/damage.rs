//! A check finds bytes that are not the ones that were written.

use std::path::{Path, PathBuf};
use std::time::Duration;

use dressage_schemas::ErrorKind;
use dressage_storage::conformance::load::{self, Shape};
use dressage_storage::maintain::{CheckOptions, Severity, check};
use dressage_storage::{Lake, RECORD_NAME, StoreSettings, WriterSettings};

async fn store_in(folder: &Path) -> Lake {
    let lake = Lake::init(StoreSettings::at(folder.to_str().unwrap())).await.unwrap();
    let mut writer = lake.writer(WriterSettings::default());
    load::append(&mut writer, "r", 0..2, Shape { steps: 1, tokens: 30_000, routed: true }).await.unwrap();
    writer.close().await.unwrap();
    lake
}

/// The largest file below a folder with an extension.
fn largest(folder: &Path, extension: &str) -> PathBuf {
    let mut found: Vec<(u64, PathBuf)> = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == extension) {
                found.push((path.metadata().unwrap().len(), path));
            }
        }
    }
    found.into_iter().max().unwrap().1
}

fn flip(file: &Path, at: usize) {
    let mut bytes = std::fs::read(file).unwrap();
    bytes[at] ^= 0x40;
    std::fs::write(file, bytes).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_flipped_bit_of_routed_experts_is_found() {
    let folder = tempfile::tempdir().unwrap();
    store_in(folder.path()).await;
    let blob = largest(&folder.path().join("steps.lance/data"), "blob");
    flip(&blob, blob.metadata().unwrap().len() as usize / 2);
    let lake = Lake::open(StoreSettings::at(folder.path().to_str().unwrap())).await.unwrap();
    let report = check(&lake, &CheckOptions::default()).await.unwrap();
    assert!(report.is_damaged(), "{report:?}");
    assert_eq!(report.problems[0].rule, "payload_checksum");
    assert_eq!(report.problems[0].count, 1, "only the step whose bytes changed is named");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_in_a_data_file_is_found() {
    let folder = tempfile::tempdir().unwrap();
    store_in(folder.path()).await;
    let data = largest(&folder.path().join("steps.lance/data"), "lance");
    // in the token ids: the first large pages of the file
    flip(&data, data.metadata().unwrap().len() as usize / 3);
    let lake = Lake::open(StoreSettings::at(folder.path().to_str().unwrap())).await.unwrap();
    let report = check(&lake, &CheckOptions::default()).await.unwrap();
    assert!(report.is_damaged(), "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_data_file_is_found() {
    let folder = tempfile::tempdir().unwrap();
    store_in(folder.path()).await;
    std::fs::remove_file(largest(&folder.path().join("steps.lance/data"), "lance")).unwrap();
    let lake = Lake::open(StoreSettings::at(folder.path().to_str().unwrap())).await.unwrap();
    let report = check(&lake, &CheckOptions::default()).await.unwrap();
    assert!(report.is_damaged(), "{report:?}");
    assert!(report.problems.iter().any(|p| p.rule == "unreadable" && p.severity == Severity::Damage));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repair_removes_nothing_while_the_rows_that_refer_to_it_cannot_be_read() {
    for table in ["trajectories", "steps"] {
        let folder = tempfile::tempdir().unwrap();
        store_in(folder.path()).await;
        let lost = largest(&folder.path().join(format!("{table}.lance/data")), "lance");
        let bytes = std::fs::read(&lost).unwrap();
        std::fs::remove_file(&lost).unwrap();
        let settings = StoreSettings::at(folder.path().to_str().unwrap());
        let options = CheckOptions { repair: true, grace: Duration::ZERO, ..CheckOptions::default() };
        let report = check(&Lake::open(settings.clone()).await.unwrap(), &options).await.unwrap();
        let told = report.problems.iter().find(|p| p.rule == "unreadable").unwrap();
        let name = lost.file_name().unwrap().to_string_lossy();
        assert_eq!(told.examples, [format!("{table}.lance/data/{name} is missing")]);
        assert!(report.rows_removed.is_empty(), "{report:?}");
        // brought back, the store is as it was
        std::fs::write(&lost, bytes).unwrap();
        let report = check(&Lake::open(settings).await.unwrap(), &options).await.unwrap();
        assert!(report.problems.is_empty(), "{report:?}");
    }
}

#[tokio::test]
async fn a_store_of_a_newer_release_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    store_in(folder.path()).await;
    let record = folder.path().join(RECORD_NAME);
    let text = std::fs::read_to_string(&record).unwrap().replace("\"schema_version\": 1", "\"schema_version\": 99");
    std::fs::write(&record, text).unwrap();
    let error = Lake::open(StoreSettings::at(folder.path().to_str().unwrap())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("99"), "{error}");
}
