//! A container, or those of its frames that a reader fetched, to plain router choices.

use std::ops::Range;

use zstd::zstd_safe::DCtx;

use crate::bytes::ByteForm;
use crate::entropy::expand;
use crate::error::{Error, Result};
use crate::header::{FrameRange, Header};
use crate::isa::Level;
use crate::lanes::Frame;
use crate::network::exchanges;
use crate::popularity::Maps;
use crate::view::{Dtype, Mode, Routes};

/// Default limit on what one call decodes to: some 100,000 tokens of 61 layers, top-8, as int32, twice over.
pub const DECODED_BYTES_MAX: u64 = 1 << 29;

/// Decodes one container after another, keeping its buffers. One a thread.
pub struct Decoder {
    level: Level,
    context: DCtx<'static>,
    bytes_max: u64,
    planes: Vec<u8>,
    narrow: Buffers<u8>,
    wide: Buffers<u16>,
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoder")
            .field("level", &self.level)
            .field("bytes_max", &self.bytes_max)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Buffers<T> {
    lanes: Vec<T>,
    block: Vec<T>,
}

/// Decodes everything, in the type the ids had when given.
///
/// # Errors
/// Those of [`Decoder::decode_slice`].
pub fn decode_all(container: &[u8]) -> Result<Routes> {
    let header = Header::parse(container)?;
    let layout = *header.layout();
    Decoder::new()?.decode_slice(container, 0..layout.rows, 0..layout.layers)
}

/// Decodes some rows of some layers, in the type the ids had when given. Frames outside the slice are not touched.
///
/// # Errors
/// Those of [`Decoder::decode_slice`].
pub fn decode_slice(container: &[u8], rows: Range<usize>, layers: Range<usize>) -> Result<Routes> {
    Decoder::new()?.decode_slice(container, rows, layers)
}

impl Decoder {
    /// Allocates a decompression context.
    ///
    /// # Errors
    /// [`Error::Compressor`] if there is no memory for it.
    pub fn new() -> Result<Self> {
        Ok(Self {
            level: Level::detect(),
            context: DCtx::try_create().ok_or(Error::Compressor { reason: "no memory for a context" })?,
            bytes_max: DECODED_BYTES_MAX,
            planes: Vec::new(),
            narrow: Buffers::default(),
            wide: Buffers::default(),
        })
    }

    /// Sets the limit on what one call may decode to ([`DECODED_BYTES_MAX`] unless set).
    #[must_use]
    pub fn with_bytes_max(mut self, bytes_max: u64) -> Self {
        self.bytes_max = bytes_max;
        self
    }

    /// Rows × layers of a whole container in memory.
    ///
    /// # Errors
    /// [`Error::SliceOutOfRange`], [`Error::TooLarge`], and the errors of corrupt or foreign bytes.
    pub fn decode_slice(&mut self, container: &[u8], rows: Range<usize>, layers: Range<usize>) -> Result<Routes> {
        let header = Header::parse(container)?;
        let dtype = header.layout().dtype;
        self.decode_frames(&header, rows, layers, dtype, |frame| {
            let start = usize::try_from(frame.bytes.start).ok()?;
            container.get(start..usize::try_from(frame.bytes.end).ok()?)
        })
    }

    /// Rows × layers as `dtype`, from frames that `fetched` has: it is called once for each of
    /// [`Header::frame_ranges`], in that order, and gives the frame's bytes.
    ///
    /// # Errors
    /// Those of [`decode_slice`](Self::decode_slice); [`Error::TooNarrow`] if ids might not fit `dtype`;
    /// [`Error::Corrupt`] too where `fetched` gives `None`.
    pub fn decode_frames<'a>(
        &mut self,
        header: &Header,
        rows: Range<usize>,
        layers: Range<usize>,
        dtype: Dtype,
        fetched: impl FnMut(&FrameRange) -> Option<&'a [u8]>,
    ) -> Result<Routes> {
        let mut bytes = Vec::new();
        self.decode_frames_into(header, rows.clone(), layers.clone(), dtype, fetched, &mut bytes)?;
        Ok(Routes { bytes, dtype, rows: rows.len(), layers: layers.len(), topk: header.layout().topk })
    }

