//! Micro-batches onto ranks, so that every rank has as many and about as much to compute.
//!
//! The costliest first, each to the rank that has the least to do and fewer than its share; then, while the busiest and
//! an idler rank differ, the one swap (or move) of two samples that comes nearest to levelling them and overfills no
//! micro-batch. Every exchange lowers the sum of squared costs, and their number is bounded, so it ends.

use std::cmp::Reverse;

use super::pack::{Bin, PackOptions, PackedStep};

/// Ranks that differ by less than this share of the busiest are level enough.
const SPREAD_SMALL: f64 = 1e-3;
/// Exchanges tried, for each rank.
const EXCHANGES_PER_RANK: usize = 48;
/// Partners looked at on either side of the best one, which may not fit.
const PARTNERS_TRIED: usize = 48;

/// A rank while it is filled.
#[derive(Debug, Clone, Default)]
struct Rank {
    bins: Vec<Bin>,
    cost: f64,
}

/// One sample as a candidate for an exchange.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    cost: f64,
    item: usize,
    bin: usize,
}

/// An exchange between a busy and an idle rank.
#[derive(Debug, Clone, Copy)]
struct Exchange {
    given: Candidate,
    /// None for a move: the bin it goes to.
    taken: Option<Candidate>,
    into: usize,
    gain: f64,
}

/// Deals bins out; `bins.len()` is a multiple of `world`.
pub(super) fn onto_ranks(mut bins: Vec<Bin>, lengths: &[u64], world: usize, options: &PackOptions) -> PackedStep {
    let cost_of = |bin: &Bin| bin.items.iter().map(|&i| options.cost.of(lengths[i])).sum::<f64>();
    let share = bins.len() / world;
    // ties by the first sample, so that nothing depends on how the bins came about
    for bin in &mut bins {
        bin.items.sort_unstable();
    }
    bins.sort_by(|a, b| cost_of(b).total_cmp(&cost_of(a)).then_with(|| a.items.cmp(&b.items)));
    let mut ranks = vec![Rank::default(); world];
    for bin in bins {
        let open = (0..world).filter(|&r| ranks[r].bins.len() < share);
        let Some(idlest) = open.min_by(|&a, &b| ranks[a].cost.total_cmp(&ranks[b].cost).then(a.cmp(&b))) else {
            break;
        };
        ranks[idlest].cost += cost_of(&bin);
        ranks[idlest].bins.push(bin);
    }
    level(&mut ranks, lengths, options);
    let ranks = ranks.into_iter().map(|rank| in_order(rank, &cost_of)).collect();
    PackedStep { ranks }
}

/// The costliest micro-batch first: ranks wait for each other least, and one that does not fit into memory says so at
/// once.
fn in_order(mut rank: Rank, cost_of: &impl Fn(&Bin) -> f64) -> Vec<Vec<usize>> {
    for bin in &mut rank.bins {
        bin.items.sort_unstable();
    }
    rank.bins.sort_by(|a, b| cost_of(b).total_cmp(&cost_of(a)).then_with(|| a.items.cmp(&b.items)));
    rank.bins.into_iter().map(|bin| bin.items).collect()
}

fn level(ranks: &mut [Rank], lengths: &[u64], options: &PackOptions) {
    for _ in 0..EXCHANGES_PER_RANK * ranks.len() {
        let mut order: Vec<usize> = (0..ranks.len()).collect();
        order.sort_by(|&a, &b| ranks[a].cost.total_cmp(&ranks[b].cost).then(a.cmp(&b)));
        let Some((&busiest, idler)) = order.split_last() else { return };
        let enough = ranks[busiest].cost * SPREAD_SMALL;
        let partner = idler.iter().take_while(|&&r| ranks[busiest].cost - ranks[r].cost > enough).find_map(|&idle| {
            best_exchange(&ranks[busiest], &ranks[idle], lengths, options).map(|exchange| (idle, exchange))
        });
        let Some((idle, exchange)) = partner else { return };
        apply(ranks, busiest, idle, exchange, lengths);
    }
}

