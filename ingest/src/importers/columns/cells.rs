//! Single cells of columns whose exact type the writer chose.

use arrow::array::{
    Array, ArrayRef, BooleanArray, Float32Array, Float64Array, Int8Array, Int32Array, LargeBinaryArray, LargeListArray,
    LargeStringArray, StringArray, StringViewArray, TimestampMicrosecondArray,
};
use arrow::buffer::{Buffer, ScalarBuffer};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use arrow::util::display::FormatOptions;
use dressage_schemas::spans::{MaskSpans, VersionSpans};

/// A column of text in any of its three forms.
pub(crate) enum TextColumn {
    Small(StringArray),
    Large(LargeStringArray),
    View(StringViewArray),
}

impl TextColumn {
    pub(crate) fn of(array: &ArrayRef) -> Option<Self> {
        let any = array.as_any();
        let small = any.downcast_ref::<StringArray>().cloned().map(Self::Small);
        let large = || any.downcast_ref::<LargeStringArray>().cloned().map(Self::Large);
        let view = || any.downcast_ref::<StringViewArray>().cloned().map(Self::View);
        small.or_else(large).or_else(view)
    }

    pub(crate) fn get(&self, row: usize) -> Option<&str> {
        match self {
            Self::Small(array) => array.is_valid(row).then(|| array.value(row)),
            Self::Large(array) => array.is_valid(row).then(|| array.value(row)),
            Self::View(array) => array.is_valid(row).then(|| array.value(row)),
        }
    }
}

/// Casts a column to the type of the interchange schema; a value that does not fit is an error, not a null.
pub(crate) fn cast_to(array: &ArrayRef, wanted: &DataType) -> Result<ArrayRef, ArrowError> {
    if array.data_type() == wanted {
        return Ok(array.clone());
    }
    let options = CastOptions { safe: false, format_options: FormatOptions::default() };
    cast_with_options(array, wanted, &options)
}

fn cell<A: Array + 'static>(array: &ArrayRef) -> Option<&A> {
    array.as_any().downcast_ref()
}

/// The items of a list cell, as the range they have in the list's values.
fn items(array: &ArrayRef, row: usize) -> Option<(&LargeListArray, usize, usize)> {
    let list: &LargeListArray = cell(array)?;
    if list.is_null(row) {
        return None;
    }
    let offsets = list.value_offsets();
    let at = |i: usize| usize::try_from(offsets[i]).unwrap_or(0);
    Some((list, at(row), at(row + 1) - at(row)))
}

/// A null among values that must all be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NullAt(pub(crate) usize);

/// Token ids, without copying them.
pub(crate) fn token_ids(array: &ArrayRef, row: usize) -> Result<Option<ScalarBuffer<i32>>, NullAt> {
    let Some((list, start, length)) = items(array, row) else { return Ok(None) };
    let Some(values) = cell::<Int32Array>(list.values()) else { return Ok(None) };
    if let Some(at) = (start..start + length).position(|i| values.is_null(i)) {
        return Err(NullAt(at));
    }
    Ok(Some(values.values().slice(start, length)))
}

/// Log-probabilities, without copying them where none is null; a null is NaN.
pub(crate) fn logprobs(array: &ArrayRef, row: usize) -> Option<ScalarBuffer<f32>> {
    let (list, start, length) = items(array, row)?;
    let values = cell::<Float32Array>(list.values())?;
    if values.null_count() == 0 {
        return Some(values.values().slice(start, length));
    }
    let value = |i: usize| if values.is_null(i) { f32::NAN } else { values.value(i) };
    Some((start..start + length).map(value).collect())
}

/// A mask; the error is the position and value of the first entry that is neither 0 nor 1.
pub(crate) fn mask(array: &ArrayRef, row: usize) -> Result<Option<MaskSpans>, (usize, String)> {
    let Some((list, start, length)) = items(array, row) else { return Ok(None) };
    let Some(values) = cell::<Int8Array>(list.values()) else { return Ok(None) };
    if let Some(at) = (start..start + length).position(|i| values.is_null(i)) {
        return Err((at, "null".to_owned()));
    }
    let entries = &values.values()[start..start + length];
    let mut spans = MaskSpans::default();
    for run in entries.chunk_by(|a, b| a == b) {
        if !matches!(run[0], 0 | 1) {
            let at = entries.iter().position(|e| !matches!(e, 0 | 1)).unwrap_or(0);
            return Err((at, run[0].to_string()));
        }
        spans.push(run[0] == 1, run.len());
    }
    Ok(Some(spans))
}

/// Versions as runs; a null is the version that nobody recorded.
pub(crate) fn versions(array: &ArrayRef, row: usize) -> Option<VersionSpans> {
    let (list, start, length) = items(array, row)?;
    let values = TextColumn::of(list.values())?;
    let mut spans = VersionSpans::default();
    for i in start..start + length {
        spans.push(values.get(i).unwrap_or("unknown"), 1);
    }
    Some(spans)
}

/// A list of text.
pub(crate) fn texts(array: &ArrayRef, row: usize) -> Option<Vec<String>> {
    let (list, start, length) = items(array, row)?;
    let values = TextColumn::of(list.values())?;
    Some((start..start + length).filter_map(|i| values.get(i).map(str::to_owned)).collect())
}

/// Bytes, without copying them.
pub(crate) fn binary(array: &ArrayRef, row: usize) -> Option<Buffer> {
    let bytes: &LargeBinaryArray = cell(array)?;
    if bytes.is_null(row) {
        return None;
    }
    let start = usize::try_from(bytes.value_offsets()[row]).ok()?;
    let length = usize::try_from(bytes.value_length(row)).ok()?;
    Some(bytes.values().slice_with_length(start, length))
}

pub(crate) fn int(array: &ArrayRef, row: usize) -> Option<i32> {
    cell::<Int32Array>(array).filter(|a| a.is_valid(row)).map(|a| a.value(row))
}

pub(crate) fn float(array: &ArrayRef, row: usize) -> Option<f64> {
    cell::<Float64Array>(array).filter(|a| a.is_valid(row)).map(|a| a.value(row))
}

pub(crate) fn truth(array: &ArrayRef, row: usize) -> Option<bool> {
    cell::<BooleanArray>(array).filter(|a| a.is_valid(row)).map(|a| a.value(row))
}

pub(crate) fn micros(array: &ArrayRef, row: usize) -> Option<i64> {
    cell::<TimestampMicrosecondArray>(array).filter(|a| a.is_valid(row)).map(|a| a.value(row))
}
