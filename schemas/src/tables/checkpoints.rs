//! `checkpoints`: one published set of weights, and which train steps went into it. A checkpoint is visible through its row
//! here or not at all: the row is committed after its files, and with it the train steps that it consumed.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, Int32Array, Int64Array, Int64Builder, ListBuilder, RecordBatch, StringArray, StringBuilder, StructBuilder,
};
use arrow::datatypes::{DataType, Field, Fields, SchemaRef};
use arrow::error::ArrowError;

use super::{schema_of, timestamp_type, timestamps};

fn file_fields() -> Fields {
    Fields::from(vec![
        Field::new("path", DataType::Utf8, false),
        Field::new("bytes", DataType::Int64, false),
        Field::new("hash", DataType::Utf8, false),
    ])
}

/// The columns of `checkpoints`.
pub fn schema() -> SchemaRef {
    use DataType::{Int32, Int64, Utf8};
    let files = Field::new_list_field(DataType::Struct(file_fields()), true);
    schema_of(vec![
        Field::new("checkpoint_id", Utf8, false),
        Field::new("train_run", Utf8, false),
        Field::new("after_checkpoint_id", Utf8, true),
        Field::new("plan_id", Utf8, true),
        Field::new("next_train_step", Int32, false),
        Field::new("optimizer_step", Int64, false),
        Field::new("weight_version", Utf8, false),
        Field::new("model", Utf8, false),
        Field::new("location", Utf8, false),
        Field::new("files", DataType::List(Arc::new(files)), false),
        Field::new("n_bytes", Int64, false),
        Field::new("settings", Utf8, false),
        Field::new("created_at", timestamp_type(), false),
    ])
}

/// One file of a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckpointFile {
    /// Below the checkpoint's `location`, with forward slashes.
    pub path: String,
    /// Its size.
    pub bytes: i64,
    /// 32 hex digits of BLAKE3 over its content.
    pub hash: String,
}

/// One published set of weights.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CheckpointRow {
    /// Unique in the store.
    pub checkpoint_id: String,
    /// The training run's name.
    pub train_run: String,
    /// The checkpoint that the run went on from; null for a first one.
    pub after_checkpoint_id: Option<String>,
    /// The plan that is being consumed; null where batches came from none.
    pub plan_id: Option<String>,
    /// The cursor: train steps of the plan below this one went into the weights, this one and later ones did not.
    pub next_train_step: i32,
    /// Train steps of the training run so far over all its plans, skipped ones too.
    pub optimizer_step: i64,
    /// The name under which an inference engine is given these weights, and under which rollouts record them.
    pub weight_version: String,
    /// The architecture, as its `config.json` names it.
    pub model: String,
    /// The folder of its files: a path below the store's root, or a URL.
    pub location: String,
    /// All of its files: weights, and what training needs to go on.
    pub files: Vec<CheckpointFile>,
    /// The sum of their sizes.
    pub n_bytes: i64,
    /// JSON object: the settings that were in force.
    pub settings: String,
    /// When it was published, microseconds.
    pub created_at: i64,
}

fn files_array(rows: &[CheckpointRow]) -> ArrayRef {
    let fields = StructBuilder::new(
        file_fields(),
        vec![Box::new(StringBuilder::new()), Box::new(Int64Builder::new()), Box::new(StringBuilder::new())],
    );
    let mut builder = ListBuilder::new(fields);
    for row in rows {
        let files = builder.values();
        for file in &row.files {
            let text = [(0, &file.path), (2, &file.hash)];
            for (at, value) in text {
                files.field_builder::<StringBuilder>(at).into_iter().for_each(|b| b.append_value(value));
            }
            files.field_builder::<Int64Builder>(1).into_iter().for_each(|b| b.append_value(file.bytes));
            files.append(true);
        }
        builder.append(true);
    }
    Arc::new(builder.finish())
}

/// Rows to a batch under [`schema`].
///
/// # Errors
/// Arrow's, if the arrays do not fit the schema (a bug of ours).
pub fn batch(rows: &[CheckpointRow]) -> Result<RecordBatch, ArrowError> {
    let text = |get: fn(&CheckpointRow) -> &String| Arc::new(StringArray::from_iter_values(rows.iter().map(get)));
    let maybe = |get: fn(&CheckpointRow) -> Option<&str>| Arc::new(StringArray::from_iter(rows.iter().map(get)));
    let int = |get: fn(&CheckpointRow) -> i64| Arc::new(Int64Array::from_iter_values(rows.iter().map(get)));
    RecordBatch::try_new(
        schema(),
        vec![
            text(|r| &r.checkpoint_id),
            text(|r| &r.train_run),
            maybe(|r| r.after_checkpoint_id.as_deref()),
            maybe(|r| r.plan_id.as_deref()),
            Arc::new(Int32Array::from_iter_values(rows.iter().map(|r| r.next_train_step))),
            int(|r| r.optimizer_step),
            text(|r| &r.weight_version),
            text(|r| &r.model),
            text(|r| &r.location),
            files_array(rows),
            int(|r| r.n_bytes),
            text(|r| &r.settings),
            timestamps(rows.iter().map(|r| Some(r.created_at))),
        ],
    )
}
