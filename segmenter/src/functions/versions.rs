//! `versions(version_spans)` and `real_versions(version_spans)`: the weights that produced each token.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListBuilder, StringBuilder};
use arrow::datatypes::{DataType, Int32Type};
use datafusion::common::{exec_err, plan_err};
use datafusion::error::Result;
use datafusion::logical_expr::ScalarUDF;

use super::simple::Simple;
use super::views::{Lists, list_of, list_values, texts};

/// Tokens of one row that are expanded at most: 2^26, far beyond any context.
const TOKENS_MAX: usize = 1 << 26;

pub(super) fn functions() -> Vec<ScalarUDF> {
    vec![
        Simple::function("versions", 1, |types| spans("versions", types), |args, rows| each_token(&args[0], rows)),
        Simple::function(
            "real_versions",
            1,
            |types| spans("real_versions", types),
            |args, rows| distinct(&args[0], rows),
        ),
    ]
}

fn spans(name: &str, types: &[DataType]) -> Result<DataType> {
    match types {
        [list] if matches!(list_values(list), Some(DataType::Struct(fields)) if fields.len() == 2) => {
            Ok(list_of(DataType::Utf8))
        }
        _ => plan_err!("{name} takes version_spans"),
    }
}

/// Calls `row` with the spans of each row (version and tokens), or without for null.
fn for_each(
    array: &ArrayRef,
    rows: usize,
    mut row_of: impl FnMut(Option<&[(Option<&str>, usize)]>) -> Result<()>,
) -> Result<()> {
    let lists = Lists::of(array)?;
    let Some(spans) = lists.values().as_struct_opt() else { return plan_err!("version_spans are no structs") };
    let versions = texts(spans.column(0))?;
    let Some(lengths) = spans.column(1).as_primitive_opt::<Int32Type>() else {
        return plan_err!("version_spans count no tokens");
    };
    let mut row_spans = Vec::new();
    for row in 0..rows {
        let Some(range) = lists.range(row) else {
            row_of(None)?;
            continue;
        };
        row_spans.clear();
        for i in range {
            let Ok(n_tokens) = usize::try_from(lengths.value(i)) else {
                return exec_err!("version_spans: a run of {} tokens", lengths.value(i));
            };
            row_spans.push((versions.is_valid(i).then(|| versions.value(i)), n_tokens));
        }
        if row_spans.iter().map(|(_, n)| n).sum::<usize>() > TOKENS_MAX {
            return exec_err!("version_spans: more than {TOKENS_MAX} tokens in one row");
        }
        row_of(Some(&row_spans))?;
    }
    Ok(())
}

fn each_token(array: &ArrayRef, rows: usize) -> Result<ArrayRef> {
    let mut out = ListBuilder::new(StringBuilder::new());
    for_each(array, rows, |spans| {
        for (version, n_tokens) in spans.unwrap_or_default() {
            for _ in 0..*n_tokens {
                out.values().append_option(*version);
            }
        }
        out.append(spans.is_some());
        Ok(())
    })?;
    Ok(Arc::new(out.finish()))
}

/// A real version is one that names weights: not empty, `-1`, `unknown` or `none` in any spelling.
fn is_real(version: &str) -> bool {
    !matches!(version.trim().to_ascii_lowercase().as_str(), "" | "-1" | "unknown" | "none")
}

fn distinct(array: &ArrayRef, rows: usize) -> Result<ArrayRef> {
    let mut out = ListBuilder::new(StringBuilder::new());
    for_each(array, rows, |spans| {
        let mut seen: Vec<&str> = Vec::new();
        for (version, _) in spans.unwrap_or_default() {
            if let Some(version) = version.filter(|v| is_real(v) && !seen.contains(v)) {
                seen.push(version);
                out.values().append_value(version);
            }
        }
        out.append(spans.is_some());
        Ok(())
    })?;
    Ok(Arc::new(out.finish()))
}
