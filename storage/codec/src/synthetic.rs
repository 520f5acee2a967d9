//! Synthetic router choices: the load on which this crate's ratios and speeds are stated, and which `dressage synth`
//! writes.
//!
//! Every layer has its own log-normal popularity of experts. Tokens come in short runs of one cluster (a language, a
//! kind of text), and a part of each top-k is drawn from the cluster's own popularity in that layer. Ids are drawn
//! without repetition, so that popular experts tend to come first, as they do by router weight. Real routers may be
//! more or less regular; with the defaults the entropy of an id within a layer is 6.61 bits of 7.

use crate::error::Result;
use crate::view::{Dtype, EXPERTS_MAX, LAYERS_MAX, TOPK_MAX, check_bound};

/// Tokens that stay in one cluster.
const RUN_TOKENS: usize = 16;

/// A small, fast, seedable generator (SplitMix64): equal seeds give equal data on every machine.
#[derive(Debug, Clone)]
pub struct SeededRandom(u64);

impl SeededRandom {
    /// Starts at `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A generator of its own for `stream`, so that streams do not depend on each other's length.
    pub fn stream(seed: u64, stream: u64) -> Self {
        let mut mixed = Self(seed ^ stream.wrapping_mul(0xd1b5_4a32_d192_ed03));
        Self(mixed.next_u64())
    }

    /// The next 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform below `bound` (at least 1).
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Uniform in 0..1.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Close to a standard normal: the sum of twelve uniforms, which needs no logarithm.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }
}

/// What the router looks like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RouterShape {
    /// Layers with experts.
    pub layers: usize,
    /// Experts a token.
    pub topk: usize,
    /// Experts a layer.
    pub n_experts: u32,
    /// Standard deviation of the logarithm of a popularity; 0 is uniform.
    pub skew: f64,
    /// Clusters of tokens.
    pub clusters: usize,
    /// The part of the choices that follows the cluster, 0 to 1.
    pub cluster_share: f64,
}

impl Default for RouterShape {
    /// 40 layers, top-8 of 128 experts.
    fn default() -> Self {
        Self { layers: 40, topk: 8, n_experts: 128, skew: 1.1, clusters: 32, cluster_share: 0.3 }
    }
}

/// One popularity, ready to draw from in constant time (Vose's alias method).
#[derive(Debug)]
struct Popularity(Vec<(u32, u32)>);

impl Popularity {
    fn draw_from(random: &mut SeededRandom, n_experts: usize, skew: f64) -> Self {
        let weights: Vec<f64> = (0..n_experts).map(|_| (random.normal() * skew).exp()).collect();
        let scale = n_experts as f64 / weights.iter().sum::<f64>();
        let mut scaled: Vec<f64> = weights.iter().map(|w| w * scale).collect();
        let mut slots: Vec<(u32, u32)> = (0..n_experts).map(|id| (u32::MAX, id as u32)).collect();
        let (mut small, mut large): (Vec<usize>, Vec<usize>) = (0..n_experts).partition(|id| scaled[*id] < 1.0);
        while let (Some(low), Some(&high)) = (small.pop(), large.last()) {
            slots[low] = ((scaled[low] * f64::from(u32::MAX)) as u32, high as u32);
            scaled[high] -= 1.0 - scaled[low];
            if scaled[high] < 1.0 {
                large.pop();
                small.push(high);
            }
        }
        Self(slots)
    }

    #[inline]
    fn pick(&self, random: u64) -> u32 {
        let slot = ((random >> 32) * self.0.len() as u64) >> 32;
        let (keep_below, alias) = self.0[slot as usize];
        if (random as u32) < keep_below { slot as u32 } else { alias }
    }
}

/// Draws router choices.
#[derive(Debug)]
pub struct SyntheticRouter {
    shape: RouterShape,
    by_layer: Vec<Popularity>,
    by_cluster: Vec<Popularity>,
    cluster_below: u32,
}

