//! Arrays of several physical types seen as one: bytes, lists, text, numbers.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryViewArray, FixedSizeListArray, Float64Array, LargeBinaryArray, LargeListArray,
    LargeStringArray, ListArray,
};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use datafusion::common::plan_err;
use datafusion::error::Result;

/// A binary column of any width.
pub(super) enum Bytes<'a> {
    Small(&'a arrow::array::BinaryArray),
    Large(&'a LargeBinaryArray),
    View(&'a BinaryViewArray),
}

impl<'a> Bytes<'a> {
    pub(super) fn of(array: &'a ArrayRef) -> Result<Self> {
        match array.data_type() {
            DataType::Binary => Ok(Self::Small(array.as_binary())),
            DataType::LargeBinary => Ok(Self::Large(array.as_binary())),
            DataType::BinaryView => Ok(Self::View(array.as_binary_view())),
            other => plan_err!("expected bytes, got {other}"),
        }
    }

    pub(super) fn get(&self, row: usize) -> Option<&'a [u8]> {
        match self {
            Self::Small(a) => a.is_valid(row).then(|| a.value(row)),
            Self::Large(a) => a.is_valid(row).then(|| a.value(row)),
            Self::View(a) => a.is_valid(row).then(|| a.value(row)),
        }
    }
}

/// Whether a type is bytes.
pub(super) fn is_bytes(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Binary | DataType::LargeBinary | DataType::BinaryView)
}

/// The type of a list's values; none if it is no list.
pub(super) fn list_values(data_type: &DataType) -> Option<&DataType> {
    match data_type {
        DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _) => {
            Some(field.data_type())
        }
        _ => None,
    }
}

/// A list column of any width.
pub(super) enum Lists<'a> {
    Small(&'a ListArray),
    Large(&'a LargeListArray),
    Fixed(&'a FixedSizeListArray),
}

impl<'a> Lists<'a> {
    pub(super) fn of(array: &'a ArrayRef) -> Result<Self> {
        match array.data_type() {
            DataType::List(_) => Ok(Self::Small(array.as_list())),
            DataType::LargeList(_) => Ok(Self::Large(array.as_list())),
            DataType::FixedSizeList(..) => Ok(Self::Fixed(array.as_fixed_size_list())),
            other => plan_err!("expected a list, got {other}"),
        }
    }

    /// All values of all rows, one after the other.
    pub(super) fn values(&self) -> &'a ArrayRef {
        match self {
            Self::Small(a) => a.values(),
            Self::Large(a) => a.values(),
            Self::Fixed(a) => a.values(),
        }
    }

    /// Where a row's values are; none for null.
    pub(super) fn range(&self, row: usize) -> Option<Range<usize>> {
        match self {
            Self::Small(a) => a.is_valid(row).then(|| {
                let offsets = a.value_offsets();
                offsets[row] as usize..offsets[row + 1] as usize
            }),
            Self::Large(a) => a.is_valid(row).then(|| {
                let offsets = a.value_offsets();
                offsets[row] as usize..offsets[row + 1] as usize
            }),
            Self::Fixed(a) => a.is_valid(row).then(|| {
                let start = a.value_offset(row) as usize;
                start..start + a.value_length() as usize
            }),
        }
    }
}

/// Text of any width as one type; a NULL constant is a column of nulls.
pub(super) fn texts(array: &ArrayRef) -> Result<LargeStringArray> {
    match array.data_type() {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Null => {
            Ok(cast(array, &DataType::LargeUtf8)?.as_string::<i64>().clone())
        }
        other => plan_err!("expected text, got {other}"),
    }
}

/// Whether a type is text, or an untyped NULL.
pub(super) fn is_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Null)
}

/// Numbers of any width as doubles.
pub(super) fn doubles(array: &ArrayRef) -> Result<Float64Array> {
    if !array.data_type().is_numeric() && *array.data_type() != DataType::Null {
        return plan_err!("expected numbers, got {}", array.data_type());
    }
    Ok(cast(array, &DataType::Float64)?.as_primitive::<arrow::datatypes::Float64Type>().clone())
}

/// Integers of any width as 64-bit ones.
pub(super) fn integers(array: &ArrayRef) -> Result<arrow::array::Int64Array> {
    if !array.data_type().is_integer() && *array.data_type() != DataType::Null {
        return plan_err!("expected integers, got {}", array.data_type());
    }
    Ok(cast(array, &DataType::Int64)?.as_primitive::<arrow::datatypes::Int64Type>().clone())
}

/// A list type with nullable values named as Arrow names them.
pub(super) fn list_of(values: DataType) -> DataType {
    DataType::List(Arc::new(arrow::datatypes::Field::new_list_field(values, true)))
}
