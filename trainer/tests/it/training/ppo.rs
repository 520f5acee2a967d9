//! Several train steps over one policy: ratios are over the log-probs before the first of them.

use dressage_trainer::metrics::names;
use dressage_trainer::{AdamW, Error, ForwardOptions, PackedRow, ScoreOptions, Trainer};
use tch::{Kind, Tensor};

use crate::cases::distance;
use crate::training::made::{config_json, floats, metric, micro_batch, model, model_of, row, settings, step, trainer};

const WINDOW: &str = "[step]\ntrain_steps_per_policy = 2\n[loss]\nclip_low = 0.02\nclip_high = 0.03";

#[test]
fn the_ratio_is_exactly_one_in_the_first_step_of_a_window_and_not_in_the_second() {
    for kind in ["f32", "bf16"] {
        let settings = settings(&format!("{WINDOW}\n[model]\nkind = \"{kind}\""));
        let mut trainer = Trainer::new(model_of(config_json(), 1, settings.model.kind.into()), None, settings).unwrap();
        let batch = micro_batch(&trainer, (0, 0), &[row(1, 9, 1.0), row(2, 6, -0.5)]);
        let old = trainer.logprobs(&batch).unwrap();
        let first = step(&mut trainer, &[(&batch, Some(&old))]);
        assert_eq!((metric(&first, names::RATIO_MEAN), metric(&first, names::RATIO_MAX)), (1.0, 1.0), "{kind}");
        let second = step(&mut trainer, &[(&batch, Some(&old))]);
        assert!(metric(&second, names::RATIO_MAX) > 1.001, "{kind}");
    }
}

#[test]
fn a_step_gives_the_log_probs_that_the_trainer_gave_before_it() {
    let mut trainer = trainer(1, "");
    let batch = micro_batch(&trainer, (0, 0), &[row(1, 9, 1.0), row(2, 6, -0.5)]);
    let before = trainer.logprobs(&batch).unwrap();
    assert!(!before.requires_grad());
    let found = trainer.begin_step().micro_batch(&batch, None).unwrap().trainer_logprobs;
    assert_eq!(found, before);
}

/// The clipped surrogate written out over `[T]`, without the crate's losses, and AdamW by hand.
fn by_hand(rows: [&[crate::training::made::Row]; 2]) -> (Vec<f64>, Vec<(String, Tensor)>) {
    let trainer = trainer(1, WINDOW);
    let model = model(1);
    let mut optimizer = AdamW::new(&model, trainer.settings().optimizer).unwrap();
    let batches: Vec<_> = rows.iter().map(|rows| micro_batch(&trainer, (0, 0), rows)).collect();
    let old: Vec<Vec<f64>> = batches.iter().map(|batch| floats(&trainer.logprobs(batch).unwrap())).collect();
    let mut losses = Vec::new();
    for (batch, old) in batches.iter().zip(&old) {
        let row = PackedRow::of(batch).unwrap().unwrap();
        let trace = model.forward(&row, ForwardOptions::default()).unwrap();
        let scores = trace.scores(None, ScoreOptions::default()).unwrap();
        let mut loss = Tensor::from(0.0_f64);
        let mut at = 0;
        for segment in batch.segments() {
            for token in segment.start + 2..segment.start + segment.n_tokens {
                let ratio = (scores.logprobs.get(token as i64).to_kind(Kind::Double) - old[at]).exp();
                let plain = &ratio * segment.advantage;
                let clipped = ratio.clamp(1.0 - 0.02, 1.0 + 0.03) * segment.advantage;
                loss -= plain.minimum(&clipped) * segment.loss_weight;
                at += 1;
            }
        }
        loss.backward();
        losses.push(loss.double_value(&[]));
        trace.backward(scores).unwrap();
        optimizer.step(&model, trainer.learning_rate()).unwrap();
    }
    (losses, model.parameters().iter().map(|p| (p.name().to_owned(), p.tensor().detach())).collect())
}

#[test]
fn two_steps_over_one_policy_are_ppo_with_the_log_probs_stored_before_them() {
    // the second step has a segment of the first, whose tokens went beyond the clip by then
    let (first, second) = (vec![row(1, 9, 1.0), row(2, 6, -0.5)], vec![row(1, 9, 1.0), row(3, 7, -2.0)]);
    let (losses, expected) = by_hand([&first, &second]);

    let mut trainer = trainer(1, WINDOW);
    let batches = [micro_batch(&trainer, (0, 0), &first), micro_batch(&trainer, (1, 0), &second)];
    let old = batches.each_ref().map(|batch| trainer.logprobs(batch).unwrap());
    let mut clipped = Vec::new();
    for at in 0..2 {
        let report = step(&mut trainer, &[(&batches[at], Some(&old[at]))]);
        let loss = metric(&report, names::LOSS);
        assert!((loss - losses[at]).abs() < 1e-6, "step {at}: {loss}, by hand {}", losses[at]);
        clipped.push(metric(&report, names::CLIP_FRACTION_HIGH) + metric(&report, names::CLIP_FRACTION_LOW));
    }
    assert_eq!(clipped[0], 0.0);
    assert!(clipped[1] > 0.0, "nothing was clipped, so that the clip was not tested");
    for (parameter, (name, expected)) in trainer.model().parameters().iter().zip(&expected) {
        let off = distance(parameter.tensor(), expected);
        assert!(off < 1e-5, "{name}: {off:.1e}");
    }
}

#[test]
fn a_window_without_stored_log_probs_is_refused() {
    let mut trainer = trainer(1, WINDOW);
    assert!(trainer.needs_old_logprobs());
    let batch = micro_batch(&trainer, (3, 0), &[row(1, 9, 1.0)]);
    let error = trainer.begin_step().micro_batch(&batch, None).unwrap_err();
    assert!(matches!(error, Error::OldLogprobsMissing { steps: 2, .. }), "{error}");
    let short = Tensor::from_slice(&[-1.0_f32]);
    let error = trainer.begin_step().micro_batch(&batch, Some(&short)).unwrap_err();
    assert!(error.to_string().contains("old_logprobs"), "{error}");
}
