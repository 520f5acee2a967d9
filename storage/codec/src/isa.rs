//! Instruction sets: the same transforms compiled for what the machine has, chosen once at run time.
//!
//! Release binaries are built for the baseline of their target, so that one runs everywhere; the transforms would
//! then use 16-byte vectors and, for renumbering, no vector at all. Each entry here is the generic code of
//! [`crate::lanes`] inlined into a function that may use more, plus a table lookup written for it.

use std::ops::Range;

use crate::lanes::{self, Frame, Lane, Plane};
use crate::view::Dtype;

/// A byte-to-byte table lookup over planes.
pub(crate) trait Isa {
    fn look_up_bytes(table: &[u8; 256], planes: &mut [Plane<u8>]);
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
mod x86 {
    use std::arch::x86_64::{
        __m256i, __m512i, _mm_loadu_si128, _mm256_adds_epu8, _mm256_broadcastsi128_si256, _mm256_loadu_si256,
        _mm256_or_si256, _mm256_set1_epi8, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_storeu_si256,
        _mm256_xor_si256, _mm512_loadu_si512, _mm512_mask_blend_epi8, _mm512_movepi8_mask, _mm512_permutex2var_epi8,
        _mm512_storeu_si512,
    };
    use std::ops::Range;

    use super::{Dtype, Frame, Isa, Lane, Plane, lanes};

    pub(super) struct Avx2;
    pub(super) struct Avx512;

    impl Isa for Avx2 {
        #[inline(always)]
        fn look_up_bytes(table: &[u8; 256], planes: &mut [Plane<u8>]) {
            // SAFETY: only the functions below use this type, and they require AVX2.
            unsafe { look_up_avx2(table, planes) }
        }
    }

    impl Isa for Avx512 {
        #[inline(always)]
        fn look_up_bytes(table: &[u8; 256], planes: &mut [Plane<u8>]) {
            // SAFETY: only the functions below use this type, and they require these features.
            unsafe { look_up_avx512(table, planes) }
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
}

#[cfg(test)]
mod tests {
    use super::*;

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
