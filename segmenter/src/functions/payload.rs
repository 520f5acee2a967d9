//! `token_ids(bytes)` and `floats(bytes)`: stored payload as lists.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ListArray, PrimitiveArray};
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{ArrowPrimitiveType, DataType, Field, Float32Type, Int32Type};
use datafusion::common::{exec_err, plan_err};
use datafusion::error::Result;
use datafusion::logical_expr::ScalarUDF;

use super::simple::Simple;
use super::views::{Bytes, is_bytes, list_of};

pub(super) fn functions() -> Vec<ScalarUDF> {
    vec![
        Simple::function(
            "token_ids",
            1,
            |types| of_bytes("token_ids", types, DataType::Int32),
            |args, rows| lists::<Int32Type>("token_ids", &args[0], rows, i32::from_le_bytes),
        ),
        Simple::function(
            "floats",
            1,
            |types| of_bytes("floats", types, DataType::Float32),
            |args, rows| lists::<Float32Type>("floats", &args[0], rows, f32::from_le_bytes),
        ),
    ]
}

fn of_bytes(name: &str, types: &[DataType], values: DataType) -> Result<DataType> {
    match types {
        [one] if is_bytes(one) => Ok(list_of(values)),
        _ => plan_err!("{name} takes the bytes of a payload column"),
    }
}

/// Little-endian 4-byte values as lists; null stays null.
fn lists<T: ArrowPrimitiveType>(
    name: &str,
    array: &ArrayRef,
    rows: usize,
    value: fn([u8; 4]) -> T::Native,
) -> Result<ArrayRef> {
    let bytes = Bytes::of(array)?;
    let mut offsets = Vec::with_capacity(rows + 1);
    let mut values: Vec<T::Native> = Vec::new();
    offsets.push(0_i32);
    for row in 0..rows {
        let row_bytes = bytes.get(row).unwrap_or_default();
        let (chunks, rest) = row_bytes.as_chunks::<4>();
        if !rest.is_empty() {
            return exec_err!("{name}: {} bytes are not a number of 4-byte values", row_bytes.len());
        }
        values.extend(chunks.iter().map(|c| value(*c)));
        let Ok(offset) = i32::try_from(values.len()) else {
            return exec_err!("{name}: more than 2147483647 values in one batch; lower batch_rows");
        };
        offsets.push(offset);
    }
    let values = PrimitiveArray::<T>::new(ScalarBuffer::from(values), None);
    let field = Arc::new(Field::new_list_field(T::DATA_TYPE, true));
    let nulls: Option<NullBuffer> = array.logical_nulls();
    Ok(Arc::new(ListArray::try_new(field, OffsetBuffer::new(offsets.into()), Arc::new(values), nulls)?))
}
