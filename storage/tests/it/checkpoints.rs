//! A process that dies while it writes a checkpoint leaves the old one or the new one, whole; a full disk is told by the
//! file that did not fit.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use dressage_schemas::tables::checkpoints::CheckpointRow;
use dressage_storage::maintain::{CheckOptions, check};
use dressage_storage::{ErrorKind, FAULT_VARIABLE, Lake, ObjectFolder, StoreSettings, checkpoints};

const STORE: &str = "DRESSAGE_TEST_STORE";

/// Writes the files of a checkpoint and publishes it, as a trainer does from a thread of its own.
fn train(lake: &Lake, id: &str, after: Option<&str>) -> CheckpointRow {
    let handle = tokio::runtime::Handle::current();
    let folder = checkpoints::new_files(lake, "run", id).unwrap().blocking(handle.clone());
    let mut files = Vec::new();
    for (name, bytes) in
        [("model.safetensors", 400_000), ("config.json", 20), ("trainer/optimizer.safetensors", 800_000)]
    {
        let content = vec![id.len() as u8; bytes];
        files.push(folder.write(name, &mut |out: &mut dyn Write| out.write_all(&content)).unwrap());
    }
    let row = CheckpointRow {
        checkpoint_id: id.to_owned(),
        train_run: "run".to_owned(),
        after_checkpoint_id: after.map(str::to_owned),
        files,
        ..CheckpointRow::default()
    };
    handle.block_on(checkpoints::publish(lake, row)).unwrap()
}

async fn trained(lake: &Lake, id: &'static str, after: Option<&'static str>) -> CheckpointRow {
    let lake = lake.clone();
    tokio::task::spawn_blocking(move || train(&lake, id, after)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by a test of this module in a process of its own"]
async fn child_trains() {
    let Ok(uri) = std::env::var(STORE) else { return };
    let lake = Lake::open(StoreSettings::at(uri)).await.unwrap();
    trained(&lake, "c2", Some("c1")).await;
    checkpoints::retire(&lake, "run", 1, None).await.unwrap();
}

/// All files at any depth, also those that a listing leaves out.
fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_in(&path) } else { vec![path] }).collect()
}

fn child(store: &Path, test: &str, fault: Option<&str>) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("checkpoints::{test}"), "--ignored", "--test-threads=1"]);
    command.env(STORE, store).env_remove(FAULT_VARIABLE);
    if let Some(point) = fault {
        command.env(FAULT_VARIABLE, point);
    }
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trainer_killed_at_any_point_leaves_the_old_checkpoint_or_the_new_one_whole() {
    let points = [
        "half:file:1",
        "after:file:1",
        "half:file:2",
        "after:file:2",
        "half:file:3",
        "after:file:3",
        "written:checkpoints",
        "after:checkpoints",
        "after:retired",
    ];
    for point in points {
        let folder = tempfile::tempdir().unwrap();
        let lake = Lake::init(StoreSettings::at(folder.path().to_str().unwrap())).await.unwrap();
        trained(&lake, "c1", None).await;
        let killed = child(folder.path(), "child_trains", Some(point)).output().unwrap();
        assert!(!killed.status.success(), "{point}: the child was to die");

        let expected = match point {
            "after:checkpoints" => vec!["c1", "c2"],
            "after:retired" => vec!["c2"],
            _ => vec!["c1"],
        };
        let listed = checkpoints::list(&lake, Some("run")).await.unwrap();
        let ids: Vec<_> = listed.iter().map(|row| row.checkpoint_id.as_str()).collect();
        assert_eq!(ids, expected, "{point}");
        for row in &listed {
            checkpoints::files(&lake, row).await.unwrap().verify(&row.files).await.unwrap();
        }
        let found = check(&lake, &CheckOptions::default()).await.unwrap();
        assert!(found.is_sound(), "{point}: {:?}", found.problems);

        // the same command again completes it, over what the killed one left
        let again = child(folder.path(), "child_trains", None).output().unwrap();
        assert!(again.status.success(), "{point}: {}", String::from_utf8_lossy(&again.stdout));
        let newest = checkpoints::latest(&lake, "run").await.unwrap().unwrap();
        assert_eq!(newest.checkpoint_id, "c2", "{point}");
        checkpoints::files(&lake, &newest).await.unwrap().verify(&newest.files).await.unwrap();

        // and what is left over is found, and goes
        let old = CheckOptions { repair: true, grace: Duration::ZERO, ..CheckOptions::default() };
        check(&lake, &old).await.unwrap();
        let stored = files_in(&folder.path().join(checkpoints::FOLDER));
        assert_eq!(stored.len(), 3, "{point}: {stored:?}");
        assert!(check(&lake, &old).await.unwrap().problems.is_empty(), "{point}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by a test of this module on a disk of its own"]
async fn child_fills_the_disk() {
    let Ok(uri) = std::env::var(STORE) else { return };
    let folder = ObjectFolder::open(&uri, &StoreSettings::default()).await.unwrap();
    let blocking = folder.blocking(tokio::runtime::Handle::current());
    let written = tokio::task::spawn_blocking(move || {
        blocking.write("weights/model.safetensors", &mut |out: &mut dyn Write| {
            (0..64).try_for_each(|_| out.write_all(&[1; 100_000]))
        })
    });
    let error = written.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error:?}");
    assert!(error.to_string().contains("weights/model.safetensors"), "{error}");
    assert!(folder.list().await.unwrap().is_empty());
    let left = std::fs::read_dir(Path::new(&uri).join("weights")).unwrap().count();
    assert_eq!(left, 0, "what was written so far still takes the disk's space");
}

#[test]
fn a_full_disk_is_exhausted_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    // a tiny file system in a mount namespace of its own (no root needed); it lives as long as the script
    let script = r#"mount -t tmpfs -o size=2m tmpfs "$1" || exit 99; exec "$2" --exact checkpoints::child_fills_the_disk --ignored"#;
    let run = Command::new("unshare")
        .args(["-rm", "sh", "-c", script, "full-disk"])
        .args([dir.path(), &std::env::current_exe().unwrap()])
        .env(STORE, dir.path())
        .stdin(Stdio::null())
        .output()
        .expect("unshare (util-linux) can be run");
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    if run.status.code() == Some(99) || said.contains("unshare") {
        eprintln!("NOT RUN: this machine allows no user namespace, so no tiny disk can be mounted");
        return;
    }
    assert!(run.status.success(), "{}{said}", String::from_utf8_lossy(&run.stdout));
    assert!(String::from_utf8_lossy(&run.stdout).contains("1 passed"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_local_file_can_be_mapped_and_a_remote_one_not() {
    let dir = tempfile::tempdir().unwrap();
    let folder = ObjectFolder::open(dir.path().to_str().unwrap(), &StoreSettings::default()).await.unwrap();
    std::fs::write(dir.path().join("a.bin"), b"abc").unwrap();
    let path = folder.local_path("a.bin").unwrap().unwrap();
    assert_eq!(std::fs::read(path).unwrap(), b"abc");
    assert!(folder.local_path("../a.bin").is_err());
    let memory = ObjectFolder::open("memory://mapped", &StoreSettings::default()).await.unwrap();
    assert_eq!(memory.local_path("a.bin").unwrap(), None);
}
