//! `list_sum(list)` and `list_mean(list)`: over all values that are not null. (`array_min`, `array_max` and
//! `cardinality` are the engine's.)

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Float64Builder};
use arrow::datatypes::DataType;
use datafusion::common::plan_err;
use datafusion::error::Result;
use datafusion::logical_expr::ScalarUDF;

use super::simple::Simple;
use super::views::{Lists, doubles, list_values};

pub(super) fn functions() -> Vec<ScalarUDF> {
    vec![
        Simple::function(
            "list_sum",
            1,
            |types| numbers("list_sum", types),
            |args, rows| fold(&args[0], rows, |sum, _| Some(sum)),
        ),
        Simple::function(
            "list_mean",
            1,
            |types| numbers("list_mean", types),
            |args, rows| fold(&args[0], rows, |sum, n| (n > 0).then(|| sum / n as f64)),
        ),
    ]
}

fn numbers(name: &str, types: &[DataType]) -> Result<DataType> {
    match types {
        [list] if list_values(list).is_some_and(DataType::is_numeric) => Ok(DataType::Float64),
        _ => plan_err!("{name} takes a list of numbers"),
    }
}

fn fold(array: &ArrayRef, rows: usize, finish: fn(sum: f64, n: usize) -> Option<f64>) -> Result<ArrayRef> {
    let lists = Lists::of(array)?;
    let values = doubles(lists.values())?;
    let mut out = Float64Builder::with_capacity(rows);
    for row in 0..rows {
        let Some(range) = lists.range(row) else {
            out.append_null();
            continue;
        };
        let (mut sum, mut n) = (0.0, 0);
        for i in range.filter(|i| values.is_valid(*i)) {
            sum += values.value(i);
            n += 1;
        }
        out.append_option(finish(sum, n));
    }
    Ok(Arc::new(out.finish()))
}
