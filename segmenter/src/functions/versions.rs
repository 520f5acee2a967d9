//! `versions(version_spans)`, `real_versions(version_spans)`, `is_real_version(text)`: the weights that produced each
//! token.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanBuilder, ListBuilder, StringBuilder};
use arrow::datatypes::DataType;
use datafusion::common::plan_err;
use datafusion::error::Result;
use datafusion::logical_expr::ScalarUDF;
use dressage_schemas::words;

use super::simple::Simple;
use super::spans::{VersionColumn, is_version_spans};
use super::views::{is_text, list_of, texts};

pub(super) fn functions() -> Vec<ScalarUDF> {
    vec![
        Simple::function("versions", 1, |types| spans("versions", types), |args, rows| each_token(&args[0], rows)),
        Simple::function(
            "real_versions",
            1,
            |types| spans("real_versions", types),
            |args, rows| distinct(&args[0], rows),
        ),
        Simple::function(
            "is_real_version",
            1,
            |types| match types {
                [text] if is_text(text) => Ok(DataType::Boolean),
                _ => plan_err!("is_real_version takes a weight version"),
            },
            is_real_version,
        ),
    ]
}

fn spans(name: &str, types: &[DataType]) -> Result<DataType> {
    match types {
        [list] if is_version_spans(list) => Ok(list_of(DataType::Utf8)),
        _ => plan_err!("{name} takes version_spans"),
    }
}

fn each_token(array: &ArrayRef, rows: usize) -> Result<ArrayRef> {
    let spans = VersionColumn::of(array)?;
    let mut out = ListBuilder::new(StringBuilder::new());
    let mut runs = Vec::new();
    for row in 0..rows {
        let known = spans.get("versions", row, &mut runs)?;
        for (version, n_tokens) in &runs {
            for _ in 0..*n_tokens {
                out.values().append_value(version);
            }
        }
        out.append(known);
    }
    Ok(Arc::new(out.finish()))
}

fn distinct(array: &ArrayRef, rows: usize) -> Result<ArrayRef> {
    let spans = VersionColumn::of(array)?;
    let mut out = ListBuilder::new(StringBuilder::new());
    let mut runs = Vec::new();
    for row in 0..rows {
        let known = spans.get("real_versions", row, &mut runs)?;
        append_distinct(&mut out, runs.iter().map(|(version, _)| *version).filter(|v| words::is_real_version(v)));
        out.append(known);
    }
    Ok(Arc::new(out.finish()))
}

/// Adds the distinct ones of a few versions to the list that is being built, in order.
pub(super) fn append_distinct<'a>(out: &mut ListBuilder<StringBuilder>, versions: impl Iterator<Item = &'a str>) {
    let mut seen: Vec<&str> = Vec::new();
    for version in versions {
        if !seen.contains(&version) {
            seen.push(version);
            out.values().append_value(version);
        }
    }
}

fn is_real_version(args: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
    let versions = texts(&args[0])?;
    let mut out = BooleanBuilder::with_capacity(rows);
    for row in 0..rows {
        out.append_value(versions.is_valid(row) && words::is_real_version(versions.value(row)));
    }
    Ok(Arc::new(out.finish()))
}
