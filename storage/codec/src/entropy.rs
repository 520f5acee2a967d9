//! Entropy coding of one piece: zstd with its match finder all but switched off and its Huffman coder forced on.
//!
//! Gaps between expert ids have no repeated strings worth finding, only a skewed alphabet. A strongly negative level
//! makes the match finder skip; but such levels also store literals uncompressed unless told otherwise, which is
//! what `ZSTD_c_literalCompressionMode` is for. zstd's safe bindings hide it behind a build feature that would
//! change zstd for every other crate of the build, so the one call is made here, through the raw bindings. Any zstd
//! can decode the result.

use std::ptr::NonNull;

use zstd::zstd_safe::{self, zstd_sys};

use crate::error::{Error, Result};

/// Beyond about -100 nothing gets faster; this is where it stays.
const SKIP_MATCHES_LEVEL: i32 = -1_000;
/// High bytes of wide gaps are nearly all zero: there the match finder is what pays.
const FIND_RUNS_LEVEL: i32 = 1;
/// `ZSTD_lcm_huffman` of zstd.h's `ZSTD_literalCompressionMode_e`.
const LITERALS_HUFFMAN: i32 = 1;

/// How a piece is to be compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Huffman only.
    Symbols,
    /// Matches too.
    Runs,
}

/// A reusable compression context.
pub(crate) struct Compressor {
    context: NonNull<zstd_sys::ZSTD_CCtx>,
    effort: Effort,
}

// SAFETY: a context has no ties to the thread that made it, and `&mut self` is needed for every use.
unsafe impl Send for Compressor {}

fn checked(code: usize) -> Result<usize> {
    // SAFETY: a pure function of its argument.
    if unsafe { zstd_sys::ZSTD_isError(code) } == 0 {
        return Ok(code);
    }
    Err(Error::Compressor { reason: zstd_safe::get_error_name(code) })
}

impl Compressor {
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: no precondition; null means out of memory and is checked.
        let context = NonNull::new(unsafe { zstd_sys::ZSTD_createCCtx() })
            .ok_or(Error::Compressor { reason: "no memory for a context" })?;
        let mut compressor = Self { context, effort: Effort::Symbols };
        compressor.set(zstd_sys::ZSTD_cParameter::ZSTD_c_experimentalParam5, LITERALS_HUFFMAN)?;
        compressor.set(zstd_sys::ZSTD_cParameter::ZSTD_c_compressionLevel, SKIP_MATCHES_LEVEL)?;
        Ok(compressor)
    }

    fn set(&mut self, parameter: zstd_sys::ZSTD_cParameter, value: i32) -> Result<()> {
        // SAFETY: the context is live until drop.
        checked(unsafe { zstd_sys::ZSTD_CCtx_setParameter(self.context.as_ptr(), parameter, value) }).map(drop)
    }

    /// Appends the compressed piece to `out`; gives its length.
    pub(crate) fn append(&mut self, piece: &[u8], effort: Effort, out: &mut Vec<u8>) -> Result<usize> {
        if effort != self.effort {
            let level = match effort {
                Effort::Symbols => SKIP_MATCHES_LEVEL,
                Effort::Runs => FIND_RUNS_LEVEL,
            };
            self.set(zstd_sys::ZSTD_cParameter::ZSTD_c_compressionLevel, level)?;
            self.effort = effort;
        }
        out.reserve(zstd_safe::compress_bound(piece.len()));
        let spare = out.spare_capacity_mut();
        // SAFETY: both pointers come from live slices whose lengths are passed; zstd writes at most the capacity.
        let written = checked(unsafe {
            zstd_sys::ZSTD_compress2(
                self.context.as_ptr(),
                spare.as_mut_ptr().cast(),
                spare.len(),
                piece.as_ptr().cast(),
                piece.len(),
            )
        })?;
        // SAFETY: zstd has initialised `written` bytes of the spare capacity, and says so only on success.
        unsafe { out.set_len(out.len() + written) };
        Ok(written)
    }
}

impl Drop for Compressor {
    fn drop(&mut self) {
        // SAFETY: made by ZSTD_createCCtx, freed once.
        unsafe { zstd_sys::ZSTD_freeCCtx(self.context.as_ptr()) };
    }
}

impl std::fmt::Debug for Compressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compressor").field("effort", &self.effort).finish_non_exhaustive()
    }
}

/// Decompresses `piece` into exactly `out`; `false` if it is not that.
pub(crate) fn expand(context: &mut zstd_safe::DCtx<'static>, piece: &[u8], out: &mut [u8]) -> bool {
    let expected = out.len();
    context.decompress(out, piece) == Ok(expected)
}
