//! The schemas as a reader of the files meets them: a change of a column shows up here as a diff.

#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;

use arrow::datatypes::SchemaRef;
use dressage_schemas::tables::{
    batches, checkpoints, contents, ingest_log, plans, quarantine, rewards, rollout, snapshots, steps, streamed,
    train_metrics, trainer_logprobs, trajectories, weight_versions,
};
use dressage_schemas::{SCHEMA_VERSION, SCHEMA_VERSION_KEY, Table};

#[test]
fn columns_of_every_table_are_pinned() {
    let mut dump = String::new();
    for table in Table::ALL {
        dump_table(&mut dump, table.name(), &table.schema());
    }
    insta::assert_snapshot!(dump);
}

fn dump_table(dump: &mut String, name: &str, schema: &SchemaRef) {
    writeln!(dump, "{name}").unwrap();
    for field in schema.fields() {
        let null = if field.is_nullable() { "null" } else { "not null" };
        writeln!(dump, "  {:24} {} {null}", field.name(), field.data_type()).unwrap();
    }
}

#[test]
fn every_table_says_its_schema_version_and_has_a_name_of_its_own() {
    for table in Table::ALL {
        assert_eq!(table.schema().metadata()[SCHEMA_VERSION_KEY], SCHEMA_VERSION.to_string());
        assert_eq!(Table::parse(table.name()), Some(table));
    }
}

#[test]
fn rows_become_batches_under_the_schema() {
    let step = steps::StepRow { boundary_reasons: vec!["initial".into()], ..Default::default() };
    assert_eq!(steps::batch(&[step]).unwrap().schema(), Table::Steps.schema());
    assert_eq!(trajectories::batch(&[]).unwrap().schema(), Table::Trajectories.schema());
    assert_eq!(contents::batch(&[Default::default()]).unwrap().schema(), Table::Contents.schema());
    assert_eq!(rewards::batch(&[Default::default()]).unwrap().schema(), Table::Rewards.schema());
    assert_eq!(quarantine::batch(&[Default::default()]).unwrap().schema(), Table::Quarantine.schema());
    assert_eq!(ingest_log::batch(&[Default::default()]).unwrap().schema(), Table::IngestLog.schema());
    assert_eq!(snapshots::batch(&[Default::default()]).unwrap().schema(), Table::Snapshots.schema());
    assert_eq!(batches::batch(&[Default::default()]).unwrap().schema(), Table::Batches.schema());
    assert_eq!(plans::batch(&[Default::default()]).unwrap().schema(), Table::Plans.schema());
    assert_eq!(streamed::batch(&[Default::default()]).unwrap().schema(), Table::Streamed.schema());
    assert_eq!(weight_versions::batch(&[Default::default()]).unwrap().schema(), Table::WeightVersions.schema());
    assert_eq!(train_metrics::batch(&[Default::default()]).unwrap().schema(), Table::TrainMetrics.schema());
    let checkpoint = checkpoints::CheckpointRow { files: vec![Default::default(); 2], ..Default::default() };
    assert_eq!(checkpoints::batch(&[checkpoint, Default::default()]).unwrap().schema(), Table::Checkpoints.schema());
    let logprobs = trainer_logprobs::TrainerLogprobRow {
        token_places: vec![4, 5],
        logprobs: Some(vec![-0.5, -1.0]),
        trainer_logprobs: vec![-0.5, -1.25],
        ..Default::default()
    };
    let logprobs = trainer_logprobs::batch(&[logprobs, Default::default()]).unwrap();
    assert_eq!(logprobs.schema(), Table::TrainerLogprobs.schema());
    assert_eq!(logprobs.column_by_name("logprobs").unwrap().null_count(), 1);
}

#[test]
fn the_interchange_schema_requires_only_ids() {
    let required: Vec<_> =
        rollout::schema().fields().iter().filter(|f| !f.is_nullable()).map(|f| f.name().clone()).collect();
    assert_eq!(required, ["trajectory_id", "instance_id"]);
}
