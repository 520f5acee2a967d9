//! The transforms between `[token][layer][rank]` ids and the planes that are compressed, 64 tokens at a time.
//!
//! ```text
//!   ids of one layer, 64 tokens        tile: one plane a rank, one lane a token
//!   t0: 17  3 88 …                     rank 0: 17  5  … (64 lanes)
//!   t1:  5 90 41 …    ── transpose ──▶ rank 1:  3 90  …     ── renumber ─▶ sort ─▶ gaps ──▶ out[rank][layer][token]
//!   …                                  rank 2: 88 41  …
//! ```
//!
//! Everything after the transpose is the same operation on all 64 lanes of a plane, so the compiler vectorises it
//! for whatever instruction set the caller was built for ([`crate::isa`]). A loop over the bytes of one token at a
//! time runs at a tenth of the speed.

use std::ops::Range;

use crate::isa::Isa;
use crate::view::{Dtype, TOPK_MAX};

/// Tokens a tile: one AVX-512 register of bytes, four SSE ones.
pub(crate) const LANES: usize = 64;
/// Ranks, and ids, that fit a machine word.
pub(crate) const OCTET: usize = 8;
/// Planes transposed at once, of as many layers as fit: their cache lines are read once, and all of it stays in L1.
const PLANES_MAX: usize = 2 * TOPK_MAX;

/// One rank of a tile.
pub(crate) type Plane<T> = [T; LANES];

/// An id as it is inside: one byte up to 256 experts, two beyond.
pub(crate) trait Lane: Copy + Ord + Default + Send + 'static {
    fn from_u16(value: u16) -> Self;
    fn index(self) -> usize;
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;

    /// Plain ids to lanes; `spare` is used where a conversion is needed. Also the largest id, read as unsigned.
    /// Ids that do not fit are truncated: the caller must look at the largest first.
    fn load<'a>(bytes: &'a [u8], dtype: Dtype, spare: &'a mut Vec<Self>) -> (&'a [Self], u32);

    /// Transposes the first `planes.len()` ids of the rows of a full tile, `stride` ids from row to row.
    fn gather_tile<I: Isa>(ids: &[Self], stride: usize, planes: &mut [Plane<Self>]);
    /// The way back.
    fn scatter_tile<I: Isa>(planes: &[Plane<Self>], stride: usize, ids: &mut [Self]);

    /// Sorts the lanes of eight planes, the one top-k that deserves code of its own.
    #[inline(always)]
    fn sort_eight<I: Isa>(planes: &mut [Plane<Self>; OCTET]) {
        for (low, high) in EXCHANGES_OF_EIGHT {
            exchange(planes, low, high);
        }
    }

    /// Replaces every lane `x` by `table[x]`.
    fn look_up<I: Isa>(table: &[Self], planes: &mut [Plane<Self>]);
}

impl Lane for u8 {
    #[inline(always)]
    fn from_u16(value: u16) -> Self {
        value as u8
    }

    #[inline(always)]
    fn index(self) -> usize {
        usize::from(self)
    }

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }

    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        self.wrapping_sub(other)
    }

    #[inline(always)]
    fn load<'a>(bytes: &'a [u8], dtype: Dtype, spare: &'a mut Vec<Self>) -> (&'a [Self], u32) {
        let mut largest = 0_u32;
        spare.clear();
        match dtype {
            Dtype::Uint8 => {
                let largest = bytes.iter().fold(0, |largest: u8, id| largest.max(*id));
                return (bytes, u32::from(largest));
            }
            Dtype::Uint16 => spare.extend(bytes.as_chunks::<2>().0.iter().map(|id| {
                let id = u16::from_le_bytes(*id);
                largest = largest.max(u32::from(id));
                id as u8
            })),
            Dtype::Int32 => spare.extend(bytes.as_chunks::<4>().0.iter().map(|id| {
                let id = u32::from_le_bytes(*id);
                largest = largest.max(id);
                id as u8
            })),
        }
        (spare, largest)
    }

    #[inline(always)]
    fn gather_tile<I: Isa>(ids: &[Self], stride: usize, planes: &mut [Plane<Self>]) {
        let (octets, rest) = planes.as_chunks_mut::<OCTET>();
        let first_of_rest = octets.len() * OCTET;
        for (octet, planes) in octets.iter_mut().enumerate() {
            I::gather_octet(&ids[octet * OCTET..], stride, planes);
        }
        gather_singly(&ids[first_of_rest..], stride, LANES, rest);
    }

    #[inline(always)]
    fn scatter_tile<I: Isa>(planes: &[Plane<Self>], stride: usize, ids: &mut [Self]) {
        let (octets, rest) = planes.as_chunks::<OCTET>();
        for (octet, planes) in octets.iter().enumerate() {
            I::scatter_octet(planes, stride, &mut ids[octet * OCTET..]);
        }
        scatter_singly(rest, stride, LANES, &mut ids[octets.len() * OCTET..]);
    }

    #[inline(always)]
    fn sort_eight<I: Isa>(planes: &mut [Plane<Self>; OCTET]) {
        I::sort_eight_bytes(planes);
    }

    #[inline(always)]
    fn look_up<I: Isa>(table: &[Self], planes: &mut [Plane<Self>]) {
        if let Some(table) = table.first_chunk::<256>() {
            I::look_up_bytes(table, planes);
        }
    }
}

