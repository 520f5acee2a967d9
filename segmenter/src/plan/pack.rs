//! Samples of one train step into micro-batches: as few as hold them under the cap, the same number on every rank.
//!
//! 1. How many: first the least that could do (all tokens over the cap, rounded up to a multiple of the ranks), then one
//!    round more for as long as the samples do not fit.
//! 2. Which: longest first, each into the micro-batch that holds the fewest tokens, so that all are about equally full.
//!    Where that overfills one, longest first into the fullest micro-batch that still has room (best fit decreasing).
//! 3. On which rank: see [`balance`](super::balance).
//!
//! A sample longer than the cap has a micro-batch to itself.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::balance;
use super::cost::CostModel;

/// What bounds the packing of a train step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PackOptions {
    /// Tokens of a micro-batch.
    pub max_tokens: u64,
    /// Data-parallel ranks.
    pub world_size: usize,
    /// What a sample costs.
    pub cost: CostModel,
}

/// The micro-batches of one train step: by rank, then micro-batch, indices into the lengths that were packed, ascending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedStep {
    /// One list of micro-batches a rank; all of one length.
    pub ranks: Vec<Vec<Vec<usize>>>,
}

/// One micro-batch while it is filled.
#[derive(Debug, Clone, Default)]
pub(super) struct Bin {
    pub(super) items: Vec<usize>,
    pub(super) n_tokens: u64,
}

impl Bin {
    fn put(&mut self, item: usize, n_tokens: u64) {
        self.items.push(item);
        self.n_tokens += n_tokens;
    }
}

/// Packs samples of these lengths. Deterministic: depends on nothing but its arguments.
pub fn pack(lengths: &[u64], options: &PackOptions) -> PackedStep {
    let world = options.world_size.max(1);
    // longest first; of equal ones in the order given
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&i| (Reverse(lengths[i]), i));
    let oversize = order.partition_point(|&i| lengths[i] > options.max_tokens);
    let (alone, rest) = order.split_at(oversize);
    let alone = alone.iter().map(|&i| Bin { items: vec![i], n_tokens: lengths[i] });

    let rest_tokens: u64 = rest.iter().map(|&i| lengths[i]).sum();
    // two samples of more than half the cap never share a micro-batch
    let large = rest.partition_point(|&i| lengths[i] > options.max_tokens / 2) as u64;
    let least = oversize as u64 + rest_tokens.div_ceil(options.max_tokens.max(1)).max(large);
    let mut rounds = usize::try_from(least).unwrap_or(usize::MAX).div_ceil(world).max(1);
    let mut bins = loop {
        let open = (rounds * world).saturating_sub(oversize);
        let filled = level(rest, lengths, open, options.max_tokens)
            .or_else(|| best_fit(rest, lengths, open, options.max_tokens));
        if let Some(filled) = filled {
            break filled;
        }
        // ends: with one micro-batch a sample everything fits
        rounds += 1;
    };
    bins.extend(alone);
    balance::onto_ranks(bins, lengths, world, options)
}

/// Longest first, each into the micro-batch with the fewest tokens; none where that overfills one.
fn level(order: &[usize], lengths: &[u64], count: usize, cap: u64) -> Option<Vec<Bin>> {
    let mut bins = vec![Bin::default(); count];
    // of equally full ones the one with fewer samples, so that samples without tokens spread out too
    let mut emptiest: BinaryHeap<Reverse<(u64, usize, usize)>> = (0..count).map(|bin| Reverse((0, 0, bin))).collect();
    for &item in order {
        let Reverse((n_tokens, _, bin)) = emptiest.pop()?;
        if n_tokens + lengths[item] > cap {
            return None;
        }
        bins[bin].put(item, lengths[item]);
        emptiest.push(Reverse((bins[bin].n_tokens, bins[bin].items.len(), bin)));
    }
    Some(bins)
}

/// Longest first, each into the fullest micro-batch that has room; none where there is no room.
fn best_fit(order: &[usize], lengths: &[u64], count: usize, cap: u64) -> Option<Vec<Bin>> {
    let mut bins = vec![Bin::default(); count];
    let mut by_room: BTreeSet<(u64, usize)> = (0..count).map(|bin| (cap, bin)).collect();
    for &item in order {
        let needed = lengths[item];
        let &(room, bin) = by_room.range((needed, 0)..).next()?;
        by_room.remove(&(room, bin));
        bins[bin].put(item, needed);
        by_room.insert((room - needed, bin));
    }
    spread_to_empty(&mut bins, lengths);
    Some(bins)
}

