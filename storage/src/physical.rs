//! How the logical columns of `schemas` lie in files, and the conversion of batches both ways.
//!
//! Three things differ. Text and payload columns carry compression hints. `steps.routed_experts` is a packed blob:
//! its bytes lie outside the data file, so that scans of other columns never pass over them and a slice of one value
//! can be read alone. `steps` has one column more, `payload_hash`, over the payload of the row, because the file
//! format has no checksums of its own. `docs/format.md` describes all of it.

use std::num::NonZeroUsize;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Int64Array, LargeBinaryArray, ListArray, RecordBatch, StringArray, StructArray,
    UInt64Array,
};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use dressage_schemas::Table;
use dressage_schemas::tables::steps::PAYLOAD_COLUMNS;
use dressage_schemas::tables::trainer_logprobs::LIST_COLUMNS;
use xxhash_rust::xxh3::Xxh3Default;

use crate::error::{Error, Result};

/// The column of the payload checksum in `steps`; not part of the logical schema.
pub const PAYLOAD_HASH: &str = "payload_hash";

/// The column that a scan adds when row addresses are asked for.
pub const ROW_ADDRESS: &str = "_rowaddr";

/// The blob column.
pub(crate) const ROUTED_EXPERTS: &str = "routed_experts";

/// Values up to this size share blob files; the table format's own limit of 4 MiB would give every long rollout a
/// file of its own.
const DEDICATED_BLOB_BYTES: usize = 256 << 20;

const COMPRESSION: &str = "lance-encoding:compression";
const COMPRESSION_LEVEL: &str = "lance-encoding:compression-level";

/// Columns that are worth compressing and large enough to matter.
fn is_compressed(table: Table, column: &str) -> bool {
    match table {
        Table::Steps => matches!(column, "token_ids" | "logprobs" | "extra"),
        Table::Contents => matches!(column, "text" | "reasoning" | "tool_calls" | "body" | "data"),
        Table::Quarantine => column == "raw",
        Table::Rewards => column == "detail",
        Table::Plans => matches!(column, "sql" | "summary"),
        Table::TrainerLogprobs => LIST_COLUMNS.contains(&column),
        Table::Checkpoints => column == "settings",
        Table::WeightVersions
        | Table::IngestLog
        | Table::Trajectories
        | Table::Snapshots
        | Table::Batches
        | Table::Streamed
        | Table::TrainMetrics => false,
    }
}

/// The schema under which a table is created.
pub(crate) fn schema(table: Table) -> SchemaRef {
    let logical = table.schema();
    let mut fields: Vec<Field> = Vec::with_capacity(logical.fields().len() + 1);
    for field in logical.fields() {
        if table == Table::Steps && field.name() == ROUTED_EXPERTS {
            let options = lance::BlobFieldOptions {
                dedicated_size_threshold: NonZeroUsize::new(DEDICATED_BLOB_BYTES),
                ..lance::BlobFieldOptions::default()
            };
            fields.push(lance::blob_field_with_options(ROUTED_EXPERTS, true, options));
        } else if is_compressed(table, field.name()) {
            fields.push(with_hints(field));
        } else {
            fields.push(field.as_ref().clone());
        }
    }
    if table == Table::Steps {
        fields.push(Field::new(PAYLOAD_HASH, DataType::Int64, false));
    }
    Arc::new(Schema::new_with_metadata(fields, logical.metadata().clone()))
}

/// The field with compression hints. Those of a list belong to its items, of which the table format makes the column.
fn with_hints(field: &Field) -> Field {
    let hints = [(COMPRESSION.to_owned(), "zstd".to_owned()), (COMPRESSION_LEVEL.to_owned(), "1".to_owned())];
    match field.data_type() {
        DataType::List(item) => field.clone().with_data_type(DataType::List(Arc::new(with_hints(item)))),
        _ => field.clone().with_metadata(hints.into()),
    }
}

/// The column under the type of `field`, which for a list may differ in the hints of its items only.
fn as_typed(column: &ArrayRef, field: &Field) -> ArrayRef {
    match (column.data_type(), field.data_type()) {
        (DataType::List(from), DataType::List(to)) if from != to && from.data_type() == to.data_type() => {
            let list: &ListArray = column.as_list();
            let (_, offsets, values, nulls) = list.clone().into_parts();
            Arc::new(ListArray::new(Arc::clone(to), offsets, values, nulls))
        }
        _ => Arc::clone(column),
    }
}

