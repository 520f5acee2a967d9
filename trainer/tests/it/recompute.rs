//! Running layers again on the way back changes memory, not numbers.

use dressage_trainer::{ForwardOptions, ScoreOptions};
use tch::Tensor;

use crate::cases::{CASES, Case, distance};

#[test]
fn recomputation_gives_the_same_gradients() {
    for name in CASES {
        let case = Case::load(name);
        let kept = case.run(&case.row, ForwardOptions::default(), ScoreOptions::default());
        let expected: Vec<Tensor> = case.gradients().into_iter().map(|(_, g)| g.copy()).collect();
        case.model.clear_gradients().expect("clear");
        let recompute = ForwardOptions { recompute: true, ..ForwardOptions::default() };
        let again = case.run(&case.row, recompute, ScoreOptions::default());
        assert_eq!(distance(&again.0, &kept.0), 0.0, "{name}");
        for ((parameter, gradient), expected) in case.gradients().into_iter().zip(expected) {
            assert_eq!(distance(&gradient, &expected), 0.0, "{name}: {parameter}");
        }
    }
}

#[test]
fn a_pass_without_gradients_has_no_way_back() {
    let case = Case::load("qwen3");
    let options = ForwardOptions { gradients: false, recompute: false };
    let trace = case.model.forward(&case.row, options).expect("forward");
    let scores = trace.scores(None, ScoreOptions::default()).expect("scores");
    assert!(!scores.logprobs.requires_grad());
    assert!(trace.backward(scores).expect_err("no way back").to_string().contains("gradients"));
}
