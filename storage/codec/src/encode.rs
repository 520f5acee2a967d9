//! Plain router choices to a container.

use crate::bytes::ByteForm;
use crate::entropy::{Compressor, Effort};
use crate::error::{Error, Result};
use crate::header::{FrameEntry, Layout, checksum, head_len, write_head};
use crate::isa::Level;
use crate::lanes::Frame;
use crate::network::exchanges;
use crate::popularity::{Census, Maps, pays};
use crate::view::{Dtype, EXPERTS_MAX, Mode, RoutedView};

/// Rows a frame: small enough that a slice of a long segment reads little more than itself, large enough that tables
/// of lengths and of symbols vanish beside the payload.
pub const FRAME_TOKENS: usize = 1_024;
/// Bytes a plane of a frame should have before a Huffman table of its own is cheap (about 60 bytes).
const PLANE_BYTES: usize = 10 * FRAME_TOKENS;
/// Below this, all planes of a frame share one table.
const JOINED_PLANE_BYTES: usize = 4_096;

/// What the caller may choose.
#[derive(Debug, Clone, Copy)]
pub struct EncodeOptions {
    /// Whether ranks inside a top-k matter to the reader.
    pub mode: Mode,
    /// The model's number of experts: ids at or above it are refused. Without it the largest id sets the bound, and
    /// nothing is refused below the format's own limit.
    pub n_experts: Option<u32>,
    /// Rows a frame.
    pub frame_tokens: usize,
}

impl EncodeOptions {
    /// The defaults for `mode`.
    pub fn new(mode: Mode) -> Self {
        Self { mode, n_experts: None, frame_tokens: FRAME_TOKENS }
    }
}

/// Encodes one container after another, keeping its buffers. One a thread.
#[derive(Debug)]
pub struct Encoder {
    level: Level,
    compressor: Compressor,
    narrow: Buffers<u8>,
    wide: Buffers<u16>,
    halves: Vec<u8>,
}

#[derive(Debug, Default)]
struct Buffers<T> {
    ids: Vec<T>,
    planes: Vec<T>,
}

/// Encodes with an encoder made for this one call.
///
/// # Errors
/// Those of [`Encoder::encode`].
pub fn encode(view: &RoutedView<'_>, mode: Mode, n_experts: Option<u32>) -> Result<Vec<u8>> {
    Encoder::new()?.encode(view, &EncodeOptions { n_experts, ..EncodeOptions::new(mode) })
}

/// Layers a frame: as few as make planes of [`PLANE_BYTES`], in groups of even size, so that a pipeline stage reads
/// little more than its own layers.
fn layer_group(layers: usize, tokens: usize) -> usize {
    let wanted = PLANE_BYTES.div_ceil(tokens.max(1)).clamp(1, layers);
    layers.div_ceil((layers / wanted).max(1))
}

impl Encoder {
    /// Allocates a compression context.
    ///
    /// # Errors
    /// [`Error::Compressor`] if there is no memory for it.
    pub fn new() -> Result<Self> {
        Ok(Self {
            level: Level::detect(),
            compressor: Compressor::new()?,
            narrow: Buffers::default(),
            wide: Buffers::default(),
            halves: Vec::new(),
        })
    }

    /// One container of all rows of `view`.
    ///
    /// Duplicate ids in a top-k (padding rows, in practice) are kept in both modes.
    ///
    /// # Errors
    /// [`Error::IdOutOfRange`] for an id that is negative or not below the number of experts,
    /// [`Error::OutOfBounds`] for options the format does not hold, [`Error::Compressor`].
    pub fn encode(&mut self, view: &RoutedView<'_>, options: &EncodeOptions) -> Result<Vec<u8>> {
        let n_experts = match options.n_experts {
            Some(n) => n,
            None => self.largest(view).saturating_add(1),
        };
        // Where the id type holds fewer, that is the tighter bound.
        let n_experts = match view.dtype {
            Dtype::Uint8 => n_experts.min(256),
            Dtype::Uint16 => n_experts.min(65_536),
            Dtype::Int32 => n_experts,
        };
        if n_experts > EXPERTS_MAX && options.n_experts.is_none() {
            return Err(position_of_bad_id(view, EXPERTS_MAX));
        }
        let tokens = view.rows.min(options.frame_tokens);
        let layer_group = layer_group(view.layers, tokens);
        let layout = Layout {
            mode: options.mode,
            dtype: view.dtype,
            rows: view.rows,
            layers: view.layers,
            topk: view.topk,
            n_experts,
            frame_tokens: options.frame_tokens,
            layer_group,
            // Gaps differ from rank to rank, plain ids hardly do: ranked planes gain nothing by tables of their own,
            // and longer pieces decode faster.
            joined: options.mode == Mode::Ranked || tokens * layer_group < JOINED_PLANE_BYTES,
        };
        layout.check()?;
        if layout.wide() {
            let mut buffers = std::mem::take(&mut self.wide);
            let encoded = self.encode_lanes(view, &layout, &mut buffers);
            self.wide = buffers;
            encoded
        } else {
            let mut buffers = std::mem::take(&mut self.narrow);
            let encoded = self.encode_lanes(view, &layout, &mut buffers);
            self.narrow = buffers;
            encoded
        }
    }