    /// [`decode_frames`](Self::decode_frames) into a buffer that the caller keeps: its contents are replaced, and
    /// where its length was enough no memory is touched but by the ids themselves.
    ///
    /// # Errors
    /// Those of [`decode_frames`](Self::decode_frames); the buffer's contents are then unspecified.
    pub fn decode_frames_into<'a>(
        &mut self,
        header: &Header,
        rows: Range<usize>,
        layers: Range<usize>,
        dtype: Dtype,
        fetched: impl FnMut(&FrameRange) -> Option<&'a [u8]>,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let bytes = self.decoded_bytes(header, rows.len(), layers.len(), dtype)?;
        if out.is_empty() {
            // The allocator's zeroed pages are cheaper than writing zeros.
            *out = vec![0; bytes];
        } else {
            out.resize(bytes, 0);
        }
        self.decode_frames_to(header, rows, layers, dtype, fetched, out)
    }

    /// [`decode_frames`](Self::decode_frames) into a part of a larger buffer, which must have exactly the length.
    ///
    /// # Errors
    /// Those of [`decode_frames`](Self::decode_frames); [`Error::ShapeMismatch`] for another length.
    pub fn decode_frames_to<'a>(
        &mut self,
        header: &Header,
        rows: Range<usize>,
        layers: Range<usize>,
        dtype: Dtype,
        fetched: impl FnMut(&FrameRange) -> Option<&'a [u8]>,
        out: &mut [u8],
    ) -> Result<()> {
        let layout = header.layout();
        let frames = header.frame_ranges(rows.clone(), layers.clone())?;
        if out.len() != self.decoded_bytes(header, rows.len(), layers.len(), dtype)? {
            return Err(Error::ShapeMismatch {
                bytes: out.len(),
                rows: rows.len(),
                layers: layers.len(),
                topk: layout.topk,
                dtype: dtype.name(),
            });
        }
        let slice = Slice { header, frames: &frames, rows: rows.clone(), layers: layers.clone(), dtype };
        if layout.wide() {
            let mut buffers = std::mem::take(&mut self.wide);
            let decoded = self.decode_lanes(&slice, fetched, &mut buffers, out);
            self.wide = buffers;
            decoded
        } else {
            let mut buffers = std::mem::take(&mut self.narrow);
            let decoded = self.decode_lanes(&slice, fetched, &mut buffers, out);
            self.narrow = buffers;
            decoded
        }
    }

    /// What a slice decodes to, if it may.
    fn decoded_bytes(&self, header: &Header, rows: usize, layers: usize, dtype: Dtype) -> Result<usize> {
        let layout = header.layout();
        if Dtype::narrowest(layout.n_experts).size() > dtype.size() {
            return Err(Error::TooNarrow { n_experts: layout.n_experts, dtype: dtype.name() });
        }
        // Dimensions are bounded, but their product is what gets allocated: a few bytes can claim a lot of zeros.
        let bytes = [rows, layers, layout.topk, dtype.size()].iter().map(|n| *n as u128).product::<u128>();
        if bytes > u128::from(self.bytes_max) {
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            return Err(Error::TooLarge { bytes, bytes_max: self.bytes_max });
        }
        Ok(bytes as usize)
    }

    fn decode_lanes<'a, T: ByteForm>(
        &mut self,
        slice: &Slice<'_>,
        mut fetched: impl FnMut(&FrameRange) -> Option<&'a [u8]>,
        buffers: &mut Buffers<T>,
        out: &mut [u8],
    ) -> Result<()> {
        let layout = slice.header.layout();
        let network = exchanges(layout.topk);
        let maps = slice.header.maps.as_ref();
        let table_stride = maps.map_or(0, |maps| maps.stride);
        let tables: Vec<T> = maps.map(|maps| Maps::table(&maps.id_of)).unwrap_or_default();
        let row_ids = slice.layers.len() * layout.topk;
        for of_block in slice.frames.chunk_by(|a, b| a.block == b.block) {
            let Some(block) = of_block.first().map(|frame| frame.block) else { continue };
            let block_rows = layout.block_rows(block);
            let rows = slice.rows.start.max(block_rows.start)..slice.rows.end.min(block_rows.end);
            let row_bytes = row_ids * slice.dtype.size();
            let from = (rows.start - slice.rows.start) * row_bytes;
            let target = &mut out[from..from + rows.len() * row_bytes];
            let in_place = T::in_place(target, slice.dtype).is_some();
            if !in_place {
                buffers.block.resize(rows.len() * row_ids, T::default());
            }
            for range in of_block {
                let bytes = fetched(range).ok_or_else(|| corrupt("a frame is missing", range, 0))?;
                let group = layout.group_layers(range.group);
                let layers = slice.layers.start.max(group.start)..slice.layers.end.min(group.end);
                let frame = Frame {
                    rows: block_rows.len(),
                    layers: group.len(),
                    topk: layout.topk,
                    set: layout.mode == Mode::Set,
                    network: &network,
                    tables: tables.get(group.start * table_stride..group.end * table_stride).unwrap_or_default(),
                    table_stride,
                };
                self.expand_frame(slice.header, range, bytes, frame.rows * frame.layers)?;
                let lanes = T::merge(&self.planes, &mut buffers.lanes);
                let ids = T::in_place(target, slice.dtype).unwrap_or(&mut buffers.block);
                let largest = self.level.inverse(
                    &frame,
                    lanes,
                    rows.start - block_rows.start..rows.end - block_rows.start,
                    layers.start - group.start..layers.end - group.start,
                    &mut ids[(layers.start - slice.layers.start) * layout.topk..],
                    row_ids,
                );
                if largest.index() >= layout.n_experts as usize {
                    return Err(corrupt("an id is not below the number of experts", range, 0));
                }
            }
            if !in_place {
                T::store(&buffers.block, slice.dtype, target);
            }
        }
        Ok(())
    }

    /// Checks one frame and decompresses its pieces into `self.planes`.
    fn expand_frame(&mut self, header: &Header, range: &FrameRange, bytes: &[u8], plane_bytes: usize) -> Result<()> {
        let layout = header.layout();
        let entry = header.entries[range.block * layout.groups() + range.group];
        header.verify_frame(&entry, bytes, range.bytes.start as usize)?;
        let pieces = layout.pieces();
        let Some((lengths, mut rest)) = bytes.split_at_checked(4 * pieces) else {
            return Err(corrupt("a frame is shorter than its table", range, 0));
        };
        self.planes.resize(plane_bytes * layout.planes(), 0);
        let piece_bytes = self.planes.len() / pieces;
        for (length, out) in lengths.as_chunks::<4>().0.iter().zip(self.planes.chunks_exact_mut(piece_bytes)) {
            let Some((piece, after)) = rest.split_at_checked(u32::from_le_bytes(*length) as usize) else {
                return Err(corrupt("a piece runs past its frame", range, bytes.len() - rest.len()));
            };
            if !expand(&mut self.context, piece, out) {
                return Err(corrupt("a piece does not decompress to its length", range, bytes.len() - rest.len()));
            }
            rest = after;
        }
        if rest.is_empty() { Ok(()) } else { Err(corrupt("a frame goes on after its last piece", range, bytes.len())) }
    }
}

/// What is asked for.
struct Slice<'a> {
    header: &'a Header,
    frames: &'a [FrameRange],
    rows: Range<usize>,
    layers: Range<usize>,
    dtype: Dtype,
}

fn corrupt(what: &'static str, range: &FrameRange, within: usize) -> Error {
    Error::Corrupt { what, offset: range.bytes.start + within as u64 }
}
