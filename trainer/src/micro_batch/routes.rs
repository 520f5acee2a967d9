//! Recorded router choices as one tensor over the packed tokens, checked against the model's router.

use arrow::array::Array;
use tch::Tensor;

use super::columns::{Columns, RouteColumns};
use super::error::BatchError;
use super::limits::{ModelLimits, RouterShape};
use super::place::Place;
use super::tensors::torch;

/// Where no choice was recorded: on the last token of a segment, and on all of a segment that has none.
const ROUTER_CHOOSES: i32 = -1;

/// `[T, layers, top_k]` of int32, and whether each segment has choices; none where no segment has any.
pub(super) fn packed(
    columns: &Columns,
    place: Place,
    model: &ModelLimits,
    n_tokens: usize,
) -> Result<(Option<Tensor>, Vec<bool>), BatchError> {
    let Some(routes) = &columns.routes else { return Ok((None, vec![false; columns.n_rows()])) };
    let has_routes: Vec<bool> = (0..columns.n_rows()).map(|row| routes.bytes.is_valid(row)).collect();
    let Some(first) = has_routes.iter().position(|has| *has) else { return Ok((None, has_routes)) };
    let Some(router) = model.router else {
        return Err(shape_error(columns, routes, first, RouterShape { layers: 0, top_k: 0, n_experts: 0 }));
    };
    let width = router.layers * router.top_k;
    let mut ids = vec![ROUTER_CHOOSES; n_tokens * width];
    let mut from = 0;
    for (row, has) in has_routes.iter().enumerate() {
        let tokens = columns.token_ids.row(row).len();
        if *has {
            segment(columns, routes, row, router, &mut ids[from * width..(from + tokens - 1) * width])?;
        }
        from += tokens;
    }
    let shape = [n_tokens as i64, router.layers as i64, router.top_k as i64];
    let tensor = torch(place, Tensor::f_from_slice(&ids).and_then(|flat| flat.f_view(shape)))?;
    Ok((Some(tensor), has_routes))
}

/// Widens the choices of one segment into their place.
fn segment(
    columns: &Columns,
    routes: &RouteColumns,
    row: usize,
    router: RouterShape,
    out: &mut [i32],
) -> Result<(), BatchError> {
    let is = |array: &arrow::array::Int32Array, wanted: usize| {
        array.is_valid(row) && usize::try_from(array.value(row)).is_ok_and(|found| found == wanted)
    };
    if !is(&routes.layers, router.layers) || !is(&routes.top_k, router.top_k) {
        return Err(shape_error(columns, routes, row, router));
    }
    let bytes = routes.bytes.value(row);
    let dtype = if routes.dtype.is_valid(row) { routes.dtype.value(row) } else { "" };
    let size = match dtype {
        "uint8" => 1,
        "uint16" => 2,
        found => return Err(BatchError::RoutesDtype { at: columns.segment(row), found: found.into() }),
    };
    if bytes.len() != out.len() * size {
        return Err(BatchError::RoutesLength {
            at: columns.segment(row),
            found: bytes.len(),
            expected: out.len() * size,
        });
    }
    match size {
        1 => out.iter_mut().zip(bytes).for_each(|(id, byte)| *id = i32::from(*byte)),
        _ => out.iter_mut().zip(bytes.as_chunks::<2>().0).for_each(|(id, two)| *id = u16::from_le_bytes(*two).into()),
    }
    let Some(at) = out.iter().position(|id| *id as usize >= router.n_experts) else { return Ok(()) };
    let width = router.layers * router.top_k;
    Err(BatchError::ExpertId {
        at: columns.token(row, at / width),
        layer: at % width / router.top_k,
        rank: at % router.top_k,
        expert_id: out[at] as usize,
        n_experts: router.n_experts,
    })
}

fn shape_error(columns: &Columns, routes: &RouteColumns, row: usize, router: RouterShape) -> BatchError {
    let said = |array: &arrow::array::Int32Array| if array.is_valid(row) { array.value(row) } else { 0 };
    BatchError::RoutesShape {
        at: columns.segment(row),
        layers: said(&routes.layers),
        top_k: said(&routes.top_k),
        model_layers: router.layers,
        model_top_k: router.top_k,
    }
}
