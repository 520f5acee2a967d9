//! Decoding gives what was encoded, for every shape, width and mode.

use dressage_codec::synthetic::{RouterShape, SeededRandom, SyntheticRouter};
use dressage_codec::{Dtype, Error, Mode, RoutedView, concat, decode_all, encode, slice_rows};
use proptest::prelude::*;

/// Ids of any kind as the bytes of `dtype`.
pub(crate) fn plain(ids: &[u32], dtype: Dtype) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()[..dtype.size()].to_vec()).collect()
}

/// What a mode promises to give back.
pub(crate) fn promised(ids: &[u32], topk: usize, mode: Mode) -> Vec<u32> {
    let mut ids = ids.to_vec();
    if mode == Mode::Set {
        ids.chunks_exact_mut(topk).for_each(<[u32]>::sort_unstable);
    }
    ids
}

pub(crate) fn synthetic(rows: usize, layers: usize, topk: usize, n_experts: u32) -> Vec<u8> {
    let shape = RouterShape { layers, topk, n_experts, ..RouterShape::default() };
    let mut ids = Vec::new();
    SyntheticRouter::new(shape, 5).unwrap().append(rows, &mut SeededRandom::new(6), &mut ids);
    ids
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_ids_come_back_as_promised(
        rows in 0_usize..200,
        layers in 1_usize..6,
        topk in 1_usize..20,
        n_experts in prop_oneof![Just(2_u32), 3_u32..256, Just(256), Just(257), 258_u32..5_000, Just(65_536)],
        source in 0_usize..3,
        ranked in any::<bool>(),
        bound_given in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let dtype = [Dtype::Uint8, Dtype::Uint16, Dtype::Int32][source];
        prop_assume!(dtype.size() >= Dtype::narrowest(n_experts).size());
        let mode = if ranked { Mode::Ranked } else { Mode::Set };
        let mut random = SeededRandom::new(seed);
        let ids: Vec<u32> = (0..rows * layers * topk).map(|_| random.below(u64::from(n_experts)) as u32).collect();
        let bytes = plain(&ids, dtype);
        let view = RoutedView::new(&bytes, dtype, rows, layers, topk).unwrap();
        let container = encode(&view, mode, bound_given.then_some(n_experts)).unwrap();
        let routes = decode_all(&container).unwrap();
        prop_assert_eq!((routes.rows, routes.layers, routes.topk, routes.dtype), (rows, layers, topk, dtype));
        prop_assert!(routes.bytes == plain(&promised(&ids, topk, mode), dtype));
    }
}

#[test]
fn long_mapped_containers_come_back_at_every_expert_count() {
    for n_experts in [16, 64, 128, 256, 384, 512] {
        for topk in [4, 6, 8] {
            for mode in [Mode::Set, Mode::Ranked] {
                let (rows, layers) = (5_000, 5);
                let bytes = synthetic(rows, layers, topk, n_experts);
                let dtype = Dtype::narrowest(n_experts);
                let view = RoutedView::new(&bytes, dtype, rows, layers, topk).unwrap();
                let routes = decode_all(&encode(&view, mode, Some(n_experts)).unwrap()).unwrap();
                let ids: Vec<u32> = bytes
                    .chunks_exact(dtype.size())
                    .map(|id| id.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte)))
                    .collect();
                assert!(routes.bytes == plain(&promised(&ids, topk, mode), dtype), "{n_experts} {topk} {mode:?}");
            }
        }
    }
}

#[test]
fn duplicate_padding_rows_survive_a_set() {
    let mut bytes = synthetic(3_000, 4, 8, 128);
    bytes[320..640].fill(0);
    let view = RoutedView::new(&bytes, Dtype::Uint8, 3_000, 4, 8).unwrap();
    let routes = decode_all(&encode(&view, Mode::Set, Some(128)).unwrap()).unwrap();
    assert!(routes.bytes[320..640].iter().all(|id| *id == 0));
}

#[test]
fn an_id_out_of_range_is_refused_with_its_place() {
    let mut ids: Vec<u32> = (0..4_000 * 3 * 2).map(|i| i % 60).collect();
    ids[3_777 * 6 + 2 * 2 + 1] = 64;
    for dtype in [Dtype::Uint8, Dtype::Uint16, Dtype::Int32] {
        let bytes = plain(&ids, dtype);
        let view = RoutedView::new(&bytes, dtype, 4_000, 3, 2).unwrap();
        let error = encode(&view, Mode::Set, Some(64)).unwrap_err();
        assert_eq!(error, Error::IdOutOfRange { id: 64, row: 3_777, layer: 2, rank: 1, n_experts: 64 });
    }
    let negative = (-1_i32).to_le_bytes();
    let view = RoutedView::new(&negative, Dtype::Int32, 1, 1, 1).unwrap();
    assert!(matches!(encode(&view, Mode::Ranked, None), Err(Error::IdOutOfRange { id: u32::MAX, row: 0, .. })));
}

#[test]
fn a_shape_that_does_not_multiply_out_is_refused() {
    assert!(matches!(RoutedView::new(&[0; 15], Dtype::Uint8, 2, 1, 8), Err(Error::ShapeMismatch { bytes: 15, .. })));
    assert!(matches!(RoutedView::new(&[], Dtype::Uint8, 0, 0, 8), Err(Error::OutOfBounds { what: "layers", .. })));
}

#[test]
fn joined_containers_equal_the_encoding_of_all_rows() {
    let bytes = synthetic(2_500, 3, 8, 128);
    let row = 3 * 8;
    let part = |from: usize, to: usize| {
        let view = RoutedView::new(&bytes[from * row..to * row], Dtype::Uint8, to - from, 3, 8).unwrap();
        encode(&view, Mode::Ranked, Some(128)).unwrap()
    };
    let (a, b, c) = (part(0, 100), part(100, 1_700), part(1_700, 2_500));
    let joined = concat(&[&a, &b, &c]).unwrap();
    assert!(joined == part(0, 2_500));
    assert!(slice_rows(&joined, 100..1_700).unwrap() == b);
    let set = encode(&RoutedView::new(&bytes, Dtype::Uint8, 2_500, 3, 8).unwrap(), Mode::Set, Some(128)).unwrap();
    assert!(matches!(concat(&[&a, &set]), Err(Error::UnlikeShapes { index: 1, what: "mode", .. })));
}

#[test]
fn sets_and_ranks_of_skewed_routes_keep_their_promised_size() {
    for (mode, bound) in [(Mode::Set, 0.66), (Mode::Ranked, 0.875)] {
        let bytes = synthetic(8_191, 40, 8, 128);
        let view = RoutedView::new(&bytes, Dtype::Uint8, 8_191, 40, 8).unwrap();
        let ratio = encode(&view, mode, Some(128)).unwrap().len() as f64 / bytes.len() as f64;
        assert!(ratio <= bound, "{mode:?}: {ratio}");
    }
}
