//! The reference that `benches/plan.rs` compares with gives the worked examples of slime's own scheduler.

#[path = "../../benches/reference/dp_schedule.rs"]
mod reference;

use reference::{Model, align, by_cost, deal, first_fit, karmarkar_karp};

const MODEL: Model =
    Model { hidden: 16.0, heads: 2.0, kv_groups: 2.0, kv_channels: 8.0, ffn: 64.0, vocabulary: 32.0, layers: 2.0 };

fn costs(bins: &[Vec<usize>], lengths: &[u64]) -> Vec<f64> {
    bins.iter().map(|b| b.iter().map(|&i| MODEL.flops(lengths[i])).sum()).collect()
}

fn flat(ranks: &[Vec<Vec<usize>>]) -> Vec<Vec<usize>> {
    ranks.iter().map(|r| r.concat()).collect()
}

#[test]
fn one_sample_a_micro_batch_is_dealt_out_by_cost_or_in_turns() {
    let lengths = [1, 2, 3, 4, 5, 7, 9, 10];
    let bins: Vec<Vec<usize>> = (0..8).map(|i| vec![i]).collect();
    let by_cost = deal(&bins, Some(&costs(&bins, &lengths)), 2);
    assert_eq!(flat(&by_cost), [[1, 2, 5, 6], [0, 3, 4, 7]]);
    assert_eq!(flat(&deal(&bins, None, 2)), [[0, 2, 4, 6], [1, 3, 5, 7]]);
}

#[test]
fn samples_under_a_cap_are_packed_first_fit_and_dealt_out() {
    let lengths = [6, 5, 4, 3, 2, 9, 1, 12];
    let bins = first_fit(&[0, 1, 2, 3, 4, 5, 6, 7], &lengths, 10);
    assert_eq!(bins, [vec![0, 2], vec![1, 3, 4], vec![5, 6], vec![7]]);
    let in_turns = deal(&bins, None, 2);
    assert_eq!(flat(&in_turns), [vec![0, 2, 5, 6], vec![1, 3, 4, 7]]);
    // by cost the two ranks change places
    let by_cost = deal(&bins, Some(&costs(&bins, &lengths)), 2);
    assert_eq!(flat(&by_cost), [vec![1, 3, 4, 7], vec![0, 2, 5, 6]]);
}

#[test]
fn balancing_by_cost_ignores_the_cap_and_splits_to_align() {
    let lengths = [6, 5, 4, 3, 2, 9, 1, 12];
    let bins = align(by_cost(&lengths, 10, |n| MODEL.flops(n)), &lengths, 2);
    let ranks = deal(&bins, None, 2);
    assert_eq!(ranks.iter().map(Vec::len).collect::<Vec<_>>(), [3, 3]);
    assert_eq!(flat(&ranks), [[7, 0, 6, 2], [5, 1, 4, 3]]);
}

#[test]
fn parts_of_equal_size_have_about_equal_sums() {
    let values: Vec<f64> = (1..=12).map(f64::from).collect();
    let parts = karmarkar_karp(&values, 3, true);
    assert!(parts.iter().all(|p| p.len() == 4));
    let sums: Vec<f64> = parts.iter().map(|p| p.iter().map(|&i| values[i]).sum()).collect();
    assert!(sums.iter().all(|s| (s - 26.0_f64).abs() <= 1.0), "{sums:?}");
}
