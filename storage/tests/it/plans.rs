//! Plans are stored whole or not at all, and what they pin outlives whatever happens to the store.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use arrow::array::RecordBatch;
use dressage_schemas::Table;
use dressage_schemas::tables::batches::{self, BatchRow};
use dressage_schemas::tables::plans::PlanRow;
use dressage_schemas::tables::streamed::StreamedRow;
use dressage_storage::conformance::load::{self, Shape};
use dressage_storage::maintain::{
    CheckOptions, CompactOptions, GcOptions, check, column_sizes, compact, gc, rm_run, snapshots,
};
use dressage_storage::{FAULT_VARIABLE, Lake, ScanOptions, StoreSettings, WriterSettings, plans};
use futures::TryStreamExt;

const STORE: &str = "DRESSAGE_TEST_STORE";

/// A plan over two rows, as a planner would give it.
fn plan(id: &str, run: &str) -> (PlanRow, Vec<RecordBatch>) {
    let plan = PlanRow { plan_id: id.to_owned(), run_id: Some(run.to_owned()), n_samples: 2, ..PlanRow::default() };
    let row = |position| BatchRow { plan_id: id.to_owned(), position, step_rows: vec![7, 9], ..BatchRow::default() };
    (plan, vec![batches::batch(&[row(0), row(1)]).unwrap()])
}

async fn lake_in(folder: &Path) -> Lake {
    Lake::init(StoreSettings::at(folder.to_str().unwrap())).await.unwrap()
}

async fn write(lake: &Lake, run: &str, trajectories: std::ops::Range<u64>) {
    let mut writer = lake.writer(WriterSettings::default());
    load::append(&mut writer, run, trajectories, Shape { steps: 2, tokens: 64, routed: true }).await.unwrap();
    writer.close().await.unwrap();
}

