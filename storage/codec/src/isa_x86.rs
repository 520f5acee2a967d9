//! The transforms for x86-64: AVX2, and AVX-512 with byte permutations (Ice Lake, Zen 4 and later).

use std::arch::x86_64::{
    __m128i, __m256i, __m512i, _mm_loadl_epi64, _mm_loadu_si128, _mm_storel_epi64, _mm_storeu_si128, _mm_unpackhi_epi8,
    _mm_unpackhi_epi64, _mm_unpacklo_epi8, _mm256_adds_epu8, _mm256_broadcastsi128_si256, _mm256_loadu_si256,
    _mm256_max_epu8, _mm256_min_epu8, _mm256_or_si256, _mm256_set1_epi8, _mm256_setzero_si256, _mm256_shuffle_epi8,
    _mm256_storeu_si256, _mm256_xor_si256, _mm512_loadu_si512, _mm512_mask_blend_epi8, _mm512_max_epu8,
    _mm512_min_epu8, _mm512_movepi8_mask, _mm512_permutex2var_epi8, _mm512_storeu_si512,
};
use std::ops::Range;

use super::{Dtype, Frame, Isa, LANES, Lane, OCTET, Plane, lanes};

pub(super) struct Avx2;
pub(super) struct Avx512;

impl Isa for Avx2 {
    #[inline(always)]
    fn look_up_bytes(table: &[u8; 256], planes: &mut [Plane<u8>]) {
        // SAFETY: only the functions below use this type, and they require AVX2.
        unsafe { look_up_avx2(table, planes) }
    }

    #[inline(always)]
    fn gather_octet(ids: &[u8], stride: usize, planes: &mut [Plane<u8>; OCTET]) {
        gather_octet(ids, stride, planes);
    }

    #[inline(always)]
    fn scatter_octet(planes: &[Plane<u8>; OCTET], stride: usize, ids: &mut [u8]) {
        scatter_octet(planes, stride, ids);
    }

    #[inline(always)]
    fn sort_eight_bytes(planes: &mut [Plane<u8>; OCTET]) {
        // SAFETY: as above.
        unsafe { sort_eight_avx2(planes) }
    }
}

impl Isa for Avx512 {
    #[inline(always)]
    fn look_up_bytes(table: &[u8; 256], planes: &mut [Plane<u8>]) {
        // SAFETY: only the functions below use this type, and they require these features.
        unsafe { look_up_avx512(table, planes) }
    }

    #[inline(always)]
    fn gather_octet(ids: &[u8], stride: usize, planes: &mut [Plane<u8>; OCTET]) {
        gather_octet(ids, stride, planes);
    }

    #[inline(always)]
    fn scatter_octet(planes: &[Plane<u8>; OCTET], stride: usize, ids: &mut [u8]) {
        scatter_octet(planes, stride, ids);
    }

    #[inline(always)]
    fn sort_eight_bytes(planes: &mut [Plane<u8>; OCTET]) {
        // SAFETY: as above.
        unsafe { sort_eight_avx512(planes) }
    }
}

/// Sixteen 16-byte tables, each consulted for the lanes that lie in it: `x ^ 16 j` is below 16 exactly there, and
/// adding 0x70 with saturation sets the top bit everywhere else, which makes the shuffle give zero.
#[inline]
#[target_feature(enable = "avx2")]
fn look_up_avx2(table: &[u8; 256], planes: &mut [Plane<u8>]) {
    let bias = _mm256_set1_epi8(0x70);
    // Tables of at most 128 used entries are common; the upper half of a longer one costs as much again.
    let used = 16 - table.as_chunks::<16>().0.iter().rev().take_while(|part| **part == [0; 16]).count();
    for chunk in planes.as_flattened_mut().as_chunks_mut::<32>().0 {
        // SAFETY: the pointer is to 32 bytes of `chunk`.
        let index = unsafe { _mm256_loadu_si256(chunk.as_ptr().cast::<__m256i>()) };
        let mut found = _mm256_setzero_si256();
        for (part, entries) in table.as_chunks::<16>().0.iter().enumerate().take(used) {
            // SAFETY: the pointer is to 16 bytes of `entries`.
            let entries = _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(entries.as_ptr().cast()) });
            let local = _mm256_xor_si256(index, _mm256_set1_epi8((part << 4) as i8));
            found = _mm256_or_si256(found, _mm256_shuffle_epi8(entries, _mm256_adds_epu8(local, bias)));
        }
        // SAFETY: the pointer is to 32 bytes of `chunk`.
        unsafe { _mm256_storeu_si256(chunk.as_mut_ptr().cast::<__m256i>(), found) };
    }
}

