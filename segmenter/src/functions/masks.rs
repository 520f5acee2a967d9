//! `mask(spans)`, `mask_sum(spans)`, `masked_sum(list, spans)`, `masked_mean(list, spans)`: loss masks, which are
//! stored as run lengths that begin with masked tokens.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Float64Builder, Int8Builder, Int64Builder, ListBuilder};
use arrow::datatypes::DataType;
use datafusion::common::{exec_err, plan_err};
use datafusion::error::Result;
use datafusion::logical_expr::ScalarUDF;

use super::simple::Simple;
use super::spans::{MaskColumn, is_mask_spans};
use super::views::{Lists, doubles, list_of, list_values};

pub(super) fn functions() -> Vec<ScalarUDF> {
    vec![
        Simple::function("mask", 1, |types| spans_to("mask", types, list_of(DataType::Int8)), mask),
        Simple::function("mask_sum", 1, |types| spans_to("mask_sum", types, DataType::Int64), mask_sum),
        Simple::function(
            "masked_sum",
            2,
            |types| masked_type("masked_sum", types),
            |args, rows| masked("masked_sum", args, rows, |sum, _| Some(sum)),
        ),
        Simple::function(
            "masked_mean",
            2,
            |types| masked_type("masked_mean", types),
            |args, rows| masked("masked_mean", args, rows, |sum, n| (n > 0).then(|| sum / n as f64)),
        ),
    ]
}

fn spans_to(name: &str, types: &[DataType], result: DataType) -> Result<DataType> {
    match types {
        [spans] if is_mask_spans(spans) => Ok(result),
        _ => plan_err!("{name} takes mask_spans (a list of 32-bit integers)"),
    }
}

fn masked_type(name: &str, types: &[DataType]) -> Result<DataType> {
    match types {
        [list, spans] if list_values(list).is_some_and(DataType::is_numeric) && is_mask_spans(spans) => {
            Ok(DataType::Float64)
        }
        _ => plan_err!("{name} takes a list of numbers and mask_spans, such as {name}(logprobs, mask_spans)"),
    }
}

/// Lengths of the runs with gradient: every second one.
fn trained(lengths: &[i32]) -> i64 {
    lengths.iter().skip(1).step_by(2).map(|n| i64::from(*n)).sum()
}

fn mask(args: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
    let spans = MaskColumn::of(&args[0])?;
    let mut out = ListBuilder::new(Int8Builder::new());
    for row in 0..rows {
        let Some(lengths) = spans.get("mask", row)? else {
            out.append(false);
            continue;
        };
        for (i, n) in lengths.iter().enumerate() {
            out.values().append_value_n((i % 2) as i8, *n as usize);
        }
        out.append(true);
    }
    Ok(Arc::new(out.finish()))
}

fn mask_sum(args: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
    let spans = MaskColumn::of(&args[0])?;
    let mut out = Int64Builder::with_capacity(rows);
    for row in 0..rows {
        out.append_option(spans.get("mask_sum", row)?.map(trained));
    }
    Ok(Arc::new(out.finish()))
}

/// NaN among the kept values gives NaN: a missing log-prob must not pass for 0.
fn masked(
    name: &str,
    args: &[ArrayRef],
    rows: usize,
    finish: fn(sum: f64, n: usize) -> Option<f64>,
) -> Result<ArrayRef> {
    let lists = Lists::of(&args[0])?;
    let values = doubles(lists.values())?;
    let spans = MaskColumn::of(&args[1])?;
    let mut out = Float64Builder::with_capacity(rows);
    for row in 0..rows {
        let (Some(range), Some(lengths)) = (lists.range(row), spans.get(name, row)?) else {
            out.append_null();
            continue;
        };
        let n_tokens: i64 = lengths.iter().map(|n| i64::from(*n)).sum();
        if n_tokens != range.len() as i64 {
            return exec_err!("{name}: the list has {} values, the mask {n_tokens} tokens", range.len());
        }
        let (mut sum, mut n, mut at) = (0.0, 0, range.start);
        for (i, length) in lengths.iter().enumerate() {
            let length = *length as usize;
            if i % 2 == 1 {
                for token in at..at + length {
                    if values.is_valid(token) {
                        sum += values.value(token);
                        n += 1;
                    }
                }
            }
            at += length;
        }
        out.append_option(finish(sum, n));
    }
    Ok(Arc::new(out.finish()))
}
