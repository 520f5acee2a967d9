//! How slime makes micro-batches (semantics 6.4), as a reference to compare with: first fit, Karmarkar–Karp, and what
//! aligns and deals them out. Own code after the description; `tests/it/dp_schedule.rs` holds the worked examples.

#![allow(dead_code, reason = "the benchmark and the tests each use a part of it")]

use std::cmp::{Ordering, Reverse};

/// A model, as far as its floating-point operations depend on it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Model {
    pub(crate) hidden: f64,
    pub(crate) heads: f64,
    pub(crate) kv_groups: f64,
    pub(crate) kv_channels: f64,
    pub(crate) ffn: f64,
    pub(crate) vocabulary: f64,
    pub(crate) layers: f64,
}

impl Model {
    /// Forward operations of a sample.
    pub(crate) fn flops(&self, n_tokens: u64) -> f64 {
        let n = n_tokens as f64;
        let (q, kv) = (self.heads * self.kv_channels, self.kv_groups * self.kv_channels);
        let qkv = 2.0 * n * self.hidden * (q + 2.0 * kv);
        // scores are causal: half of them
        let attention = 2.0 * q * n * n / 2.0 + 2.0 * q * n * n;
        let output = 2.0 * n * q * self.hidden;
        let mlp = 3.0 * 2.0 * n * self.hidden * self.ffn;
        self.layers * (qkv + attention + output + mlp) + 2.0 * n * self.hidden * self.vocabulary
    }
}

type Bin = Vec<usize>;

fn tokens(bin: &[usize], lengths: &[u64]) -> u64 {
    bin.iter().map(|&i| lengths[i]).sum()
}

/// Each sample, in the order given, into the first micro-batch that has room.
pub(crate) fn first_fit(order: &[usize], lengths: &[u64], cap: u64) -> Vec<Bin> {
    let mut bins: Vec<(Bin, u64)> = Vec::new();
    for &item in order {
        match bins.iter_mut().find(|(_, n)| n + lengths[item] <= cap) {
            Some((bin, n)) => {
                bin.push(item);
                *n += lengths[item];
            }
            None => bins.push((vec![item], lengths[item])),
        }
    }
    bins.into_iter().map(|(bin, _)| bin).collect()
}

/// First fit, longest first.
pub(crate) fn first_fit_decreasing(lengths: &[u64], cap: u64) -> Vec<Bin> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&i| (Reverse(lengths[i]), i));
    first_fit(&order, lengths, cap)
}

#[derive(Debug, Clone, PartialEq)]
struct Set {
    sum: f64,
    items: Vec<usize>,
}

impl Set {
    fn order(&self, other: &Self) -> Ordering {
        self.sum
            .total_cmp(&other.sum)
            .then_with(|| self.items.len().cmp(&other.items.len()))
            .then_with(|| self.items.cmp(&other.items))
    }
}

/// A partial solution: k sets, the largest first.
#[derive(Debug, Clone)]
struct State(Vec<Set>);

impl State {
    fn of(items: &[usize], values: &[f64], k: usize) -> Self {
        let mut sets = vec![Set { sum: 0.0, items: Vec::new() }; k];
        for (set, &item) in sets.iter_mut().zip(items) {
            *set = Set { sum: values[item], items: vec![item] };
        }
        let mut state = Self(sets);
        state.sort();
        state
    }

    fn sort(&mut self) {
        self.0.sort_by(|a, b| b.order(a));
    }

    fn spread(&self) -> f64 {
        self.0[0].sum - self.0[self.0.len() - 1].sum
    }

    fn merge(mut self, other: &Self) -> Self {
        for (set, added) in self.0.iter_mut().zip(other.0.iter().rev()) {
            set.sum += added.sum;
            set.items.extend(&added.items);
        }
        self.sort();
        self
    }
}

/// The state with the largest spread is merged next; of equal ones, the one with the larger top set.
struct Next(State);

