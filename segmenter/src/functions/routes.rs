//! `experts(routes, token, layer)` and `experts_info(routes)`: router choices inside a `routed_experts` value.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanBuilder, Int32Builder, ListBuilder, StructArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, Fields};
use datafusion::common::{exec_err, plan_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::ScalarUDF;
use dressage_codec::{Decoder, Dtype, Header, Mode};

use super::simple::Simple;
use super::views::{Bytes, integers, is_bytes, list_of};

pub(super) fn functions() -> Vec<ScalarUDF> {
    vec![
        Simple::function(
            "experts",
            3,
            |types| match types {
                [routes, token, layer] if is_bytes(routes) && token.is_integer() && layer.is_integer() => {
                    Ok(list_of(DataType::Int32))
                }
                _ => plan_err!(
                    "experts takes routed_experts, a token and a layer, such as experts(routed_experts, 0, 3)"
                ),
            },
            experts,
        ),
        Simple::function(
            "experts_info",
            1,
            |types| match types {
                [routes] if is_bytes(routes) => Ok(DataType::Struct(info_fields())),
                _ => plan_err!("experts_info takes routed_experts"),
            },
            experts_info,
        ),
    ]
}

fn failed(error: dressage_codec::Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// The ids that the router chose for one token (row of the step's routes) in one layer; NULL beyond either.
fn experts(args: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
    let routes = Bytes::of(&args[0])?;
    let (tokens, layers) = (integers(&args[1])?, integers(&args[2])?);
    let mut decoder = Decoder::new().map_err(failed)?;
    let mut out = ListBuilder::new(Int32Builder::new());
    for row in 0..rows {
        let container = routes.get(row).filter(|_| tokens.is_valid(row) && layers.is_valid(row));
        let Some(container) = container else {
            out.append(false);
            continue;
        };
        let header = Header::parse(container).map_err(failed)?;
        let layout = header.layout();
        let at = |value: i64, end: usize| usize::try_from(value).ok().filter(|v| *v < end);
        let (Some(token), Some(layer)) = (at(tokens.value(row), layout.rows), at(layers.value(row), layout.layers))
        else {
            out.append(false);
            continue;
        };
        let chosen = decoder.decode_slice(container, token..token + 1, layer..layer + 1).map_err(failed)?;
        append_ids(&mut out, &chosen.bytes, chosen.dtype)?;
        out.append(true);
    }
    Ok(Arc::new(out.finish()))
}

fn append_ids(out: &mut ListBuilder<Int32Builder>, bytes: &[u8], dtype: Dtype) -> Result<()> {
    match dtype {
        Dtype::Uint8 => bytes.iter().for_each(|b| out.values().append_value(i32::from(*b))),
        Dtype::Uint16 => {
            bytes.as_chunks::<2>().0.iter().for_each(|b| out.values().append_value(i32::from(u16::from_le_bytes(*b))));
        }
        Dtype::Int32 => {
            bytes.as_chunks::<4>().0.iter().for_each(|b| out.values().append_value(i32::from_le_bytes(*b)));
        }
        #[allow(unreachable_patterns)]
        other => return exec_err!("experts: ids of type {}", other.name()),
    }
    Ok(())
}

fn info_fields() -> Fields {
    let int = |name| Field::new(name, DataType::Int32, true);
    Fields::from(vec![
        int("rows"),
        int("layers"),
        int("topk"),
        int("n_experts"),
        Field::new("ranked", DataType::Boolean, true),
    ])
}

/// Shape of the routes, from their head alone.
fn experts_info(args: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
    let routes = Bytes::of(&args[0])?;
    let mut counts: [Int32Builder; 4] = std::array::from_fn(|_| Int32Builder::with_capacity(rows));
    let mut ranked = BooleanBuilder::with_capacity(rows);
    let mut valid = Vec::with_capacity(rows);
    for row in 0..rows {
        valid.push(routes.get(row).is_some());
        let Some(container) = routes.get(row) else {
            counts.iter_mut().for_each(Int32Builder::append_null);
            ranked.append_null();
            continue;
        };
        let header = Header::parse(container).map_err(failed)?;
        let layout = header.layout();
        let sizes = [layout.rows, layout.layers, layout.topk, layout.n_experts as usize];
        for (builder, size) in counts.iter_mut().zip(sizes) {
            builder.append_value(i32::try_from(size).unwrap_or(i32::MAX));
        }
        ranked.append_value(layout.mode == Mode::Ranked);
    }
    let mut columns: Vec<ArrayRef> = counts.iter_mut().map(|b| Arc::new(b.finish()) as ArrayRef).collect();
    columns.push(Arc::new(ranked.finish()));
    Ok(Arc::new(StructArray::try_new(info_fields(), columns, Some(NullBuffer::from(valid)))?))
}
