//! One module a table: its columns, its schema, its row type and how rows become a `RecordBatch`.

use std::sync::Arc;

use arrow::array::{ArrayRef, ListBuilder, StringBuilder, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};

pub mod batches;
pub mod checkpoints;
pub mod contents;
pub mod ingest_log;
pub mod plans;
pub mod quarantine;
pub mod rewards;
pub mod rollout;
pub mod snapshots;
pub mod steps;
pub mod streamed;
pub mod train_metrics;
pub mod trainer_logprobs;
pub mod trajectories;
pub mod weight_versions;

/// Microseconds since 1970, UTC: the one time type.
pub fn timestamp_type() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
}

/// A list of text.
pub fn text_list_type() -> DataType {
    DataType::List(Arc::new(Field::new_list_field(DataType::Utf8, true)))
}

/// A list of 32-bit integers.
pub fn int_list_type() -> DataType {
    DataType::List(Arc::new(Field::new_list_field(DataType::Int32, true)))
}

/// A list of 32-bit floats.
pub fn float_list_type() -> DataType {
    DataType::List(Arc::new(Field::new_list_field(DataType::Float32, true)))
}

fn schema_of(fields: Vec<Field>) -> SchemaRef {
    let version = (crate::SCHEMA_VERSION_KEY.to_owned(), crate::SCHEMA_VERSION.to_string());
    Arc::new(Schema::new_with_metadata(fields, [version].into()))
}

fn timestamps(values: impl IntoIterator<Item = Option<i64>>) -> ArrayRef {
    Arc::new(TimestampMicrosecondArray::from_iter(values).with_timezone("UTC"))
}

fn text_lists<'a>(rows: impl IntoIterator<Item = &'a [String]>) -> ArrayRef {
    let mut builder = ListBuilder::new(StringBuilder::new());
    for row in rows {
        for value in row {
            builder.values().append_value(value);
        }
        builder.append(true);
    }
    Arc::new(builder.finish())
}