    fn largest(&mut self, view: &RoutedView<'_>) -> u32 {
        (0..view.rows)
            .step_by(FRAME_TOKENS)
            .map(|start| {
                let rows = view.rows_bytes(start, view.rows.min(start + FRAME_TOKENS));
                self.level.load(rows, view.dtype, &mut self.narrow.ids).1
            })
            .max()
            .unwrap_or(0)
    }

    fn encode_lanes<T: ByteForm>(
        &mut self,
        view: &RoutedView<'_>,
        layout: &Layout,
        buffers: &mut Buffers<T>,
    ) -> Result<Vec<u8>> {
        let maps = if pays(layout) { Some(self.take_census(view, layout, &mut buffers.ids)?) } else { None };
        let map = maps.as_ref().map(|maps| maps.stored(layout, &mut self.compressor)).transpose()?.unwrap_or_default();
        let table_stride = maps.as_ref().map_or(0, |maps| maps.stride);
        let tables: Vec<T> = maps.map(|maps| Maps::table(&maps.number_of)).unwrap_or_default();
        let network = exchanges(layout.topk);
        let head = head_len(layout.blocks() * layout.groups(), map.len());
        let mut out = Vec::with_capacity(head + view.bytes.len() / view.dtype.size());
        out.resize(head, 0);
        let mut entries = Vec::with_capacity(layout.blocks() * layout.groups());
        for block in 0..layout.blocks() {
            let rows = layout.block_rows(block);
            let bytes = view.rows_bytes(rows.start, rows.end);
            let (ids, largest) = self.level.load(bytes, view.dtype, &mut buffers.ids);
            if largest >= layout.n_experts {
                return Err(position_of_bad_id(view, layout.n_experts));
            }
            for group in 0..layout.groups() {
                let layers = layout.group_layers(group);
                let frame = Frame {
                    rows: rows.len(),
                    layers: layers.len(),
                    topk: layout.topk,
                    set: layout.mode == Mode::Set,
                    network: &network,
                    tables: tables.get(layers.start * table_stride..layers.end * table_stride).unwrap_or_default(),
                    table_stride,
                };
                buffers.planes.resize(frame.rows * frame.layers * frame.topk, T::default());
                self.level.forward(&frame, &ids[layers.start * layout.topk..], view.row_ids(), &mut buffers.planes);
                let planes = T::split(&buffers.planes, &mut self.halves);
                entries.push(append_frame(&mut self.compressor, planes, layout, &mut out)?);
            }
        }
        write_head(layout, &entries, &map, &mut out[..head]);
        Ok(out)
    }

    fn take_census<T: ByteForm>(&self, view: &RoutedView<'_>, layout: &Layout, spare: &mut Vec<T>) -> Result<Maps> {
        let mut census = Census::new(layout);
        for row in (0..view.rows).step_by(census.step()) {
            let (ids, largest) = self.level.load(view.rows_bytes(row, row + 1), view.dtype, spare);
            if largest >= layout.n_experts {
                return Err(position_of_bad_id(view, layout.n_experts));
            }
            census.count(ids, layout.topk);
        }
        Ok(census.maps())
    }
}

/// Compresses the planes of one frame: lengths of its pieces, then the pieces.
fn append_frame(compressor: &mut Compressor, planes: &[u8], layout: &Layout, out: &mut Vec<u8>) -> Result<FrameEntry> {
    let start = out.len();
    let pieces = layout.pieces();
    let first_of_high = if layout.wide() { pieces / 2 } else { pieces };
    out.resize(start + 4 * pieces, 0);
    for (index, piece) in planes.chunks_exact(planes.len() / pieces).enumerate() {
        // High bytes of gaps are nearly all zero; those of plain ids are not, and there a search for runs finds none.
        let runs = index >= first_of_high && layout.mode == Mode::Set;
        let effort = if runs { Effort::Runs } else { Effort::Symbols };
        let length = compressor.append(piece, effort, out)? as u32;
        let at = start + 4 * index;
        out[at..at + 4].copy_from_slice(&length.to_le_bytes());
    }
    Ok(FrameEntry { length: (out.len() - start) as u32, checksum: checksum(&out[start..]) })
}

/// Finds the id that a block's maximum has given away.
#[cold]
fn position_of_bad_id(view: &RoutedView<'_>, n_experts: u32) -> Error {
    let id_at = |bytes: &[u8]| bytes.iter().rev().fold(0_u32, |id, byte| id << 8 | u32::from(*byte));
    let ids = view.bytes.chunks_exact(view.dtype.size()).map(id_at);
    let (at, id) = ids.enumerate().find(|(_, id)| *id >= n_experts).unwrap_or_default();
    Error::IdOutOfRange {
        id,
        row: at / view.row_ids(),
        layer: at % view.row_ids() / view.topk,
        rank: at % view.topk,
        n_experts,
    }
}
