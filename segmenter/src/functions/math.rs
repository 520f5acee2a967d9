//! Plain arithmetic on doubles. Integers stay integers where that loses nothing (`abs`, `sign`, and `round`, `floor`,
//! `ceil` without digits).

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, Float64Array};
use arrow::datatypes::DataType;
use datafusion::common::{exec_err, plan_err};
use datafusion::error::Result;
use datafusion::logical_expr::ScalarUDF;

use super::simple::Simple;
use super::views::{doubles, integers};

pub(super) fn functions() -> Vec<ScalarUDF> {
    vec![
        Simple::function("abs", 1, same_kind, |args, _| match args[0].data_type().is_integer() {
            true => {
                let values = integers(&args[0])?;
                Ok(Arc::new(values.try_unary::<_, arrow::datatypes::Int64Type, _>(|v| {
                    v.checked_abs().ok_or_else(|| {
                        arrow::error::ArrowError::ArithmeticOverflow(format!("abs({v}) is no 64-bit integer"))
                    })
                })?))
            }
            false => map(&args[0], f64::abs),
        }),
        Simple::function("sign", 1, same_kind, |args, _| match args[0].data_type().is_integer() {
            true => Ok(Arc::new(integers(&args[0])?.unary::<_, arrow::datatypes::Int64Type>(i64::signum))),
            false => map(&args[0], |v| if v == 0.0 || v.is_nan() { v } else { v.signum() }),
        }),
        Simple::with_arities("round", &[1, 2], round_type, round),
        Simple::function("floor", 1, same_kind, |args, _| whole(&args[0], f64::floor)),
        Simple::function("ceil", 1, same_kind, |args, _| whole(&args[0], f64::ceil)),
        Simple::function("sqrt", 1, double, |args, _| map(&args[0], f64::sqrt)),
        Simple::function("exp", 1, double, |args, _| map(&args[0], f64::exp)),
        Simple::function("ln", 1, double, |args, _| map(&args[0], f64::ln)),
        Simple::function("log10", 1, double, |args, _| map(&args[0], f64::log10)),
        Simple::function("power", 2, two_doubles, |args, _| {
            let (base, exponent) = (doubles(&args[0])?, doubles(&args[1])?);
            let power: Float64Array = arrow::compute::binary(&base, &exponent, f64::powf)?;
            Ok(Arc::new(power))
        }),
        Simple::function(
            "is_finite",
            1,
            |types| double(types).map(|_| DataType::Boolean),
            |args, _| {
                let values = doubles(&args[0])?;
                Ok(Arc::new(BooleanArray::from_unary(&values, f64::is_finite)))
            },
        ),
    ]
}

fn is_number(data_type: &DataType) -> bool {
    data_type.is_numeric() || *data_type == DataType::Null
}

fn double(types: &[DataType]) -> Result<DataType> {
    match types {
        [one] if is_number(one) => Ok(DataType::Float64),
        _ => plan_err!("expected a number"),
    }
}

fn two_doubles(types: &[DataType]) -> Result<DataType> {
    match types {
        [a, b] if is_number(a) && is_number(b) => Ok(DataType::Float64),
        _ => plan_err!("expected two numbers"),
    }
}

fn same_kind(types: &[DataType]) -> Result<DataType> {
    match types {
        [one] if one.is_integer() => Ok(DataType::Int64),
        types => double(types),
    }
}

fn round_type(types: &[DataType]) -> Result<DataType> {
    match types {
        [number, digits] if is_number(number) && digits.is_integer() => Ok(DataType::Float64),
        [_, _] => plan_err!("round takes a number and a whole number of digits"),
        types => same_kind(types),
    }
}

fn map(array: &ArrayRef, f: fn(f64) -> f64) -> Result<ArrayRef> {
    Ok(Arc::new(doubles(array)?.unary::<_, arrow::datatypes::Float64Type>(f)))
}

fn whole(array: &ArrayRef, f: fn(f64) -> f64) -> Result<ArrayRef> {
    if array.data_type().is_integer() { Ok(Arc::new(integers(array)?)) } else { map(array, f) }
}

fn round(args: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
    let [numbers, digits] = args else { return whole(&args[0], f64::round) };
    let (numbers, digits) = (doubles(numbers)?, integers(digits)?);
    let mut out = Vec::with_capacity(rows);
    for row in 0..rows {
        if numbers.is_null(row) || digits.is_null(row) {
            out.push(None);
            continue;
        }
        let n = digits.value(row);
        if !(-300..=300).contains(&n) {
            return exec_err!("round: {n} digits");
        }
        let scale = 10_f64.powi(n as i32);
        let scaled = numbers.value(row) * scale;
        // beyond 2^53 a double has no digits left to round
        out.push(Some(if scaled.is_finite() { scaled.round() / scale } else { numbers.value(row) }));
    }
    Ok(Arc::new(Float64Array::from(out)))
}