/// The exchange after which the two ranks are nearest to each other; none where no exchange brings them nearer.
fn best_exchange(busy: &Rank, idle: &Rank, lengths: &[u64], options: &PackOptions) -> Option<Exchange> {
    let gap = busy.cost - idle.cost;
    let own = candidates(busy, lengths, options);
    let others = candidates(idle, lengths, options);
    let room = |bin: usize| options.max_tokens.saturating_sub(idle.bins[bin].n_tokens);
    // the micro-batch with most room takes what is moved without return
    let open = (0..idle.bins.len()).filter(|&bin| idle.bins[bin].n_tokens <= options.max_tokens);
    let roomiest = open.max_by_key(|&bin| (room(bin), Reverse(bin)));
    // sizes of exchanges by how far they leave the two apart: |gap − 2 · difference|
    let left_by = |difference: f64| (gap - 2.0 * difference).abs();
    let mut best: Option<Exchange> = None;
    let mut consider = |exchange: Exchange| {
        if exchange.gain > gap * 1e-9 && best.is_none_or(|b| exchange.gain > b.gain) {
            best = Some(exchange);
        }
    };
    for &given in &own {
        let gives = lengths[given.item];
        if let Some(into) = roomiest.filter(|&bin| gives <= room(bin) && busy.bins[given.bin].items.len() > 1) {
            consider(Exchange { given, taken: None, into, gain: gap - left_by(given.cost) });
        }
        // what it should get back, so that half the gap moves
        let wanted = given.cost - gap / 2.0;
        let at = others.partition_point(|c| c.cost < wanted);
        let around = others[at..].iter().take(PARTNERS_TRIED);
        let below = others[..at].iter().rev().take(PARTNERS_TRIED);
        let fits = |c: &&Candidate| {
            let gets = lengths[c.item];
            let fits_there = gives <= gets || gives - gets <= room(c.bin);
            let own_room = options.max_tokens.saturating_sub(busy.bins[given.bin].n_tokens);
            fits_there && (gets <= gives || gets - gives <= own_room)
        };
        // each side is in order of distance: its first that fits is its best
        for taken in [around.clone().find(fits), below.clone().find(fits)].into_iter().flatten() {
            let gain = gap - left_by(given.cost - taken.cost);
            consider(Exchange { given, taken: Some(*taken), into: taken.bin, gain });
        }
    }
    best
}

/// The samples that may be exchanged, cheapest first. One longer than the cap stays where it is, alone.
fn candidates(rank: &Rank, lengths: &[u64], options: &PackOptions) -> Vec<Candidate> {
    let mut all: Vec<Candidate> = Vec::new();
    for (bin, content) in rank.bins.iter().enumerate() {
        for &item in content.items.iter().filter(|&&i| lengths[i] <= options.max_tokens) {
            all.push(Candidate { cost: options.cost.of(lengths[item]), item, bin });
        }
    }
    all.sort_by(|a, b| a.cost.total_cmp(&b.cost).then(a.item.cmp(&b.item)));
    all
}

fn apply(ranks: &mut [Rank], busy: usize, idle: usize, exchange: Exchange, lengths: &[u64]) {
    let Exchange { given, taken, into, .. } = exchange;
    take(&mut ranks[busy], given, lengths);
    put(&mut ranks[idle], into, given, lengths);
    if let Some(taken) = taken {
        take(&mut ranks[idle], taken, lengths);
        put(&mut ranks[busy], given.bin, taken, lengths);
    }
}

fn take(rank: &mut Rank, candidate: Candidate, lengths: &[u64]) {
    let bin = &mut rank.bins[candidate.bin];
    bin.items.retain(|&i| i != candidate.item);
    bin.n_tokens -= lengths[candidate.item];
    rank.cost -= candidate.cost;
}

fn put(rank: &mut Rank, bin: usize, candidate: Candidate, lengths: &[u64]) {
    rank.bins[bin].items.push(candidate.item);
    rank.bins[bin].n_tokens += lengths[candidate.item];
    rank.cost += candidate.cost;
}

#[cfg(test)]
mod tests {
    use super::super::cost::CostModel;
    use super::super::pack::{PackOptions, PackedStep, pack};

    /// Long-tailed lengths without a library: quantiles of a log-normal, cut at 32,768.
    fn long_tailed(n: usize, seed: u64) -> Vec<u64> {
        let mut state = seed;
        let mut uniform = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        let mut normal = move || (0..12).map(|_| uniform()).sum::<f64>() - 6.0;
        (0..n).map(|_| (8.0 + 0.9 * normal()).exp().clamp(64.0, 32_768.0) as u64).collect()
    }

    fn spread(packed: &PackedStep, lengths: &[u64], cost: CostModel) -> f64 {
        let costs: Vec<f64> =
            packed.ranks.iter().map(|r| r.iter().flatten().map(|&i| cost.of(lengths[i])).sum()).collect();
        let most = costs.iter().copied().fold(0.0, f64::max);
        (most - costs.iter().copied().fold(most, f64::min)) / most
    }

    #[test]
    fn ranks_differ_by_less_than_three_percent_on_a_long_tail() {
        let cost = CostModel::default();
        for (seed, world) in [(1, 4), (2, 8), (3, 16)] {
            let lengths = long_tailed(world * 100, seed);
            let packed = pack(&lengths, &PackOptions { max_tokens: 40_960, world_size: world, cost });
            assert!(packed.ranks[0].len() >= 8, "{} micro-batches a rank", packed.ranks[0].len());
            let spread = spread(&packed, &lengths, cost);
            assert!(spread < 0.03, "{world} ranks differ by {:.2} %", 100.0 * spread);
        }
    }

    #[test]
    fn two_ranks_that_could_be_level_are() {
        let cost = CostModel { linear: 1.0, quadratic: 0.0 };
        let lengths = [8, 7, 6, 5, 4];
        let packed = pack(&lengths, &PackOptions { max_tokens: 15, world_size: 2, cost });
        assert_eq!(spread(&packed, &lengths, cost), 0.0, "{packed:?}");
    }
}
