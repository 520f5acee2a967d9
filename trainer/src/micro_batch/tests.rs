//! What a micro-batch becomes, and each way in which it can be wrong.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int32Array, ListArray, RecordBatch, StringArray};
use arrow::datatypes::Int32Type;
use dressage_schemas::ErrorKind;
use tch::{Device, Kind};

use super::made::{Row, batch, columns};
use super::{BatchError, MicroBatch, ModelLimits, Needs, Place, RouterShape};

const PLACE: Place = Place { train_step: 7, dp_rank: 1, micro_batch: 2 };
const ROUTER: RouterShape = RouterShape { layers: 2, expert_layers: 2, top_k: 2, n_experts: 8 };
const MODEL: ModelLimits = ModelLimits { vocab_size: 100, positions_max: 6, router: Some(ROUTER) };
const WITH_LOGPROBS: Needs = Needs { logprobs: true };

fn two() -> Vec<Row> {
    vec![Row { advantage: -2.0, ..Row::of("a", &[1, 2, 3, 4]) }, Row { loss_weight: 0.25, ..Row::of("b", &[5, 6, 7]) }]
}

fn read(rows: &[Row]) -> Result<MicroBatch, BatchError> {
    MicroBatch::read(&batch(rows), PLACE, &MODEL, WITH_LOGPROBS)
}

/// The error of rows, its kind, and that its message names the place.
fn refused(rows: &[Row], kind: ErrorKind, words: &[&str]) {
    refused_batch(&batch(rows), kind, words);
}

fn refused_batch(batch: &RecordBatch, kind: ErrorKind, words: &[&str]) {
    let error = MicroBatch::read(batch, PLACE, &MODEL, WITH_LOGPROBS).unwrap_err();
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    assert!(text.starts_with("train step 7, micro-batch 2 of rank 1"), "{text}");
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
}

/// The stream's columns with one replaced.
fn with_column(rows: &[Row], name: &str, array: ArrayRef) -> RecordBatch {
    let replaced = columns(rows).into_iter().map(|(n, old)| if n == name { (n, Arc::clone(&array)) } else { (n, old) });
    RecordBatch::try_from_iter_with_nullable(replaced.map(|(n, array)| (n, array, true))).unwrap()
}

fn ints(tensor: &tch::Tensor) -> Vec<i64> {
    Vec::<i64>::try_from(tensor.to_kind(Kind::Int64)).unwrap()
}

