//! Instruction sets: the same transforms compiled for what the machine has, chosen once at run time.
//!
//! Release binaries are built for the baseline of their target, so that one runs everywhere; the transforms would
//! then use 16-byte vectors and, for renumbering, no vector at all. Each entry here is the generic code of
//! [`crate::lanes`] inlined into a function that may use more, plus a table lookup written for it.

use std::ops::Range;

use crate::lanes::{self, EXCHANGES_OF_EIGHT, Frame, LANES, Lane, OCTET, Plane};
use crate::view::Dtype;

/// What is written by hand for an instruction set.
pub(crate) trait Isa {
    /// A byte-to-byte table lookup over planes.
    fn look_up_bytes(table: &[u8; 256], planes: &mut [Plane<u8>]);

    /// Transposes the first eight ids of 64 rows, `stride` ids from row to row.
    #[inline(always)]
    fn gather_octet(ids: &[u8], stride: usize, planes: &mut [Plane<u8>; OCTET]) {
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

    /// The way back.
    #[inline(always)]
    fn scatter_octet(planes: &[Plane<u8>; OCTET], stride: usize, ids: &mut [u8]) {
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

    /// Sorts the lanes of eight planes.
    #[inline(always)]
    fn sort_eight_bytes(planes: &mut [Plane<u8>; OCTET]) {
        for (low, high) in EXCHANGES_OF_EIGHT {
            if let Ok([a, b]) = planes.get_disjoint_mut([low, high]) {
                for (x, y) in a.iter_mut().zip(b) {
                    (*x, *y) = ((*x).min(*y), (*x).max(*y));
                }
            }
        }
    }
}

/// Transposes eight 8 × 8 byte matrices at once: matrix `j` has the rows `words[0..8][j]`.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "two rows are changed at once, which no iterator gives")]
fn transpose(words: &mut [[u64; OCTET]; OCTET]) {
    const STEPS: [(usize, u32, u64); 3] =
        [(4, 32, 0x0000_0000_ffff_ffff), (2, 16, 0x0000_ffff_0000_ffff), (1, 8, 0x00ff_00ff_00ff_00ff)];
    for (distance, shift, mask) in STEPS {
        for low in (0..OCTET).filter(|row| row & distance == 0) {
            if let Ok([low, high]) = words.get_disjoint_mut([low, low + distance]) {
                for (low, high) in low.iter_mut().zip(high) {
                    let swap = ((*low >> shift) ^ *high) & mask;
                    *high ^= swap;
                    *low ^= swap << shift;
                }
            }
        }
    }
}

/// Any machine.
pub(crate) struct Portable;

impl Isa for Portable {
    #[inline(always)]
    fn look_up_bytes(table: &[u8; 256], planes: &mut [Plane<u8>]) {
        for lane in planes.as_flattened_mut() {
            *lane = table[usize::from(*lane)];
        }
    }
}

/// What to run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// The best of this machine.
    pub(crate) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2");
            if avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vbmi")
            {
                return Self::Avx512;
            }
            if avx2 {
                return Self::Avx2;
            }
        }
        Self::Portable
    }

    /// All that this machine can run, for tests that compare them.
    #[cfg(test)]
    pub(crate) fn available() -> Vec<Self> {
        let mut levels = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") {
                levels.push(Self::Avx2);
            }
            if Self::detect() == Self::Avx512 {
                levels.push(Self::Avx512);
            }
        }
        levels
    }

    /// [`Lane::load`].
    pub(crate) fn load<'a, T: Lane>(self, bytes: &'a [u8], dtype: Dtype, spare: &'a mut Vec<T>) -> (&'a [T], u32) {
        match self {
            Self::Portable => T::load(bytes, dtype, spare),
            // SAFETY: these levels come from `detect` or `available`, which found the features.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { x86::load_avx2(bytes, dtype, spare) },
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe { x86::load_avx512(bytes, dtype, spare) },
        }
    }

    /// [`lanes::forward`].
    pub(crate) fn forward<T: Lane>(self, frame: &Frame<'_, T>, ids: &[T], stride: usize, out: &mut [T]) {
        match self {
            Self::Portable => lanes::forward::<T, Portable>(frame, ids, stride, out),
            // SAFETY: as in `load`.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { x86::forward_avx2(frame, ids, stride, out) },
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe { x86::forward_avx512(frame, ids, stride, out) },
        }
    }

    /// [`lanes::inverse`].
    pub(crate) fn inverse<T: Lane>(
        self,
        frame: &Frame<'_, T>,
        source: &[T],
        rows: Range<usize>,
        layers: Range<usize>,
        out: &mut [T],
        stride: usize,
    ) -> T {
        match self {
            Self::Portable => lanes::inverse::<T, Portable>(frame, source, rows, layers, out, stride),
            // SAFETY: as in `load`.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { x86::inverse_avx2(frame, source, rows, layers, out, stride) },
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe { x86::inverse_avx512(frame, source, rows, layers, out, stride) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[path = "isa_x86.rs"]
mod x86;

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

    #[test]
    fn every_level_transforms_alike_and_back() {
        let (rows, layers, topk) = (150, 3, 8);
        let mut state = 7_u32;
        let ids: Vec<u8> = (0..rows * layers * topk)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect();
        let number_of: Vec<u8> = (0..layers * 256).map(|i| (i as u8).wrapping_mul(77).wrapping_add(5)).collect();
        let mut id_of = vec![0; number_of.len()];
        for (i, number) in number_of.iter().enumerate() {
            id_of[i / 256 * 256 + usize::from(*number)] = i as u8;
        }
        let network = crate::network::exchanges(topk);
        let frame = |tables| Frame { rows, layers, topk, set: true, network: &network, tables, table_stride: 256 };
        let mut sorted = ids.clone();
        sorted.chunks_exact_mut(topk).for_each(<[u8]>::sort_unstable);
        let mut first: Option<Vec<u8>> = None;
        for level in Level::available() {
            let mut planes = vec![0; ids.len()];
            level.forward(&frame(&number_of), &ids, layers * topk, &mut planes);
            let mut back = vec![0; ids.len()];
            level.inverse(&frame(&id_of), &planes, 0..rows, 0..layers, &mut back, layers * topk);
            assert!(back == sorted, "{level:?}");
            assert!(*first.get_or_insert(planes.clone()) == planes, "{level:?}");
        }
    }
}
