//! `join_masks(mask_spans, trainable, step_index)` and `join_versions(version_spans, weight_version, n_tokens,
//! step_index)`: the steps of a segment as one mask, and as one list of versions.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int32Builder, ListBuilder, StringBuilder, StructBuilder};
use arrow::datatypes::{DataType, Field, Fields};
use datafusion::common::{exec_err, plan_err};
use datafusion::error::Result;
use datafusion::logical_expr::AggregateUDF;
use dressage_schemas::spans::{MaskSpans, VersionSpans};

use super::gather::Kind;
use super::spans::{MaskColumn, VersionColumn, is_mask_spans, is_version_spans};
use super::views::{integers, is_text, list_of, texts};

/// Their names.
pub(super) const NAMES: [&str; 2] = ["join_masks", "join_versions"];

pub(super) fn functions() -> Vec<AggregateUDF> {
    let masks = Kind {
        name: NAMES[0],
        arity: 3,
        returns: |types| match types {
            [mask, DataType::Boolean, step] if is_mask_spans(mask) && step.is_integer() => Ok(list_of(DataType::Int32)),
            _ => plan_err!("join_masks takes mask_spans, trainable and step_index"),
        },
        gather: gather_masks,
        finish: finish_masks,
    };
    let versions = Kind {
        name: NAMES[1],
        arity: 4,
        returns: |types| match types {
            [versions, one, n, step]
                if is_version_spans(versions) && is_text(one) && n.is_integer() && step.is_integer() =>
            {
                Ok(list_of(DataType::Struct(span_fields())))
            }
            _ => plan_err!("join_versions takes version_spans, weight_version, a number of tokens and step_index"),
        },
        gather: gather_versions,
        finish: finish_versions,
    };
    vec![masks.function(), versions.function()]
}

fn span_fields() -> Fields {
    Fields::from(vec![
        Field::new("weight_version", DataType::Utf8, true),
        Field::new("n_tokens", DataType::Int32, true),
    ])
}

/// One step among a group's bytes: its place, then a number of bytes, then those. Gives how many bytes it takes.
fn put(group: &mut Vec<u8>, step_index: i64, body: &[u8]) -> usize {
    group.extend_from_slice(&step_index.to_le_bytes());
    group.extend_from_slice(&(body.len() as u64).to_le_bytes());
    group.extend_from_slice(body);
    16 + body.len()
}

/// The bodies of a group's steps, in order of their place.
fn in_order(group: &[u8]) -> Result<Vec<&[u8]>> {
    let mut steps = Vec::new();
    let mut rest = group;
    while let Some((head, after)) = rest.split_first_chunk::<16>() {
        let (place, length) = head.split_at(8);
        let place = i64::from_le_bytes(place.try_into().unwrap_or_default());
        let length = u64::from_le_bytes(length.try_into().unwrap_or_default());
        let Some((body, next)) = usize::try_from(length).ok().and_then(|n| after.split_at_checked(n)) else {
            return exec_err!("a gathered step is cut off");
        };
        steps.push((place, body));
        rest = next;
    }
    steps.sort_by_key(|(place, _)| *place);
    Ok(steps.into_iter().map(|(_, body)| body).collect())
}

fn gather_masks(
    args: &[ArrayRef],
    group_of: &mut dyn FnMut(usize) -> Option<usize>,
    groups: &mut [Vec<u8>],
) -> Result<usize> {
    let (masks, trainable, places) = (MaskColumn::of(&args[0])?, args[1].as_boolean(), integers(&args[2])?);
    let (mut body, mut added) = (Vec::new(), 0);
    for row in 0..places.len() {
        let Some(group) = group_of(row) else { continue };
        let lengths = masks.get(NAMES[0], row)?.unwrap_or_default();
        body.clear();
        body.push(u8::from(trainable.is_valid(row) && trainable.value(row)));
        lengths.iter().for_each(|n| body.extend_from_slice(&n.to_le_bytes()));
        added += put(&mut groups[group], places.value(row), &body);
    }
    Ok(added)
}

fn finish_masks(groups: &mut [Vec<u8>]) -> Result<ArrayRef> {
    let mut out = ListBuilder::new(Int32Builder::new());
    let mut lengths = Vec::new();
    for group in groups {
        let mut joined = MaskSpans::default();
        for body in in_order(group)? {
            let Some((trainable, bytes)) = body.split_first() else { continue };
            lengths.clear();
            lengths.extend(bytes.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b)));
            joined.extend(&lengths, *trainable == 1);
        }
        out.values().append_slice(joined.as_slice());
        out.append(true);
    }
    Ok(Arc::new(out.finish()))
}

fn gather_versions(
    args: &[ArrayRef],
    group_of: &mut dyn FnMut(usize) -> Option<usize>,
    groups: &mut [Vec<u8>],
) -> Result<usize> {
    let (versions, one) = (VersionColumn::of(&args[0])?, texts(&args[1])?);
    let (n_tokens, places) = (integers(&args[2])?, integers(&args[3])?);
    let (mut runs, mut body, mut added) = (Vec::new(), Vec::new(), 0);
    for row in 0..places.len() {
        let Some(group) = group_of(row) else { continue };
        if !versions.get(NAMES[1], row, &mut runs)? {
            let n = i32::try_from(n_tokens.value(row)).unwrap_or(i32::MAX);
            runs.push((if one.is_valid(row) { one.value(row) } else { "" }, n));
        }
        body.clear();
        for (version, n) in &runs {
            body.extend_from_slice(&n.to_le_bytes());
            body.extend_from_slice(&(version.len() as u32).to_le_bytes());
            body.extend_from_slice(version.as_bytes());
        }
        added += put(&mut groups[group], places.value(row), &body);
    }
    Ok(added)
}

fn finish_versions(groups: &mut [Vec<u8>]) -> Result<ArrayRef> {
    let builders: Vec<Box<dyn arrow::array::ArrayBuilder>> =
        vec![Box::new(StringBuilder::new()), Box::new(Int32Builder::new())];
    let mut out = ListBuilder::new(StructBuilder::new(span_fields(), builders));
    for group in groups {
        let mut joined = VersionSpans::default();
        for body in in_order(group)? {
            let mut rest = body;
            while let Some((head, after)) = rest.split_first_chunk::<8>() {
                let n = i32::from_le_bytes([head[0], head[1], head[2], head[3]]);
                let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
                let Some((text, next)) = after.split_at_checked(length) else {
                    return exec_err!("a gathered version is cut off");
                };
                joined.push(&String::from_utf8_lossy(text), usize::try_from(n).unwrap_or(0));
                rest = next;
            }
        }
        for (version, n_tokens) in &joined.0 {
            let spans = out.values();
            if let Some(names) = spans.field_builder::<StringBuilder>(0) {
                names.append_value(version);
            }
            if let Some(counts) = spans.field_builder::<Int32Builder>(1) {
                counts.append_value(*n_tokens);
            }
            spans.append(true);
        }
        out.append(true);
    }
    Ok(Arc::new(out.finish()))
}
