//! The head of a container: everything needed to find and check its frames, without the frames.

use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};
use crate::popularity::Maps;
use crate::view::{Dtype, EXPERTS_MAX, LAYERS_MAX, Mode, TOPK_MAX, check_bound};

pub(crate) const MAGIC: [u8; 4] = *b"DRXE";
pub(crate) const VERSION: u8 = 1;
/// Length of the part of the head that is always there.
pub const FIXED_BYTES: usize = 40;
const TABLE_ENTRY_BYTES: usize = 8;
const CHECKSUM_AT: usize = 36;
/// Most tokens a frame.
pub(crate) const FRAME_TOKENS_MAX: usize = 65_536;
/// Most ids a frame: bounds what one frame can make a decoder allocate.
pub(crate) const FRAME_IDS_MAX: usize = 1 << 25;

pub(crate) const FLAG_WIDE: u8 = 1;
pub(crate) const FLAG_MAPPED: u8 = 2;
pub(crate) const FLAG_JOINED: u8 = 4;

/// The low half of xxh3-64.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    xxh3_64(bytes) as u32
}

/// One line of the frame table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameEntry {
    pub(crate) length: u32,
    pub(crate) checksum: u32,
}

/// The shape of a container, before it has frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Whether ranks inside a top-k are kept.
    pub mode: Mode,
    /// The type the ids had when given.
    pub dtype: Dtype,
    /// Rows.
    pub rows: usize,
    /// Layers.
    pub layers: usize,
    /// Ids a layer.
    pub topk: usize,
    /// Every id is below this.
    pub n_experts: u32,
    /// Rows a frame (the last may have fewer).
    pub frame_tokens: usize,
    /// Layers a frame (the last may have fewer).
    pub layer_group: usize,
    /// Whether all planes of a frame are one piece.
    pub(crate) joined: bool,
}

impl Layout {
    /// Whether ids take two bytes inside.
    pub(crate) fn wide(&self) -> bool {
        self.n_experts > 256
    }

    /// Row blocks.
    pub(crate) fn blocks(&self) -> usize {
        self.rows.div_ceil(self.frame_tokens)
    }

    /// Layer groups.
    pub(crate) fn groups(&self) -> usize {
        self.layers.div_ceil(self.layer_group)
    }

    pub(crate) fn block_rows(&self, block: usize) -> Range<usize> {
        let start = block * self.frame_tokens;
        start..(start + self.frame_tokens).min(self.rows)
    }

    pub(crate) fn group_layers(&self, group: usize) -> Range<usize> {
        let start = group * self.layer_group;
        start..(start + self.layer_group).min(self.layers)
    }

    /// Byte planes of a frame: one a rank, and one more each for the high bytes of wide ids.
    pub(crate) fn planes(&self) -> usize {
        self.topk * if self.wide() { 2 } else { 1 }
    }

    /// zstd frames that a frame's planes are cut into. High-byte planes never share a piece with low-byte planes.
    pub(crate) fn pieces(&self) -> usize {
        if self.joined { self.planes() / self.topk } else { self.planes() }
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_bound("layers", self.layers, 1, LAYERS_MAX)?;
        check_bound("topk", self.topk, 1, TOPK_MAX)?;
        check_bound("experts", self.n_experts as usize, 1, EXPERTS_MAX as usize)?;
        check_bound("tokens a frame", self.frame_tokens, 1, FRAME_TOKENS_MAX)?;
        check_bound("layers a frame", self.layer_group, 1, self.layers)?;
        let tokens = self.frame_tokens.min(self.rows.max(1));
        check_bound("ids a frame", tokens * self.layer_group * self.topk, 1, FRAME_IDS_MAX)
    }
}

/// Where one frame lies in its container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameRange {
    /// 0-based block of rows.
    pub block: usize,
    /// 0-based group of layers.
    pub group: usize,
    /// Byte range in the container.
    pub bytes: Range<u64>,
}

/// A parsed and checked head.
#[derive(Debug, Clone)]
pub struct Header {
    pub(crate) layout: Layout,
    pub(crate) entries: Vec<FrameEntry>,
    /// Offset of each frame, and the end of the last.
    pub(crate) offsets: Vec<u64>,
    pub(crate) maps: Option<Maps>,
}

