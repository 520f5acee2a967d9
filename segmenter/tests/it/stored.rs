//! The same views over a store on disk: what storage gives must read like the lake in memory.

use std::sync::Arc;

use dressage_schemas::Table;
use dressage_segmenter::{Fragment, LakeSource, MemoryLake, ScanRequest, Session, SessionSettings};
use dressage_storage::{Lake, StoreSettings, WriteGroup, WriterSettings};
use futures::TryStreamExt;

use crate::fixture::{lake, rows, session};

/// Everything of a table, as one scan gives it.
async fn all(lake: &MemoryLake, table: Table) -> Vec<arrow::array::RecordBatch> {
    let request = ScanRequest {
        most_match: false,
        table,
        columns: table.schema().fields().iter().map(|f| f.name().clone()).collect(),
        filter: None,
        limit: None,
        fragments: None,
        batch_rows: 1_000,
        row_address: false,
    };
    let batches = LakeSource::scan(lake, request).await.unwrap();
    batches
        .map_ok(|b| arrow::array::RecordBatch::try_new(table.schema(), b.columns().to_vec()).unwrap())
        .try_collect()
        .await
        .unwrap()
}

async fn one(lake: &MemoryLake, table: Table) -> Option<arrow::array::RecordBatch> {
    let batches = all(lake, table).await;
    (!batches.is_empty()).then(|| arrow::compute::concat_batches(&table.schema(), &batches).unwrap())
}

