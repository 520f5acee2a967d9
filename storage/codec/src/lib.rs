//! The codecs of the payload columns: routed experts in a container of their own, token ids and log-probabilities as
//! plain little-endian lists.
//!
//! Takes plain arrays `[rows][layers][topk]` of expert ids (uint8, uint16 or int32, little-endian), gives one
//! container, and back: all of it, or some rows of some layers from those frames alone. Refuses ids that no expert
//! has, shapes that do not multiply out, and any container whose bytes contradict themselves; never panics on stored
//! bytes, and never allocates on their word alone.
//!
//! ```text
//!                 ┌───────────────────────── encode ─────────────────────────┐
//!  [row][layer][k]│ check ─▶ 64-token tiles ─▶ renumber by ─▶ sort, ─▶ Huffman│  container
//!  plain ids ────▶│ range    one plane a rank   popularity     gaps    (zstd) │────▶ head │ frame │ frame │ …
//!                 └───────────────────────────────────────(Mode::Set only)───┘             │
//!                 ┌──────────────── decode_slice(rows, layers) ──────────────┐             │
//!  plain ids ◀────│ the same backwards, on the frames that overlap the slice │◀── ranged reads of a blob
//!                 └──────────────────────────────────────────────────────────┘
//! ```
//!
//! Read first: [`RoutedView`] (what goes in), [`Mode`] (whether ranks are kept), [`Encoder`], [`Decoder`], and
//! [`Header`], which says which bytes hold which rows and layers.
//!
//! Invariants:
//!
//! 1. Decoding gives exactly the ids encoded: in order under [`Mode::Ranked`]; each top-k ascending, duplicates
//!    kept, under [`Mode::Set`].
//! 2. A frame needs nothing but the head: any slice decodes from the frames that overlap it.
//! 3. Equal input and options give equal bytes on every machine (for one release of zstd).
//!
//! # Byte layout, version 1
//!
//! All numbers are little-endian. The head:
//!
//! | offset | bytes | what |
//! | --- | --- | --- |
//! | 0 | 4 | `DRXE` |
//! | 4 | 1 | version, 1 |
//! | 5 | 1 | mode: 0 set, 1 ranked |
//! | 6 | 1 | type of the ids given: 1 uint8, 2 uint16, 4 int32 |
//! | 7 | 1 | flags: 1 wide (16-bit lanes, more than 256 experts), 2 mapped, 4 joined |
//! | 8 | 4 | rows |
//! | 12 | 2 | layers |
//! | 14 | 2 | topk |
//! | 16 | 4 | experts: every id is below |
//! | 20 | 4 | rows a frame (1,024) |
//! | 24 | 2 | layers a frame |
//! | 26 | 2 | zero |
//! | 28 | 4 | length of the head |
//! | 32 | 4 | length of the popularity map, 0 if not mapped |
//! | 36 | 4 | checksum of the head without these four bytes: low half of xxh3-64 |
//! | 40 | 8 a frame | length and checksum (low half of xxh3-64) of each frame; row blocks outside, layer groups inside |
//! | then | | popularity map: a zstd frame of, per layer, the expert ids by falling popularity (`experts` bytes a layer; where wide, the low bytes of all layers, then the high bytes) |
//!
//! Frames follow back to back. A frame is a table of 4-byte lengths, one a piece, then the pieces, each a zstd frame.
//! Uncompressed, the pieces of a frame are its planes `[rank][layer][row]` of bytes in order: one piece a plane, or
//! all planes in one piece where joined; where wide, all planes of low bytes (joined or not), then likewise those of
//! high bytes. To turn planes into ids: where the mode is set, add up the ranks (each plane but the first holds the
//! distance from the rank before); where mapped, replace each number `n` by the `n`-th id of its layer's map; where
//! the mode is set, sort.
//!
//! ```
//! use dressage_codec::{Dtype, Mode, RoutedView, decode_slice, encode};
//!
//! // Two tokens, one layer, top-4.
//! let view = RoutedView::new(&[9, 3, 120, 4, 77, 3, 5, 90], Dtype::Uint8, 2, 1, 4)?;
//! let ranked = encode(&view, Mode::Ranked, Some(128))?;
//! assert_eq!(decode_slice(&ranked, 1..2, 0..1)?.bytes, [77, 3, 5, 90]);
//! let set = encode(&view, Mode::Set, Some(128))?;
//! assert_eq!(decode_slice(&set, 1..2, 0..1)?.bytes, [3, 5, 77, 90]);
//! # Ok::<(), dressage_codec::Error>(())
//! ```

mod bytes;
mod decode;
mod encode;
mod entropy;
mod error;
mod header;
mod isa;
mod lanes;
mod lists;
mod network;
mod popularity;
mod rows;
pub mod synthetic;
mod view;

pub use decode::{DECODED_BYTES_MAX, Decoder, decode_all, decode_slice};
pub use encode::{EncodeOptions, Encoder, FRAME_TOKENS, encode};
pub use error::{Error, Result};
pub use header::{FIXED_BYTES, FrameRange, Header, Layout};
pub use lists::{pack_ids, pack_logprobs, unpack_ids, unpack_logprobs};
pub use rows::{concat, slice_rows};
pub use view::{Dtype, EXPERTS_MAX, LAYERS_MAX, Mode, ROWS_MAX, RoutedView, Routes, TOPK_MAX};
