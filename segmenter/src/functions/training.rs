//! `mask_cap`, `mask_none`, `mask_length`, `mask_start`, `train_mask`, `trained_versions`,
//! `first_trained_version`, `last_trained_version`: what of a segment is trained on, from run lengths alone.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int32Builder, Int64Builder, ListBuilder, StringBuilder};
use arrow::datatypes::DataType;
use datafusion::common::plan_err;
use datafusion::error::Result;
use datafusion::logical_expr::ScalarUDF;
use dressage_schemas::spans::MaskSpans;
use dressage_schemas::training;

use super::simple::Simple;
use super::spans::{MaskColumn, VersionColumn, is_mask_spans, is_version_spans};
use super::versions::append_distinct;
use super::views::{integers, is_text, list_of, texts};

pub(super) fn functions() -> Vec<ScalarUDF> {
    vec![
        Simple::function(
            "mask_cap",
            2,
            |types| match types {
                [spans, n] if is_mask_spans(spans) && (n.is_integer() || n.is_null()) => Ok(list_of(DataType::Int32)),
                _ => plan_err!("mask_cap takes mask_spans and a number of tokens, such as mask_cap(mask_spans, 4096)"),
            },
            mask_cap,
        ),
        Simple::function(
            "mask_length",
            1,
            |types| counts("mask_length", types),
            |args, rows| count("mask_length", args, rows, |lengths| lengths.iter().map(|n| i64::from(*n)).sum()),
        ),
        Simple::function(
            "mask_start",
            1,
            |types| counts("mask_start", types),
            |args, rows| count("mask_start", args, rows, |lengths| training::response_start(lengths) as i64),
        ),
        Simple::function(
            "mask_none",
            1,
            |types| match types {
                [spans] if is_mask_spans(spans) => Ok(list_of(DataType::Int32)),
                _ => plan_err!("mask_none takes mask_spans (a list of 32-bit integers)"),
            },
            mask_none,
        ),
        Simple::function(
            "train_mask",
            3,
            |types| match types {
                [mask, versions, DataType::Boolean] if is_mask_spans(mask) && is_version_spans(versions) => {
                    Ok(list_of(DataType::Int32))
                }
                _ => plan_err!(
                    "train_mask takes mask_spans, version_spans and whether older versions are masked, such as \
                     train_mask(mask_spans, version_spans, mask_nonlast_version)"
                ),
            },
            train_mask,
        ),
        Simple::function(
            "trained_versions",
            3,
            |types| trained("trained_versions", types, list_of(DataType::Utf8)),
            trained_versions,
        ),
        Simple::function(
            "first_trained_version",
            3,
            |types| trained("first_trained_version", types, DataType::Utf8),
            |args, rows| one_version("first_trained_version", args, rows, |mut versions| versions.next()),
        ),
        Simple::function(
            "last_trained_version",
            3,
            |types| trained("last_trained_version", types, DataType::Utf8),
            |args, rows| one_version("last_trained_version", args, rows, |versions| versions.last()),
        ),
    ]
}

fn counts(name: &str, types: &[DataType]) -> Result<DataType> {
    match types {
        [spans] if is_mask_spans(spans) => Ok(DataType::Int64),
        _ => plan_err!("{name} takes mask_spans (a list of 32-bit integers)"),
    }
}

fn trained(name: &str, types: &[DataType], result: DataType) -> Result<DataType> {
    match types {
        [mask, versions, one] if is_mask_spans(mask) && is_version_spans(versions) && is_text(one) => Ok(result),
        _ => plan_err!(
            "{name} takes mask_spans, version_spans and the version of all tokens where those are null, such as \
             {name}(mask_spans, version_spans, weight_version)"
        ),
    }
}