fn u16_at(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn corrupt(what: &'static str, offset: usize) -> Error {
    Error::Corrupt { what, offset: offset as u64 }
}

impl Header {
    /// How long the head is, from its first [`FIXED_BYTES`]: what a ranged reader fetches second.
    ///
    /// # Errors
    /// [`Error::HeadIncomplete`] for fewer bytes, [`Error::NotAContainer`], [`Error::UnknownVersion`].
    pub fn head_bytes(bytes: &[u8]) -> Result<usize> {
        let magic = &bytes[..bytes.len().min(MAGIC.len())];
        if magic != &MAGIC[..magic.len()] {
            return Err(Error::NotAContainer { found: magic.to_vec() });
        }
        if bytes.len() < FIXED_BYTES {
            return Err(Error::HeadIncomplete { given: bytes.len(), needed: FIXED_BYTES });
        }
        if bytes[4] == 0 || bytes[4] > VERSION {
            return Err(Error::UnknownVersion { version: bytes[4], supported: VERSION });
        }
        let head = u32_at(bytes, 28) as usize;
        if head < FIXED_BYTES {
            return Err(corrupt("the head is shorter than its fixed part", 28));
        }
        Ok(head)
    }

    /// Parses the head; `bytes` may go on with frames, which are not looked at.
    ///
    /// # Errors
    /// Those of [`head_bytes`](Self::head_bytes), and [`Error::Corrupt`] for a head that contradicts itself.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let head_len = Self::head_bytes(bytes)?;
        let head = bytes.get(..head_len).ok_or(Error::HeadIncomplete { given: bytes.len(), needed: head_len })?;
        if u32_at(head, CHECKSUM_AT) != head_checksum(head) {
            return Err(corrupt("the head's checksum does not match", CHECKSUM_AT));
        }
        let flags = head[7];
        if flags & !(FLAG_WIDE | FLAG_MAPPED | FLAG_JOINED) != 0 {
            return Err(corrupt("unknown flags are set", 7));
        }
        let mode = match head[5] {
            0 => Mode::Set,
            1 => Mode::Ranked,
            _ => return Err(corrupt("the mode is neither set nor ranked", 5)),
        };
        let layout = Layout {
            mode,
            dtype: Dtype::from_code(head[6]).ok_or_else(|| corrupt("the id type is unknown", 6))?,
            rows: u32_at(head, 8) as usize,
            layers: u16_at(head, 12),
            topk: u16_at(head, 14),
            n_experts: u32_at(head, 16),
            frame_tokens: u32_at(head, 20) as usize,
            layer_group: u16_at(head, 24),
            joined: flags & FLAG_JOINED != 0,
        };
        layout.check().map_err(|_| corrupt("a dimension is out of bounds", 8))?;
        if layout.wide() != (flags & FLAG_WIDE != 0) {
            return Err(corrupt("the width flag disagrees with the number of experts", 7));
        }
        let frames = layout.blocks().checked_mul(layout.groups()).filter(|n| *n <= head_len / TABLE_ENTRY_BYTES);
        let frames = frames.ok_or_else(|| corrupt("the frame table is longer than the head", 20))?;
        let map_bytes = u32_at(head, 32) as usize;
        let table_end = FIXED_BYTES + frames * TABLE_ENTRY_BYTES;
        if table_end + map_bytes != head_len {
            return Err(corrupt("the parts of the head do not add up", 28));
        }
        let mut entries = Vec::with_capacity(frames);
        let mut offsets = Vec::with_capacity(frames + 1);
        let mut offset = head_len as u64;
        for entry in head[FIXED_BYTES..table_end].chunks_exact(TABLE_ENTRY_BYTES) {
            offsets.push(offset);
            let length = u32_at(entry, 0);
            entries.push(FrameEntry { length, checksum: u32_at(entry, 4) });
            offset += u64::from(length);
        }
        offsets.push(offset);
        let maps = match (flags & FLAG_MAPPED != 0, map_bytes) {
            (false, 0) => None,
            (true, 1..) => Some(
                Maps::parse(&head[table_end..], &layout)
                    .ok_or_else(|| corrupt("the popularity map is not a permutation", table_end))?,
            ),
            _ => return Err(corrupt("the map flag disagrees with the map's length", 32)),
        };
        Ok(Self { layout, entries, offsets, maps })
    }

    /// Shape and mode.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Length of the whole container.
    pub fn container_bytes(&self) -> u64 {
        self.offsets.last().copied().unwrap_or_default()
    }

    /// The byte ranges that hold `rows` × `layers`, in order: row blocks outside, layer groups inside. Neighbours
    /// are adjacent wherever all layers are asked for.
    ///
    /// # Errors
    /// [`Error::SliceOutOfRange`].
    pub fn frame_ranges(&self, rows: Range<usize>, layers: Range<usize>) -> Result<Vec<FrameRange>> {
        self.check_slice(&rows, &layers)?;
        if rows.is_empty() || layers.is_empty() {
            return Ok(Vec::new());
        }
        let layout = &self.layout;
        let blocks = rows.start / layout.frame_tokens..rows.end.div_ceil(layout.frame_tokens);
        let groups = layers.start / layout.layer_group..layers.end.div_ceil(layout.layer_group);
        let mut ranges = Vec::with_capacity(blocks.len() * groups.len());
        for block in blocks {
            for group in groups.clone() {
                let frame = block * layout.groups() + group;
                ranges.push(FrameRange { block, group, bytes: self.offsets[frame]..self.offsets[frame + 1] });
            }
        }
        Ok(ranges)
    }

    pub(crate) fn check_slice(&self, rows: &Range<usize>, layers: &Range<usize>) -> Result<()> {
        let sides = [("rows", rows, self.layout.rows), ("layers", layers, self.layout.layers)];
        for (what, range, available) in sides {
            if range.start > range.end || range.end > available {
                return Err(Error::SliceOutOfRange { what, start: range.start, end: range.end, available });
            }
        }
        Ok(())
    }

    /// Checks every frame of a whole container against the head, without decoding.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a wrong length or checksum.
    pub fn verify(&self, container: &[u8]) -> Result<()> {
        if container.len() as u64 != self.container_bytes() {
            return Err(corrupt("the container's length is not the sum of its parts", container.len()));
        }
        for (entry, start) in self.entries.iter().zip(&self.offsets) {
            let start = *start as usize;
            self.verify_frame(entry, &container[start..start + entry.length as usize], start)?;
        }
        Ok(())
    }

    pub(crate) fn verify_frame(&self, entry: &FrameEntry, frame: &[u8], offset: usize) -> Result<()> {
        if frame.len() != entry.length as usize || checksum(frame) != entry.checksum {
            return Err(corrupt("a frame's checksum does not match", offset));
        }
        Ok(())
    }
}

