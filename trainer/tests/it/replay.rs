//! Routing replay (R3): recorded experts are chosen again, and only they.

use dressage_schemas::ErrorKind;
use dressage_trainer::{Error, ForwardOptions, Model, PackedRow, RoutedExperts, ScoreOptions, Segment};
use tch::no_grad;

use crate::cases::{CASES_WITH_EXPERTS, Case, distance, record};

/// Turns the preferences of every router around.
fn change_routers(model: &Model) {
    no_grad(|| {
        for parameter in model.parameters().iter().filter(|p| p.name().ends_with("mlp.gate.weight")) {
            let _ = parameter.tensor().shallow_clone().neg_();
        }
    });
}

fn replayed(case: &Case) -> PackedRow {
    case.row.clone().with_routed_experts(record(case)).expect("fits")
}

#[test]
fn replaying_recorded_experts_gives_the_same_logits() {
    for name in CASES_WITH_EXPERTS {
        let case = Case::load(name);
        let free = case.model.logits(&case.row).expect("free");
        let off = distance(&case.model.logits(&replayed(&case)).expect("replayed"), &free);
        assert!(off <= 1e-6, "{name}: off by {off:.1e}");
    }
}

#[test]
fn a_changed_router_keeps_the_experts_under_replay_and_not_without() {
    for name in CASES_WITH_EXPERTS {
        let case = Case::load(name);
        let before = record(&case);
        let row = replayed(&case);
        let logits_before = case.model.logits(&row).expect("logits");
        change_routers(&case.model);
        let trace = case.model.forward(&row, ForwardOptions::default()).expect("forward");
        let kept: Vec<_> = trace.routed_experts(&row).expect("experts").into_iter().map(Some).collect();
        assert_eq!(kept, before, "{name}");
        assert_ne!(record(&case), before, "{name}: the router was not changed enough to show anything");
        // the gate weights are the changed router's
        let moved = distance(&case.model.logits(&row).expect("logits"), &logits_before);
        assert!(moved > 1e-3, "{name}: {moved:.1e}");
    }
}

#[test]
fn the_router_is_trained_through_the_gate_weights_of_replayed_experts() {
    for name in CASES_WITH_EXPERTS {
        let case = Case::load(name);
        let row = replayed(&case);
        let _ = case.run(&row, ForwardOptions::default(), ScoreOptions::default());
        for (parameter, gradient) in case.gradients() {
            let expected = case.expected_of("gradient", &parameter);
            let off = crate::cases::relative_distance(&gradient, &expected);
            assert!(off <= 1e-4, "{name}: {parameter} off by {off:.1e}");
        }
    }
}

#[test]
fn experts_recorded_for_all_layers_or_only_those_that_have_some_mean_the_same() {
    let case = Case::load("qwen3_moe_mixed");
    let row = replayed(&case);
    let all_layers = row.routed_experts().iter().map(|routed| {
        let routed = routed.as_ref().expect("recorded");
        let ids = (0..routed.n_tokens()).flat_map(|position| {
            // a dense layer's place holds whatever the server put there
            [[999, 999, 999].as_slice(), routed.of(position, 0)].concat()
        });
        Some(RoutedExperts::new(ids.collect(), 2, routed.top_k()).expect("shape"))
    });
    let wide = row.clone().with_routed_experts(all_layers.collect()).expect("fits");
    let narrow = case.model.logits(&row).expect("logits");
    assert_eq!(distance(&case.model.logits(&wide).expect("logits"), &narrow), 0.0);
}

#[test]
fn a_segment_without_recorded_experts_is_routed_freely_beside_one_that_has_them() {
    let case = Case::load("qwen3_moe");
    let mut some = record(&case);
    some[0] = None;
    let expected = record(&case);
    let row = case.row.clone().with_routed_experts(some).expect("fits");
    let trace = case.model.forward(&row, ForwardOptions::default()).expect("forward");
    let found: Vec<_> = trace.routed_experts(&row).expect("experts").into_iter().map(Some).collect();
    assert_eq!(found, expected);
}

#[test]
fn experts_that_do_not_fit_the_model_are_refused_by_name() {
    let case = Case::load("qwen3_moe");
    let refusal = |ids: Vec<u16>, n_layers, top_k| {
        let routed_experts = Some(RoutedExperts::new(ids, n_layers, top_k).expect("shape"));
        let row = PackedRow::new(vec![Segment { token_ids: vec![1, 2, 3], routed_experts }]).expect("row");
        let error = case.model.logits(&row).expect_err("does not fit");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        error
    };
    assert!(matches!(refusal(vec![0; 2 * 3 * 2], 3, 2), Error::RoutingShape { .. }), "layers");
    assert!(matches!(refusal(vec![0; 2 * 2 * 3], 2, 3), Error::RoutingShape { .. }), "experts a token");
    assert!(matches!(refusal(vec![0; 3 * 2 * 2], 2, 2), Error::RoutingShape { .. }), "tokens");
    let mut ids = vec![0; 2 * 2 * 2];
    ids[5] = 8;
    let Error::ExpertRange { position: 1, layer: 0, expert: 8, n_experts: 8, .. } = refusal(ids, 2, 2) else {
        panic!("expert 8 of 8")
    };
    let dense = Case::load("qwen3");
    let routed_experts = Some(RoutedExperts::new(vec![0; 4], 2, 1).expect("shape"));
    let row = PackedRow::new(vec![Segment { token_ids: vec![1, 2, 3], routed_experts }]).expect("row");
    assert!(matches!(dense.model.logits(&row), Err(Error::RoutingShape { .. })), "a model without experts");
}