impl PartialEq for Next {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Next {}
impl PartialOrd for Next {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Next {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.spread().total_cmp(&other.0.spread()).then_with(|| self.0.0[0].order(&other.0.0[0]))
    }
}

/// The largest differencing method of Karmarkar and Karp: k parts of about equal sums; with `equal_size` also of equal
/// counts.
pub(crate) fn karmarkar_karp(values: &[f64], k: usize, equal_size: bool) -> Vec<Bin> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]).then(a.cmp(&b)));
    let seed = if equal_size { k } else { 1 };
    let mut heap: std::collections::BinaryHeap<Next> =
        order.chunks(seed).map(|items| Next(State::of(items, values, k))).collect();
    while heap.len() > 1 {
        let (Some(Next(first)), Some(Next(second))) = (heap.pop(), heap.pop()) else { break };
        heap.push(Next(first.merge(&second)));
    }
    let Some(Next(last)) = heap.pop() else { return vec![Vec::new(); k] };
    let mut parts: Vec<Bin> = last.0.into_iter().map(|set| set.items).collect();
    parts.iter_mut().for_each(|part| part.sort_unstable());
    parts
}

/// Splits micro-batches until their number is a multiple: always the multi-sample one with the most tokens (of equal
/// ones the last), its samples longest first, each to the lighter half.
pub(crate) fn align(mut bins: Vec<Bin>, lengths: &[u64], multiple: usize) -> Vec<Bin> {
    let wanted = bins.len().next_multiple_of(multiple);
    while bins.len() < wanted {
        let splittable = (0..bins.len()).filter(|&b| bins[b].len() > 1);
        let Some(at) = splittable.max_by_key(|&b| (tokens(&bins[b], lengths), b)) else { break };
        let mut items = std::mem::take(&mut bins[at]);
        items.sort_by_key(|&i| Reverse(lengths[i]));
        let (mut left, mut right) = (Vec::new(), Vec::new());
        for item in items {
            let lighter = if tokens(&left, lengths) <= tokens(&right, lengths) { &mut left } else { &mut right };
            lighter.push(item);
        }
        bins[at] = left;
        bins.push(right);
    }
    bins
}

/// Micro-batches onto ranks: by Karmarkar–Karp on their cost, or rank r takes r, r + world, …
pub(crate) fn deal(bins: &[Bin], costs: Option<&[f64]>, world: usize) -> Vec<Vec<Bin>> {
    let parts = match costs {
        Some(costs) => karmarkar_karp(costs, world, true),
        None => (0..world).map(|rank| (rank..bins.len()).step_by(world).collect()).collect(),
    };
    parts.into_iter().map(|part| part.into_iter().map(|b| bins[b].clone()).collect()).collect()
}

/// First fit, longest first, aligned, and dealt out by cost: what many trainers do.
pub(crate) fn by_first_fit_decreasing(
    lengths: &[u64],
    cap: u64,
    world: usize,
    cost: impl Fn(u64) -> f64,
) -> Vec<Vec<Bin>> {
    let bins = align(first_fit_decreasing(lengths, cap), lengths, world);
    let costs: Vec<f64> = bins.iter().map(|b| b.iter().map(|&i| cost(lengths[i])).sum()).collect();
    deal(&bins, Some(&costs), world)
}

/// As many micro-batches as tokens need at least, balanced by Karmarkar–Karp on cost, the cap not enforced; aligned, and
/// dealt out by cost: slime with `balance_by_flops` and `balance_data`.
pub(crate) fn by_karmarkar_karp(lengths: &[u64], cap: u64, world: usize, cost: impl Fn(u64) -> f64) -> Vec<Vec<Bin>> {
    let bins = align(by_cost(lengths, cap, &cost), lengths, world);
    let costs: Vec<f64> = bins.iter().map(|b| b.iter().map(|&i| cost(lengths[i])).sum()).collect();
    deal(&bins, Some(&costs), world)
}

/// `balance_by_flops`: the least number of micro-batches, balanced by cost.
pub(crate) fn by_cost(lengths: &[u64], cap: u64, cost: impl Fn(u64) -> f64) -> Vec<Bin> {
    let count = (lengths.iter().sum::<u64>().div_ceil(cap) as usize).max(1);
    if count >= lengths.len() {
        return (0..lengths.len()).map(|i| vec![i]).collect();
    }
    let costs: Vec<f64> = lengths.iter().map(|&n| cost(n)).collect();
    karmarkar_karp(&costs, count, false)
}
