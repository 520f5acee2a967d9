//! Micro-batches made by hand, for tests: those beside the code, and those in `tests/it`, which include this file.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Float64Array, Int32Array, LargeBinaryArray, ListArray, RecordBatch, StringArray,
};
use arrow::datatypes::{Float32Type, Int8Type, Int32Type};

/// One row.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) trajectory_id: String,
    pub(crate) token_ids: Vec<i32>,
    pub(crate) loss_mask: Vec<i8>,
    pub(crate) logprobs: Option<Vec<f32>>,
    pub(crate) advantage: f64,
    pub(crate) loss_weight: f64,
    pub(crate) routes: Option<Vec<u8>>,
    pub(crate) route_layers: i32,
}

impl Row {
    /// Context, then two trained tokens.
    pub(crate) fn of(trajectory_id: impl Into<String>, token_ids: &[i32]) -> Self {
        let n = token_ids.len();
        let mask: Vec<i8> = (0..n).map(|at| i8::from(at + 2 >= n && at > 0)).collect();
        let logprobs = mask.iter().enumerate().map(|(at, bit)| -0.1 * f32::from(*bit) * (at as f32 + 1.0)).collect();
        Self {
            trajectory_id: trajectory_id.into(),
            token_ids: token_ids.to_vec(),
            loss_mask: mask,
            logprobs: Some(logprobs),
            advantage: 1.0,
            loss_weight: 0.5,
            routes: None,
            route_layers: 2,
        }
    }
}

/// Rows as the stream gives them, with router choices of two experts a token.
pub(crate) fn batch(rows: &[Row]) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(
        columns(rows).into_iter().map(|(name, array)| (name, array, matches!(name, "logprobs" | "routed_experts"))),
    )
    .unwrap()
}

pub(crate) fn columns(rows: &[Row]) -> Vec<(&'static str, ArrayRef)> {
    let ints = |get: &dyn Fn(&Row) -> Vec<i32>| -> ArrayRef {
        Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(
            rows.iter().map(|row| Some(get(row).into_iter().map(Some).collect::<Vec<_>>())),
        ))
    };
    let int = |get: &dyn Fn(&Row) -> i32| -> ArrayRef { Arc::new(Int32Array::from_iter_values(rows.iter().map(get))) };
    let float = |get: fn(&Row) -> f64| -> ArrayRef { Arc::new(Float64Array::from_iter_values(rows.iter().map(get))) };
    let two: ArrayRef = Arc::new(Int32Array::from(vec![2; rows.len()]));
    vec![
        (
            "trajectory_id",
            Arc::new(StringArray::from_iter_values(rows.iter().map(|r| r.trajectory_id.as_str()))) as ArrayRef,
        ),
        ("segment_index", int(&|_| 3)),
        ("n_tokens", int(&|r| r.token_ids.len() as i32)),
        ("response_start", int(&|r| r.loss_mask.iter().position(|bit| *bit == 1).unwrap_or(r.loss_mask.len()) as i32)),
        ("token_ids", ints(&|r| r.token_ids.clone())),
        ("position_ids", ints(&|r| (0..r.token_ids.len() as i32).collect())),
        (
            "loss_mask",
            Arc::new(ListArray::from_iter_primitive::<Int8Type, _, _>(
                rows.iter().map(|r| Some(r.loss_mask.iter().copied().map(Some).collect::<Vec<_>>())),
            )),
        ),
        (
            "logprobs",
            Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(
                rows.iter().map(|r| r.logprobs.as_ref().map(|l| l.iter().copied().map(Some).collect::<Vec<_>>())),
            )),
        ),
        ("advantage", float(|r| r.advantage)),
        ("loss_weight", float(|r| r.loss_weight)),
        ("truncated", Arc::new(BooleanArray::from(vec![false; rows.len()]))),
        ("routed_experts", Arc::new(LargeBinaryArray::from_iter(rows.iter().map(|r| r.routes.as_deref())))),
        ("routed_experts_dtype", Arc::new(StringArray::from(vec!["uint8"; rows.len()]))),
        ("routed_experts_layers", int(&|r| r.route_layers)),
        ("routed_experts_topk", two),
    ]
}
