//! Stores written by every earlier format version are read as they were written.
//!
//! `tests/golden/v1` was written by [`generate`], which is kept so that anybody can see what is in it. A new format
//! version adds a folder; none is ever written again.

use std::path::{Path, PathBuf};

use arrow::array::Array;
use dressage_schemas::Table;
use dressage_schemas::tables::batches::{self, BatchRow};
use dressage_schemas::tables::checkpoints::CheckpointRow;
use dressage_schemas::tables::plans::PlanRow;
use dressage_schemas::tables::train_metrics::TrainMetricRow;
use dressage_storage::conformance::load::{self, Shape};
use dressage_storage::maintain::{CheckOptions, CompactOptions, GcOptions, check, compact, gc, info, snapshots};
use dressage_storage::{AsOf, Lake, ScanOptions, StoreSettings, WriterSettings, checkpoints, plans, training};
use futures::TryStreamExt;

const TRAJECTORIES: u64 = 3;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1")
}

fn shape() -> Shape {
    Shape { steps: 2, tokens: 64, routed: true }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "writes the golden store of the current format version; run once per version"]
async fn generate() {
    assert!(!golden().exists(), "a golden store is never written again");
    let lake = Lake::init(StoreSettings::at(golden().to_str().unwrap())).await.unwrap();
    let mut writer = lake.writer(WriterSettings::default());
    load::append(&mut writer, "golden", 0..TRAJECTORIES, shape()).await.unwrap();
    writer.close().await.unwrap();
    snapshots::create(&lake.snapshot(None).await.unwrap(), Some("golden")).await.unwrap();
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_of_format_1_is_read_and_extended() {
    let folder = tempfile::tempdir().unwrap();
    copy(&golden(), folder.path());
    let lake = Lake::open(StoreSettings::at(folder.path().to_str().unwrap())).await.unwrap();
    let tagged = lake.snapshot(Some(AsOf::Tag("golden".into()))).await.unwrap();
    assert_eq!(tagged.row_count(Table::Trajectories), TRAJECTORIES as usize);
    let columns = ["trajectory_key", "step_index", "token_ids", "logprobs", "routed_experts"];
    let batches: Vec<_> =
        tagged.scan(Table::Steps, ScanOptions::columns(columns)).await.unwrap().try_collect().await.unwrap();
    let mut seen = 0;
    for batch in &batches {
        for row in 0..batch.num_rows() {
            let key = batch.column(0).as_any().downcast_ref::<arrow::array::Int64Array>().unwrap().value(row);
            let index = batch.column(1).as_any().downcast_ref::<arrow::array::Int32Array>().unwrap().value(row);
            let wanted = (0..TRAJECTORIES)
                .map(|n| load::rows("golden", n, 0, 0, shape()).unwrap())
                .find(|r| r.trajectory.trajectory_key == key)
                .unwrap();
            let wanted = &wanted.steps[index as usize];
            let bytes = |column: usize| {
                let column = batch.column(column).as_any().downcast_ref::<arrow::array::LargeBinaryArray>().unwrap();
                column.is_valid(row).then(|| column.value(row).to_vec())
            };
            assert_eq!(bytes(2), wanted.token_ids);
            assert_eq!(bytes(3), wanted.logprobs);
            // the container may be encoded better by now; what it says must be the same
            let decoded = |container: Option<Vec<u8>>| dressage_codec::decode_all(&container.unwrap()).unwrap().bytes;
            assert_eq!(decoded(bytes(4)), decoded(wanted.routed_experts.clone()));
            seen += 1;
        }
    }
    assert_eq!(seen, 2 * TRAJECTORIES);
    let report = check(&lake, &CheckOptions::default()).await.unwrap();
    assert!(report.is_sound(), "{:?}", report.problems);

    let mut writer = lake.writer(WriterSettings::default());
    load::append(&mut writer, "later", 0..2, shape()).await.unwrap();
    writer.close().await.unwrap();
    assert_eq!(lake.snapshot(None).await.unwrap().row_count(Table::Trajectories), TRAJECTORIES as usize + 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_older_than_plans_reads_them_as_empty_and_gets_them_on_the_first_write() {
    let folder = tempfile::tempdir().unwrap();
    copy(&golden(), folder.path());
    let lake = Lake::open(StoreSettings::at(folder.path().to_str().unwrap())).await.unwrap();
    let before = lake.snapshot(None).await.unwrap();
    for table in Table::ADDED_LATER {
        assert_eq!(before.row_count(table), 0);
        assert!(!folder.path().join(format!("{table}.lance")).exists());
    }
    let info = info(&lake).await.unwrap();
    assert!(info.tables.iter().any(|t| t.table == "plans" && t.bytes_stored == 0));
    assert!(plans::list(&lake).await.unwrap().is_empty());
    let long_ago = AsOf::Time(lake.record().created_at + 3_600_000_000);
    assert_eq!(lake.snapshot(Some(long_ago)).await.unwrap().row_count(Table::Plans), 0);
    // reading and looking after it makes no table
    compact(&lake, &CompactOptions::default()).await.unwrap();
    let keep_one = GcOptions { keep_versions: Some(1), ..GcOptions::default() };
    gc(&lake, &keep_one).await.unwrap();
    assert!(check(&lake, &CheckOptions { repair: true, ..CheckOptions::default() }).await.unwrap().is_sound());
    assert!(!folder.path().join("plans.lance").exists());
    let named = snapshots::create(&before, Some("before")).await.unwrap();

    let metric = TrainMetricRow { train_run: "t".into(), metric: "loss".into(), ..TrainMetricRow::default() };
    training::append_metrics(&lake, &[metric]).await.unwrap();
    let first = CheckpointRow { checkpoint_id: "c".into(), train_run: "t".into(), ..CheckpointRow::default() };
    let first = checkpoints::publish(&lake, first).await.unwrap();
    assert_eq!(checkpoints::latest(&lake, "t").await.unwrap(), Some(first));
    assert_eq!(lake.snapshot(None).await.unwrap().row_count(Table::TrainMetrics), 1);

    let plan = PlanRow { plan_id: "p".into(), snapshot_id: named.snapshot_id, ..PlanRow::default() };
    let row = BatchRow { plan_id: "p".into(), step_rows: vec![7], ..BatchRow::default() };
    let stored = plans::append(&lake, plan.clone(), &[batches::batch(&[row]).unwrap()]).await.unwrap();
    // the same plan again is there already
    assert_eq!(plans::append(&lake, plan, &[]).await.unwrap(), stored);
    for reopened in [lake.clone(), Lake::open(lake.settings().clone()).await.unwrap()] {
        assert_eq!(plans::find(&reopened, "p").await.unwrap(), stored);
        let now = reopened.snapshot(None).await.unwrap();
        assert_eq!(
            [now.row_count(Table::Batches), now.row_count(Table::Plans), now.row_count(Table::Streamed)],
            [1, 1, 0]
        );
        let then = reopened.snapshot(Some(AsOf::Tag("before".into()))).await.unwrap();
        assert_eq!(then.row_count(Table::Plans), 0);
    }
}