/// The fixture as a store in a folder, and a session over it.
pub(crate) async fn stored(folder: &std::path::Path) -> (Arc<MemoryLake>, dressage_storage::Snapshot, Session) {
    let memory = lake();
    let store = Lake::init(StoreSettings::at(folder.to_str().unwrap())).await.unwrap();
    let mut writer = store.writer(WriterSettings::default());
    let group = WriteGroup {
        contents: one(&memory, Table::Contents).await,
        weight_versions: one(&memory, Table::WeightVersions).await,
        steps: all(&memory, Table::Steps).await,
        rewards: one(&memory, Table::Rewards).await,
        trajectories: one(&memory, Table::Trajectories).await,
        ..Default::default()
    };
    writer.append(group).await.unwrap();
    writer.close().await.unwrap();
    let snapshot = store.snapshot(None).await.unwrap();
    let settings = SessionSettings { target_partitions: 2, ..Default::default() };
    let session = Session::open(snapshot.clone(), settings).unwrap();
    (memory, snapshot, session)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_and_a_lake_in_memory_answer_alike() {
    let folder = tempfile::tempdir().unwrap();
    let (memory, _, stored) = stored(folder.path()).await;
    let memory = session(&memory);
    for sql in [
        "SELECT * FROM trajectories ORDER BY run_id, trajectory_id",
        "SELECT * FROM steps ORDER BY run_id, trajectory_id, step_index",
        "SELECT * FROM segments ORDER BY run_id, trajectory_id, segment_index",
        "SELECT * FROM messages ORDER BY trajectory_id, position",
        "SELECT * FROM groups ORDER BY run_id, group_id",
        "SELECT * EXCEPT (visible_at) FROM rewards ORDER BY run_id, trajectory_id",
        "SELECT * FROM contents ORDER BY content_hash",
        "SELECT run_id, weight_version, position FROM weight_versions ORDER BY position",
        "SELECT count(*) FROM trajectories WHERE status = 'completed' AND reward >= 1.0",
        "SELECT trajectory_id FROM trajectories WHERE trajectory_id LIKE 't%' AND n_steps IS NOT NULL ORDER BY 1",
        "SELECT step_index FROM steps WHERE trajectory_id = 't1' AND boundary ORDER BY 1",
        "SELECT step_index FROM steps WHERE trajectory_id = 'nobody'",
        "SELECT text FROM messages WHERE trajectory_id IN ('nobody', 't1') ORDER BY position",
        "SELECT trajectory_id FROM trajectories WHERE trajectory_id IN ('t1', 'it''s', 'g1') AND NOT (reward BETWEEN 2 AND 3)",
    ] {
        assert_eq!(rows(&stored, sql).await, rows(&memory, sql).await, "{sql}");
    }
}

/// Every plain column of every table can be filtered on in the store: none is a word that its SQL reads otherwise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_plain_column_can_be_filtered_in_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let (_, _, session) = stored(folder.path()).await;
    for table in Table::ALL {
        use arrow::datatypes::DataType::{Boolean, Float64, Int32, Int64, LargeUtf8, Utf8};
        let schema = table.schema();
        let filters: Vec<String> = schema
            .fields()
            .iter()
            .filter_map(|field| {
                let name = field.name();
                match field.data_type() {
                    Utf8 | LargeUtf8 => Some(format!("({name} = 'x' OR {name} LIKE 'x%' OR {name} IN ('y', 'it''s'))")),
                    Int32 | Int64 => Some(format!("({name} < -1 OR {name} IN (-3, -2) OR NOT ({name} IS NOT NULL))")),
                    Float64 => Some(format!("({name} > 1.5e300 OR {name} BETWEEN -0.5 AND -0.25)")),
                    Boolean => Some(format!("({name} OR NOT {name})")),
                    _ => None,
                }
            })
            .collect();
        let sql = format!("SELECT count(*) FROM stored.{table} WHERE {}", filters.join(" OR "));
        let plan = crate::fixture::shown(&session, &format!("EXPLAIN {sql}")).await;
        assert!(!plan.contains("FilterExec"), "{table}: all of it reaches the store: {plan}");
        rows(&session, &sql).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_that_needs_no_payload_reads_no_payload_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let store = Lake::init(StoreSettings::at(folder.path().to_str().unwrap())).await.unwrap();
    let mut writer = store.writer(WriterSettings::default());
    let rows_of: Vec<_> = (0..40)
        .map(|i| {
            let owner = crate::fixture::trajectory("run", &format!("t{i}"), 1_000 + i);
            let mut step = crate::fixture::step(&owner, 0, 20_000, 20_000);
            // noise does not compress, so payload that is read shows in the count of bytes
            let noise: Vec<i32> =
                (0..40_000_i64).map(|k| ((k * 2_654_435_761 + i * 97_531) % 151_000) as i32).collect();
            step.token_ids = Some(crate::fixture::ids(&noise));
            (owner, step)
        })
        .collect();
    let owners: Vec<_> = rows_of.iter().map(|(owner, _)| owner.clone()).collect();
    let steps: Vec<_> = rows_of.iter().map(|(_, step)| step.clone()).collect();
    let group = WriteGroup {
        steps: vec![dressage_schemas::tables::steps::batch(&steps).unwrap()],
        trajectories: Some(dressage_schemas::tables::trajectories::batch(&owners).unwrap()),
        ..Default::default()
    };
    writer.append(group).await.unwrap();
    writer.close().await.unwrap();
    let snapshot = store.snapshot(None).await.unwrap();
    let session = Session::open(snapshot.clone(), SessionSettings::default()).unwrap();
    let payload: u64 = steps.iter().map(|s| s.token_ids.as_ref().map_or(0, Vec::len) as u64).sum();

    let before = snapshot.io_stats().await.unwrap().read_bytes;
    assert_eq!(rows(&session, "SELECT sum(n_trained_tokens), count(*) FROM segments").await, ["800000|40"]);
    let metadata = snapshot.io_stats().await.unwrap().read_bytes - before;
    assert!(metadata < payload / 10, "{metadata} bytes read, payload has {payload}");
    rows(&session, "SELECT sum(list_sum(token_ids)) FROM steps").await;
    let with_payload = snapshot.io_stats().await.unwrap().read_bytes - before - metadata;
    assert!(with_payload > payload / 10, "{with_payload} bytes read, payload has {payload}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_stays_at_its_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let (_, snapshot, session) = stored(folder.path()).await;
    let later = crate::fixture::trajectory("run-c", "later", 500);
    let mut writer = snapshot.lake().writer(WriterSettings::default());
    let group = WriteGroup {
        steps: vec![dressage_schemas::tables::steps::batch(&[crate::fixture::step(&later, 0, 1, 1)]).unwrap()],
        trajectories: Some(dressage_schemas::tables::trajectories::batch(&[later]).unwrap()),
        ..Default::default()
    };
    writer.append(group).await.unwrap();
    writer.close().await.unwrap();
    assert_eq!(rows(&session, "SELECT count(*) FROM trajectories").await, ["4"]);
    let newer = snapshot.lake().snapshot(None).await.unwrap();
    let fragments: Vec<Fragment> = LakeSource::fragments(&newer, Table::Trajectories);
    assert_eq!(fragments.iter().map(|f| f.row_count).sum::<u64>(), 6);
    let newer = Session::open(newer, SessionSettings::default()).unwrap();
    assert_eq!(rows(&newer, "SELECT count(*) FROM trajectories").await, ["5"]);
}
