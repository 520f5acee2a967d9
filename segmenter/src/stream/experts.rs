//! Router choices of samples: the containers of their steps, decoded end to end into one buffer.
//!
//! The router chooses for every token but the last, whose choice nothing follows: `n_tokens − 1` rows a sample
//! (semantics 8.5). The step that begins a segment has one row less than tokens; each that extends it has one a token,
//! beginning with that of the token before its own.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, LargeBinaryArray, StringArray};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer};
use dressage_codec::{Decoder, Dtype, Header};

use super::columns::BatchColumn;
use super::sample::Sample;

/// The router choices of a batch.
#[derive(Debug)]
pub(super) struct Routed {
    bytes: LargeBinaryArray,
    dtype: Dtype,
    shapes: Vec<Option<Shape>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    layers: usize,
    topk: usize,
}

impl Routed {
    pub(super) fn column(&self, column: BatchColumn) -> Option<ArrayRef> {
        let size = |get: fn(&Shape) -> usize| -> ArrayRef {
            Arc::new(Int32Array::from_iter(self.shapes.iter().map(|s| s.as_ref().map(|s| get(s) as i32))))
        };
        match column {
            BatchColumn::RoutedExperts => Some(Arc::new(self.bytes.clone())),
            BatchColumn::RoutedExpertsDtype => {
                let names = self.shapes.iter().map(|s| s.map(|_| self.dtype.name()));
                Some(Arc::new(StringArray::from_iter(names)))
            }
            BatchColumn::RoutedExpertsLayers => Some(size(|s| s.layers)),
            BatchColumn::RoutedExpertsTopk => Some(size(|s| s.topk)),
            _ => None,
        }
    }
}

/// One container, and how many of its rows a sample takes.
struct Piece<'a> {
    container: &'a [u8],
    header: Header,
    rows: usize,
}

/// The containers of one sample; none unless every step with tokens has one.
fn pieces<'a>(sample: &'a Sample<'_>) -> Result<Option<Vec<Piece<'a>>>, String> {
    let mut pieces = Vec::with_capacity(sample.steps.len());
    let mut left = sample.n_tokens.saturating_sub(1);
    let with_tokens = sample.steps.iter().filter(|step| step.mask_lengths().iter().any(|n| *n > 0));
    for (i, step) in with_tokens.enumerate() {
        let Some(container) = step.experts() else { return Ok(None) };
        if left == 0 {
            continue;
        }
        let header = Header::parse(container).map_err(|e| format!("its routed experts do not decode: {e}"))?;
        let tokens: usize = step.mask_lengths().iter().map(|n| usize::try_from(*n).unwrap_or(0)).sum();
        let due = if i == 0 { tokens - 1 } else { tokens };
        let found = header.layout().rows;
        if found < due {
            return Err(format!("a step of {tokens} tokens has routed experts for {found}, {due} are needed"));
        }
        let rows = due.min(left);
        left -= rows;
        pieces.push(Piece { container, header, rows });
    }
    if sample.n_tokens < 2 || pieces.is_empty() {
        return Ok(None);
    }
    let shape = |piece: &Piece<'_>| (piece.header.layout().layers, piece.header.layout().topk);
    if pieces.windows(2).any(|two| shape(&two[0]) != shape(&two[1])) {
        return Err("its steps have routed experts of different shapes".to_owned());
    }
    Ok(Some(pieces))
}

/// Decodes those of all samples, in the narrowest type that holds all ids of the batch.
pub(super) fn decode(samples: &[Sample<'_>]) -> Result<Routed, (usize, String)> {
    let mut all = Vec::with_capacity(samples.len());
    for (at, sample) in samples.iter().enumerate() {
        all.push(pieces(sample).map_err(|problem| (at, problem))?);
    }
    let n_experts = all.iter().flatten().flatten().map(|piece| piece.header.layout().n_experts).max();
    let dtype = Dtype::narrowest(n_experts.unwrap_or(1));
    let shapes: Vec<Option<Shape>> = all
        .iter()
        .map(|pieces| {
            let layout = pieces.as_ref()?.first()?.header.layout();
            Some(Shape { layers: layout.layers, topk: layout.topk })
        })
        .collect();
    let lengths: Vec<usize> = all
        .iter()
        .zip(&shapes)
        .map(|(pieces, shape)| {
            let rows: usize = pieces.iter().flatten().map(|piece| piece.rows).sum();
            shape.map_or(0, |shape| rows * shape.layers * shape.topk * dtype.size())
        })
        .collect();
    let mut bytes = vec![0_u8; lengths.iter().sum()];
    let mut decoder = Decoder::new().map_err(|e| (0, e.to_string()))?;
    let mut rest = bytes.as_mut_slice();
    for (at, pieces) in all.iter().enumerate() {
        for piece in pieces.iter().flatten() {
            let layout = piece.header.layout();
            let (out, after) = rest.split_at_mut(piece.rows * layout.layers * layout.topk * dtype.size());
            rest = after;
            let frame = |range: &dressage_codec::FrameRange| {
                let (from, to) = (usize::try_from(range.bytes.start).ok()?, usize::try_from(range.bytes.end).ok()?);
                piece.container.get(from..to)
            };
            decoder
                .decode_frames_to(&piece.header, 0..piece.rows, 0..layout.layers, dtype, frame, out)
                .map_err(|e| (at, format!("its routed experts do not decode: {e}")))?;
        }
    }
    let valid: Vec<bool> = shapes.iter().map(Option::is_some).collect();
    let nulls = valid.contains(&false).then(|| NullBuffer::from(valid));
    let bytes = LargeBinaryArray::new(OffsetBuffer::from_lengths(lengths), Buffer::from_vec(bytes), nulls);
    Ok(Routed { bytes, dtype, shapes })
}
