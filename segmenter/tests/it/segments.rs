//! Segments of any recording: no token is lost, none is in two segments, and filters change nothing about the rest.

use std::collections::BTreeMap;
use std::sync::Arc;

use dressage_schemas::Table;
use dressage_schemas::tables::{steps, trajectories};
use dressage_segmenter::MemoryLake;
use proptest::prelude::*;

use crate::fixture::{rows, session, step, trajectory};

/// One step: lineage, boundary, context and output tokens.
type Recorded = (i32, bool, usize, usize);

/// What a person would do with pencil and paper: walk the lineages in order, cut at boundaries.
fn by_hand(recorded: &[Recorded]) -> Vec<(i32, Vec<usize>)> {
    let mut lineages: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
    for (index, step) in recorded.iter().enumerate() {
        lineages.entry(step.0).or_default().push(index);
    }
    let mut segments = Vec::new();
    for (lineage, steps) in lineages {
        for (place, step) in steps.into_iter().enumerate() {
            if place == 0 || recorded[step].1 {
                segments.push((lineage, Vec::new()));
            }
            segments.last_mut().unwrap().1.push(step);
        }
    }
    segments
}

/// Two trajectories with these steps, and the rows of their steps in the given order, over two fragments.
fn recorded_lake(recorded: &[Recorded], order: &[usize]) -> Arc<MemoryLake> {
    let owners = [trajectory("run", "a", 1), trajectory("run", "b", 2)];
    let mut all = Vec::new();
    for owner in &owners {
        for (index, (lineage, boundary, context, output)) in recorded.iter().enumerate() {
            let mut row = step(owner, index as i32, *context, *output);
            (row.lineage_index, row.boundary) = (*lineage, *boundary);
            all.push(row);
        }
    }
    let shuffled: Vec<_> = order.iter().map(|i| all[*i].clone()).collect();
    let (first, second) = shuffled.split_at(shuffled.len() / 2);
    let lake = MemoryLake::new()
        .with(Table::Steps, steps::batch(first).unwrap())
        .with(Table::Steps, steps::batch(second).unwrap())
        .with(Table::Trajectories, trajectories::batch(&owners).unwrap());
    Arc::new(lake)
}

fn recording() -> impl Strategy<Value = (Vec<Recorded>, Vec<usize>)> {
    proptest::collection::vec((0..3_i32, any::<bool>(), 0..6_usize, 0..6_usize), 1..12).prop_flat_map(|steps| {
        let order: Vec<usize> = (0..2 * steps.len()).collect();
        (Just(steps), Just(order).prop_shuffle())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn every_token_is_in_one_segment_and_only_there((recorded, order) in recording()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let session = session(&recorded_lake(&recorded, &order));
            let expected: Vec<String> = by_hand(&recorded)
                .iter()
                .enumerate()
                .map(|(index, (lineage, steps))| {
                    let tokens: usize = steps.iter().map(|s| recorded[*s].2 + recorded[*s].3).sum();
                    let trained: usize = steps.iter().map(|s| recorded[*s].3).sum();
                    let (first, last) = (steps[0], steps[steps.len() - 1]);
                    format!("{index}|{lineage}|{first}|{last}|{}|{tokens}|{trained}", steps.len())
                })
                .collect();
            let columns = "segment_index, lineage_index, first_step, last_step, n_steps, n_tokens, n_trained_tokens";
            for name in ["a", "b"] {
                let sql = format!("SELECT {columns} FROM segments WHERE trajectory_id = '{name}' ORDER BY 1");
                prop_assert_eq!(&rows(&session, &sql).await, &expected);
            }
            // the same without a filter, and the steps agree with their segments
            let sql = format!("SELECT {columns} FROM segments ORDER BY trajectory_id, 1");
            prop_assert_eq!(rows(&session, &sql).await, [expected.clone(), expected.clone()].concat());
            let sql = "SELECT count(*), sum(n_tokens) FROM steps";
            let tokens: usize = recorded.iter().map(|s| s.2 + s.3).sum();
            prop_assert_eq!(rows(&session, sql).await, [format!("{}|{}", 2 * recorded.len(), 2 * tokens)]);
            let sql = "SELECT count(*) FROM segments WHERE is_anchor";
            prop_assert_eq!(rows(&session, sql).await, ["2"]);
            Ok(())
        })?;
    }
}