async fn planned_rows(lake: &Lake, plan: &PlanRow) -> usize {
    let rows: Vec<RecordBatch> =
        plans::scan_batches(lake, plan, None, Some("dp_rank = 0")).await.unwrap().try_collect().await.unwrap();
    rows.iter().map(RecordBatch::num_rows).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by a test of this module in a process of its own"]
async fn child_plans() {
    let Ok(uri) = std::env::var(STORE) else { return };
    let lake = Lake::open(StoreSettings::at(uri)).await.unwrap();
    let (row, rows) = plan("p1", "r");
    snapshots::create(&lake.snapshot(None).await.unwrap(), Some(&plans::snapshot_tag("p1"))).await.unwrap();
    plans::append(&lake, row, &rows).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planner_killed_at_any_point_leaves_no_plan_or_a_whole_one() {
    for point in ["written:batches", "after:batches", "written:plans", "after:plans"] {
        let folder = tempfile::tempdir().unwrap();
        let lake = lake_in(folder.path()).await;
        write(&lake, "r", 0..1).await;
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "plans::child_plans", "--ignored", "--test-threads=1"]);
        let killed = child.env(STORE, folder.path()).env(FAULT_VARIABLE, point).output().unwrap();
        assert!(!killed.status.success(), "{point}: the child was to die");

        let seen = plans::list(&lake).await.unwrap();
        assert_eq!(seen.len(), usize::from(point == "after:plans"), "{point}: plans seen after the crash");
        let (row, rows) = plan("p1", "r");
        let stored = plans::append(&lake, row, &rows).await.unwrap();
        assert_eq!(plans::list(&lake).await.unwrap(), std::slice::from_ref(&stored), "{point}");
        assert_eq!(planned_rows(&lake, &stored).await, 2, "{point}: rows of the plan");

        // what the killed one left is found once it is old, and goes
        let options = CheckOptions { repair: true, grace: Duration::ZERO, ..CheckOptions::default() };
        let report = check(&lake, &options).await.unwrap();
        let left = matches!(point, "after:batches" | "written:plans");
        assert_eq!(report.rows_removed.get("batches").copied(), left.then_some(2), "{point}: {report:?}");
        assert_eq!(planned_rows(&lake, &stored).await, 2, "{point}: rows of the plan after the repair");
        assert!(check(&lake, &options).await.unwrap().rows_removed.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_belongs_to_no_plan_is_found_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let lake = lake_in(folder.path()).await;
    write(&lake, "r", 0..1).await;
    snapshots::create(&lake.snapshot(None).await.unwrap(), Some(&plans::snapshot_tag("never"))).await.unwrap();
    snapshots::create(&lake.snapshot(None).await.unwrap(), Some("mine")).await.unwrap();
    let streamed = StreamedRow { plan_id: "never".into(), ..StreamedRow::default() };
    plans::append_streamed(&lake, &[streamed]).await.unwrap();
    // what is young may belong to a planner that is still at work
    let young = check(&lake, &CheckOptions { repair: true, ..CheckOptions::default() }).await.unwrap();
    assert!(young.rows_removed.is_empty(), "{young:?}");
    let options = CheckOptions { repair: true, grace: Duration::ZERO, ..CheckOptions::default() };
    let report = check(&lake, &options).await.unwrap();
    assert_eq!(report.rows_removed.get("streamed"), Some(&1), "{report:?}");
    assert_eq!(report.rows_removed.get("snapshots"), Some(&1));
    let tags: Vec<_> = snapshots::list(&lake).await.unwrap().into_iter().filter_map(|s| s.tag).collect();
    assert_eq!(tags, ["mine"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_plan_pins_survives_ingest_compaction_and_gc() {
    let folder = tempfile::tempdir().unwrap();
    let lake = lake_in(folder.path()).await;
    write(&lake, "r", 0..3).await;
    write(&lake, "r", 3..6).await;
    let pinned = lake.snapshot(None).await.unwrap();
    let named = snapshots::create(&pinned, Some(&plans::snapshot_tag("p1"))).await.unwrap();
    let (row, rows) = plan("p1", "r");
    let stored = plans::append(&lake, PlanRow { snapshot_id: named.snapshot_id, ..row }, &rows).await.unwrap();
    let columns = ["trajectory_key", "step_index", "token_ids", "logprobs", "routed_experts"];
    let scan = ScanOptions::columns(["step_index"]).with_row_address();
    let addresses: Vec<RecordBatch> = pinned.scan(Table::Steps, scan).await.unwrap().try_collect().await.unwrap();
    let addresses: Vec<u64> = addresses
        .iter()
        .flat_map(|b| b.column(1).as_any().downcast_ref::<arrow::array::UInt64Array>().unwrap().values().to_vec())
        .collect();
    let columns: Vec<String> = columns.iter().map(|c| (*c).to_owned()).collect();
    let before = pinned.take(Table::Steps, &addresses, &columns).await.unwrap();

    for round in 0..3 {
        write(&lake, "later", round..round + 1).await;
        compact(&lake, &CompactOptions::default()).await.unwrap();
    }
    let keep_one = GcOptions { keep_versions: Some(1), ..GcOptions::default() };
    let report = gc(&lake, &keep_one).await.unwrap();
    assert!(report.versions_removed.contains_key("steps"), "{report:?}");
    assert!(report.versions_tagged.contains_key("steps"), "{report:?}");

    // a fresh process, with nothing of it in memory
    let lake = Lake::open(lake.settings().clone()).await.unwrap();
    let plan = plans::find(&lake, "p1").await.unwrap();
    assert_eq!(plan, stored);
    let again = lake.snapshot(Some(dressage_storage::AsOf::Snapshot(plan.snapshot_id))).await.unwrap();
    assert_eq!(again.take(Table::Steps, &addresses, &columns).await.unwrap(), before);
    assert!(check(&lake, &CheckOptions::default()).await.unwrap().is_sound());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removing_a_run_removes_its_plans_and_what_they_pin() {
    let folder = tempfile::tempdir().unwrap();
    let lake = lake_in(folder.path()).await;
    write(&lake, "r", 0..2).await;
    write(&lake, "other", 0..2).await;
    for (id, run) in [("p1", "r"), ("p2", "other")] {
        snapshots::create(&lake.snapshot(None).await.unwrap(), Some(&plans::snapshot_tag(id))).await.unwrap();
        let (row, rows) = plan(id, run);
        plans::append(&lake, row, &rows).await.unwrap();
        let streamed = StreamedRow { plan_id: id.to_owned(), ..StreamedRow::default() };
        plans::append_streamed(&lake, &[streamed.clone(), streamed]).await.unwrap();
        assert_eq!(plans::list_streamed(&lake, id).await.unwrap().len(), 1);
    }
    let sizes = column_sizes(&lake.snapshot(None).await.unwrap()).await.unwrap();
    assert!(sizes.iter().any(|s| s.table == "batches" && s.column == "step_rows" && s.bytes > 0));
    let planned = rm_run(&lake, "r", true).await.unwrap();
    let done = rm_run(&lake, "r", false).await.unwrap();
    for (table, rows) in [("plans", 1), ("batches", 2), ("streamed", 2), ("snapshots", 1)] {
        assert_eq!((planned.rows[table], done.rows[table]), (rows, rows), "{table}");
    }
    let left: Vec<_> = plans::list(&lake).await.unwrap().into_iter().map(|p| p.plan_id).collect();
    assert_eq!(left, ["p2"]);
    let tags: Vec<_> = snapshots::list(&lake).await.unwrap().into_iter().filter_map(|s| s.tag).collect();
    assert_eq!(tags, [plans::snapshot_tag("p2")]);
}
