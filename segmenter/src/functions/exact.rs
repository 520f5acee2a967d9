//! `exact_mean(x)` and `exact_std(x)`: mean and population deviation, the same bits for any order of rows.
//!
//! Equal values give exactly that value and exactly 0, so that a group whose rewards are all the same has advantages
//! of 0 and not of 1e-17.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Float64Array};
use arrow::datatypes::DataType;
use datafusion::common::plan_err;
use datafusion::error::Result;
use datafusion::logical_expr::AggregateUDF;

use super::gather::Kind;
use super::views::doubles;

/// Their names.
pub(super) const NAMES: [&str; 2] = ["exact_mean", "exact_std"];

pub(super) fn functions() -> Vec<AggregateUDF> {
    let mean = Kind {
        name: NAMES[0],
        arity: 1,
        returns: |types| number(NAMES[0], types),
        gather,
        finish: |groups| Ok(finish(groups, mean)),
    };
    let std = Kind {
        name: NAMES[1],
        arity: 1,
        returns: |types| number(NAMES[1], types),
        gather,
        finish: |groups| Ok(finish(groups, deviation)),
    };
    vec![mean.function(), std.function()]
}

fn number(name: &str, types: &[DataType]) -> Result<DataType> {
    match types {
        [number] if number.is_numeric() || number.is_null() => Ok(DataType::Float64),
        _ => plan_err!("{name} takes numbers"),
    }
}

fn gather(
    args: &[ArrayRef],
    group_of: &mut dyn FnMut(usize) -> Option<usize>,
    groups: &mut [Vec<u8>],
) -> Result<usize> {
    let values = doubles(&args[0])?;
    let mut added = 0;
    for row in 0..values.len() {
        if let Some(group) = group_of(row).filter(|_| values.is_valid(row)) {
            groups[group].extend_from_slice(&values.value(row).to_le_bytes());
            added += 8;
        }
    }
    Ok(added)
}

fn finish(groups: &mut [Vec<u8>], of: fn(&[f64]) -> f64) -> ArrayRef {
    let mut values = Vec::new();
    let results = groups.iter().map(|bytes| {
        values.clear();
        values.extend(bytes.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)));
        values.sort_unstable_by(f64::total_cmp);
        (!values.is_empty()).then(|| of(&values))
    });
    Arc::new(results.collect::<Float64Array>())
}

/// Of values in order.
fn mean(sorted: &[f64]) -> f64 {
    match sorted {
        [first, .., last] if first == last => *first,
        sorted => sorted.iter().sum::<f64>() / sorted.len() as f64,
    }
}

/// Of values in order.
fn deviation(sorted: &[f64]) -> f64 {
    let mean = mean(sorted);
    let squares: f64 = sorted.iter().map(|x| (x - mean) * (x - mean)).sum();
    (squares / sorted.len() as f64).sqrt()
}