#[inline]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512vbmi")]
fn look_up_avx512(table: &[u8; 256], planes: &mut [Plane<u8>]) {
    let mut parts = [_mm512_setzero(); 4];
    for (part, entries) in parts.iter_mut().zip(table.as_chunks::<64>().0) {
        // SAFETY: the pointer is to 64 bytes of `entries`.
        *part = unsafe { _mm512_loadu_si512(entries.as_ptr().cast::<__m512i>()) };
    }
    for plane in planes {
        // SAFETY: a plane of bytes is 64 bytes.
        let index = unsafe { _mm512_loadu_si512(plane.as_ptr().cast::<__m512i>()) };
        let low = _mm512_permutex2var_epi8(parts[0], index, parts[1]);
        let high = _mm512_permutex2var_epi8(parts[2], index, parts[3]);
        let found = _mm512_mask_blend_epi8(_mm512_movepi8_mask(index), low, high);
        // SAFETY: a plane of bytes is 64 bytes.
        unsafe { _mm512_storeu_si512(plane.as_mut_ptr().cast::<__m512i>(), found) };
    }
}

/// Rows a step of the transposes below.
const ROWS: usize = 16;

/// Interleaves the bytes of `from[i]` and `from[i + half]`: the low halves to `to[2 i]`, the high ones to `to[2 i + 1]`
/// of each run. Four such steps transpose, because each moves one bit of the row number below the column number.
#[inline(always)]
fn interleave(from: [__m128i; OCTET], pairs: [(usize, usize); 4]) -> [__m128i; OCTET] {
    let mut to = from;
    for (pair, (a, b)) in pairs.into_iter().enumerate() {
        // SAFETY: SSE2 is part of x86-64.
        to[2 * pair] = unsafe { _mm_unpacklo_epi8(from[a], from[b]) };
        // SAFETY: as above.
        to[2 * pair + 1] = unsafe { _mm_unpackhi_epi8(from[a], from[b]) };
    }
    to
}

/// 64 rows of eight bytes to eight planes. Straight from the rows to registers: going through memory in words, as the
/// portable form does, makes each wide load wait for narrow stores.
#[inline(always)]
fn gather_octet(ids: &[u8], stride: usize, planes: &mut [Plane<u8>; OCTET]) {
    assert!(ids.len() >= (LANES - 1) * stride + OCTET, "a full tile has 64 rows");
    for first in (0..LANES).step_by(ROWS) {
        // SAFETY: the assertion holds for the last row of the tile, and so for every one.
        let row = |i: usize| unsafe { _mm_loadl_epi64(ids.as_ptr().add((first + i) * stride).cast()) };
        // SAFETY: SSE2 is part of x86-64.
        let halves = std::array::from_fn(|i| unsafe { _mm_unpacklo_epi8(row(i), row(i + 8)) });
        // After this step index 2 i + h holds columns 4 h.. of rows i, i + 4, i + 8, i + 12.
        let fours = interleave(halves, [(0, 4), (1, 5), (2, 6), (3, 7)]);
        // Index 4 i + 2 h + q: columns 4 h + 2 q.. of the even (i = 0) or odd rows.
        let twos = interleave(fours, [(0, 4), (1, 5), (2, 6), (3, 7)]);
        let ranks = interleave(twos, [(0, 4), (1, 5), (2, 6), (3, 7)]);
        for (plane, rank) in planes.iter_mut().zip(ranks) {
            // SAFETY: `first` leaves at least 16 lanes of the plane.
            unsafe { _mm_storeu_si128(plane.as_mut_ptr().add(first).cast(), rank) };
        }
    }
}

/// The way back.
#[inline(always)]
fn scatter_octet(planes: &[Plane<u8>; OCTET], stride: usize, ids: &mut [u8]) {
    assert!(ids.len() >= (LANES - 1) * stride + OCTET, "a full tile has 64 rows");
    for first in (0..LANES).step_by(ROWS) {
        // SAFETY: `first` leaves at least 16 lanes of each plane.
        let ranks = std::array::from_fn(|i| unsafe { _mm_loadu_si128(planes[i].as_ptr().add(first).cast()) });
        // Ranks c and c + 4, then two apart, then neighbours: eight consecutive bytes of a row in the end.
        let twos = interleave(ranks, [(0, 4), (1, 5), (2, 6), (3, 7)]);
        let fours = interleave(twos, [(0, 4), (1, 5), (2, 6), (3, 7)]);
        let rows = interleave(fours, [(0, 4), (1, 5), (2, 6), (3, 7)]);
        for (pair, two_rows) in rows.into_iter().enumerate() {
            // SAFETY: the assertion holds for the last row of the tile, and so for every one; SSE2 is part of x86-64.
            unsafe {
                let row = ids.as_mut_ptr().add((first + 2 * pair) * stride);
                _mm_storel_epi64(row.cast(), two_rows);
                _mm_storel_epi64(row.add(stride).cast(), _mm_unpackhi_epi64(two_rows, two_rows));
            }
        }
    }
}

