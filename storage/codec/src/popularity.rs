//! Popularity maps: per layer, a permutation that numbers experts from the most to the least popular.
//!
//! Routers are skewed, each layer in its own way. Renumbered by popularity, all layers share one alphabet in which
//! small numbers are frequent, so one Huffman table serves a group of layers; and the sorted top-k starts with
//! small, crowded numbers, so its gaps cost less than gaps between arbitrary ids (0.65 becomes 0.61 of raw on the
//! synthetic routes). A map costs about `log2(n_experts)` bits an expert and layer, so short containers have none.

use zstd::zstd_safe::DCtx;

use crate::entropy::{Compressor, Effort, expand};
use crate::error::Result;
use crate::header::Layout;
use crate::lanes::Lane;

/// Above this many experts there is no map: it would outgrow the caches and its own gain.
const MAPPED_EXPERTS_MAX: u32 = 4_096;
/// Rows looked at to rank the experts: one in sixteen, within these bounds. More change the order of near-equals only,
/// and counting is the one part of encoding that goes id by id.
const SAMPLE_ROWS: std::ops::RangeInclusive<usize> = 512..=1_024;
const ROWS_PER_SAMPLE: usize = 16;
/// Ids an expert and layer from which a map pays for itself, with some margin.
const IDS_PER_EXPERT_MIN: usize = 48;

/// The maps of all layers.
#[derive(Debug, Clone)]
pub(crate) struct Maps {
    /// Entries a layer: at least 256, so that any byte can be looked up without a check.
    pub(crate) stride: usize,
    /// Popularity number of each id, per layer.
    pub(crate) number_of: Vec<u16>,
    /// Id of each popularity number, per layer.
    pub(crate) id_of: Vec<u16>,
}

/// Whether a map is worth its bytes.
pub(crate) fn pays(layout: &Layout) -> bool {
    layout.n_experts > 1
        && layout.n_experts <= MAPPED_EXPERTS_MAX
        && layout.rows.saturating_mul(layout.topk) >= IDS_PER_EXPERT_MIN * layout.n_experts as usize
}

/// Counts ids on a sample of rows. Feed it rows with [`Census::count`].
pub(crate) struct Census {
    counts: Vec<u32>,
    experts: usize,
    step: usize,
}

impl Census {
    pub(crate) fn new(layout: &Layout) -> Self {
        let experts = layout.n_experts as usize;
        // An odd step does not beat with the even periods of chat templates and padding.
        let sample = (layout.rows / ROWS_PER_SAMPLE).clamp(*SAMPLE_ROWS.start(), *SAMPLE_ROWS.end());
        let step = (layout.rows / sample).max(1) | 1;
        Self { counts: vec![0; experts * layout.layers], experts, step }
    }

    /// Every how many rows one is to be counted.
    pub(crate) fn step(&self) -> usize {
        self.step
    }

    /// Counts one row of checked ids.
    pub(crate) fn count<T: Lane>(&mut self, row: &[T], topk: usize) {
        for (ids, counts) in row.chunks_exact(topk).zip(self.counts.chunks_exact_mut(self.experts)) {
            for id in ids {
                counts[id.index()] += 1;
            }
        }
    }

    pub(crate) fn maps(&self) -> Maps {
        let mut orders = Vec::with_capacity(self.counts.len());
        for counts in self.counts.chunks_exact(self.experts) {
            let mut order: Vec<u16> = (0..self.experts).map(|id| id as u16).collect();
            order.sort_by_key(|id| (std::cmp::Reverse(counts[usize::from(*id)]), *id));
            orders.extend(order);
        }
        Maps::from_orders(&orders, self.experts)
    }
}

impl Maps {
    fn from_orders(orders: &[u16], experts: usize) -> Self {
        let stride = experts.max(256);
        let layers = orders.len() / experts;
        let mut number_of = vec![0; stride * layers];
        let mut id_of = vec![0; stride * layers];
        for (layer, order) in orders.chunks_exact(experts).enumerate() {
            for (number, id) in order.iter().enumerate() {
                id_of[layer * stride + number] = *id;
                number_of[layer * stride + usize::from(*id)] = number as u16;
            }
        }
        Self { stride, number_of, id_of }
    }

    /// The stored form: each layer's ids by falling popularity, low bytes of all, then high bytes where wide.
    pub(crate) fn stored(&self, layout: &Layout, compressor: &mut Compressor) -> Result<Vec<u8>> {
        let experts = layout.n_experts as usize;
        let ids = || self.id_of.chunks_exact(self.stride).flat_map(|layer| &layer[..experts]);
        let mut plain: Vec<u8> = ids().map(|id| *id as u8).collect();
        if layout.wide() {
            plain.extend(ids().map(|id| (*id >> 8) as u8));
        }
        let mut stored = Vec::new();
        compressor.append(&plain, Effort::Symbols, &mut stored)?;
        Ok(stored)
    }

    /// `None` unless each layer is a permutation of all experts.
    pub(crate) fn parse(stored: &[u8], layout: &Layout) -> Option<Self> {
        if layout.n_experts > MAPPED_EXPERTS_MAX {
            return None;
        }
        let experts = layout.n_experts as usize;
        let n_ids = experts * layout.layers;
        let mut plain = vec![0; n_ids * if layout.wide() { 2 } else { 1 }];
        if !expand(&mut DCtx::try_create()?, stored, &mut plain) {
            return None;
        }
        let (low, high) = plain.split_at(n_ids);
        let mut orders: Vec<u16> = low.iter().map(|byte| u16::from(*byte)).collect();
        for (id, byte) in orders.iter_mut().zip(high) {
            *id |= u16::from(*byte) << 8;
        }
        for order in orders.chunks_exact(experts) {
            let mut seen = vec![false; experts];
            for id in order {
                let slot = seen.get_mut(usize::from(*id))?;
                if std::mem::replace(slot, true) {
                    return None;
                }
            }
        }
        Some(Self::from_orders(&orders, experts))
    }

    /// One direction's table as lanes of the width in use.
    pub(crate) fn table<T: Lane>(numbers: &[u16]) -> Vec<T> {
        numbers.iter().map(|number| T::from_u16(*number)).collect()
    }
}
