//! Log-probs in chunks are those of the whole logits, forward and back.

use dressage_trainer::{ForwardOptions, ScoreOptions};
use tch::{Kind, Tensor};

use crate::cases::{Case, distance, relative_distance};

fn chunks_of(rows: u64, case: &Case) -> ScoreOptions {
    ScoreOptions { chunk_bytes_max: rows * 4 * case.model.config().vocab_size as u64, ..ScoreOptions::default() }
}

#[test]
fn chunked_logprobs_equal_naive_ones() {
    for name in ["llama_tied", "qwen3"] {
        let case = Case::load(name);
        let all = case.model.logits(&case.row).expect("logits").log_softmax(-1, Kind::Float);
        let tokens = Tensor::from_slice(case.row.token_ids());
        let n = case.row.n_tokens() as i64;
        let next = all.narrow(0, 0, n - 1).gather(1, &tokens.narrow(0, 1, n - 1).unsqueeze(1), false).squeeze_dim(1);
        let mask: Vec<f32> = case.row.has_logprob().iter().map(|b| f32::from(u8::from(*b))).collect();
        let naive = Tensor::cat(&[Tensor::zeros([1], (Kind::Float, tch::Device::Cpu)), next], 0);
        let naive = naive * Tensor::from_slice(&mask);
        for rows in [1, 7, 1000] {
            let trace = case.model.forward(&case.row, ForwardOptions::default()).expect("forward");
            let scores = trace.scores(None, chunks_of(rows, &case)).expect("scores");
            let off = distance(&scores.logprobs, &naive);
            assert!(off <= 1e-5, "{name}, {rows} rows: off by {off:.1e}");
        }
    }
}

#[test]
fn neither_the_size_of_chunks_nor_how_many_are_kept_changes_gradients() {
    for name in ["llama_tied", "qwen3"] {
        let case = Case::load(name);
        let row_bytes = 4 * case.model.config().vocab_size as u64;
        // all kept, none, and those of the first ten tokens
        for (rows, kept_bytes_max) in [(1, u64::MAX), (7, u64::MAX), (7, 0), (7, 10 * row_bytes), (1, 10 * row_bytes)] {
            case.model.clear_gradients().expect("clear");
            let options = ScoreOptions { kept_bytes_max, ..chunks_of(rows, &case) };
            let _ = case.run(&case.row, ForwardOptions::default(), options);
            for (parameter, gradient) in case.gradients() {
                let off = relative_distance(&gradient, &case.expected_of("gradient", &parameter));
                assert!(off <= 1e-4, "{name}, {rows} rows: {parameter} off by {off:.1e}");
            }
        }
    }
}

#[test]
fn tokens_that_are_not_wanted_are_zero_and_leave_the_others_alone() {
    let case = Case::load("qwen3");
    let trace = case.model.forward(&case.row, ForwardOptions::default()).expect("forward");
    let wanted: Vec<bool> = (0..case.row.n_tokens()).map(|t| t % 3 == 1).collect();
    let scores = trace.scores(Some(&wanted), ScoreOptions::default()).expect("scores");
    let mask: Vec<f32> = wanted.iter().map(|b| f32::from(u8::from(*b))).collect();
    let expected = &case.expected["logprobs"] * Tensor::from_slice(&mask);
    assert!(distance(&scores.logprobs, &expected) <= 1e-5);
    assert!(trace.scores(Some(&wanted[1..]), ScoreOptions::default()).is_err(), "another length");
}

#[test]
fn a_row_in_which_nothing_is_wanted_has_zero_gradients() {
    let case = Case::load("qwen3_moe");
    let trace = case.model.forward(&case.row, ForwardOptions::default()).expect("forward");
    let nothing = vec![false; case.row.n_tokens()];
    let scores = trace.scores(Some(&nothing), ScoreOptions::default()).expect("scores");
    scores.logprobs.sum(Kind::Float).backward();
    trace.backward(scores).expect("backward");
    for parameter in case.model.parameters() {
        let gradient = parameter.gradient().expect("gradient");
        assert!(gradient.is_none_or(|g| g.abs().max().double_value(&[]) == 0.0), "{}", parameter.name());
    }
}

#[test]
fn a_temperature_divides_the_logits_forward_and_back() {
    let case = Case::load("qwen3");
    let temperature = 0.7;
    let options = ScoreOptions { temperature, entropy: true, ..ScoreOptions::default() };
    let trace = case.model.forward(&case.row, ForwardOptions::default()).expect("forward");
    let scores = trace.scores(None, options).expect("scores");
    // the same by a graph over the whole logits
    let hidden = trace.hidden().detach().set_requires_grad(true);
    let head = case.model.parameters().last().expect("head").tensor().detach();
    let all = (hidden.linear::<&Tensor>(&head, None) / temperature).log_softmax(-1, Kind::Float);
    let n = case.row.n_tokens() as i64;
    let tokens = Tensor::from_slice(case.row.token_ids()).narrow(0, 1, n - 1).unsqueeze(1);
    let mask: Vec<f32> = case.row.has_logprob()[1..].iter().map(|b| f32::from(u8::from(*b))).collect();
    let mask = Tensor::from_slice(&mask);
    let before = all.narrow(0, 0, n - 1);
    let logprobs = before.gather(1, &tokens, false).squeeze_dim(1) * &mask;
    let entropy = -(before.exp() * &before).sum_dim_intlist([-1i64].as_slice(), false, None) * &mask;
    let found = scores.logprobs.narrow(0, 1, n - 1);
    assert!(distance(&found, &logprobs) <= 1e-5);
    (logprobs.sum(Kind::Float) + entropy.sum(Kind::Float) * 0.3).backward();
    let loss = scores.logprobs.sum(Kind::Float) + scores.entropy.as_ref().expect("entropy").sum(Kind::Float) * 0.3;
    loss.backward();
    trace.backward(scores).expect("backward");
    // the head's gradient depends on the hidden states' only through them: compare what reached the embedding's end
    let norm = case.model.parameters().iter().find(|p| p.name() == "model.norm.weight").expect("norm");
    let by_hidden = norm.gradient().expect("gradient").expect("there is one");
    assert!(by_hidden.abs().max().double_value(&[]) > 0.0);
    let again = case.model.forward(&case.row, ForwardOptions::default()).expect("forward");
    case.model.clear_gradients().expect("clear");
    again.backward_from_hidden(hidden.grad()).expect("backward");
    let naive = norm.gradient().expect("gradient").expect("there is one");
    assert!(relative_distance(&by_hidden, &naive) <= 1e-5);
}
