//! Sampling: the distribution that the model has, and the log-probs that the trainer gives.

use dressage_trainer::{Error, SampleOptions, Sampled, Trainer};
use tch::{Device, Kind, Tensor};

use crate::training::made::{Row, generator, micro_batch, model, settings, trainer};

const OPTIONS: SampleOptions = SampleOptions { new_tokens_max: 6, temperature: 0.8, end_token: None, seed: 3 };

fn rows(prompts: &[Vec<i32>], sampled: &[Sampled]) -> Vec<Row> {
    let of = |(prompt, sampled): (&Vec<i32>, &Sampled)| {
        let tokens = [prompt.as_slice(), &sampled.token_ids].concat();
        Row {
            loss_mask: (0..tokens.len()).map(|at| i8::from(at >= prompt.len())).collect(),
            logprobs: Some([vec![0.0; prompt.len()], sampled.logprobs.clone()].concat()),
            ..Row::of("a", &tokens)
        }
    };
    prompts.iter().zip(sampled).map(of).collect()
}

#[test]
fn log_probs_are_those_of_the_trainer_under_the_same_temperature() {
    let trainer = Trainer::new(model(1), None, settings("[model]\ntemperature = 0.8")).unwrap();
    let prompts = vec![vec![1, 2, 3], vec![4], vec![5, 6]];
    let sampled = trainer.model().sample(&prompts, OPTIONS).unwrap();
    assert!(sampled.iter().all(|s| s.token_ids.len() == 6 && s.logprobs.len() == 6 && !s.ended));
    let batch = micro_batch(&trainer, (0, 0), &rows(&prompts, &sampled));
    assert_eq!(trainer.logprobs(&batch).unwrap(), *batch.trained.logprobs.as_ref().unwrap());
}

#[test]
fn tokens_come_as_often_as_the_model_says() {
    let model = model(1);
    let prompts = vec![vec![7, 2]; 4000];
    let sampled = model.sample(&prompts, SampleOptions { new_tokens_max: 1, ..OPTIONS }).unwrap();
    let row = dressage_trainer::PackedRow::new(vec![dressage_trainer::Segment::of(vec![7, 2])]).unwrap();
    let logits = model.logits(&row).unwrap().get(1) / 0.8;
    let expected = Vec::<f64>::try_from(logits.softmax(-1, Kind::Double)).unwrap();
    for (token, share) in expected.iter().enumerate() {
        let found = sampled.iter().filter(|s| s.token_ids == [token as i32]).count() as f64;
        let deviation = (4000.0 * share * (1.0 - share)).sqrt();
        assert!(
            (found - 4000.0 * share).abs() <= 5.0 * deviation + 1.0,
            "token {token}: {found} of {}",
            4000.0 * share
        );
    }
}

#[test]
fn the_same_seed_samples_the_same_whatever_else_is_sampled_and_leaves_libtorchs_generator_alone() {
    let model = model(1);
    let one = model.sample(&[vec![1, 2]], OPTIONS).unwrap();
    {
        let _held = generator();
        tch::manual_seed(5);
        let expected = Tensor::rand([4], (Kind::Float, Device::Cpu));
        tch::manual_seed(5);
        let two = model.sample(&[vec![1, 2], vec![3]], OPTIONS).unwrap();
        assert_eq!(Tensor::rand([4], (Kind::Float, Device::Cpu)), expected);
        assert_eq!(two[0].token_ids, one[0].token_ids);
    }
    let other = model.sample(&vec![vec![1, 2]; 4], SampleOptions { seed: 4, ..OPTIONS }).unwrap();
    assert!(other.iter().any(|s| s.token_ids != one[0].token_ids));
    assert_ne!(other[0].token_ids, other[1].token_ids);
}

#[test]
fn a_sequence_ends_with_its_end_token_or_at_the_last_position() {
    let model = model(1);
    let free = model.sample(&[vec![1, 2]], SampleOptions { new_tokens_max: 1000, ..OPTIONS }).unwrap();
    assert_eq!((free[0].token_ids.len(), free[0].ended), (62, false));
    let end_token = free[0].token_ids[9];
    let first = free[0].token_ids.iter().position(|t| *t == end_token).unwrap();
    let options = SampleOptions { new_tokens_max: 1000, end_token: Some(end_token), ..OPTIONS };
    let ended = model.sample(&[vec![1, 2]], options).unwrap();
    assert_eq!((ended[0].token_ids.as_slice(), ended[0].ended), (&free[0].token_ids[..=first], true));
}

#[test]
fn what_cannot_be_sampled_is_refused() {
    let trainer = trainer(1, "");
    let sample = |prompts: &[Vec<i32>], options| trainer.model().sample(prompts, options);
    assert_eq!(sample(&[], OPTIONS).unwrap(), []);
    assert!(matches!(sample(&[vec![]], OPTIONS), Err(Error::EmptyRow)));
    assert!(matches!(sample(&[vec![24]], OPTIONS), Err(Error::TokenRange { .. })));
    let error = sample(&[vec![1]], SampleOptions { temperature: 0.0, ..OPTIONS }).unwrap_err();
    assert!(error.to_string().contains("temperature = 0"), "{error}");
}