/// Runs the network of eight on named registers: with constant places the array never touches memory.
macro_rules! sort_registers {
    ($ranks:ident, $min:ident, $max:ident) => {
        sort_registers!(@ $ranks, $min, $max;
            (0 4) (1 5) (2 6) (3 7) (0 2) (1 3) (4 6) (5 7) (2 4) (3 5)
            (0 1) (2 3) (4 5) (6 7) (1 4) (3 6) (1 2) (3 4) (5 6))
    };
    (@ $ranks:ident, $min:ident, $max:ident; $(($low:literal $high:literal))*) => {
        $(($ranks[$low], $ranks[$high]) =
            ($min($ranks[$low], $ranks[$high]), $max($ranks[$low], $ranks[$high]));)*
    };
}

#[inline]
#[target_feature(enable = "avx2")]
fn sort_eight_avx2(planes: &mut [Plane<u8>; OCTET]) {
    for half in 0..2 {
        // SAFETY: each half is 32 of a plane's 64 bytes.
        let mut ranks: [__m256i; OCTET] = std::array::from_fn(|rank| unsafe {
            _mm256_loadu_si256(planes[rank].as_ptr().add(half * 32).cast::<__m256i>())
        });
        sort_registers!(ranks, _mm256_min_epu8, _mm256_max_epu8);
        for (plane, rank) in planes.iter_mut().zip(ranks) {
            // SAFETY: as above.
            unsafe { _mm256_storeu_si256(plane.as_mut_ptr().add(half * 32).cast::<__m256i>(), rank) };
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512vbmi")]
fn sort_eight_avx512(planes: &mut [Plane<u8>; OCTET]) {
    // SAFETY: a plane of bytes is 64 bytes.
    let mut ranks: [__m512i; OCTET] =
        std::array::from_fn(|rank| unsafe { _mm512_loadu_si512(planes[rank].as_ptr().cast::<__m512i>()) });
    sort_registers!(ranks, _mm512_min_epu8, _mm512_max_epu8);
    for (plane, rank) in planes.iter_mut().zip(ranks) {
        // SAFETY: as above.
        unsafe { _mm512_storeu_si512(plane.as_mut_ptr().cast::<__m512i>(), rank) };
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn _mm512_setzero() -> __m512i {
    std::arch::x86_64::_mm512_setzero_si512()
}

#[target_feature(enable = "avx2")]
pub(super) fn load_avx2<'a, T: Lane>(bytes: &'a [u8], dtype: Dtype, spare: &'a mut Vec<T>) -> (&'a [T], u32) {
    T::load(bytes, dtype, spare)
}

#[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512vbmi")]
pub(super) fn load_avx512<'a, T: Lane>(bytes: &'a [u8], dtype: Dtype, spare: &'a mut Vec<T>) -> (&'a [T], u32) {
    T::load(bytes, dtype, spare)
}

#[target_feature(enable = "avx2")]
pub(super) fn forward_avx2<T: Lane>(frame: &Frame<'_, T>, ids: &[T], stride: usize, out: &mut [T]) {
    lanes::forward::<T, Avx2>(frame, ids, stride, out);
}

#[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512vbmi")]
pub(super) fn forward_avx512<T: Lane>(frame: &Frame<'_, T>, ids: &[T], stride: usize, out: &mut [T]) {
    lanes::forward::<T, Avx512>(frame, ids, stride, out);
}

#[target_feature(enable = "avx2")]
pub(super) fn inverse_avx2<T: Lane>(
    frame: &Frame<'_, T>,
    source: &[T],
    rows: Range<usize>,
    layers: Range<usize>,
    out: &mut [T],
    stride: usize,
) -> T {
    lanes::inverse::<T, Avx2>(frame, source, rows, layers, out, stride)
}

#[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512vbmi")]
pub(super) fn inverse_avx512<T: Lane>(
    frame: &Frame<'_, T>,
    source: &[T],
    rows: Range<usize>,
    layers: Range<usize>,
    out: &mut [T],
    stride: usize,
) -> T {
    lanes::inverse::<T, Avx512>(frame, source, rows, layers, out, stride)
}
