//! Recorded router choices as one tensor over the packed tokens, checked against the model's router.

use arrow::array::{Array, Int32Array};
use tch::Tensor;

use super::columns::{Columns, RouteColumns};
use super::error::BatchError;
use super::limits::{ModelLimits, RouterShape};
use super::place::Place;
use super::tensors::torch;

/// Where no choice was recorded: on the last token of a segment, and on all of a segment that has none.
const ROUTER_CHOOSES: i32 = -1;

/// `[T, layers, top_k]` of int32, and the recorded layers of each segment; none where no segment has any.
pub(super) fn packed(
    columns: &Columns,
    place: Place,
    model: &ModelLimits,
    n_tokens: usize,
) -> Result<(Option<Tensor>, Vec<Option<usize>>), BatchError> {
    let Some(routes) = &columns.routes else { return Ok((None, vec![None; columns.n_rows()])) };
    let mut route_layers = Vec::with_capacity(columns.n_rows());
    for row in 0..columns.n_rows() {
        let has = routes.bytes.is_valid(row);
        route_layers.push(if has { Some(recorded_layers(columns, routes, row, model.router)?) } else { None });
    }
    let (Some(layers), Some(router)) = (route_layers.iter().flatten().copied().max(), model.router) else {
        return Ok((None, route_layers));
    };
    let width = layers * router.top_k;
    let mut ids = vec![ROUTER_CHOOSES; n_tokens * width];
    let mut from = 0;
    for (row, own_layers) in route_layers.iter().enumerate() {
        let tokens = columns.token_ids.row(row).len();
        if let Some(own_layers) = own_layers {
            let out = &mut ids[from * width..(from + tokens - 1) * width];
            segment(columns, routes, row, router, *own_layers, out)?;
        }
        from += tokens;
    }
    let shape = [n_tokens as i64, layers as i64, router.top_k as i64];
    let tensor = torch(place, Tensor::f_from_slice(&ids).and_then(|flat| flat.f_view(shape)))?;
    Ok((Some(tensor), route_layers))
}

/// The layers of a segment's choices, which must be those of the model or those of its layers that have experts.
fn recorded_layers(
    columns: &Columns,
    routes: &RouteColumns,
    row: usize,
    router: Option<RouterShape>,
) -> Result<usize, BatchError> {
    let router = router.unwrap_or(RouterShape { layers: 0, expert_layers: 0, top_k: 0, n_experts: 0 });
    let said = |array: &Int32Array| array.is_valid(row).then(|| usize::try_from(array.value(row)).ok()).flatten();
    match (said(&routes.layers), said(&routes.top_k)) {
        (Some(layers), Some(top_k))
            if layers > 0 && (layers == router.layers || layers == router.expert_layers) && top_k == router.top_k =>
        {
            Ok(layers)
        }
        _ => Err(shape_error(columns, routes, row, router)),
    }
}

/// Widens the choices of one segment into their place: `out` is `[n_tokens − 1, layers of the micro-batch, top_k]`.
fn segment(
    columns: &Columns,
    routes: &RouteColumns,
    row: usize,
    router: RouterShape,
    layers: usize,
    out: &mut [i32],
) -> Result<(), BatchError> {
    let bytes = routes.bytes.value(row);
    let dtype = if routes.dtype.is_valid(row) { routes.dtype.value(row) } else { "" };
    let size = match dtype {
        "uint8" => 1,
        "uint16" => 2,
        found => return Err(BatchError::RoutesDtype { at: columns.segment(row), found: found.into() }),
    };
    let n_chosen = columns.token_ids.row(row).len() - 1;
    let width = layers * router.top_k;
    let (found, expected) = (bytes.len(), n_chosen * width * size);
    if found != expected {
        return Err(BatchError::RoutesLength { at: columns.segment(row), found, expected });
    }
    // a segment of one token has no choice at all
    let wide = out.len().checked_div(n_chosen).unwrap_or(0).max(1);
    for (token, (to, from)) in out.chunks_mut(wide).zip(bytes.chunks(width * size)).enumerate() {
        let to = &mut to[..width];
        match size {
            1 => to.iter_mut().zip(from).for_each(|(id, byte)| *id = i32::from(*byte)),
            _ => to.iter_mut().zip(from.as_chunks::<2>().0).for_each(|(id, two)| *id = u16::from_le_bytes(*two).into()),
        }
        if let Some(at) = to.iter().position(|id| *id as usize >= router.n_experts) {
            return Err(BatchError::ExpertId {
                at: columns.token(row, token),
                layer: at / router.top_k,
                rank: at % router.top_k,
                expert_id: to[at] as usize,
                n_experts: router.n_experts,
            });
        }
    }
    Ok(())
}

fn shape_error(columns: &Columns, routes: &RouteColumns, row: usize, router: RouterShape) -> BatchError {
    let said = |array: &arrow::array::Int32Array| if array.is_valid(row) { array.value(row) } else { 0 };
    BatchError::RoutesShape {
        at: columns.segment(row),
        layers: said(&routes.layers),
        top_k: said(&routes.top_k),
        model_layers: router.layers,
        model_expert_layers: router.expert_layers,
        model_top_k: router.top_k,
    }
}
