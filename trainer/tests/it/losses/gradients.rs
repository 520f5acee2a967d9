//! Gradients against finite differences, and against what is derived by hand where part of a loss has none.

use tch::Tensor;

use crate::losses::made::{Tokens, all_close, close, number, numbers, objective};

/// Two segments, one with a positive and one with a negative advantage, away from the kinks of every clip used below.
fn tokens() -> Tokens {
    Tokens {
        trainer_logprobs: vec![-0.50, -1.10, -0.70, -2.00, -0.30, -1.60, -0.90],
        old_logprobs: vec![-0.55, -1.50, -0.35, -1.95, -0.80, -1.20, -0.85],
        logprobs: vec![-0.60, -1.45, -0.30, -1.90, -0.75, -1.30, -0.80],
        ref_logprobs: vec![-0.40, -1.00, -0.90, -2.50, -0.60, -1.10, -0.70],
        entropy: vec![1.0, 0.5, 0.2, 2.0, 0.1, 0.7, 1.2],
        loss_mask: vec![true, true, true, false, true, true, true],
        segment_of: vec![0, 0, 0, 0, 1, 1, 1],
        advantages: vec![1.5, -0.8],
        loss_weights: vec![0.25, 0.1],
    }
}

fn gradient(loss: &str, correction: &str, kl: &str) -> Vec<f64> {
    let tensors = tokens().tensors();
    numbers(&objective(loss, correction, kl).evaluate_with_gradients(&tensors.input()).unwrap().1.trainer_logprobs)
}

fn finite_differences(loss: &str, correction: &str, kl: &str) -> Vec<f64> {
    const H: f64 = 1e-6;
    let objective = objective(loss, correction, kl);
    let value = |at: usize, step: f64| {
        let mut tokens = tokens();
        tokens.trainer_logprobs[at] += step;
        number(&objective.evaluate(&tokens.tensors().input()).unwrap().loss)
    };
    (0..tokens().trainer_logprobs.len()).map(|at| (value(at, H) - value(at, -H)) / (2.0 * H)).collect()
}

#[test]
fn gradients_are_the_finite_differences_of_the_loss() {
    for (loss, correction, kl) in [
        ("kind = \"ppo_clip\"\nclip_high = 0.28", "", ""),
        ("kind = \"ppo_clip\"\nclip_low = 0.05\nclip_high = 0.05\ndual_clip = 1.2", "", ""),
        ("kind = \"ppo_clip\"\nold_logprobs = \"rollout\"", "", ""),
        // the token form's gradient, summed over a segment, is that of the sequence loss
        ("kind = \"gspo\"\nclip_low = 0.5\nclip_high = 0.5", "", ""),
        ("kind = \"gspo\"\nclip_low = 0.01\nclip_high = 0.01", "", ""),
        ("kind = \"reinforce\"", "", ""),
        ("kind = \"reinforce\"", "kind = \"truncate\"\nupper = 1.05", ""),
        ("kind = \"reinforce\"", "kind = \"mask\"\nlevel = \"sequence\"\nlower = 0.95\nupper = 1.2", ""),
        ("kind = \"cross_entropy\"", "", ""),
        ("kind = \"cross_entropy\"", "", "coefficient = 0.3\nestimator = \"k1\""),
        ("kind = \"cross_entropy\"", "", "coefficient = 0.3\nestimator = \"k2\""),
        ("kind = \"cross_entropy\"", "", "coefficient = 0.3\nestimator = \"k3\""),
    ] {
        let what = format!("{loss} {correction} {kl}");
        all_close(&gradient(loss, correction, kl), &finite_differences(loss, correction, kl), 1e-8, &what);
    }
}

#[test]
fn cispo_has_the_gradient_of_the_policy_gradient_times_a_clipped_weight() {
    let tokens = tokens();
    let expected: Vec<f64> = (0..7)
        .map(|at| {
            let ratio = (tokens.trainer_logprobs[at] - tokens.old_logprobs[at]).exp();
            let segment = tokens.segment_of[at] as usize;
            let weight = ratio.clamp(0.7, 1.3);
            let mask = f64::from(u8::from(tokens.loss_mask[at]));
            -weight * tokens.advantages[segment] * tokens.loss_weights[segment] * mask
        })
        .collect();
    let found = gradient("kind = \"cispo\"\nclip_low = 0.3\nclip_high = 0.3", "", "");
    all_close(&found, &expected, 1e-14, "cispo");
    assert!(found.iter().zip(&tokens.loss_mask).all(|(g, mask)| (*g != 0.0) == *mask), "no token loses its gradient");
}

#[test]
fn gspo_gives_each_token_of_a_segment_the_sequence_ratio() {
    let tokens = tokens();
    let ratio = |segment: i64| {
        let of = |at: &usize| tokens.segment_of[*at] == segment && tokens.loss_mask[*at];
        let logs: Vec<f64> =
            (0..7).filter(of).map(|at| tokens.trainer_logprobs[at] - tokens.old_logprobs[at]).collect();
        (logs.iter().sum::<f64>() / logs.len() as f64).exp()
    };
    let expected: Vec<f64> = (0..7)
        .map(|at| {
            let segment = tokens.segment_of[at];
            let (a, w) = (tokens.advantages[segment as usize], tokens.loss_weights[segment as usize]);
            if tokens.loss_mask[at] { -a * ratio(segment) * w } else { 0.0 }
        })
        .collect();
    all_close(&gradient("kind = \"gspo\"\nclip_low = 0.5\nclip_high = 0.5", "", ""), &expected, 1e-14, "gspo");
}

