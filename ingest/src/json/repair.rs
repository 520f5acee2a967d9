//! Rewrites the known departures from JSON into JSON, leaving all else as it is.

use super::Notes;

/// The bytes with bare NaN and infinities as `null`, lone surrogates and invalid UTF-8 as U+FFFD and raw control
/// characters in strings escaped. The result need not be JSON: only these departures are known.
pub fn repair(bytes: &[u8]) -> (Vec<u8>, Notes) {
    let mut out = Vec::with_capacity(bytes.len() + 16);
    let mut notes = Notes::default();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => at = repair_string(bytes, at, &mut out, &mut notes),
            b'N' | b'I' | b'-' => {
                let word = [&b"NaN"[..], b"Infinity", b"-Infinity"].into_iter().find(|w| bytes[at..].starts_with(w));
                match word {
                    Some(word) => {
                        notes.nonfinite += 1;
                        out.extend_from_slice(b"null");
                        at += word.len();
                    }
                    None => {
                        out.push(byte);
                        at += 1;
                    }
                }
            }
            _ => {
                out.push(byte);
                at += 1;
            }
        }
    }
    (out, notes)
}

/// Copies the string whose opening quote is at `at`; the index after it.
fn repair_string(bytes: &[u8], at: usize, out: &mut Vec<u8>, notes: &mut Notes) -> usize {
    let mut end = at + 1;
    loop {
        match memchr::memchr2(b'"', b'\\', bytes.get(end..).unwrap_or_default()) {
            None => {
                out.extend_from_slice(&bytes[at..]);
                return bytes.len();
            }
            Some(found) if bytes[end + found] == b'"' => {
                end += found;
                break;
            }
            Some(found) => end = (end + found + 2).min(bytes.len()),
        }
    }
    let body = &bytes[at + 1..end];
    out.push(b'"');
    for chunk in body.utf8_chunks() {
        repair_text(chunk.valid().as_bytes(), out, notes);
        if !chunk.invalid().is_empty() {
            notes.lone_surrogates += 1;
            out.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
    out.push(b'"');
    end + 1
}

/// Copies the inside of a string that is UTF-8.
fn repair_text(body: &[u8], out: &mut Vec<u8>, notes: &mut Notes) {
    let mut at = 0;
    while let Some(&byte) = body.get(at) {
        match byte {
            0..=0x1f => {
                notes.control_characters += 1;
                out.extend_from_slice(format!("\\u{byte:04x}").as_bytes());
                at += 1;
            }
            b'\\' => match code_unit(body, at) {
                Some(0xd800..=0xdbff) => match code_unit(body, at + 6) {
                    Some(0xdc00..=0xdfff) => {
                        out.extend_from_slice(&body[at..at + 12]);
                        at += 12;
                    }
                    _ => {
                        notes.lone_surrogates += 1;
                        out.extend_from_slice(b"\\ufffd");
                        at += 6;
                    }
                },
                Some(0xdc00..=0xdfff) => {
                    notes.lone_surrogates += 1;
                    out.extend_from_slice(b"\\ufffd");
                    at += 6;
                }
                _ => {
                    let end = (at + 2).min(body.len());
                    out.extend_from_slice(&body[at..end]);
                    at = end;
                }
            },
            _ => {
                out.push(byte);
                at += 1;
            }
        }
    }
}

/// The value of a `\uXXXX` escape at `at`.
fn code_unit(body: &[u8], at: usize) -> Option<u16> {
    let escape = body.get(at..at + 6)?;
    let digits = std::str::from_utf8(escape.strip_prefix(b"\\u")?).ok()?;
    if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u16::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_json_stays_as_it_is(text in ".*", number in any::<f64>()) {
            let value = serde_json::json!({ text.clone(): [text, number] });
            let bytes = serde_json::to_vec(&value).unwrap();
            let (same, notes) = repair(&bytes);
            prop_assert_eq!(same, bytes);
            prop_assert_eq!(notes, Notes::default());
        }

        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            repair(&bytes);
        }
    }
}
