//! Words between ranks, for what is said seldom: why a step is skipped, or a file was not written.

use tch::{Kind, Tensor};

use super::collectives::{Collectives, Reduce};
use crate::error::Result;

/// Longer words are cut off: an error message is no payload.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// What every rank says, in the order of ranks. All ranks call it together.
pub(crate) fn exchange_text(group: &dyn Collectives, text: &str) -> Result<Vec<String>> {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let bytes = &text.as_bytes()[..end];
    let longest = Tensor::f_from_slice(&[end as i64])?;
    group.all_reduce(&longest, Reduce::Max)?;
    // 8 bytes for the length of each, since texts are padded to the longest
    let width = 8 + usize::try_from(longest.f_int64_value(&[0])?).unwrap_or(0);
    let mut padded = (end as u64).to_le_bytes().to_vec();
    padded.extend_from_slice(bytes);
    padded.resize(width, 0);
    let part = Tensor::f_from_slice(&padded)?;
    let whole = Tensor::f_zeros([(width * group.world_size()) as i64], (Kind::Uint8, tch::Device::Cpu))?;
    group.all_gather(&whole, &part)?;
    let all = Vec::<u8>::try_from(whole)?;
    Ok(all.chunks(width).map(read).collect())
}

fn read(padded: &[u8]) -> String {
    let (length, bytes) = padded.split_at(8);
    let length = length.iter().rev().fold(0usize, |sum, byte| (sum << 8) | usize::from(*byte));
    String::from_utf8_lossy(&bytes[..length.min(bytes.len())]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Alone;

    #[test]
    fn words_come_back_whole_and_long_ones_cut_between_characters() {
        for text in ["", "rank 3: the loss is NaN", "größer"] {
            assert_eq!(exchange_text(&Alone, text).unwrap(), [text]);
        }
        let long = "ß".repeat(40 << 10);
        let found = exchange_text(&Alone, &long).unwrap().remove(0);
        assert_eq!(found.len(), TEXT_BYTES_MAX);
        assert!(long.starts_with(&found));
    }
}
