//! JSON as it is found in the wild: strict where it is JSON, and a stated reading of what Python, JavaScript and
//! crashed writers produce instead.
//!
//! Beyond JSON, [`parse`] accepts bare `NaN` and `Infinity` (null), lone surrogate escapes and invalid UTF-8 (U+FFFD),
//! and raw control characters in strings; [`Notes`] says which of these it met. [`recover`] finds the complete values
//! in a line that holds several, or a cut one and a good one.

mod recover;
mod repair;
mod scan;

use serde_json::Value;

pub use recover::{Part, recover};
pub use repair::repair;
pub use scan::{first_object_keys, value_end};

/// What a value held that JSON does not allow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Notes {
    /// Bare `NaN`, `Infinity` or `-Infinity`, read as null.
    pub nonfinite: u32,
    /// Lone surrogate escapes or invalid UTF-8, read as U+FFFD.
    pub lone_surrogates: u32,
    /// Raw control characters in strings (a newline, NUL), kept.
    pub control_characters: u32,
}

/// Why some bytes are no JSON value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// Where in the bytes.
    pub byte_offset: usize,
    /// What was wrong there.
    pub reason: String,
    /// The bytes ended in the middle of a value.
    pub cut: bool,
}

/// Reads one JSON value that fills `bytes` (white space around it aside).
///
/// # Errors
/// [`Broken`] where it is no JSON even with the readings above.
pub fn parse(bytes: &[u8]) -> Result<(Value, Notes), Broken> {
    match serde_json::from_slice(bytes) {
        Ok(value) => Ok((value, Notes::default())),
        Err(_) => {
            let end = value_end(bytes, 0)?;
            if let Some(at) = bytes[end..].iter().position(|b| !b.is_ascii_whitespace()) {
                let reason = "another value follows the first".to_owned();
                return Err(Broken { byte_offset: end + at, reason, cut: false });
            }
            let (repaired, notes) = repair(bytes);
            let value = serde_json::from_slice(&repaired).map_err(|error| Broken {
                byte_offset: 0,
                reason: error.to_string(),
                cut: false,
            })?;
            Ok((value, notes))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bare_nan_and_infinities_become_null_and_are_noted() {
        let (value, notes) = parse(br#"{"a":[-0.5,NaN,-Infinity,Infinity],"NaN":"NaN"}"#).unwrap();
        assert_eq!(value, json!({"a": [-0.5, null, null, null], "NaN": "NaN"}));
        assert_eq!(notes.nonfinite, 3);
    }

    #[test]
    fn lone_surrogates_become_the_replacement_character_and_pairs_stay() {
        let (value, notes) = parse(br#"["a\ud83c...","b\ude00","c\ud83d\ude00","\\ud83c"]"#).unwrap();
        assert_eq!(value, json!(["a\u{fffd}...", "b\u{fffd}", "c\u{1f600}", "\\ud83c"]));
        assert_eq!(notes.lone_surrogates, 2);
    }

    #[test]
    fn raw_newlines_and_nuls_in_strings_are_kept() {
        let (value, notes) = parse(b"{\"a\":\"x\ny\0\"}").unwrap();
        assert_eq!(value, json!({"a": "x\ny\u{0}"}));
        assert_eq!(notes.control_characters, 2);
    }

    #[test]
    fn invalid_utf8_is_replaced_and_noted() {
        let (value, notes) = parse(b"[\"a\xffb\"]").unwrap();
        assert_eq!(value, json!(["a\u{fffd}b"]));
        assert_eq!(notes.lone_surrogates, 1);
    }

    #[test]
    fn a_cut_value_says_that_it_is_cut() {
        assert!(parse(br#"{"a":"b"#).unwrap_err().cut);
        assert!(parse(br#"{"a":[1,"#).unwrap_err().cut);
        assert!(!parse(br#"{"a":1}{"b":2}"#).unwrap_err().cut);
        assert!(!parse(b"<PLACEHOLDER ROW>").unwrap_err().cut);
    }

    #[test]
    fn a_whole_integer_is_not_rounded() {
        let (value, _) = parse(b"9007199254740993").unwrap();
        assert_eq!(value.as_i64(), Some(9_007_199_254_740_993));
    }

    #[test]
    fn nesting_is_bounded() {
        let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
        assert!(parse(&deep).is_err());
    }
}