fn mask_cap(args: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
    let caps = integers(&args[1])?;
    let spans = MaskColumn::of(&args[0])?;
    // no cap, the usual case: the masks as they are
    if caps.null_count() == rows && matches!(args[0].data_type(), DataType::List(_)) {
        return Ok(Arc::clone(&args[0]));
    }
    let mut out = ListBuilder::new(Int32Builder::new());
    for row in 0..rows {
        let lengths = spans.get("mask_cap", row)?;
        match lengths {
            Some(lengths) if caps.is_valid(row) => {
                let cap = usize::try_from(caps.value(row)).unwrap_or(0);
                out.values().append_slice(training::capped(lengths, cap).as_slice());
            }
            lengths => out.values().append_slice(lengths.unwrap_or_default()),
        }
        out.append(lengths.is_some());
    }
    Ok(Arc::new(out.finish()))
}

/// The mask under which no token has gradient.
fn mask_none(args: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
    let spans = MaskColumn::of(&args[0])?;
    let mut out = ListBuilder::new(Int32Builder::new());
    for row in 0..rows {
        let lengths = spans.get("mask_none", row)?;
        let mut none = MaskSpans::default();
        none.extend(lengths.unwrap_or_default(), false);
        out.values().append_slice(none.as_slice());
        out.append(lengths.is_some());
    }
    Ok(Arc::new(out.finish()))
}

fn count(name: &str, args: &[ArrayRef], rows: usize, of: fn(&[i32]) -> i64) -> Result<ArrayRef> {
    let spans = MaskColumn::of(&args[0])?;
    let mut out = Int64Builder::with_capacity(rows);
    for row in 0..rows {
        out.append_option(spans.get(name, row)?.map(of));
    }
    Ok(Arc::new(out.finish()))
}

fn train_mask(args: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
    let (masks, versions) = (MaskColumn::of(&args[0])?, VersionColumn::of(&args[1])?);
    let older_masked = args[2].as_boolean();
    if older_masked.true_count() == 0 && matches!(args[0].data_type(), DataType::List(_)) {
        return Ok(Arc::clone(&args[0]));
    }
    let mut out = ListBuilder::new(Int32Builder::new());
    let mut runs = Vec::new();
    for row in 0..rows {
        let Some(lengths) = masks.get("train_mask", row)? else {
            out.append(false);
            continue;
        };
        let masked = if older_masked.is_valid(row) && older_masked.value(row) {
            versions.get("train_mask", row, &mut runs)?;
            training::of_last_version(lengths, &runs)
        } else {
            None
        };
        out.values().append_slice(masked.as_ref().map_or(lengths, |mask| mask.as_slice()));
        out.append(true);
    }
    Ok(Arc::new(out.finish()))
}

/// Calls `each` with the mask and the versions of every row, or without where the mask is null.
fn with_versions(
    name: &str,
    args: &[ArrayRef],
    rows: usize,
    mut each: impl FnMut(Option<(&[i32], &[(&str, i32)])>),
) -> Result<()> {
    let (masks, versions, one) = (MaskColumn::of(&args[0])?, VersionColumn::of(&args[1])?, texts(&args[2])?);
    let mut runs = Vec::new();
    for row in 0..rows {
        let Some(lengths) = masks.get(name, row)? else {
            each(None);
            continue;
        };
        if !versions.get(name, row, &mut runs)? && one.is_valid(row) {
            runs.push((one.value(row), i32::MAX));
        }
        each(Some((lengths, &runs)));
    }
    Ok(())
}

fn trained_versions(args: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
    let mut out = ListBuilder::new(StringBuilder::new());
    with_versions("trained_versions", args, rows, |row| {
        if let Some((lengths, runs)) = row {
            append_distinct(&mut out, training::trained_versions(lengths, runs));
        }
        out.append(row.is_some());
    })?;
    Ok(Arc::new(out.finish()))
}

/// The version that `pick` takes of those with gradient.
fn one_version(
    name: &str,
    args: &[ArrayRef],
    rows: usize,
    pick: for<'a> fn(Box<dyn Iterator<Item = &'a str> + 'a>) -> Option<&'a str>,
) -> Result<ArrayRef> {
    let mut out = StringBuilder::new();
    with_versions(name, args, rows, |row| {
        let version = row.and_then(|(lengths, runs)| pick(Box::new(training::trained_versions(lengths, runs))));
        out.append_option(version);
    })?;
    Ok(Arc::new(out.finish()))
}