impl Lane for u16 {
    #[inline(always)]
    fn from_u16(value: u16) -> Self {
        value
    }

    #[inline(always)]
    fn index(self) -> usize {
        usize::from(self)
    }

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }

    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        self.wrapping_sub(other)
    }

    #[inline(always)]
    fn load<'a>(bytes: &'a [u8], dtype: Dtype, spare: &'a mut Vec<Self>) -> (&'a [Self], u32) {
        let mut largest = 0_u32;
        spare.clear();
        match dtype {
            Dtype::Uint8 => spare.extend(bytes.iter().map(|id| {
                largest = largest.max(u32::from(*id));
                u16::from(*id)
            })),
            Dtype::Uint16 => spare.extend(bytes.as_chunks::<2>().0.iter().map(|id| {
                let id = u16::from_le_bytes(*id);
                largest = largest.max(u32::from(id));
                id
            })),
            Dtype::Int32 => spare.extend(bytes.as_chunks::<4>().0.iter().map(|id| {
                let id = u32::from_le_bytes(*id);
                largest = largest.max(id);
                id as u16
            })),
        }
        (spare, largest)
    }

    #[inline(always)]
    fn gather_tile<I: Isa>(ids: &[Self], stride: usize, planes: &mut [Plane<Self>]) {
        gather_singly(ids, stride, LANES, planes);
    }

    #[inline(always)]
    fn scatter_tile<I: Isa>(planes: &[Plane<Self>], stride: usize, ids: &mut [Self]) {
        scatter_singly(planes, stride, LANES, ids);
    }

    #[inline(always)]
    fn look_up<I: Isa>(table: &[Self], planes: &mut [Plane<Self>]) {
        let Some(last) = table.len().checked_sub(1) else { return };
        for lane in planes.as_flattened_mut() {
            // The clamp keeps lanes beyond the last token, whose contents are left over, inside the table.
            *lane = table[lane.index().min(last)];
        }
    }
}

/// Batcher's network of eight, as [`crate::network::exchanges`] gives it: known here so that its loop unrolls.
pub(crate) const EXCHANGES_OF_EIGHT: [(usize, usize); 19] = [
    (0, 4),
    (1, 5),
    (2, 6),
    (3, 7),
    (0, 2),
    (1, 3),
    (4, 6),
    (5, 7),
    (2, 4),
    (3, 5),
    (0, 1),
    (2, 3),
    (4, 5),
    (6, 7),
    (1, 4),
    (3, 6),
    (1, 2),
    (3, 4),
    (5, 6),
];

#[inline(always)]
fn exchange<T: Lane>(planes: &mut [Plane<T>], low: usize, high: usize) {
    if let Ok([a, b]) = planes.get_disjoint_mut([low, high]) {
        for (x, y) in a.iter_mut().zip(b) {
            (*x, *y) = ((*x).min(*y), (*x).max(*y));
        }
    }
}

/// Sorts every lane.
#[inline(always)]
fn sort<T: Lane, I: Isa>(planes: &mut [Plane<T>], network: &[(u8, u8)]) {
    if let Ok(planes) = <&mut [Plane<T>; OCTET]>::try_from(&mut *planes) {
        T::sort_eight::<I>(planes);
        return;
    }
    for &(low, high) in network {
        exchange(planes, usize::from(low), usize::from(high));
    }
}

/// Each plane but the first becomes its distance from the one before.
#[inline(always)]
fn to_gaps<T: Lane>(planes: &mut [Plane<T>]) {
    for rank in (1..planes.len()).rev() {
        let (below, here) = planes.split_at_mut(rank);
        if let (Some(before), Some(plane)) = (below.last(), here.first_mut()) {
            for (x, y) in plane.iter_mut().zip(before) {
                *x = x.minus(*y);
            }
        }
    }
}

/// The way back.
#[inline(always)]
fn from_gaps<T: Lane>(planes: &mut [Plane<T>]) {
    for rank in 1..planes.len() {
        let (below, here) = planes.split_at_mut(rank);
        if let (Some(before), Some(plane)) = (below.last(), here.first_mut()) {
            for (x, y) in plane.iter_mut().zip(before) {
                *x = x.plus(*y);
            }
        }
    }
}

/// Transposes the first `planes.len()` ids of up to 64 rows, one by one.
#[inline(always)]
fn gather_singly<T: Lane>(ids: &[T], stride: usize, tokens: usize, planes: &mut [Plane<T>]) {
    if planes.is_empty() {
        return;
    }
    for (lane, row) in ids.chunks(stride).take(tokens).enumerate() {
        for (plane, id) in planes.iter_mut().zip(row) {
            plane[lane] = *id;
        }
    }
}

/// The way back.
#[inline(always)]
fn scatter_singly<T: Lane>(planes: &[Plane<T>], stride: usize, tokens: usize, ids: &mut [T]) {
    if planes.is_empty() {
        return;
    }
    for (lane, row) in ids.chunks_mut(stride).take(tokens).enumerate() {
        for (plane, id) in planes.iter().zip(row) {
            *id = plane[lane];
        }
    }
}