impl SyntheticRouter {
    /// Fixes the popularities by `seed`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`](crate::Error::OutOfBounds) for a shape that no container holds, or with fewer than
    /// twice as many experts as a token takes.
    pub fn new(shape: RouterShape, seed: u64) -> Result<Self> {
        check_bound("layers", shape.layers, 1, LAYERS_MAX)?;
        check_bound("topk", shape.topk, 1, TOPK_MAX)?;
        check_bound("experts", shape.n_experts as usize, 2 * shape.topk, EXPERTS_MAX as usize)?;
        check_bound("clusters", shape.clusters, 1, 4_096)?;
        let mut random = SeededRandom::stream(seed, 0);
        let experts = shape.n_experts as usize;
        let mut draw = |n: usize| (0..n).map(|_| Popularity::draw_from(&mut random, experts, shape.skew)).collect();
        let by_layer = draw(shape.layers);
        let by_cluster = draw(shape.layers * shape.clusters);
        let cluster_below = (shape.cluster_share.clamp(0.0, 1.0) * f64::from(u32::MAX)) as u32;
        Ok(Self { shape, by_layer, by_cluster, cluster_below })
    }

    /// The shape given.
    pub fn shape(&self) -> &RouterShape {
        &self.shape
    }

    /// The type of the ids that [`append`](Self::append) writes: the narrowest.
    pub fn dtype(&self) -> Dtype {
        Dtype::narrowest(self.shape.n_experts)
    }

    /// Appends `rows` rows to `out` as plain little-endian ids.
    pub fn append(&self, rows: usize, random: &mut SeededRandom, out: &mut Vec<u8>) {
        let size = self.dtype().size();
        out.reserve(rows * self.shape.layers * self.shape.topk * size);
        let mut cluster = 0;
        let mut chosen = [0_u32; TOPK_MAX];
        for row in 0..rows {
            if row % RUN_TOKENS == 0 {
                cluster = random.below(self.shape.clusters as u64) as usize;
            }
            for (layer, of_layer) in self.by_layer.iter().enumerate() {
                let of_cluster = &self.by_cluster[layer * self.shape.clusters + cluster];
                let mut found = 0;
                while found < self.shape.topk {
                    let bits = random.next_u64();
                    // The low half of one draw decides the source, a second draw the expert.
                    let source = if (bits as u32) < self.cluster_below { of_cluster } else { of_layer };
                    let id = source.pick(random.next_u64());
                    if !chosen[..found].contains(&id) {
                        chosen[found] = id;
                        found += 1;
                        out.extend_from_slice(&id.to_le_bytes()[..size]);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_router_has_the_stated_entropy_and_repeats_no_expert() {
        let router = SyntheticRouter::new(RouterShape { layers: 6, ..RouterShape::default() }, 11).unwrap();
        let mut ids = Vec::new();
        router.append(20_000, &mut SeededRandom::new(1), &mut ids);
        let mut bits = 0.0;
        for layer in 0..6 {
            let mut counts = [0_u32; 128];
            let mut total = 0;
            for row in ids.chunks_exact(6 * 8) {
                let topk = &row[layer * 8..layer * 8 + 8];
                assert_eq!(topk.iter().collect::<std::collections::BTreeSet<_>>().len(), 8);
                for id in topk {
                    counts[usize::from(*id)] += 1;
                    total += 1;
                }
            }
            for count in counts.iter().filter(|count| **count > 0) {
                let share = f64::from(*count) / f64::from(total);
                bits -= share * share.log2() / 6.0;
            }
        }
        assert!((bits - 6.61).abs() < 0.08, "{bits} bits an id");
    }

    #[test]
    fn equal_seeds_give_equal_routes() {
        let shape = RouterShape { layers: 3, n_experts: 384, ..RouterShape::default() };
        let draw = |seed| {
            let mut ids = Vec::new();
            let router = SyntheticRouter::new(shape, seed).unwrap();
            router.append(100, &mut SeededRandom::stream(seed, 5), &mut ids);
            ids
        };
        assert_eq!(draw(3), draw(3));
        assert_ne!(draw(3), draw(4));
        assert_eq!(draw(3).len(), 100 * 3 * 8 * 2);
    }
}
