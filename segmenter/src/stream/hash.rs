//! What a micro-batch is, as 32 bytes: BLAKE3 over the values of its columns. Not over Arrow buffers, so that another
//! release of Arrow, another window or another budget gives the same. `docs/format.md` has the byte layout.

use std::fmt;

use arrow::array::{Array, ArrowPrimitiveType, AsArray, PrimitiveArray, RecordBatch};
use arrow::datatypes::{Float32Type, Float64Type, Int8Type, Int32Type};
use blake3::Hasher;

use super::columns::{BATCH_COLUMNS, BatchColumn};

/// Begins the hashed bytes; another layout gets another one.
const CONTENT_TAG: &[u8] = b"dressage micro-batch 1\n";
/// The same for router choices.
const EXPERTS_TAG: &[u8] = b"dressage routed experts 1\n";
/// Stands for the length of a list or text that is null.
const NULL: u64 = u64::MAX;

/// A hash of a micro-batch, shown as 64 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContentHash([u8; 32]);

impl ContentHash {
    /// Of all columns but router choices; none where the batch lacks one of them. `position_ids` is left out: it
    /// follows from `n_tokens`.
    pub fn of(batch: &RecordBatch) -> Option<Self> {
        let columns = BATCH_COLUMNS.into_iter().filter(|c| !c.is_routed() && *c != BatchColumn::PositionIds);
        digest(batch, CONTENT_TAG, columns)
    }

    /// Of the router choices; none where the batch does not have them.
    pub fn of_experts(batch: &RecordBatch) -> Option<Self> {
        digest(batch, EXPERTS_TAG, BATCH_COLUMNS.into_iter().filter(|c| c.is_routed()))
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        blake3::Hash::from(self.0).to_hex().fmt(f)
    }
}

fn digest(batch: &RecordBatch, tag: &[u8], columns: impl Iterator<Item = BatchColumn>) -> Option<ContentHash> {
    let mut hasher = Hasher::new();
    hasher.update(tag);
    count(&mut hasher, batch.num_rows());
    for column in columns {
        text(&mut hasher, Some(column.name()));
        values(&mut hasher, batch.column_by_name(column.name())?.as_ref(), batch.num_rows())?;
    }
    Some(ContentHash(*hasher.finalize().as_bytes()))
}

/// The values of one column, row by row.
fn values(hasher: &mut Hasher, array: &dyn Array, rows: usize) -> Option<()> {
    if let Some(array) = array.as_string_opt::<i32>() {
        (0..rows).for_each(|row| text(hasher, array.is_valid(row).then(|| array.value(row))));
    } else if let Some(array) = array.as_primitive_opt::<Int32Type>() {
        for row in 0..rows {
            match array.is_valid(row) {
                true => hasher.update(&i64::from(array.value(row)).to_le_bytes()),
                false => hasher.update(&NULL.to_le_bytes()),
            };
        }
    } else if let Some(array) = array.as_primitive_opt::<Float64Type>() {
        array.values().iter().for_each(|value| {
            hasher.update(&value.to_le_bytes());
        });
    } else if let Some(array) = array.as_boolean_opt() {
        (0..rows).for_each(|row| {
            hasher.update(&[u8::from(array.value(row))]);
        });
    } else if let Some(array) = array.as_binary_opt::<i64>() {
        (0..rows).for_each(|row| match array.is_valid(row) {
            true => {
                count(hasher, array.value(row).len());
                hasher.update(array.value(row));
            }
            false => null(hasher),
        });
    } else {
        let array = array.as_list_opt::<i32>()?;
        for row in 0..rows {
            match array.is_valid(row) {
                true => items(hasher, array.value(row).as_ref())?,
                false => null(hasher),
            }
        }
    }
    Some(())
}

/// The items of one list.
fn items(hasher: &mut Hasher, list: &dyn Array) -> Option<()> {
    count(hasher, list.len());
    if let Some(list) = list.as_primitive_opt::<Int32Type>() {
        plain(hasher, list, i32::to_le_bytes);
    } else if let Some(list) = list.as_primitive_opt::<Float32Type>() {
        plain(hasher, list, f32::to_le_bytes);
    } else if let Some(list) = list.as_primitive_opt::<Int8Type>() {
        plain(hasher, list, i8::to_le_bytes);
    } else {
        list.as_string_opt::<i32>()?.iter().for_each(|item| text(hasher, item));
    }
    Some(())
}

/// Values as little-endian bytes: those in memory, where the machine is little-endian itself.
fn plain<T: ArrowPrimitiveType, const N: usize>(
    hasher: &mut Hasher,
    list: &PrimitiveArray<T>,
    bytes: impl Fn(T::Native) -> [u8; N],
) {
    if cfg!(target_endian = "little") {
        hasher.update(list.values().inner().as_slice());
    } else {
        list.values().iter().for_each(|value| {
            hasher.update(&bytes(*value));
        });
    }
}

fn text(hasher: &mut Hasher, value: Option<&str>) {
    match value {
        Some(value) => {
            count(hasher, value.len());
            hasher.update(value.as_bytes());
        }
        None => null(hasher),
    }
}

fn count(hasher: &mut Hasher, n: usize) {
    hasher.update(&(n as u64).to_le_bytes());
}

fn null(hasher: &mut Hasher) {
    hasher.update(&NULL.to_le_bytes());
}
