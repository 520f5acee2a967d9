//! The framing of a record.

use super::crc32c::masked;

/// Length and its CRC.
const HEADER_BYTES: usize = 12;

/// The CRC of the data.
const FOOTER_BYTES: usize = 4;

/// A longer record is none of ours: a file whose length bytes are noise is not read as one huge record.
const RECORD_BYTES_MAX: u64 = 64 << 20;

/// Appends a record.
pub(super) fn frame(data: &[u8], out: &mut Vec<u8>) {
    let length = (data.len() as u64).to_le_bytes();
    out.extend_from_slice(&length);
    out.extend_from_slice(&masked(&length).to_le_bytes());
    out.extend_from_slice(data);
    out.extend_from_slice(&masked(data).to_le_bytes());
}

/// What comes next in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next<'a> {
    /// A whole record, and how many bytes it takes.
    Record {
        /// Its data.
        data: &'a [u8],
        /// With its frame.
        framed_bytes: usize,
    },
    /// Nothing: the file ends here.
    End,
    /// A record that was cut off, or that is followed by nothing and does not match its CRC.
    Torn,
    /// A record that does not match its CRC though others follow it.
    Damaged,
}

/// The record at the beginning of `bytes`.
pub(super) fn next(bytes: &[u8]) -> Next<'_> {
    if bytes.is_empty() {
        return Next::End;
    }
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else { return Next::Torn };
    let Some((length_crc, rest)) = rest.split_first_chunk::<4>() else { return Next::Torn };
    let size = u64::from_le_bytes(*length);
    if u32::from_le_bytes(*length_crc) != masked(length) || size > RECORD_BYTES_MAX {
        // the kernel may have written the size of a file without its last blocks, which then are zeros
        return if bytes.iter().all(|byte| *byte == 0) { Next::Torn } else { Next::Damaged };
    }
    let size = size as usize;
    if rest.len() < size + FOOTER_BYTES {
        return Next::Torn;
    }
    let (data, rest) = rest.split_at(size);
    let matches = rest.first_chunk::<4>().is_some_and(|crc| u32::from_le_bytes(*crc) == masked(data));
    match matches {
        true => Next::Record { data, framed_bytes: HEADER_BYTES + size + FOOTER_BYTES },
        false if rest.len() == FOOTER_BYTES => Next::Torn,
        false => Next::Damaged,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_anywhere_is_torn_and_a_flipped_byte_before_more_is_damage() {
        let mut bytes = Vec::new();
        frame(b"first", &mut bytes);
        let whole = bytes.len();
        assert_eq!(next(&bytes), Next::Record { data: b"first", framed_bytes: whole });
        assert_eq!(next(&[]), Next::End);
        for cut in 1..whole {
            assert_eq!(next(&bytes[..cut]), Next::Torn, "cut at {cut}");
        }
        let mut flipped = bytes.clone();
        flipped[HEADER_BYTES] ^= 1;
        assert_eq!(next(&flipped), Next::Torn);
        frame(b"second", &mut flipped);
        assert_eq!(next(&flipped), Next::Damaged);
        assert_eq!(next(&[0; 40]), Next::Torn);
    }
}
