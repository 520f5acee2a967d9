//! Token ids and log-probabilities as their columns keep them: 32-bit little-endian values, nothing else.

use crate::error::{Error, Result};

fn words(bytes: &[u8]) -> Result<&[[u8; 4]]> {
    match bytes.as_chunks::<4>() {
        (words, []) => Ok(words),
        _ => Err(Error::Corrupt { what: "a list of 32-bit values ends inside one", offset: bytes.len() as u64 }),
    }
}

/// Token ids to bytes.
pub fn pack_ids(ids: &[i32]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}

/// Bytes to token ids.
///
/// # Errors
/// [`Error::Corrupt`] if the length is not a multiple of four.
pub fn unpack_ids(bytes: &[u8]) -> Result<Vec<i32>> {
    Ok(words(bytes)?.iter().map(|word| i32::from_le_bytes(*word)).collect())
}

/// Log-probabilities to bytes; every bit pattern is kept, NaN included.
pub fn pack_logprobs(logprobs: &[f32]) -> Vec<u8> {
    logprobs.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Bytes to log-probabilities.
///
/// # Errors
/// [`Error::Corrupt`] if the length is not a multiple of four.
pub fn unpack_logprobs(bytes: &[u8]) -> Result<Vec<f32>> {
    Ok(words(bytes)?.iter().map(|word| f32::from_le_bytes(*word)).collect())
}
