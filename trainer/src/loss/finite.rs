//! The search for the first number that is NaN or infinite. Where all are numbers it costs one reduction and one wait for
//! the device.
//!
//! Look at the loss of tokens before their gradient: a clip gives NaN the gradient 0, so that a log-prob that is no number
//! can have a gradient that is one.

use tch::{Kind, TchError, Tensor};

use super::error::{NonFinite, Quantity};
use crate::micro_batch::{MicroBatch, Place, TokenPlace};
use crate::torch_error::TorchError;

/// Looks at `values` `[N]`, one a trained token of the micro-batch.
///
/// # Errors
/// [`NonFinite`], naming the first token.
pub fn check_trained(values: &Tensor, quantity: Quantity, batch: &MicroBatch) -> Result<(), NonFinite> {
    check(values, quantity, batch.place(), |at| batch.trained_place(at))
}

/// Looks at `values` `[T, …]`, one row a token of the packed micro-batch.
///
/// # Errors
/// [`NonFinite`], naming the first token.
pub fn check_packed(values: &Tensor, quantity: Quantity, batch: &MicroBatch) -> Result<(), NonFinite> {
    check(values, quantity, batch.place(), |at| batch.packed_place(at))
}

/// Looks at one number of a micro-batch, such as its loss or the norm of its gradient.
///
/// # Errors
/// [`NonFinite`], naming the micro-batch.
pub fn check_value(value: f64, quantity: Quantity, place: Place) -> Result<(), NonFinite> {
    if value.is_finite() { Ok(()) } else { Err(NonFinite::Whole { place, quantity, value }) }
}

fn check(
    values: &Tensor,
    quantity: Quantity,
    place: Place,
    name: impl Fn(usize) -> Option<TokenPlace>,
) -> Result<(), NonFinite> {
    let found =
        first_bad(values).map_err(|error| NonFinite::Torch { place, quantity, source: TorchError::from(error) })?;
    let Some((row, value)) = found else { return Ok(()) };
    Err(match name(row) {
        Some(at) => NonFinite::Token { at: Box::new(at), quantity, value },
        None => NonFinite::Whole { place, quantity, value },
    })
}

/// The first row of `values` with a number that is none, and that number.
fn first_bad(values: &Tensor) -> Result<Option<(usize, f64)>, TchError> {
    let values = values.f_detach()?;
    let finite = values.f_isfinite()?;
    if finite.f_all()?.f_int64_value(&[])? != 0 {
        return Ok(None);
    }
    let bad = finite.f_logical_not()?.f_reshape([-1])?.f_nonzero()?;
    let at = bad.f_int64_value(&[0, 0])?;
    let value = values.f_reshape([-1])?.f_to_kind(Kind::Double)?.f_double_value(&[at])?;
    let rows = values.size().first().copied().unwrap_or(1).max(1);
    let width = i64::try_from(values.numel()).unwrap_or(i64::MAX) / rows;
    Ok(Some((usize::try_from(at / width.max(1)).unwrap_or(0), value)))
}