/// A batch under the logical schema as it is written. Columns are matched by name and must all be there.
pub(crate) fn to_physical(table: Table, batch: &RecordBatch) -> Result<RecordBatch> {
    let physical = schema(table);
    let mut columns: Vec<ArrayRef> = Vec::with_capacity(physical.fields().len());
    for field in physical.fields() {
        if field.name() == PAYLOAD_HASH && table == Table::Steps {
            columns.push(Arc::new(payload_hashes(batch)?));
            continue;
        }
        let column = column(table, batch, field.name())?;
        if table == Table::Steps && field.name() == ROUTED_EXPERTS {
            columns.push(blob_array(binary(table, batch, ROUTED_EXPERTS)?));
        } else {
            columns.push(as_typed(column, field));
        }
    }
    RecordBatch::try_new(physical, columns).map_err(|e| Error::shape(table, &e))
}

/// A batch read from a table, under the logical fields of `columns`, in that order. `row_address` keeps that column
/// at the end.
pub(crate) fn to_logical(
    table: Table,
    batch: &RecordBatch,
    columns: &[String],
    row_address: bool,
) -> Result<RecordBatch> {
    let schema = logical_projection(table, columns, row_address)?;
    let mut arrays: Vec<ArrayRef> = Vec::with_capacity(schema.fields().len());
    for field in schema.fields() {
        let array = batch
            .column_by_name(field.name())
            .ok_or_else(|| Error::ColumnMissing { table, column: field.name().clone() })?;
        arrays.push(as_typed(array, field));
    }
    let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(schema, arrays, &options)
        .map_err(|e| Error::Damaged { table, detail: e.to_string() })
}

/// The logical fields of some columns of a table (and the checksum column, for checks).
pub(crate) fn logical_projection(table: Table, columns: &[String], row_address: bool) -> Result<SchemaRef> {
    let logical = table.schema();
    let mut fields = Vec::with_capacity(columns.len() + 1);
    for name in columns {
        match logical.field_with_name(name) {
            Ok(field) => fields.push(field.clone()),
            Err(_) if table == Table::Steps && name == PAYLOAD_HASH => {
                fields.push(Field::new(PAYLOAD_HASH, DataType::Int64, false));
            }
            Err(_) => return Err(Error::ColumnMissing { table, column: name.clone() }),
        }
    }
    if row_address {
        fields.push(Field::new(ROW_ADDRESS, DataType::UInt64, true));
    }
    Ok(Arc::new(Schema::new(fields)))
}

/// All logical columns of a table.
pub(crate) fn all_columns(table: Table) -> Vec<String> {
    table.schema().fields().iter().map(|f| f.name().clone()).collect()
}

/// Whether reading this column means reading payload bytes.
pub(crate) fn is_payload(table: Table, column: &str) -> bool {
    match table {
        Table::Steps => PAYLOAD_COLUMNS.contains(&column),
        Table::Contents => matches!(column, "text" | "reasoning" | "tool_calls" | "body" | "data"),
        Table::Quarantine => column == "raw",
        Table::TrainerLogprobs => LIST_COLUMNS.contains(&column),
        _ => false,
    }
}

/// The checksum of one row's payload: xxh3-64 over each payload value's length and bytes, in the order of
/// [`PAYLOAD_COLUMNS`]; a null counts as length 2^64 - 1.
pub(crate) fn payload_hash(values: [Option<&[u8]>; 3]) -> i64 {
    let mut hasher = Xxh3Default::new();
    for value in values {
        match value {
            None => hasher.update(&u64::MAX.to_le_bytes()),
            Some(bytes) => {
                hasher.update(&(bytes.len() as u64).to_le_bytes());
                hasher.update(bytes);
            }
        }
    }
    hasher.digest() as i64
}

fn payload_hashes(batch: &RecordBatch) -> Result<Int64Array> {
    let columns = [
        binary(Table::Steps, batch, PAYLOAD_COLUMNS[0])?,
        binary(Table::Steps, batch, PAYLOAD_COLUMNS[1])?,
        binary(Table::Steps, batch, PAYLOAD_COLUMNS[2])?,
    ];
    let hash = |row: usize| payload_hash(columns.map(|c| c.is_valid(row).then(|| c.value(row))));
    Ok(Int64Array::from_iter_values((0..batch.num_rows()).map(hash)))
}

