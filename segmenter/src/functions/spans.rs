//! `mask_spans` and `version_spans` of many rows, as the functions on them read them.

use arrow::array::{Array, ArrayRef, AsArray, LargeStringArray, PrimitiveArray};
use arrow::datatypes::{DataType, Int32Type};
use datafusion::common::{exec_err, plan_err};
use datafusion::error::Result;

use super::views::{Lists, list_values, texts};

/// Tokens of one row that are looked at at most: 2^26, far beyond any context.
pub(super) const TOKENS_MAX: i64 = 1 << 26;

/// Whether a type is that of `mask_spans`.
pub(super) fn is_mask_spans(data_type: &DataType) -> bool {
    list_values(data_type) == Some(&DataType::Int32)
}

/// Whether a type is that of `version_spans`.
pub(super) fn is_version_spans(data_type: &DataType) -> bool {
    matches!(list_values(data_type), Some(DataType::Struct(fields)) if fields.len() == 2)
}

/// The run lengths of each row's mask.
pub(super) struct MaskColumn<'a> {
    lists: Lists<'a>,
    lengths: &'a [i32],
}

impl<'a> MaskColumn<'a> {
    pub(super) fn of(array: &'a ArrayRef) -> Result<Self> {
        let lists = Lists::of(array)?;
        let Some(values) = lists.values().as_primitive_opt::<Int32Type>() else {
            return plan_err!("mask_spans are a list of 32-bit integers");
        };
        Ok(Self { lists, lengths: values.values() })
    }

    /// A row's lengths, checked; none for null.
    pub(super) fn get(&self, name: &str, row: usize) -> Result<Option<&'a [i32]>> {
        let Some(range) = self.lists.range(row) else { return Ok(None) };
        let lengths = &self.lengths[range];
        if lengths.iter().any(|n| *n < 0) || lengths.iter().map(|n| i64::from(*n)).sum::<i64>() > TOKENS_MAX {
            return exec_err!("{name}: {lengths:?} are not the run lengths of a mask");
        }
        Ok(Some(lengths))
    }
}

/// The runs of each row's versions.
pub(super) struct VersionColumn<'a> {
    lists: Lists<'a>,
    versions: LargeStringArray,
    lengths: &'a PrimitiveArray<Int32Type>,
}

impl<'a> VersionColumn<'a> {
    pub(super) fn of(array: &'a ArrayRef) -> Result<Self> {
        let lists = Lists::of(array)?;
        let Some(spans) = lists.values().as_struct_opt() else { return plan_err!("version_spans are no structs") };
        let versions = texts(spans.column(0))?;
        let Some(lengths) = spans.column(1).as_primitive_opt::<Int32Type>() else {
            return plan_err!("version_spans count no tokens");
        };
        Ok(Self { lists, versions, lengths })
    }

    /// Puts a row's runs into `runs`, checked; false for null, which leaves none. A null version is an empty one.
    pub(super) fn get<'b>(&'b self, name: &str, row: usize, runs: &mut Vec<(&'b str, i32)>) -> Result<bool> {
        runs.clear();
        let Some(range) = self.lists.range(row) else { return Ok(false) };
        let mut n_tokens = 0;
        for i in range {
            let n = self.lengths.value(i);
            n_tokens += i64::from(n);
            if n < 0 || n_tokens > TOKENS_MAX {
                return exec_err!("{name}: a run of {n} tokens, {n_tokens} in all");
            }
            runs.push((if self.versions.is_valid(i) { self.versions.value(i) } else { "" }, n));
        }
        Ok(true)
    }
}
