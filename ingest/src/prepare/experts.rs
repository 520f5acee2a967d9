//! Routed experts as they come to the codec's container.

use std::borrow::Cow;

use dressage_codec::{Dtype, EncodeOptions, Encoder, Mode, RoutedView, TOPK_MAX};

use super::Refusal;
use crate::rollout::{ExpertDtype, RoutedExperts};
use crate::rule;

/// Encodes router choices. One a thread.
pub(crate) struct ExpertEncoder {
    keep_ranks: bool,
    encoder: Option<Encoder>,
}

impl ExpertEncoder {
    pub(crate) fn new(keep_ranks: bool) -> Self {
        Self { keep_ranks, encoder: None }
    }

    /// The container of a step's router choices.
    pub(crate) fn encode(&mut self, experts: &RoutedExperts) -> Result<Vec<u8>, Refusal> {
        let refuse = |error: dressage_codec::Error| Refusal::new(rule::ROUTED_EXPERTS_SHAPE, error.to_string());
        let bytes: Cow<'_, [u8]> = match experts.chunks.as_slice() {
            [] => Cow::Borrowed(&[]),
            [one] => Cow::Borrowed(one.as_slice()),
            many => Cow::Owned(many.iter().map(|c| c.as_slice()).collect::<Vec<_>>().concat()),
        };
        let dtype = match experts.dtype {
            ExpertDtype::Uint8 => Dtype::Uint8,
            ExpertDtype::Uint16 => Dtype::Uint16,
            ExpertDtype::Int32 => Dtype::Int32,
        };
        let (layers, top_k) = (experts.layers as usize, experts.top_k as usize);
        let shape_known = layers > 0 && top_k > 0;
        let (layers, top_k) = if shape_known { (layers, top_k) } else { guess_shape(experts) };
        // a set is a set only of the ids of one layer: without the shape, order must stay
        let mode = if self.keep_ranks || !shape_known { Mode::Ranked } else { Mode::Set };
        let view = RoutedView::new(&bytes, dtype, experts.rows, layers, top_k).map_err(refuse)?;
        let encoder = match &mut self.encoder {
            Some(encoder) => encoder,
            none => none.insert(Encoder::new().map_err(refuse)?),
        };
        encoder.encode(&view, &EncodeOptions::new(mode)).map_err(refuse)
    }
}

/// Layers and top-k of a row whose source gives only its width: any split keeps the bytes; top-8 is the common one.
fn guess_shape(experts: &RoutedExperts) -> (usize, usize) {
    let ids = experts.byte_length().checked_div(experts.rows).unwrap_or(0) / experts.dtype.width();
    let ids = ids.max(1);
    let top_k = if ids.is_multiple_of(8) {
        8
    } else {
        (1..=TOPK_MAX.min(ids)).rev().find(|k| ids.is_multiple_of(*k)).unwrap_or(1)
    };
    (ids / top_k, top_k)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_joined_and_come_back_in_order() {
        let raw: Vec<u8> = (0..48).map(|i| (i * 7 % 64) as u8).collect();
        let chunks = vec![raw[..16].to_vec().into(), raw[16..].to_vec().into()];
        let experts = RoutedExperts { chunks, dtype: ExpertDtype::Uint8, layers: 2, top_k: 4, rows: 6 };
        let encoded = ExpertEncoder::new(true).encode(&experts).unwrap();
        assert_eq!(dressage_codec::decode_all(&encoded).unwrap().bytes, raw);
    }

    #[test]
    fn without_a_shape_the_order_is_kept_even_where_sets_are_wanted() {
        let raw: Vec<u8> = (0..30).rev().collect();
        let experts =
            RoutedExperts { chunks: vec![raw.clone().into()], dtype: ExpertDtype::Uint8, layers: 0, top_k: 0, rows: 3 };
        let encoded = ExpertEncoder::new(false).encode(&experts).unwrap();
        assert_eq!(dressage_codec::decode_all(&encoded).unwrap().bytes, raw);
    }
}