/// A micro-batch without samples is a forward pass for nothing: the fullest ones give it some of theirs.
fn spread_to_empty(bins: &mut [Bin], lengths: &[u64]) {
    for empty in (0..bins.len()).filter(|&b| bins[b].items.is_empty()).collect::<Vec<_>>() {
        let fullest = (0..bins.len()).filter(|&b| bins[b].items.len() > 1).max_by_key(|&b| (bins[b].n_tokens, b));
        let Some(fullest) = fullest else { return };
        // items are in order of length: every second one goes, which halves it about evenly
        let items = std::mem::take(&mut bins[fullest]).items;
        for (nth, item) in items.into_iter().enumerate() {
            bins[if nth % 2 == 0 { fullest } else { empty }].put(item, lengths[item]);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn options(max_tokens: u64, world_size: usize) -> PackOptions {
        PackOptions { max_tokens, world_size, cost: CostModel::default() }
    }

    #[test]
    fn the_samples_of_semantics_6_4_take_no_more_micro_batches_than_first_fit() {
        let packed = pack(&[6, 5, 4, 3, 2, 9, 1, 12], &options(10, 2));
        assert_eq!(packed.ranks.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2]);
    }

    #[test]
    fn a_sample_longer_than_the_cap_is_alone() {
        let packed = pack(&[50, 3, 4], &options(10, 1));
        let mut batches = packed.ranks[0].clone();
        batches.sort();
        assert_eq!(batches, [vec![0], vec![1, 2]]);
    }

    #[test]
    fn fewer_samples_than_ranks_leave_some_micro_batches_empty() {
        let packed = pack(&[5], &options(10, 3));
        assert_eq!(packed.ranks.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 1]);
        assert_eq!(packed.ranks.iter().flatten().filter(|b| b.is_empty()).count(), 2);
    }

    #[test]
    fn no_samples_are_one_empty_micro_batch_a_rank() {
        assert_eq!(pack(&[], &options(10, 2)).ranks, [[Vec::<usize>::new()], [Vec::new()]]);
    }

    fn lengths() -> impl Strategy<Value = Vec<u64>> {
        // a long tail, with samples of no token and samples above the cap
        let length = prop_oneof![4 => 0..200_u64, 2 => 100..1_000_u64, 1 => 900..3_000_u64];
        proptest::collection::vec(length, 0..160)
    }

    proptest! {
        #[test]
        fn every_sample_is_in_exactly_one_micro_batch_under_the_cap(lengths in lengths(), world in 1..9_usize, cap in 1..1_500_u64) {
            let packed = pack(&lengths, &options(cap, world));
            prop_assert_eq!(packed.ranks.len(), world);
            let rounds = packed.ranks[0].len();
            prop_assert!(rounds > 0 && packed.ranks.iter().all(|r| r.len() == rounds), "equal counts");
            let mut seen = vec![0; lengths.len()];
            for batch in packed.ranks.iter().flatten() {
                prop_assert!(batch.windows(2).all(|w| w[0] < w[1]));
                let n_tokens: u64 = batch.iter().map(|&i| lengths[i]).sum();
                prop_assert!(n_tokens <= cap || batch.len() == 1, "{n_tokens} tokens in {batch:?}");
                batch.iter().for_each(|&i| seen[i] += 1);
            }
            prop_assert!(seen.iter().all(|&n| n == 1));
            let empty = packed.ranks.iter().flatten().filter(|b| b.is_empty()).count();
            prop_assert_eq!(empty, (rounds * world).saturating_sub(lengths.len()), "empty only for want of samples");
        }

        #[test]
        fn packing_the_same_again_is_the_same(lengths in lengths(), world in 1..9_usize, cap in 1..1_500_u64) {
            prop_assert_eq!(pack(&lengths, &options(cap, world)), pack(&lengths, &options(cap, world)));
        }
    }
}
