//! Rows that contradict themselves are refused at the door, and the writer goes on.

use dressage_schemas::spans::MaskSpans;
use dressage_schemas::tables::steps::{self, StepRow};
use dressage_schemas::{ErrorKind, Table};
use dressage_storage::conformance::load::{self, Rows, Shape};
use dressage_storage::{Error, Lake, LakeWriter, StoreSettings, WriteGroup, WriterSettings};

async fn writer(name: &str) -> (Lake, LakeWriter) {
    let lake = Lake::init(StoreSettings::at(format!("memory://refusals-{name}"))).await.unwrap();
    let writer = lake.writer(WriterSettings::default());
    (lake, writer)
}

fn sample(writer: &mut LakeWriter) -> Rows {
    load::rows("r", 1, 0, writer.next_write_id().0, Shape::default()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_rule_of_a_step_is_enforced() {
    type Change = fn(&mut StepRow);
    let cases: [(&str, Change); 10] = [
        ("token_length", |s| s.token_ids = Some(vec![0; 8])),
        ("token_range", |s| s.token_ids.as_mut().unwrap()[3] = 0xff),
        ("logprob_length", |s| s.logprobs = Some(vec![0; 4])),
        ("logprob_range", |s| s.logprobs.as_mut().unwrap()[..4].copy_from_slice(&f32::INFINITY.to_le_bytes())),
        ("mask_length", |s| s.mask_spans = MaskSpans::context_then_output(1, 1)),
        ("version_length", |s| s.version_spans.as_mut().unwrap().push("v9", 1)),
        ("message_count", |s| s.n_context_messages = 9),
        ("count_range", |s| s.n_output_tokens = -1),
        ("routed_container", |s| s.routed_experts = Some(b"not a container".to_vec())),
        // one row too few for a step that extends another
        ("routed_rows", |s| {
            s.boundary = false;
            s.boundary_reasons.clear();
            s.route = "append".to_owned();
        }),
    ];
    let (lake, mut writer) = writer("steps").await;
    for (rule, change) in cases {
        let mut rows = sample(&mut writer);
        change(&mut rows.steps[0]);
        let group = WriteGroup { steps: vec![steps::batch(&rows.steps).unwrap()], ..WriteGroup::default() };
        match writer.append(group).await {
            Err(Error::BadStep { rule: found, .. }) => assert_eq!(found, rule),
            other => panic!("{rule}: {other:?}"),
        }
    }
    // the writer is as good as new
    let rows = sample(&mut writer);
    writer.append(load::group(&[rows]).unwrap()).await.unwrap();
    writer.close().await.unwrap();
    assert_eq!(lake.snapshot(None).await.unwrap().row_count(Table::Steps), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trajectory_under_a_foreign_key_is_refused() {
    let (_lake, mut writer) = writer("keys").await;
    let mut rows = sample(&mut writer);
    rows.trajectory.trajectory_key += 1;
    let error = writer.append(load::group(&[rows]).unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("trajectory_key"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_of_another_table_is_refused_by_column() {
    let (_lake, mut writer) = writer("shape").await;
    let rows = sample(&mut writer);
    let wrong = load::group(&[rows]).unwrap();
    let group = WriteGroup { rewards: wrong.trajectories, ..WriteGroup::default() };
    let error = writer.append(group).await.unwrap_err();
    assert!(error.to_string().contains("grader"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_misspelt_column_is_named() {
    let (lake, _writer) = writer("column").await;
    let options = dressage_storage::ScanOptions::columns(["tokn_ids"]);
    let error = lake.snapshot(None).await.unwrap().scan(Table::Steps, options).await.err().unwrap();
    assert!(matches!(error, Error::ColumnMissing { .. }));
    assert!(error.to_string().contains("tokn_ids"), "{error}");
}
