//! Lanes to byte planes and plain arrays, and back.

use crate::lanes::Lane;
use crate::view::Dtype;

/// How a lane type meets bytes. Bytes are their own byte planes; 16-bit lanes are cut in low and high halves, so that
/// the rare high bytes do not spoil the alphabet of the low ones.
pub(crate) trait ByteForm: Lane {
    /// Planes as bytes: all low bytes, then all high ones where there are any.
    fn split<'a>(planes: &'a [Self], spare: &'a mut Vec<u8>) -> &'a [u8];
    /// The way back.
    fn merge<'a>(bytes: &'a [u8], spare: &'a mut Vec<Self>) -> &'a [Self];
    /// The output itself as lanes, where the two are the same.
    fn in_place(out: &mut [u8], dtype: Dtype) -> Option<&mut [Self]>;
    /// Lanes to a plain array of as many ids.
    fn store(lanes: &[Self], dtype: Dtype, out: &mut [u8]);
}

fn store_as<T: Lane>(lanes: &[T], dtype: Dtype, out: &mut [u8]) {
    match dtype {
        Dtype::Uint8 => out.iter_mut().zip(lanes).for_each(|(id, lane)| *id = lane.index() as u8),
        Dtype::Uint16 => {
            for (id, lane) in out.as_chunks_mut::<2>().0.iter_mut().zip(lanes) {
                *id = (lane.index() as u16).to_le_bytes();
            }
        }
        Dtype::Int32 => {
            for (id, lane) in out.as_chunks_mut::<4>().0.iter_mut().zip(lanes) {
                *id = (lane.index() as u32).to_le_bytes();
            }
        }
    }
}

impl ByteForm for u8 {
    fn split<'a>(planes: &'a [Self], _spare: &'a mut Vec<u8>) -> &'a [u8] {
        planes
    }

    fn merge<'a>(bytes: &'a [u8], _spare: &'a mut Vec<Self>) -> &'a [Self] {
        bytes
    }

    fn in_place(out: &mut [u8], dtype: Dtype) -> Option<&mut [Self]> {
        (dtype == Dtype::Uint8).then_some(out)
    }

    fn store(lanes: &[Self], dtype: Dtype, out: &mut [u8]) {
        store_as(lanes, dtype, out);
    }
}

impl ByteForm for u16 {
    fn split<'a>(planes: &'a [Self], spare: &'a mut Vec<u8>) -> &'a [u8] {
        spare.clear();
        spare.extend(planes.iter().map(|lane| *lane as u8));
        spare.extend(planes.iter().map(|lane| (*lane >> 8) as u8));
        spare
    }

    fn merge<'a>(bytes: &'a [u8], spare: &'a mut Vec<Self>) -> &'a [Self] {
        let (low, high) = bytes.split_at(bytes.len() / 2);
        spare.clear();
        spare.extend(low.iter().zip(high).map(|(low, high)| u16::from_le_bytes([*low, *high])));
        spare
    }

    fn in_place(_out: &mut [u8], _dtype: Dtype) -> Option<&mut [Self]> {
        None
    }

    fn store(lanes: &[Self], dtype: Dtype, out: &mut [u8]) {
        store_as(lanes, dtype, out);
    }
}
