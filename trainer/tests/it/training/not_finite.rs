//! A number that is none, wherever it arises: the step is left out, the weights stay, and the token is named.

use dressage_trainer::loss::Quantity;
use dressage_trainer::metrics::names;
use dressage_trainer::{NotFiniteReport, StepReport, TrainStepOutcome, Trainer};
use tch::{Kind, Tensor, no_grad};

use crate::training::made::{
    Row, assert_same_weights, config_json, metric, micro_batch, model_of, row, settings, step, trainer, weights,
};

/// Two micro-batches of two segments.
fn parts() -> [Vec<Row>; 2] {
    [vec![row(1, 9, 1.0), row(2, 6, -0.5)], vec![row(3, 7, 0.5), row(4, 8, -1.0)]]
}

fn run(trainer: &mut Trainer, parts: &[Vec<Row>; 2]) -> StepReport {
    let batches = [micro_batch(trainer, (5, 0), &parts[0]), micro_batch(trainer, (5, 1), &parts[1])];
    step(trainer, &[(&batches[0], None), (&batches[1], None)])
}

fn parameter(trainer: &Trainer, name: &str) -> Tensor {
    trainer.model().parameters().iter().find(|p| p.name() == name).unwrap().tensor().shallow_clone()
}

#[track_caller]
fn skipped(report: &StepReport) -> NotFiniteReport {
    match &report.outcome {
        TrainStepOutcome::Skipped(report) => report.clone(),
        TrainStepOutcome::Updated { .. } => panic!("{report:?}"),
    }
}

/// A step that must be left out: weights and optimiser stay to the bit.
#[track_caller]
fn refused(trainer: &mut Trainer, parts: &[Vec<Row>; 2]) -> NotFiniteReport {
    let before = weights(trainer);
    let report = run(trainer, parts);
    assert_eq!(metric(&report, names::SKIPPED_MICRO_BATCHES), 2.0);
    assert!(report.metrics.iter().all(|(name, value)| *name != names::LOSS && value.is_finite()), "{report:?}");
    for ((name, now), (_, then)) in weights(trainer).iter().zip(&before) {
        // NaN is not equal to itself
        assert!(now.allclose(then, 0.0, 0.0, true), "{name}");
    }
    skipped(&report)
}

#[test]
fn a_weight_that_is_nan_names_the_first_trained_token() {
    for kind in ["f32", "bf16"] {
        let settings = settings(&format!("[model]\nkind = \"{kind}\""));
        let mut trainer = Trainer::new(model_of(config_json(), 1, settings.model.kind.into()), None, settings).unwrap();
        let _ = no_grad(|| parameter(&trainer, "model.layers.1.mlp.up_proj.weight").get(3).get(2).fill_(f64::NAN));
        let report = refused(&mut trainer, &parts());
        assert_eq!((report.quantity, report.value.is_nan()), (Quantity::TrainerLogprobs, true));
        let expected = "train step 5, micro-batch 0 of rank 0: trajectory `trajectory-1`, segment 3, token 2: the trainer's logprob is NaN";
        assert_eq!(report.to_string(), expected);
    }
}

#[test]
fn a_nan_in_the_path_of_one_segment_names_that_segment() {
    let mut trainer = trainer(1, "");
    let mut parts = parts();
    // a token that nobody else has, whose embedding is none. Attention multiplies what a token may not see with 0, and 0
    // times NaN is NaN: all tokens of the segment are none, and the first trained one is named
    let all = parts.iter().flatten().flat_map(|row| row.token_ids.clone()).collect::<Vec<_>>();
    let unused = (0..24).find(|token| !all.contains(token)).unwrap_or(23);
    for row in parts.iter_mut().flatten() {
        row.token_ids.iter_mut().for_each(|token| *token = if *token == unused { 0 } else { *token });
    }
    parts[1][1].token_ids[4] = unused;
    let embedding = parameter(&trainer, "model.embed_tokens.weight");
    let _ = no_grad(|| embedding.get(unused.into()).get(0).fill_(f64::NAN));
    let report = refused(&mut trainer, &parts);
    let expected = "train step 5, micro-batch 1 of rank 0: trajectory `trajectory-4`, segment 3, token 2: the trainer's logprob is NaN";
    assert_eq!(report.to_string(), expected);
}

#[test]
fn an_advantage_beyond_the_gradients_type_names_its_first_token() {
    let mut trainer = trainer(1, "");
    let mut parts = parts();
    parts[1][0].advantage = 1e300;
    let report = refused(&mut trainer, &parts);
    assert_eq!(report.quantity, Quantity::Gradient);
    let at = report.at.unwrap();
    assert_eq!((&*at.segment.trajectory_id, at.token, at.segment.place.micro_batch), ("trajectory-3", 2, 1));
}

#[test]
fn a_gradient_that_overflows_on_its_way_back_names_the_token_that_makes_it() {
    for (kind, recompute) in [("f32", false), ("f32", true), ("bf16", false)] {
        let settings = settings(&format!("[model]\nkind = \"{kind}\"\nrecompute = {recompute}"));
        let mut trainer = Trainer::new(model_of(config_json(), 1, settings.model.kind.into()), None, settings).unwrap();
        let mut parts = parts();
        // a number that the gradients of log-probs can hold, and the sum of squares of parameters' cannot
        parts[1][1].advantage = 1e25;
        // its first trained tokens have no part in it
        parts[1][1].loss_mask[2] = 0;
        let report = refused(&mut trainer, &parts);
        assert_eq!(report.quantity, Quantity::Gradient, "{report}");
        let at = report.at.clone().unwrap_or_else(|| panic!("{report}"));
        assert_eq!((&*at.segment.trajectory_id, at.token), ("trajectory-4", 3), "{kind}: {report}");
    }
}

