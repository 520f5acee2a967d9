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
const OCTET: usize = 8;

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

    /// Eight ranks of a full tile, `stride` ids from token to token.
    fn gather_octet(ids: &[Self], stride: usize, planes: &mut [Plane<Self>]);
    /// The way back.
    fn scatter_octet(planes: &[Plane<Self>], stride: usize, ids: &mut [Self]);

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
    fn gather_octet(ids: &[Self], stride: usize, planes: &mut [Plane<Self>]) {
        let mut words = [[0_u64; OCTET]; OCTET];
        for (lane, row) in ids.chunks(stride).take(LANES).enumerate() {
            if let Some(octet) = row.first_chunk::<OCTET>() {
                words[lane % OCTET][lane / OCTET] = u64::from_le_bytes(*octet);
            }
        }
        transpose(&mut words);
        for (plane, row) in planes.iter_mut().zip(&words) {
            for (octet, word) in plane.as_chunks_mut::<OCTET>().0.iter_mut().zip(row) {
                *octet = word.to_le_bytes();
            }
        }
    }

    #[inline(always)]
    fn scatter_octet(planes: &[Plane<Self>], stride: usize, ids: &mut [Self]) {
        let mut words = [[0_u64; OCTET]; OCTET];
        for (row, plane) in words.iter_mut().zip(planes) {
            for (word, octet) in row.iter_mut().zip(plane.as_chunks::<OCTET>().0) {
                *word = u64::from_le_bytes(*octet);
            }
        }
        transpose(&mut words);
        for (lane, row) in ids.chunks_mut(stride).take(LANES).enumerate() {
            if let Some(octet) = row.first_chunk_mut::<OCTET>() {
                *octet = words[lane % OCTET][lane / OCTET].to_le_bytes();
            }
        }
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
    fn gather_octet(ids: &[Self], stride: usize, planes: &mut [Plane<Self>]) {
        for (lane, row) in ids.chunks(stride).take(LANES).enumerate() {
            for (plane, id) in planes.iter_mut().zip(row) {
                plane[lane] = *id;
            }
        }
    }

    #[inline(always)]
    fn scatter_octet(planes: &[Plane<Self>], stride: usize, ids: &mut [Self]) {
        for (lane, row) in ids.chunks_mut(stride).take(LANES).enumerate() {
            for (plane, id) in planes.iter().zip(row) {
                *id = plane[lane];
            }
        }
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

/// Transposes eight 8 × 8 byte matrices at once: matrix `j` has the rows `words[0..8][j]`.
#[inline(always)]
fn transpose(words: &mut [[u64; OCTET]; OCTET]) {
    const STEPS: [(usize, u32, u64); 3] =
        [(4, 32, 0x0000_0000_ffff_ffff), (2, 16, 0x0000_ffff_0000_ffff), (1, 8, 0x00ff_00ff_00ff_00ff)];
    for (distance, shift, mask) in STEPS {
        for low in (0..OCTET).filter(|row| row & distance == 0) {
            let high = low + distance;
            for matrix in 0..OCTET {
                let swap = ((words[low][matrix] >> shift) ^ words[high][matrix]) & mask;
                words[high][matrix] ^= swap;
                words[low][matrix] ^= swap << shift;
            }
        }
    }
}

/// Sorts every lane.
#[inline(always)]
fn sort<T: Lane>(planes: &mut [Plane<T>], network: &[(u8, u8)]) {
    for &(low, high) in network {
        if let Ok([a, b]) = planes.get_disjoint_mut([usize::from(low), usize::from(high)]) {
            for (x, y) in a.iter_mut().zip(b) {
                (*x, *y) = ((*x).min(*y), (*x).max(*y));
            }
        }
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

/// Transposes up to 64 tokens of one layer into `planes`, one a rank. `ids` starts at the first token's first rank.
#[inline(always)]
fn gather<T: Lane>(ids: &[T], stride: usize, tokens: usize, planes: &mut [Plane<T>]) {
    let octets = if tokens == LANES { planes.len() / OCTET } else { 0 };
    let (whole, rest) = planes.split_at_mut(octets * OCTET);
    for (octet, planes) in whole.chunks_exact_mut(OCTET).enumerate() {
        T::gather_octet(&ids[octet * OCTET..], stride, planes);
    }
    if rest.is_empty() {
        return;
    }
    for (lane, row) in ids[octets * OCTET..].chunks(stride).take(tokens).enumerate() {
        for (plane, id) in rest.iter_mut().zip(row) {
            plane[lane] = *id;
        }
    }
}

/// The way back.
#[inline(always)]
fn scatter<T: Lane>(planes: &[Plane<T>], stride: usize, tokens: usize, ids: &mut [T]) {
    let octets = if tokens == LANES { planes.len() / OCTET } else { 0 };
    let (whole, rest) = planes.split_at(octets * OCTET);
    for (octet, planes) in whole.chunks_exact(OCTET).enumerate() {
        T::scatter_octet(planes, stride, &mut ids[octet * OCTET..]);
    }
    if rest.is_empty() {
        return;
    }
    for (lane, row) in ids[octets * OCTET..].chunks_mut(stride).take(tokens).enumerate() {
        for (plane, id) in rest.iter().zip(row) {
            *id = plane[lane];
        }
    }
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
    let mut tile = [[T::default(); LANES]; TOPK_MAX];
    let planes = &mut tile[..frame.topk];
    // Layers inside tiles: neighbouring layers share cache lines of the input.
    for start in (0..frame.rows).step_by(LANES) {
        let tokens = LANES.min(frame.rows - start);
        for layer in 0..frame.layers {
            gather(&ids[start * stride + layer * frame.topk..], stride, tokens, planes);
            if let Some(table) = frame.table(layer) {
                T::look_up::<I>(table, planes);
            }
            if frame.set {
                sort(planes, frame.network);
                to_gaps(planes);
            }
            for (rank, plane) in planes.iter().enumerate() {
                let at = (rank * frame.layers + layer) * frame.rows + start;
                out[at..at + tokens].copy_from_slice(&plane[..tokens]);
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
    let mut tile = [[T::default(); LANES]; TOPK_MAX];
    let planes = &mut tile[..frame.topk];
    let mut largest = [T::default(); LANES];
    for start in rows.clone().step_by(LANES) {
        let tokens = LANES.min(rows.end - start);
        for (position, layer) in layers.clone().enumerate() {
            for (rank, plane) in planes.iter_mut().enumerate() {
                let at = (rank * frame.layers + layer) * frame.rows + start;
                plane[..tokens].copy_from_slice(&source[at..at + tokens]);
            }
            if frame.set {
                from_gaps(planes);
            }
            for plane in planes.iter() {
                for (most, id) in largest[..tokens].iter_mut().zip(plane) {
                    *most = (*most).max(*id);
                }
            }
            if let Some(table) = frame.table(layer) {
                T::look_up::<I>(table, planes);
                if frame.set {
                    // Ascending by popularity is not ascending by id; the promise is the latter.
                    sort(planes, frame.network);
                }
            }
            scatter(planes, stride, tokens, &mut out[(start - rows.start) * stride + position * frame.topk..]);
        }
    }
    largest.into_iter().max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposing_moves_row_i_byte_j_to_row_j_byte_i() {
        let mut words = [[0_u64; OCTET]; OCTET];
        for (i, row) in words.iter_mut().enumerate() {
            for (matrix, word) in row.iter_mut().enumerate() {
                *word = u64::from_le_bytes(std::array::from_fn(|j| (matrix * 64 + i * 8 + j) as u8));
            }
        }
        transpose(&mut words);
        for (i, row) in words.iter().enumerate() {
            for (matrix, word) in row.iter().enumerate() {
                let expected: [u8; OCTET] = std::array::from_fn(|j| (matrix * 64 + j * 8 + i) as u8);
                assert_eq!(word.to_le_bytes(), expected);
            }
        }
    }
}
