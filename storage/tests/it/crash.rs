//! A process that dies at any point of a commit leaves a store in which nothing acknowledged is lost, nothing is
//! doubled and nothing is seen half; the same command again completes it.

use std::path::Path;
use std::process::Command;

use dressage_schemas::Table;
use dressage_storage::conformance::load::{self, Shape};
use dressage_storage::maintain::{CheckOptions, check};
use dressage_storage::{FAULT_VARIABLE, Lake, StoreSettings, WriterSettings};

const STORE: &str = "DRESSAGE_TEST_STORE";
const RUN: &str = "DRESSAGE_TEST_RUN";
const TRAJECTORIES: u64 = 6;

/// What the child process runs: writes trajectories that are not there yet, two a commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the tests of this module in a process of its own"]
async fn child_writes() {
    let Ok(uri) = std::env::var(STORE) else { return };
    let run = std::env::var(RUN).unwrap();
    let lake = Lake::open(StoreSettings::at(uri)).await.unwrap();
    let mut writer = lake.writer(WriterSettings::default());
    for number in 0..TRAJECTORIES {
        let write_id = writer.next_write_id().0;
        let rows = load::rows(&run, number, 0, write_id, Shape::default()).unwrap();
        if writer.known_trajectories(&[rows.trajectory.trajectory_key]).await.unwrap().is_empty() {
            writer.append(load::group(&[rows]).unwrap()).await.unwrap();
        }
        if number % 2 == 1 {
            writer.commit().await.unwrap();
        }
    }
    writer.close().await.unwrap();
}

fn child(store: &Path, run: &str, fault: Option<&str>) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "crash::child_writes", "--ignored", "--test-threads=1"]);
    command.env(STORE, store).env(RUN, run).env_remove(FAULT_VARIABLE);
    if let Some(point) = fault {
        command.env(FAULT_VARIABLE, point);
    }
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_killed_at_any_point_of_a_commit_leaves_nothing_half_visible() {
    let tables = ["contents", "weight_versions", "steps", "rewards", "ingest_log", "trajectories"];
    let points = tables.iter().flat_map(|t| [format!("written:{t}"), format!("after:{t}")]);
    // the second commit, so that something acknowledged is there to be lost; versions are all known by then
    let points = points.map(|p| if p.contains("weight") { p } else { format!("{p}:2") });
    for point in points {
        let folder = tempfile::tempdir().unwrap();
        let lake = Lake::init(StoreSettings::at(folder.path().to_str().unwrap())).await.unwrap();
        let killed = child(folder.path(), "r", Some(&point)).output().unwrap();
        assert!(!killed.status.success(), "{point}: the child was to die");

        let seen = lake.snapshot(None).await.unwrap().row_count(Table::Trajectories);
        let expected = match point.as_str() {
            "written:weight_versions" | "after:weight_versions" => 0,
            "after:trajectories:2" => 4,
            _ => 2,
        };
        assert_eq!(seen, expected, "{point}: trajectories seen after the crash");
        let found = check(&lake, &CheckOptions::default()).await.unwrap();
        assert!(found.is_sound(), "{point}: {:?}", found.problems);

        let again = child(folder.path(), "r", None).output().unwrap();
        assert!(again.status.success(), "{point}: {}", String::from_utf8_lossy(&again.stdout));
        let after = lake.snapshot(None).await.unwrap();
        assert_eq!(after.row_count(Table::Trajectories), TRAJECTORIES as usize, "{point}: after the second run");
        assert!(after.superseded().await.unwrap().is_empty(), "{point}: a trajectory was written twice");
        let found = check(&lake, &CheckOptions::default()).await.unwrap();
        assert!(found.is_sound(), "{point}: {:?}", found.problems);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_write_at_once_lose_and_double_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let lake = Lake::init(StoreSettings::at(folder.path().to_str().unwrap())).await.unwrap();
    let children: Vec<_> = (0..4).map(|n| child(folder.path(), &format!("r{n}"), None).spawn().unwrap()).collect();
    for mut running in children {
        assert!(running.wait().unwrap().success());
    }
    let snapshot = lake.snapshot(None).await.unwrap();
    assert_eq!(snapshot.row_count(Table::Trajectories), 4 * TRAJECTORIES as usize);
    assert_eq!(snapshot.row_count(Table::Steps), 12 * TRAJECTORIES as usize);
    let found = check(&lake, &CheckOptions::default()).await.unwrap();
    assert!(found.is_sound(), "{:?}", found.problems);
}