/// Copies the first `tokens` lanes; a whole tile, which is nearly every one, as one vector.
#[inline(always)]
fn copy_lanes<T: Lane>(from: &[T], to: &mut [T], tokens: usize) {
    if tokens == LANES
        && let (Some(from), Some(to)) = (from.first_chunk::<LANES>(), to.first_chunk_mut::<LANES>())
    {
        *to = *from;
        return;
    }
    to[..tokens].copy_from_slice(&from[..tokens]);
}

/// What both directions need to know of a frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame<'a, T> {
    /// Rows of the block.
    pub(crate) rows: usize,
    /// Layers of the group.
    pub(crate) layers: usize,
    pub(crate) topk: usize,
    /// Whether ranks are dropped: sorted, and gaps.
    pub(crate) set: bool,
    pub(crate) network: &'a [(u8, u8)],
    /// Lookup tables of this group's layers, `table_stride` apart; empty if ids are not renumbered.
    pub(crate) tables: &'a [T],
    pub(crate) table_stride: usize,
}

impl<T: Lane> Frame<'_, T> {
    #[inline(always)]
    fn table(&self, layer: usize) -> Option<&[T]> {
        self.tables.get(layer * self.table_stride..(layer + 1) * self.table_stride).filter(|t| !t.is_empty())
    }
}

/// Ids to planes. `ids` starts at the group's first layer in the block's first row, `stride` ids a row; `out` is
/// `[rank][layer][token]`.
#[inline(always)]
pub(crate) fn forward<T: Lane, I: Isa>(frame: &Frame<'_, T>, ids: &[T], stride: usize, out: &mut [T]) {
    let mut tile = [[T::default(); LANES]; PLANES_MAX];
    let layers_at_once = PLANES_MAX / frame.topk;
    for start in (0..frame.rows).step_by(LANES) {
        let tokens = LANES.min(frame.rows - start);
        for first in (0..frame.layers).step_by(layers_at_once) {
            let planes = &mut tile[..layers_at_once.min(frame.layers - first) * frame.topk];
            let ids = &ids[start * stride + first * frame.topk..];
            if tokens == LANES {
                T::gather_tile::<I>(ids, stride, planes);
            } else {
                gather_singly(ids, stride, tokens, planes);
            }
            for (layer, planes) in (first..).zip(planes.chunks_exact_mut(frame.topk)) {
                if let Some(table) = frame.table(layer) {
                    T::look_up::<I>(table, planes);
                }
                if frame.set {
                    sort::<T, I>(planes, frame.network);
                    to_gaps(planes);
                }
                for (rank, plane) in planes.iter().enumerate() {
                    copy_lanes(plane, &mut out[(rank * frame.layers + layer) * frame.rows + start..], tokens);
                }
            }
        }
    }
}

/// Planes to ids, for `rows` × `layers` of the frame; `out` starts at the first of them in the first row, `stride`
/// ids a row. Gives the largest id or popularity number met: if it is not below the number of experts, the frame
/// was not made by us, and `out` holds nonsense.
#[inline(always)]
pub(crate) fn inverse<T: Lane, I: Isa>(
    frame: &Frame<'_, T>,
    source: &[T],
    rows: Range<usize>,
    layers: Range<usize>,
    out: &mut [T],
    stride: usize,
) -> T {
    let mut tile = [[T::default(); LANES]; PLANES_MAX];
    let layers_at_once = PLANES_MAX / frame.topk;
    let mut largest = [T::default(); LANES];
    for start in rows.clone().step_by(LANES) {
        let tokens = LANES.min(rows.end - start);
        for first in layers.clone().step_by(layers_at_once) {
            let planes = &mut tile[..layers_at_once.min(layers.end - first) * frame.topk];
            for (layer, planes) in (first..).zip(planes.chunks_exact_mut(frame.topk)) {
                for (rank, plane) in planes.iter_mut().enumerate() {
                    copy_lanes(&source[(rank * frame.layers + layer) * frame.rows + start..], plane, tokens);
                }
                if frame.set {
                    from_gaps(planes);
                }
                if tokens < LANES {
                    // What earlier tiles left in the other lanes would be taken for ids.
                    planes.iter_mut().for_each(|plane| plane[tokens..].fill(T::default()));
                }
                for plane in planes.iter() {
                    for (most, id) in largest.iter_mut().zip(plane) {
                        *most = (*most).max(*id);
                    }
                }
                if let Some(table) = frame.table(layer) {
                    T::look_up::<I>(table, planes);
                    if frame.set {
                        // Ascending by popularity is not ascending by id; the promise is the latter.
                        sort::<T, I>(planes, frame.network);
                    }
                }
            }
            let ids = &mut out[(start - rows.start) * stride + (first - layers.start) * frame.topk..];
            if tokens == LANES {
                T::scatter_tile::<I>(planes, stride, ids);
            } else {
                scatter_singly(planes, stride, tokens, ids);
            }
        }
    }
    largest.into_iter().max().unwrap_or_default()
}
