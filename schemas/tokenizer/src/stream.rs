//! Decoding id by id: what is whole text is given at once, the bytes of a cut character wait.

use crate::{Result, Tokenizer};

/// Gives text as soon as it is whole; made by [`Tokenizer::stream`]. Holds back at most three bytes.
#[derive(Debug)]
pub struct DecodeStream<'a> {
    tokenizer: &'a Tokenizer,
    pending: Vec<u8>,
    at_start: bool,
}

impl<'a> DecodeStream<'a> {
    pub(crate) fn new(tokenizer: &'a Tokenizer) -> Self {
        Self { tokenizer, pending: Vec::new(), at_start: true }
    }

    /// The text that became whole with this id; empty while a character is incomplete. Bytes that can never become
    /// UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// An id that the vocabulary does not have; the stream goes on as if it had not been pushed.
    pub fn push(&mut self, id: i32) -> Result<String> {
        let Some(bytes) = self.tokenizer.token_bytes(id) else {
            let id_count = self.tokenizer.id_count();
            return Err(crate::Error::UnknownToken { id: i64::from(id), id_count });
        };
        let strips = self.at_start && self.tokenizer.table.strips_leading_space();
        self.at_start &= bytes.is_empty();
        self.pending.extend_from_slice(if strips { bytes.strip_prefix(b" ").unwrap_or(bytes) } else { bytes });
        let whole = self.pending.len() - incomplete_tail(&self.pending);
        let text = String::from_utf8_lossy(self.pending.get(..whole).unwrap_or_default()).into_owned();
        self.pending.drain(..whole);
        Ok(text)
    }

    /// What is left: a character that never became whole is U+FFFD.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.pending).into_owned()
    }
}

/// How many bytes at the end are the beginning of a character that may still be completed.
fn incomplete_tail(bytes: &[u8]) -> usize {
    let invalid = match std::str::from_utf8(bytes) {
        Ok(_) => return 0,
        Err(e) => e,
    };
    // only the last error can be an incomplete tail; earlier ones are bytes that never become text
    let mut rest = bytes.get(invalid.valid_up_to()..).unwrap_or_default();
    let mut error = invalid;
    loop {
        match error.error_len() {
            None => return rest.len(),
            Some(bad) => {
                rest = rest.get(bad..).unwrap_or_default();
                match std::str::from_utf8(rest) {
                    Ok(_) => return 0,
                    Err(e) => {
                        rest = rest.get(e.valid_up_to()..).unwrap_or_default();
                        error = e;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_character_that_can_still_be_completed_is_held_back() {
        assert_eq!(incomplete_tail("whole 🏷".as_bytes()), 0);
        assert_eq!(incomplete_tail(b"a\xf0\x9f"), 2);
        assert_eq!(incomplete_tail(b"a\xff"), 0);
        assert_eq!(incomplete_tail(b"\xffa\xe2\x82"), 2);
        assert_eq!(incomplete_tail(b"\xf0\x9f\xff"), 0);
    }
}
