//! Routing replay through a train step, for choices of all layers and of only those that have experts.

use dressage_trainer::{ForwardOptions, PackedRow, Trainer};
use tch::{Kind, no_grad};

use crate::training::made::{
    Row, assert_same_weights, micro_batch, mixed_config_json, model_of, row, settings, step, weights,
};

fn mixed_trainer() -> Trainer {
    Trainer::new(model_of(mixed_config_json(), 1, Kind::Float), None, settings("")).unwrap()
}

/// What the router chooses for these rows, one entry a row: `[n_tokens − 1, 1, 2]`.
fn chosen(trainer: &Trainer, rows: &[Row]) -> Vec<Vec<u8>> {
    let row = PackedRow::of(&micro_batch(trainer, (0, 0), rows)).unwrap().unwrap();
    let trace = trainer.model().forward(&row, ForwardOptions::default()).unwrap();
    let recorded = trace.routed_experts(&row).unwrap();
    recorded.iter().map(|r| (0..r.n_tokens()).flat_map(|at| r.of(at, 0).iter().map(|id| *id as u8)).collect()).collect()
}

fn with_routes(rows: &[Row], routes: &[Vec<u8>], all_layers: bool) -> Vec<Row> {
    let wide = |routes: &Vec<u8>| routes.chunks(2).flat_map(|pair| [0, 0, pair[0], pair[1]]).collect();
    let of = |(row, routes): (&Row, &Vec<u8>)| Row {
        routes: Some(if all_layers { wide(routes) } else { routes.clone() }),
        route_layers: if all_layers { 2 } else { 1 },
        ..row.clone()
    };
    rows.iter().zip(routes).map(of).collect()
}

/// The router of the second layer prefers what it did not.
fn turn_router(trainer: &Trainer) {
    let gate = trainer.model().parameters().iter().find(|p| p.name().ends_with("mlp.gate.weight")).unwrap();
    let _ = no_grad(|| gate.tensor().shallow_clone().neg_());
}

#[test]
fn choices_of_all_layers_and_of_those_with_experts_train_alike_also_in_one_micro_batch() {
    let rows = [row(1, 9, 1.0), row(2, 6, -0.5)];
    let routes = chosen(&mixed_trainer(), &rows);
    let (narrow, wide) = (with_routes(&rows, &routes, false), with_routes(&rows, &routes, true));
    let both = [narrow[0].clone(), wide[1].clone()];
    let run = |rows: &[Row]| {
        let mut trainer = mixed_trainer();
        turn_router(&trainer);
        let batch = micro_batch(&trainer, (0, 0), rows);
        let logprobs = trainer.logprobs(&batch).unwrap();
        step(&mut trainer, &[(&batch, None)]);
        (logprobs, trainer)
    };
    let (expected, trained) = run(&narrow);
    for (other, what) in [(wide.as_slice(), "all layers"), (both.as_slice(), "both in one")] {
        let (found, also) = run(other);
        assert_eq!(found, expected, "{what}");
        assert_same_weights(&also, &weights(&trained), what);
    }
    let (free, _) = run(&rows);
    assert_ne!(free, expected, "the router was not changed enough to show anything");
}
