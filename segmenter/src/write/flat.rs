//! Values that text formats cannot hold, as text: bytes as base64, lists and structs as JSON where there are only cells.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, StringBuilder};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::json::writer::{LineDelimited, WriterBuilder};
use datafusion::error::DataFusionError;
use datafusion::functions::encoding::encode;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs};
use datafusion::scalar::ScalarValue;

/// Bytes as base64: what JSON tools expect, where Arrow's own writer would give hexadecimal.
pub(super) fn readable(batch: &RecordBatch) -> Result<RecordBatch, DataFusionError> {
    columns(batch, |column| match column.data_type() {
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => Ok(Some(base64(column)?)),
        _ => Ok(None),
    })
}

/// Nested values as JSON text.
pub(super) fn flattened(batch: &RecordBatch) -> Result<RecordBatch, DataFusionError> {
    columns(batch, |column| if column.data_type().is_nested() { Ok(Some(json(column)?)) } else { Ok(None) })
}

fn columns(
    batch: &RecordBatch,
    replace: impl Fn(&ArrayRef) -> Result<Option<ArrayRef>, DataFusionError>,
) -> Result<RecordBatch, DataFusionError> {
    let mut fields = Vec::with_capacity(batch.num_columns());
    let mut arrays = Vec::with_capacity(batch.num_columns());
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
        match replace(column)? {
            Some(text) => {
                fields.push(Arc::new(Field::new(field.name(), text.data_type().clone(), true)));
                arrays.push(text);
            }
            None => {
                fields.push(Arc::clone(field));
                arrays.push(Arc::clone(column));
            }
        }
    }
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &options)?)
}

fn base64(column: &ArrayRef) -> Result<ArrayRef, DataFusionError> {
    let column = arrow::compute::cast(column, &DataType::LargeBinary)?;
    let rows = column.len();
    let bytes = Arc::new(Field::new("bytes", DataType::LargeBinary, true));
    let word = Arc::new(Field::new("encoding", DataType::Utf8, false));
    let function = encode();
    let result = function.invoke_with_args(ScalarFunctionArgs {
        args: vec![ColumnarValue::Array(column), ColumnarValue::Scalar(ScalarValue::from("base64pad"))],
        arg_fields: vec![bytes, word],
        number_rows: rows,
        return_field: Arc::new(Field::new("text", DataType::LargeUtf8, true)),
        config_options: Arc::default(),
    })?;
    result.into_array(rows)
}

/// Each value as JSON: one object a line with one key, of which the value is kept.
fn json(column: &ArrayRef) -> Result<ArrayRef, DataFusionError> {
    let schema = Arc::new(Schema::new(vec![Field::new("v", column.data_type().clone(), true)]));
    let batch = RecordBatch::try_new(schema, vec![Arc::clone(column)])?;
    let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, LineDelimited>(Vec::new());
    writer.write(&batch)?;
    writer.finish()?;
    let text = String::from_utf8_lossy(&writer.into_inner()).into_owned();
    let mut out = StringBuilder::new();
    for (row, line) in text.lines().enumerate() {
        let value = line.strip_prefix("{\"v\":").and_then(|v| v.strip_suffix('}'));
        out.append_option(value.filter(|_| column.is_valid(row)));
    }
    Ok(Arc::new(out.finish()))
}