#[test]
fn a_step_after_a_skipped_one_is_as_if_that_had_not_been() {
    for kind in ["f32", "bf16"] {
        let text = format!("[model]\nkind = \"{kind}\"\n[step]\non_not_finite = \"skip\"");
        let settings = settings(&text);
        let new = || Trainer::new(model_of(config_json(), 1, settings.model.kind.into()), None, settings).unwrap();
        let (mut with, mut without) = (new(), new());
        for trainer in [&mut with, &mut without] {
            run(trainer, &parts());
        }
        let mut bad = parts();
        bad[1][0].advantage = -1e300;
        refused(&mut with, &bad);
        run(&mut with, &parts());
        run(&mut without, &parts());
        assert_same_weights(&with, &weights(&without), kind);
        assert_eq!((with.train_steps(), with.skipped_train_steps()), (3, 1));
        assert_eq!((without.train_steps(), without.skipped_train_steps()), (2, 0));
    }
}

#[test]
fn after_a_bad_micro_batch_the_rest_of_the_step_is_not_computed() {
    let mut trainer = trainer(1, "");
    let mut parts = parts();
    parts[0][0].advantage = 1e300;
    let batches = [micro_batch(&trainer, (5, 0), &parts[0]), micro_batch(&trainer, (5, 1), &parts[1])];
    let mut step = trainer.begin_step();
    let first = step.micro_batch(&batches[0], None).unwrap();
    let report = first.not_finite.unwrap();
    assert_eq!(first.trainer_logprobs.size(), [batches[0].n_trained() as i64]);
    let second = step.micro_batch(&batches[1], None).unwrap();
    assert_eq!((second.trainer_logprobs.size(), second.not_finite.as_ref()), (vec![0], Some(&report)));
    let finished = step.finish().unwrap();
    assert_eq!(finished.not_finite(), Some(&report));
    assert_eq!(finished.stats.sums().sum(Kind::Double).double_value(&[]), 0.0);
}

#[test]
fn a_step_that_is_dropped_half_way_leaves_nothing_to_the_next() {
    for kind in ["f32", "bf16"] {
        let settings = settings(&format!("[model]\nkind = \"{kind}\""));
        let new = || Trainer::new(model_of(config_json(), 1, settings.model.kind.into()), None, settings).unwrap();
        let (mut with, mut without) = (new(), new());
        let batch = micro_batch(&with, (0, 0), &[row(6, 9, 3.0)]);
        with.begin_step().micro_batch(&batch, None).unwrap();
        run(&mut with, &parts());
        run(&mut without, &parts());
        assert_same_weights(&with, &weights(&without), kind);
        assert_eq!(with.train_steps(), 1);
    }
}

#[test]
fn a_step_in_which_nothing_is_trained_changes_nothing() {
    for kind in ["f32", "bf16"] {
        let settings = settings(&format!("[model]\nkind = \"{kind}\""));
        let mut trainer = Trainer::new(model_of(config_json(), 1, settings.model.kind.into()), None, settings).unwrap();
        run(&mut trainer, &parts());
        let before = weights(&trainer);
        let empty = micro_batch(&trainer, (1, 0), &[]);
        let context = Row { loss_mask: vec![0; 9], ..row(1, 9, 1.0) };
        let context = micro_batch(&trainer, (1, 1), &[context]);
        assert_eq!(trainer.logprobs(&context).unwrap().size(), [0]);
        let report = step(&mut trainer, &[(&empty, None), (&context, None)]);
        assert!(matches!(report.outcome, TrainStepOutcome::Updated { grad_norm: 0.0, .. }), "{report:?}");
        assert_eq!((metric(&report, names::LOSS), metric(&report, names::TRAINED_TOKENS)), (0.0, 0.0));
        assert_same_weights(&trainer, &before, kind);
        assert_eq!(trainer.train_steps(), 2);
    }
}

#[test]
fn log_probs_of_a_reference_or_of_old_weights_that_are_none_are_told_apart() {
    let settings = settings("[kl]\ncoefficient = 0.1");
    let model = || model_of(config_json(), 1, Kind::Float);
    let reference = model();
    let norm = reference.parameters().iter().find(|p| p.name() == "model.norm.weight").unwrap();
    let _ = no_grad(|| norm.tensor().get(0).fill_(f64::INFINITY));
    let mut trainer = Trainer::new(model(), Some(reference), settings).unwrap();
    assert_eq!(refused(&mut trainer, &parts()).quantity, Quantity::RefLogprobs);

    let mut trainer = crate::training::made::trainer(1, "[step]\ntrain_steps_per_policy = 2");
    let batch = micro_batch(&trainer, (0, 0), &parts()[0]);
    let old = trainer.logprobs(&batch).unwrap();
    let _ = old.get(8).fill_(f64::NEG_INFINITY);
    let report = skipped(&step(&mut trainer, &[(&batch, Some(&old))]));
    assert_eq!((report.quantity, report.at.unwrap().token), (Quantity::OldLogprobs, 3));
}
