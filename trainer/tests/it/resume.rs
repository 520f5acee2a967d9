//! The optimiser: its state can be saved and taken over, and a gradient that is not finite changes nothing.

use dressage_trainer::{
    AdamW, AdamWSettings, Error, Folder, ForwardOptions, Model, ModelOptions, NamedState, ScoreOptions, StepOutcome,
};
use tch::{Kind, Tensor};

use crate::cases::{Case, distance, run_loss};

fn settings() -> AdamWSettings {
    AdamWSettings { learning_rate: 1e-3, ..AdamWSettings::default() }
}

fn step(case: &Case, model: &Model, optimizer: &mut AdamW) {
    let weight = &case.expected["loss_weight"];
    let _ = run_loss(model, &case.row, weight, ForwardOptions::default(), ScoreOptions::default());
    optimizer.step(model, 1e-3).expect("step");
}

fn copied(state: Vec<NamedState>) -> Vec<NamedState> {
    state.into_iter().map(|(name, tensor)| (name, tensor.copy())).collect()
}

#[test]
fn a_resumed_run_is_bit_identical_to_one_that_went_on() {
    for kind in [Kind::Float, Kind::BFloat16] {
        let case = Case::load_as("qwen3_moe", ModelOptions { kind, ..ModelOptions::default() });
        let mut optimizer = AdamW::new(&case.model, settings()).expect("optimizer");
        step(&case, &case.model, &mut optimizer);
        step(&case, &case.model, &mut optimizer);
        let place = tempfile::tempdir().expect("tempdir");
        case.model.save(&mut Folder::at(place.path()), kind, u64::MAX).expect("save");
        let state = copied(optimizer.state(&case.model));
        step(&case, &case.model, &mut optimizer);

        let options = ModelOptions { kind, ..ModelOptions::default() };
        let resumed = Model::load(&Folder::at(place.path()), options).expect("load");
        let mut again = AdamW::new(&resumed, settings()).expect("optimizer");
        again.restore(&resumed, &state).expect("restore");
        step(&case, &resumed, &mut again);
        for (ours, theirs) in resumed.parameters().iter().zip(case.model.parameters()) {
            assert_eq!(distance(ours.tensor(), theirs.tensor()), 0.0, "{kind:?}: {}", ours.name());
        }
    }
}

#[test]
fn state_of_another_model_is_refused_and_changes_nothing() {
    let (case, other) = (Case::load("qwen3"), Case::load("qwen2"));
    let mut optimizer = AdamW::new(&case.model, settings()).expect("optimizer");
    step(&case, &case.model, &mut optimizer);
    let before = copied(optimizer.state(&case.model));
    let foreign = AdamW::new(&other.model, settings()).expect("optimizer").state(&other.model);
    let error = optimizer.restore(&case.model, &foreign).expect_err("another model");
    assert!(matches!(error, Error::OptimizerState { .. }), "{error}");
    let mut extra = copied(optimizer.state(&case.model));
    extra.push(("first.nobody".to_owned(), Tensor::from_slice(&[0f32])));
    assert!(optimizer.restore(&case.model, &extra).expect_err("extra").to_string().contains("first.nobody"));
    for ((name, now), (_, then)) in optimizer.state(&case.model).iter().zip(&before) {
        assert_eq!(distance(now, then), 0.0, "{name}");
    }
}

#[test]
fn a_gradient_that_is_not_finite_stops_the_step_before_anything_changes() {
    let case = Case::load("qwen3");
    let mut optimizer = AdamW::new(&case.model, settings()).expect("optimizer");
    let before: Vec<Tensor> = case.model.parameters().iter().map(|p| p.tensor().detach().copy()).collect();
    let _ = case.run(&case.row, ForwardOptions::default(), ScoreOptions::default());
    let broken = &case.model.parameters()[3];
    let mut gradient = broken.gradient().expect("gradient").expect("there is one");
    let _ = gradient.fill_(f64::NAN);
    let outcome = optimizer.step(&case.model, 1e-3).expect("step");
    assert_eq!(outcome, StepOutcome::NotFinite { parameter: broken.name().to_owned() });
    for (parameter, before) in case.model.parameters().iter().zip(before) {
        assert_eq!(distance(parameter.tensor(), &before), 0.0, "{}", parameter.name());
    }
    optimizer.forget_gradients(&case.model).expect("forget");
    step(&case, &case.model, &mut optimizer);
}

#[test]
fn settings_that_make_no_sense_are_named() {
    let case = Case::load("qwen3");
    for (bad, name) in [
        (AdamWSettings { beta2: 1.0, ..settings() }, "beta2"),
        (AdamWSettings { eps: 0.0, ..settings() }, "eps"),
        (AdamWSettings { grad_norm_max: Some(0.0), ..settings() }, "grad_norm_max"),
        (AdamWSettings { learning_rate: f64::NAN, ..settings() }, "learning_rate"),
    ] {
        let error = AdamW::new(&case.model, bad).expect_err(name);
        assert!(error.to_string().contains(name), "{error}");
    }
}
