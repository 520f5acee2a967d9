//! Arrow IPC and Parquet, as we export them and as others write them.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, Float64Builder, Int32Array, Int64Array, Int64Builder, LargeBinaryArray, ListBuilder, RecordBatch,
    StringArray, StringBuilder,
};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::ipc::writer::{FileWriter, StreamWriter};
use dressage_schemas::Table;
use parquet::arrow::ArrowWriter;

use crate::lake::TestLake;

/// As pandas would write it: 64-bit lists, more columns than we know. Three trajectories of two segments; the last
/// token is `last`, so that copies differ.
fn batch(last: i64) -> RecordBatch {
    let (mut tokens, mut mask) = (ListBuilder::new(Int64Builder::new()), ListBuilder::new(Int64Builder::new()));
    let mut logprobs = ListBuilder::new(Float64Builder::new());
    let mut versions = ListBuilder::new(StringBuilder::new());
    let mut routes = Vec::new();
    for row in 0..6_i64 {
        tokens.append_value([Some(1), Some(2), Some(row), Some(last)]);
        mask.append_value([Some(0), Some(1), Some(1), Some(0)]);
        logprobs.append_value([Some(0.0), Some(-0.5), (row != 5).then_some(-0.25), Some(0.0)]);
        versions.append_value([Some("-1"), Some("7"), Some("7"), Some("-1")]);
        routes.push((0..12).map(|i| (i * 5 + row as u8) % 64).collect::<Vec<u8>>());
    }
    let ids = |n: i64| StringArray::from_iter_values((0..6).map(|row| format!("t{}", row / n)));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("trajectory_id", Arc::new(ids(2))),
        ("instance_id", Arc::new(ids(6))),
        ("reward", Arc::new(Int64Array::from(vec![1; 6]))),
        ("segment_index", Arc::new(Int64Array::from(vec![0, 1, 0, 1, 0, 1]))),
        ("finish_reason", Arc::new(StringArray::from(vec!["stop"; 6]))),
        ("tokens", Arc::new(tokens.finish())),
        ("full_loss_mask", Arc::new(mask.finish())),
        ("full_logprobs", Arc::new(logprobs.finish())),
        ("full_versions", Arc::new(versions.finish())),
        ("routed_experts", Arc::new(LargeBinaryArray::from_iter_values(&routes))),
        ("routed_experts_dtype", Arc::new(StringArray::from(vec!["uint8"; 6]))),
        ("routed_experts_layers", Arc::new(Int32Array::from(vec![2; 6]))),
        ("routed_experts_topk", Arc::new(Int32Array::from(vec![2; 6]))),
        ("messages", Arc::new(StringArray::from(vec![r#"[{"role":"user","content":"hi"}]"#; 6]))),
        ("temperature", Arc::new(Float64Builder::new_with(&[0.5; 6]))),
    ];
    let fields: Vec<Field> = columns.iter().map(|(n, a)| Field::new(*n, a.data_type().clone(), true)).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns.into_iter().map(|(_, a)| a).collect()).unwrap()
}

trait NewWith {
    fn new_with(values: &[f64]) -> arrow::array::Float64Array;
}

impl NewWith for Float64Builder {
    fn new_with(values: &[f64]) -> arrow::array::Float64Array {
        arrow::array::Float64Array::from(values.to_vec())
    }
}

fn parquet(batches: &[RecordBatch]) -> Vec<u8> {
    let mut writer = ArrowWriter::try_new(Vec::new(), batches[0].schema(), None).unwrap();
    batches.iter().for_each(|b| writer.write(b).unwrap());
    writer.into_inner().unwrap()
}

fn arrow_file(batches: &[RecordBatch]) -> Vec<u8> {
    let mut writer = FileWriter::try_new(Vec::new(), &batches[0].schema()).unwrap();
    batches.iter().for_each(|b| writer.write(b).unwrap());
    writer.into_inner().unwrap()
}

fn arrow_stream(batches: &[RecordBatch]) -> Vec<u8> {
    let mut writer = StreamWriter::try_new(Vec::new(), &batches[0].schema()).unwrap();
    batches.iter().for_each(|b| writer.write(b).unwrap());
    writer.into_inner().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_three_forms_give_the_same_trajectories() {
    let lake = TestLake::new().await;
    // trajectories that lie across the border of two batches
    let whole = batch(9);
    let batches = [whole.slice(0, 3), whole.slice(3, 3)];
    let report = lake.ingest(lake.file("a.arrow", arrow_file(&batches))).await;
    assert_eq!((report.trajectories_new, report.quarantined, report.steps, report.tokens), (3, 0, 6, 24), "{report:?}");
    assert_eq!(report.formats["arrow"], 1);
    for (name, bytes) in [("b.ipc", arrow_stream(&batches)), ("c.parquet", parquet(&batches))] {
        let report = lake.ingest(lake.file(name, bytes)).await;
        assert_eq!((report.trajectories_new, report.trajectories_unchanged), (0, 3), "{name}: {report:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_column_arrives() {
    let lake = TestLake::new().await;
    lake.ingest(lake.file("a.arrow", arrow_file(&[batch(9)]))).await;
    assert_eq!(lake.bytes(Table::Steps, "token_ids", None).await[3], [1_i32, 2, 3, 9].map(i32::to_le_bytes).concat());
    assert_eq!(lake.texts(Table::Steps, "mask_spans", None).await[3], "[1, 2, 1]");
    assert_eq!(lake.texts(Table::Steps, "weight_version", None).await, ["7"; 6]);
    assert_eq!(lake.texts(Table::Steps, "trainable", None).await, ["true", "true", "true", "true", "true", "false"]);
    let experts = lake.bytes(Table::Steps, "routed_experts", None).await;
    let raw: Vec<u8> = (0..12).map(|i| (i * 5 + 4) % 64).collect();
    assert_eq!(dressage_codec::decode_all(&experts[4]).unwrap().bytes, raw);
    assert_eq!(lake.texts(Table::Steps, "extra", None).await[0], r#"{"temperature":0.5}"#);
    assert_eq!(lake.texts(Table::Trajectories, "n_segments", None).await, ["2"; 3]);
    assert_eq!(lake.texts(Table::WeightVersions, "weight_version", None).await, ["7"]);
    assert_eq!(lake.floats(Table::Rewards, "value").await, [Some(1.0); 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_row_takes_only_its_trajectory_with_it() {
    let lake = TestLake::new().await;
    let report = lake.ingest(lake.file("a.parquet", parquet(&[batch(-9)]))).await;
    assert_eq!(report.quarantined_by_rule["token_id_range"], 3);
    let mut bad = batch(9);
    let index = bad.schema().index_of("segment_index").unwrap();
    let mut columns = bad.columns().to_vec();
    columns[index] = Arc::new(Int64Array::from(vec![0, 1, 0, 2, 0, 1]));
    bad = RecordBatch::try_new(bad.schema(), columns).unwrap();
    let report = lake.ingest(lake.file("b.parquet", parquet(&[bad]))).await;
    assert_eq!((report.trajectories_new, report.quarantined), (2, 1));
    assert_eq!(report.quarantined_by_rule["segment_indices"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_tables_are_named_by_their_columns() {
    let lake = TestLake::new().await;
    let schema = Arc::new(Schema::new(vec![Field::new("game_file", DataType::Utf8, true)]));
    let other = RecordBatch::try_new(schema, vec![Arc::new(StringArray::from(vec!["a"]))]).unwrap();
    let report = lake.ingest(lake.file("a.parquet", parquet(&[other]))).await;
    assert_eq!(report.quarantined_by_rule["unrecognised"], 1);
    assert!(lake.texts(Table::Quarantine, "reason", None).await[0].contains("game_file"));
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_files_are_quarantined_and_never_panic() {
    let whole = [arrow_file(&[batch(9)]), parquet(&[batch(9)]), arrow_stream(&[batch(9)])];
    for (form, bytes) in whole.iter().enumerate() {
        for cut in [12, bytes.len() / 3, bytes.len() - 9] {
            let lake = TestLake::new().await;
            let report = lake.ingest(lake.file("a", &bytes[..cut])).await;
            // an end-of-stream mark that is missing costs nothing
            assert!(report.quarantined >= 1 || report.trajectories_new == 3, "form {form} cut at {cut}: {report:?}");
        }
    }
}