/// A column of a batch, by name.
pub(crate) fn column<'a>(table: Table, batch: &'a RecordBatch, name: &str) -> Result<&'a ArrayRef> {
    batch.column_by_name(name).ok_or_else(|| Error::BatchShape { table, detail: format!("column {name:?} is missing") })
}

/// A column of a batch as the array type that its schema promises.
pub(crate) fn typed<'a, A: 'static>(table: Table, batch: &'a RecordBatch, name: &str) -> Result<&'a A> {
    let column = column(table, batch, name)?;
    column
        .as_any()
        .downcast_ref::<A>()
        .ok_or_else(|| Error::BatchShape { table, detail: format!("column {name:?} has type {}", column.data_type()) })
}

/// A `LargeBinary` column.
pub(crate) fn binary<'a>(table: Table, batch: &'a RecordBatch, name: &str) -> Result<&'a LargeBinaryArray> {
    typed(table, batch, name)
}

/// The row addresses that a scan added.
pub(crate) fn row_addresses(table: Table, batch: &RecordBatch) -> Result<&UInt64Array> {
    typed(table, batch, ROW_ADDRESS)
}

/// Bytes as the blob input of the table format: no copy, the buffers are shared.
fn blob_array(values: &LargeBinaryArray) -> ArrayRef {
    let uris = StringArray::new_null(values.len());
    let fields = vec![
        Arc::new(Field::new("data", DataType::LargeBinary, true)),
        Arc::new(Field::new("uri", DataType::Utf8, true)),
    ];
    let children: Vec<ArrayRef> = vec![Arc::new(values.clone()), Arc::new(uris)];
    Arc::new(StructArray::new(fields.into(), children, values.nulls().cloned()))
}

#[cfg(test)]
mod tests {
    use dressage_schemas::tables::steps::{self, StepRow};

    use super::*;

    #[test]
    fn physical_steps_keep_every_logical_column_and_add_the_checksum() {
        let row = StepRow { token_ids: Some(vec![1, 0, 0, 0]), routed_experts: Some(vec![9; 5]), ..StepRow::default() };
        let logical = steps::batch(&[row, StepRow::default()]).unwrap();
        let physical = to_physical(Table::Steps, &logical).unwrap();
        assert_eq!(physical.num_columns(), logical.num_columns() + 1);
        let hashes: &Int64Array = typed(Table::Steps, &physical, PAYLOAD_HASH).unwrap();
        assert_eq!(hashes.value(0), payload_hash([Some(&[1, 0, 0, 0]), None, Some(&[9; 5])]));
        assert_ne!(hashes.value(0), hashes.value(1));
    }

    #[test]
    fn the_items_of_compressed_lists_carry_the_hints_and_lose_them_when_read() {
        use dressage_schemas::tables::trainer_logprobs::{TrainerLogprobRow, batch};
        let row = TrainerLogprobRow { token_places: vec![3], trainer_logprobs: vec![-1.0], ..Default::default() };
        let logical = batch(&[row, TrainerLogprobRow::default()]).unwrap();
        let physical = to_physical(Table::TrainerLogprobs, &logical).unwrap();
        let DataType::List(item) = physical.schema().field_with_name("logprobs").unwrap().data_type().clone() else {
            panic!("a list")
        };
        assert_eq!(item.metadata()[COMPRESSION], "zstd");
        let columns = all_columns(Table::TrainerLogprobs);
        let again = to_logical(Table::TrainerLogprobs, &physical, &columns, false).unwrap();
        assert_eq!(again.columns(), logical.columns());
    }

    #[test]
    fn null_and_empty_payload_have_different_checksums() {
        assert_ne!(payload_hash([None, None, None]), payload_hash([Some(&[]), None, None]));
        assert_ne!(payload_hash([Some(&[1]), Some(&[]), None]), payload_hash([Some(&[]), Some(&[1]), None]));
    }

    #[test]
    fn the_projection_refuses_a_column_that_is_not_there() {
        let asked = ["trajectory_key".to_owned(), "nope".to_owned()];
        assert!(matches!(logical_projection(Table::Steps, &asked, false), Err(Error::ColumnMissing { .. })));
    }
}