#[test]
fn without_old_logprobs_the_gradient_is_the_policy_gradient() {
    let tensors = tokens().tensors();
    let mut input = tensors.input();
    input.old_logprobs = None;
    let of = |loss: &str| {
        let (output, gradients) = objective(loss, "", "").evaluate_with_gradients(&input).unwrap();
        let metrics = output.stats.metrics().unwrap();
        (numbers(&gradients.trainer_logprobs), metrics)
    };
    let (expected, _) = of("kind = \"reinforce\"");
    for loss in ["kind = \"ppo_clip\"", "kind = \"gspo\"", "kind = \"cispo\""] {
        let (found, metrics) = of(loss);
        all_close(&found, &expected, 1e-14, loss);
        assert!(metrics.contains(&("ratio_max", 1.0)) && metrics.contains(&("update_kl", 0.0)), "{loss}: {metrics:?}");
    }
}

#[test]
fn a_ratio_beyond_all_bounds_gives_numbers_and_no_nan() {
    let mut tokens = tokens();
    tokens.trainer_logprobs = vec![-1e4, -0.0, -500.0, 0.0, -0.1, -1e4, -90.0];
    tokens.old_logprobs = vec![-0.1, -1e4, -1.0, 0.0, -1e4, -0.1, -0.1];
    let tensors = tokens.tensors();
    for loss in ["kind = \"ppo_clip\"", "kind = \"gspo\"", "kind = \"cispo\"", "kind = \"reinforce\""] {
        let correction = if loss.contains("reinforce") { "kind = \"truncate\"\nlevel = \"sequence\"" } else { "" };
        let objective = objective(loss, correction, "coefficient = 0.1");
        let (output, gradients) = objective.evaluate_with_gradients(&tensors.input()).unwrap();
        assert!(number(&output.loss).is_finite(), "{loss}");
        assert!(numbers(&gradients.trainer_logprobs).iter().all(|g| g.is_finite()), "{loss}");
        assert!(output.stats.metrics().unwrap().iter().all(|(_, value)| value.is_finite()), "{loss}");
    }
}

#[test]
fn what_is_masked_does_not_matter_not_even_nan() {
    let mut tokens = tokens();
    for column in [
        &mut tokens.trainer_logprobs,
        &mut tokens.logprobs,
        &mut tokens.old_logprobs,
        &mut tokens.ref_logprobs,
        &mut tokens.entropy,
    ] {
        column[3] = f64::NAN;
    }
    let spoilt = tokens.tensors();
    let clean = self::tokens().tensors();
    let objective = objective(
        "kind = \"gspo\"\nentropy_coefficient = 0.1",
        "kind = \"truncate\"\nlevel = \"geometric\"",
        "coefficient = 0.1",
    );
    let (expected, expected_gradients) = objective.evaluate_with_gradients(&clean.input()).unwrap();
    let (found, gradients) = objective.evaluate_with_gradients(&spoilt.input()).unwrap();
    close(number(&found.loss), number(&expected.loss), 0.0, "loss");
    let both = [(gradients.trainer_logprobs, expected_gradients.trainer_logprobs)];
    for (found, expected) in both {
        all_close(&numbers(&found), &numbers(&expected), 0.0, "gradient");
    }
    assert_eq!(found.stats.metrics().unwrap(), expected.stats.metrics().unwrap());
}

#[test]
fn the_gradient_reaches_a_model_in_its_own_type() {
    let tensors = tokens().tensors();
    let leaf = tensors.trainer_logprobs.to_kind(tch::Kind::Float).set_requires_grad(true);
    let mut input = tensors.input();
    input.trainer_logprobs = &leaf;
    let objective = objective("kind = \"ppo_clip\"", "", "");
    let output = objective.evaluate(&input).unwrap();
    output.loss.backward();
    let (_, gradients) = objective.evaluate_with_gradients(&input).unwrap();
    assert_eq!(leaf.grad().kind(), tch::Kind::Float);
    assert_eq!(numbers(&leaf.grad()), numbers(&gradients.trainer_logprobs));
    assert_eq!(gradients.trainer_logprobs.kind(), tch::Kind::Float);
}

#[test]
fn no_tokens_are_a_loss_of_zero() {
    let nothing = Tokens::default().tensors();
    let objective = objective("kind = \"gspo\"", "", "");
    let (output, gradients) = objective.evaluate_with_gradients(&nothing.input()).unwrap();
    assert_eq!((number(&output.loss), gradients.trainer_logprobs.size()), (0.0, vec![0]));
    assert!(output.stats.metrics().unwrap().contains(&("trained_tokens", 0.0)));
    let _: Tensor = output.token_loss;
}
