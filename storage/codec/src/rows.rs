//! Containers cut and joined along the rows: what steps need to become segments.

use std::ops::Range;

use crate::decode::{Decoder, decode_slice};
use crate::encode::encode;
use crate::error::{Error, Result};
use crate::header::Header;
use crate::view::{Dtype, RoutedView};

/// A container of some rows of another, in its mode and bound.
///
/// # Errors
/// Those of decoding.
pub fn slice_rows(container: &[u8], rows: Range<usize>) -> Result<Vec<u8>> {
    let layout = *Header::parse(container)?.layout();
    let routes = decode_slice(container, rows, 0..layout.layers)?;
    encode(&routes.view()?, layout.mode, Some(layout.n_experts))
}

/// One container of the rows of many, in order. The widest id type and the largest bound among them are kept.
///
/// # Errors
/// [`Error::UnlikeShapes`] if layers, top-k or mode differ, or if there are none; those of decoding.
pub fn concat(containers: &[&[u8]]) -> Result<Vec<u8>> {
    let headers = containers.iter().map(|bytes| Header::parse(bytes)).collect::<Result<Vec<_>>>()?;
    let Some(first) = headers.first().map(|header| *header.layout()) else {
        return Err(Error::UnlikeShapes { index: 0, what: "containers", found: 0, expected: 1 });
    };
    let mut rows = 0;
    let mut n_experts = first.n_experts;
    let mut dtype = first.dtype;
    for (index, header) in headers.iter().enumerate() {
        let layout = header.layout();
        let pairs = [
            ("layers", layout.layers as u64, first.layers as u64),
            ("topk", layout.topk as u64, first.topk as u64),
            ("mode", layout.mode as u64, first.mode as u64),
        ];
        for (what, found, expected) in pairs {
            if found != expected {
                return Err(Error::UnlikeShapes { index, what, found, expected });
            }
        }
        rows += layout.rows;
        n_experts = n_experts.max(layout.n_experts);
        dtype = [dtype, layout.dtype].into_iter().max_by_key(|dtype: &Dtype| dtype.size()).unwrap_or(dtype);
    }
    let mut decoder = Decoder::new()?;
    let mut bytes = Vec::new();
    for (header, container) in headers.iter().zip(containers) {
        let layout = header.layout();
        let routes = decoder.decode_frames(header, 0..layout.rows, 0..layout.layers, dtype, |frame| {
            container.get(frame.bytes.start as usize..frame.bytes.end as usize)
        })?;
        bytes.extend_from_slice(&routes.bytes);
    }
    let view = RoutedView::new(&bytes, dtype, rows, first.layers, first.topk)?;
    encode(&view, first.mode, Some(n_experts))
}
