//! A slice decodes from its own frames, and only from those.

use dressage_codec::{Decoder, Dtype, Error, FIXED_BYTES, Header, Mode, RoutedView, decode_all, decode_slice, encode};
use proptest::prelude::*;

use crate::round_trip::synthetic;

const ROWS: usize = 2_600;
const LAYERS: usize = 24;
const ROW: usize = LAYERS * 8;

fn container(mode: Mode, n_experts: u32) -> Vec<u8> {
    let bytes = synthetic(ROWS, LAYERS, 8, n_experts);
    let view = RoutedView::new(&bytes, Dtype::narrowest(n_experts), ROWS, LAYERS, 8).unwrap();
    encode(&view, mode, Some(n_experts)).unwrap()
}

fn cut(all: &[u8], size: usize, rows: std::ops::Range<usize>, layers: std::ops::Range<usize>) -> Vec<u8> {
    let mut slice = Vec::new();
    for row in rows {
        let from = (row * ROW + layers.start * 8) * size;
        slice.extend_from_slice(&all[from..from + layers.len() * 8 * size]);
    }
    slice
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_slice_equals_the_cut_of_the_whole(
        row_a in 0..=ROWS, row_b in 0..=ROWS, layer_a in 0..=LAYERS, layer_b in 0..=LAYERS, wide in any::<bool>(),
        ranked in any::<bool>(),
    ) {
        let mode = if ranked { Mode::Ranked } else { Mode::Set };
        let container = container(mode, if wide { 384 } else { 128 });
        let (rows, layers) = (row_a.min(row_b)..row_a.max(row_b), layer_a.min(layer_b)..layer_a.max(layer_b));
        let all = decode_all(&container).unwrap();
        let slice = decode_slice(&container, rows.clone(), layers.clone()).unwrap();
        prop_assert!(slice.bytes == cut(&all.bytes, all.dtype.size(), rows, layers));
    }
}

#[test]
fn ranged_reads_of_head_and_frames_are_enough() {
    let container = container(Mode::Set, 128);
    let head_bytes = Header::head_bytes(&container[..FIXED_BYTES]).unwrap();
    let header = Header::parse(&container[..head_bytes]).unwrap();
    let (rows, layers) = (1_100..1_200, 3..5);
    let frames = header.frame_ranges(rows.clone(), layers.clone()).unwrap();
    assert_eq!(frames.len(), 1, "one block of rows, one group of layers");
    let read: u64 = frames.iter().map(|frame| frame.bytes.end - frame.bytes.start).sum();
    assert!(read * 4 < container.len() as u64, "{read} of {}", container.len());
    // Everything outside the frame is destroyed, so a decoder that looked at it would fail its checksum.
    let mut damaged = vec![0xa5; container.len()];
    let kept = frames[0].bytes.start as usize..frames[0].bytes.end as usize;
    damaged[kept.clone()].copy_from_slice(&container[kept]);
    let slice = Decoder::new()
        .unwrap()
        .decode_frames(&header, rows.clone(), layers.clone(), Dtype::Int32, |frame| {
            damaged.get(frame.bytes.start as usize..frame.bytes.end as usize)
        })
        .unwrap();
    let expected = cut(&decode_all(&container).unwrap().bytes, 1, rows, layers);
    let widened: Vec<u8> = expected.iter().flat_map(|id| u32::from(*id).to_le_bytes()).collect();
    assert!(slice.bytes == widened);
}

#[test]
fn slices_out_of_range_and_types_too_narrow_are_refused() {
    let narrow = container(Mode::Set, 128);
    assert!(matches!(
        decode_slice(&narrow, 0..ROWS + 1, 0..1),
        Err(Error::SliceOutOfRange { what: "rows", available: ROWS, .. })
    ));
    assert!(matches!(decode_slice(&narrow, 0..1, 4..LAYERS + 1), Err(Error::SliceOutOfRange { what: "layers", .. })));
    let wide = container(Mode::Set, 384);
    let header = Header::parse(&wide).unwrap();
    let refused = Decoder::new().unwrap().decode_frames(&header, 0..1, 0..1, Dtype::Uint8, |_| None);
    assert!(matches!(refused, Err(Error::TooNarrow { n_experts: 384, dtype: "uint8" })));
}

#[test]
fn the_limit_on_decoded_bytes_is_kept() {
    let container = container(Mode::Ranked, 128);
    let mut decoder = Decoder::new().unwrap().with_bytes_max(10_000);
    let refused = decoder.decode_slice(&container, 0..ROWS, 0..LAYERS).unwrap_err();
    assert_eq!(refused, Error::TooLarge { bytes: (ROWS * ROW) as u64, bytes_max: 10_000 });
    assert_eq!(decoder.decode_slice(&container, 0..50, 0..LAYERS).unwrap().bytes.len(), 50 * ROW);
}