#[test]
fn segments_lie_end_to_end_and_trained_tokens_know_what_predicts_them() {
    let found = read(&two()).unwrap();
    assert_eq!((found.n_tokens(), found.n_trained(), found.max_seqlen()), (7, 4, 4));
    assert_eq!(ints(&found.packed.token_ids), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(ints(&found.packed.position_ids), [0, 1, 2, 3, 0, 1, 2]);
    assert_eq!(ints(&found.packed.cu_seqlens), [0, 4, 7]);
    assert_eq!(ints(&found.packed.segment_of), [0, 0, 0, 0, 1, 1, 1]);
    assert_eq!(ints(&found.packed.loss_mask), [0, 0, 1, 1, 0, 1, 1]);
    assert_eq!(ints(&found.trained.rows), [2, 3, 5, 6]);
    assert_eq!(ints(&found.trained.predictors), [1, 2, 4, 5]);
    assert_eq!(ints(&found.trained.token_ids), [3, 4, 6, 7]);
    assert_eq!(ints(&found.trained.segment_of), [0, 0, 1, 1]);
    let logprobs = Vec::<f32>::try_from(found.trained.logprobs.as_ref().unwrap()).unwrap();
    assert_eq!(logprobs, [-0.3, -0.4, -0.2, -0.3]);
    assert_eq!(Vec::<f64>::try_from(&found.numbers.advantages).unwrap(), [-2.0, 1.0]);
    assert_eq!(Vec::<f64>::try_from(&found.numbers.loss_weights).unwrap(), [0.5, 0.25]);
    assert_eq!((found.segments()[1].start, found.segments()[1].response_start), (4, 1));
    assert_eq!(found.trained_place(2).unwrap().to_string(), format!("{PLACE}: trajectory `b`, segment 3, token 1"));
    assert_eq!(found.packed_place(7), None);
    let moved = found.to_device(Device::Cpu).unwrap();
    assert_eq!(ints(&moved.packed.token_ids), ints(&found.packed.token_ids));
}

#[test]
fn a_slice_of_a_batch_is_read_as_its_rows() {
    let sliced = batch(&two()).slice(1, 1);
    let found = MicroBatch::read(&sliced, PLACE, &MODEL, WITH_LOGPROBS).unwrap();
    assert_eq!(ints(&found.packed.token_ids), [5, 6, 7]);
    assert_eq!(ints(&found.packed.cu_seqlens), [0, 3]);
}

#[test]
fn a_micro_batch_of_no_rows_is_legal() {
    let found = read(&[]).unwrap();
    assert!(found.is_empty());
    assert_eq!((found.n_tokens(), found.n_trained()), (0, 0));
    assert_eq!(ints(&found.packed.cu_seqlens), [0]);
    assert_eq!(found.place(), PLACE);
}

#[test]
fn the_first_token_of_a_segment_is_not_trained_and_is_counted() {
    let mut rows = two();
    rows[1].loss_mask = vec![1, 1, 1];
    let found = read(&rows).unwrap();
    assert_eq!((found.n_trained(), found.n_unpredicted()), (4, 1));
    assert_eq!(ints(&found.trained.rows), [2, 3, 5, 6]);
}

#[test]
fn a_token_beyond_the_vocabulary_is_named() {
    let mut rows = two();
    rows[1].token_ids[2] = 100;
    refused(&rows, ErrorKind::Invalid, &["trajectory `b`, segment 3, token 2", "token id 100", "vocabulary of 100"]);
    rows[1].token_ids[2] = -1;
    refused(&rows, ErrorKind::Invalid, &["token id -1"]);
}

#[test]
fn a_segment_beyond_the_positions_is_named() {
    let rows = [Row::of("long", &[1; 7])];
    refused(&rows, ErrorKind::Invalid, &["`long`", "7 tokens", "6 positions", "max_segment_tokens=6"]);
}

#[test]
fn missing_logprobs_matter_only_where_the_loss_needs_them() {
    let mut rows = two();
    rows[0].logprobs.as_mut().unwrap()[3] = f32::NAN;
    refused(&rows, ErrorKind::Invalid, &["`a`", "token 3", "old_logprobs = \"recomputed\""]);
    rows[1].logprobs = None;
    let found = MicroBatch::read(&batch(&rows), PLACE, &MODEL, Needs::default()).unwrap();
    let logprobs = Vec::<f32>::try_from(found.packed.logprobs.as_ref().unwrap()).unwrap();
    assert!(logprobs[3].is_nan() && logprobs[5].is_nan());
    assert_eq!((logprobs[2], logprobs[4]), (-0.3, 0.0));
    rows[0].logprobs = None;
    refused(&rows, ErrorKind::Invalid, &["`a`", "token 2"]);
    assert!(MicroBatch::read(&batch(&rows), PLACE, &MODEL, Needs::default()).unwrap().packed.logprobs.is_none());
}

#[test]
fn where_nothing_is_trained_no_logprobs_are_missing() {
    let rows = [Row { logprobs: None, loss_mask: vec![1, 0, 0], ..Row::of("context", &[1, 2, 3]) }];
    let found = read(&rows).unwrap();
    assert_eq!(found.trained.logprobs.as_ref().map(|l| l.size()), Some(vec![0]));
    assert_eq!(read(&[]).unwrap().trained.logprobs.map(|l| l.size()), Some(vec![0]));
}

#[test]
fn unknown_logprobs_on_context_do_not_matter() {
    let mut rows = two();
    rows[0].logprobs.as_mut().unwrap()[0] = f32::NAN;
    assert!(read(&rows).is_ok());
}

#[test]
fn masks_positions_and_lengths_have_to_fit_together() {
    let mut rows = two();
    rows[0].loss_mask[1] = 2;
    refused(&rows, ErrorKind::Corrupt, &["`a`", "token 1", "loss_mask is 2"]);
    rows[0].loss_mask = vec![0, 1];
    refused(&rows, ErrorKind::Corrupt, &["`a`", "`loss_mask` has 2 items", "4 tokens"]);
    let positions = ListArray::from_iter_primitive::<Int32Type, _, _>([
        Some(vec![Some(0), Some(1), Some(2), Some(3)]),
        Some(vec![Some(4), Some(5), Some(6)]),
    ]);
    refused_batch(
        &with_column(&two(), "position_ids", Arc::new(positions)),
        ErrorKind::Corrupt,
        &["`b`", "token 0", "position is 4"],
    );
    refused(&[Row::of("none", &[])], ErrorKind::Corrupt, &["`none`", "has no tokens"]);
    refused(&[Row { advantage: f64::NAN, ..Row::of("a", &[1, 2]) }], ErrorKind::Corrupt, &["`advantage` is NaN"]);
    refused(
        &[Row { loss_weight: f64::INFINITY, ..Row::of("a", &[1, 2]) }],
        ErrorKind::Corrupt,
        &["`loss_weight` is inf"],
    );
}

#[test]
fn missing_columns_and_other_types_are_named() {
    let rows = two();
    for name in ["trajectory_id", "token_ids", "position_ids", "loss_mask", "advantage", "loss_weight", "truncated"] {
        let others = columns(&rows).into_iter().filter(|(n, _)| *n != name).map(|(n, array)| (n, array, true));
        let batch = RecordBatch::try_from_iter_with_nullable(others).unwrap();
        refused_batch(&batch, ErrorKind::Invalid, &[&format!("`{name}` is missing")]);
    }
    let text: ArrayRef = Arc::new(StringArray::from(vec!["1", "2"]));
    for name in ["n_tokens", "token_ids", "advantage", "logprobs", "routed_experts"] {
        refused_batch(&with_column(&rows, name, Arc::clone(&text)), ErrorKind::Invalid, &[name, "Utf8"]);
    }
    let null: ArrayRef = Arc::new(Int32Array::from(vec![Some(4), None]));
    refused_batch(&with_column(&rows, "n_tokens", null), ErrorKind::Corrupt, &["`n_tokens` is null in row 1"]);
    let holes = ListArray::from_iter_primitive::<Int32Type, _, _>([
        Some(vec![Some(1), None, Some(3), Some(4)]),
        Some(vec![Some(5), Some(6), Some(7)]),
    ]);
    assert!(holes.null_count() == 0);
    refused_batch(
        &with_column(&rows, "token_ids", Arc::new(holes)),
        ErrorKind::Corrupt,
        &["`a`", "token 1", "`token_ids` is null"],
    );
}

#[test]
fn router_choices_are_laid_over_the_packed_tokens() {
    let mut rows = two();
    rows[1].routes = Some((0..8).collect());
    let found = read(&rows).unwrap();
    let routes = found.packed.routed_experts.as_ref().unwrap();
    assert_eq!(routes.size(), [7, 2, 2]);
    let mut expected = vec![-1; 16];
    expected.extend(0..8);
    expected.extend([-1; 4]);
    assert_eq!(ints(&routes.view(-1)), expected);
    assert_eq!((found.segments()[0].route_layers, found.segments()[1].route_layers), (None, Some(2)));
    assert!(read(&two()).unwrap().packed.routed_experts.is_none());
}

#[test]
fn router_choices_that_do_not_fit_the_model_are_named() {
    let mut rows = two();
    rows[0].routes = Some(vec![0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 8, 3]);
    refused(&rows, ErrorKind::Invalid, &["`a`", "token 2", "layer 1", "expert 8", "choice 0", "8 experts"]);
    rows[0].routes = Some(vec![0; 16]);
    refused(&rows, ErrorKind::Corrupt, &["`a`", "16 bytes", "12 are n_tokens - 1 rows"]);
    rows[0].routes = Some(vec![0; 12]);
    let read = |router| {
        let model = ModelLimits { router, ..MODEL };
        MicroBatch::read(&batch(&rows), PLACE, &model, WITH_LOGPROBS)
    };
    for (router, words) in [
        (
            Some(RouterShape { layers: 4, expert_layers: 3, ..ROUTER }),
            "2 layers and 2 experts a token, the model has 4 layers, 3 with",
        ),
        (Some(RouterShape { top_k: 4, ..ROUTER }), "and 4 experts a token"),
        (None, "the model has 0 layers, 0 with experts, and 0 experts a token"),
    ] {
        let error = read(router).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(words), "{error}");
    }
    let words: ArrayRef = Arc::new(StringArray::from(vec!["int32", "int32"]));
    let batch = with_column(&rows, "routed_experts_dtype", words);
    refused_batch(&batch, ErrorKind::Corrupt, &["`int32`", "uint8"]);
}

#[test]
fn an_error_is_small_enough_to_be_returned_by_value() {
    assert!(size_of::<BatchError>() <= 96, "{}", size_of::<BatchError>());
}
