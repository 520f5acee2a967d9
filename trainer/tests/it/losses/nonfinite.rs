//! The first number that is none is named: trajectory, segment and token.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int32Array, ListArray, RecordBatch, StringArray};
use arrow::datatypes::{Float32Type, Int8Type, Int32Type};
use dressage_schemas::ErrorKind;
use dressage_trainer::loss::{LossInput, NonFinite, Quantity, check_packed, check_trained, check_value};
use dressage_trainer::micro_batch::{MicroBatch, ModelLimits, Needs, Place};
use tch::Tensor;

use crate::losses::made::{close, number, objective};

const PLACE: Place = Place { train_step: 4, dp_rank: 0, micro_batch: 1 };

fn batch() -> MicroBatch {
    read(&record())
}

fn read(record: &RecordBatch) -> MicroBatch {
    let model = ModelLimits { vocab_size: 10, positions_max: 8, router: None };
    MicroBatch::read(record, PLACE, &model, Needs { logprobs: true }).unwrap()
}

/// Two segments of three tokens, of which the last two are trained.
fn record() -> RecordBatch {
    let ids = |rows: [[i32; 3]; 2]| -> ArrayRef {
        Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(rows.map(|row| Some(row.map(Some)))))
    };
    let columns: [(&str, ArrayRef); 11] = [
        ("trajectory_id", Arc::new(StringArray::from(vec!["first", "second"]))),
        ("segment_index", Arc::new(Int32Array::from(vec![0, 5]))),
        ("n_tokens", Arc::new(Int32Array::from(vec![3, 3]))),
        ("response_start", Arc::new(Int32Array::from(vec![1, 1]))),
        ("token_ids", ids([[1, 2, 3], [4, 5, 6]])),
        ("position_ids", ids([[0, 1, 2]; 2])),
        (
            "loss_mask",
            Arc::new(ListArray::from_iter_primitive::<Int8Type, _, _>([[0, 1, 1]; 2].map(|row| Some(row.map(Some))))),
        ),
        (
            "logprobs",
            Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(
                [[0.0, -0.5, -1.0]; 2].map(|row| Some(row.map(Some))),
            )),
        ),
        ("advantage", Arc::new(Float64Array::from(vec![1.0, -1.0]))),
        ("loss_weight", Arc::new(Float64Array::from(vec![0.25, 0.25]))),
        ("truncated", Arc::new(BooleanArray::from(vec![false, true]))),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

#[test]
fn a_nan_of_a_trained_token_is_named_by_trajectory_segment_and_token() {
    let batch = batch();
    let logprobs = Tensor::from_slice(&[-0.5_f32, -1.0, -0.25, f32::NAN]);
    let error = check_trained(&logprobs, Quantity::TrainerLogprobs, &batch).unwrap_err();
    let expected =
        "train step 4, micro-batch 1 of rank 0: trajectory `second`, segment 5, token 2: the trainer's logprob is NaN";
    assert_eq!((error.to_string().as_str(), error.kind()), (expected, ErrorKind::Corrupt));

    let (output, gradients) =
        objective("kind = \"ppo_clip\"", "", "").evaluate_with_gradients(&LossInput::of(&batch, &logprobs)).unwrap();
    assert!(number(&output.loss).is_nan());
    let error = check_trained(&output.token_loss, Quantity::Loss, &batch).unwrap_err().to_string();
    assert!(error.ends_with("`second`, segment 5, token 2: the loss is NaN"), "{error}");
    // a clip has no gradient where its input is no number: it is the loss that has to be looked at
    assert_eq!(check_trained(&gradients.trainer_logprobs, Quantity::Gradient, &batch), Ok(()));
}

#[test]
fn a_row_of_the_packed_tokens_is_named_too() {
    let batch = batch();
    let hidden = Tensor::zeros([6, 4], (tch::Kind::BFloat16, tch::Device::Cpu));
    assert_eq!(check_packed(&hidden, Quantity::Gradient, &batch), Ok(()));
    let _ = hidden.get(4).get(3).fill_(f64::NEG_INFINITY);
    let error = check_packed(&hidden, Quantity::Gradient, &batch).unwrap_err().to_string();
    assert!(error.ends_with("trajectory `second`, segment 5, token 1: the gradient is -inf"), "{error}");
}

#[test]
fn a_number_of_the_whole_micro_batch_names_it() {
    assert_eq!(check_value(1.0, Quantity::Loss, PLACE), Ok(()));
    let error = check_value(f64::INFINITY, Quantity::Loss, PLACE).unwrap_err();
    assert_eq!(error, NonFinite::Whole { place: PLACE, quantity: Quantity::Loss, value: f64::INFINITY });
    assert_eq!(error.to_string(), "train step 4, micro-batch 1 of rank 0: the loss is inf");
}

#[test]
fn all_numbers_are_no_error_and_nothing_is_one_too() {
    let batch = batch();
    assert_eq!(check_trained(&Tensor::from_slice(&[0.0; 4]), Quantity::Entropy, &batch), Ok(()));
    assert_eq!(check_trained(&Tensor::from_slice::<f32>(&[]), Quantity::Entropy, &batch), Ok(()));
}

#[test]
fn a_micro_batch_is_a_loss_with_its_own_advantages_and_weights() {
    let batch = batch();
    let logprobs = Tensor::from_slice(&[-0.5_f32, -1.0, -0.25, -2.0]);
    let output = objective("kind = \"reinforce\"", "", "").evaluate(&LossInput::of(&batch, &logprobs)).unwrap();
    // 0.25 · (0.5 + 1.0) − 0.25 · (0.25 + 2.0)
    assert_eq!(number(&output.loss), 0.375 - 0.5625);
}

#[test]
fn rows_read_one_by_one_add_up_to_the_rows_read_together() {
    let record = record();
    let logprobs = [-0.5, -1.0, -0.25, -2.0];
    let objective = objective("kind = \"gspo\"\nold_logprobs = \"rollout\"\nclip_high = 0.5", "", "");
    let loss = |batch: &MicroBatch, logprobs: &[f64]| {
        let logprobs = Tensor::from_slice(logprobs);
        number(&objective.evaluate(&LossInput::of(batch, &logprobs)).unwrap().loss)
    };
    let parts = loss(&read(&record.slice(0, 1)), &logprobs[..2]) + loss(&read(&record.slice(1, 1)), &logprobs[2..]);
    close(parts, loss(&read(&record), &logprobs), 1e-15, "loss");
    assert_eq!(loss(&read(&record.slice(0, 0)), &[]), 0.0);
}