/// The checksum covers the head with the checksum's own field left out.
fn head_checksum(head: &[u8]) -> u32 {
    let mut hasher = xxhash_rust::xxh3::Xxh3::new();
    hasher.update(&head[..CHECKSUM_AT]);
    hasher.update(&head[CHECKSUM_AT + 4..]);
    hasher.digest() as u32
}

/// Writes the head of `layout` in front of the frames that `entries` describe.
pub(crate) fn write_head(layout: &Layout, entries: &[FrameEntry], map: &[u8], out: &mut [u8]) {
    let mut flags = 0;
    if layout.wide() {
        flags |= FLAG_WIDE;
    }
    if !map.is_empty() {
        flags |= FLAG_MAPPED;
    }
    if layout.joined {
        flags |= FLAG_JOINED;
    }
    let head_len = out.len() as u32;
    out[..4].copy_from_slice(&MAGIC);
    out[4] = VERSION;
    out[5] = match layout.mode {
        Mode::Set => 0,
        Mode::Ranked => 1,
    };
    out[6] = layout.dtype.code();
    out[7] = flags;
    out[8..12].copy_from_slice(&(layout.rows as u32).to_le_bytes());
    out[12..14].copy_from_slice(&(layout.layers as u16).to_le_bytes());
    out[14..16].copy_from_slice(&(layout.topk as u16).to_le_bytes());
    out[16..20].copy_from_slice(&layout.n_experts.to_le_bytes());
    out[20..24].copy_from_slice(&(layout.frame_tokens as u32).to_le_bytes());
    out[24..26].copy_from_slice(&(layout.layer_group as u16).to_le_bytes());
    out[26..28].fill(0);
    out[28..32].copy_from_slice(&head_len.to_le_bytes());
    out[32..36].copy_from_slice(&(map.len() as u32).to_le_bytes());
    let table_end = FIXED_BYTES + entries.len() * TABLE_ENTRY_BYTES;
    for (line, entry) in out[FIXED_BYTES..table_end].chunks_exact_mut(TABLE_ENTRY_BYTES).zip(entries) {
        line[..4].copy_from_slice(&entry.length.to_le_bytes());
        line[4..].copy_from_slice(&entry.checksum.to_le_bytes());
    }
    out[table_end..].copy_from_slice(map);
    let sum = head_checksum(out);
    out[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
}

/// Bytes that [`write_head`] needs.
pub(crate) fn head_len(frames: usize, map_bytes: usize) -> usize {
    FIXED_BYTES + frames * TABLE_ENTRY_BYTES + map_bytes
}
