//! Walks over JSON without building it: where a value ends, and which keys an object begins with.

use super::Broken;

/// Deeper nesting than any rollout has; the parser behind has the same limit.
const DEPTH_MAX: usize = 128;

fn broken(byte_offset: usize, reason: &str) -> Broken {
    Broken { byte_offset, reason: reason.to_owned(), cut: false }
}

fn cut(byte_offset: usize) -> Broken {
    Broken { byte_offset, reason: "ends in the middle of a value".to_owned(), cut: true }
}

fn skip_space(bytes: &[u8], mut at: usize) -> usize {
    while bytes.get(at).is_some_and(|b| matches!(b, b' ' | b'\t' | b'\n' | b'\r')) {
        at += 1;
    }
    at
}

/// The end of the string whose opening quote is at `at`: the index after its closing quote.
fn string_end(bytes: &[u8], at: usize) -> Result<usize, Broken> {
    let mut from = at + 1;
    loop {
        match memchr::memchr2(b'"', b'\\', bytes.get(from..).unwrap_or_default()) {
            None => return Err(cut(bytes.len())),
            Some(found) if bytes[from + found] == b'"' => return Ok(from + found + 1),
            Some(found) => from += found + 2,
        }
    }
}

fn scalar_end(bytes: &[u8], at: usize) -> Result<usize, Broken> {
    let rest = &bytes[at..];
    for word in [&b"true"[..], b"false", b"null", b"NaN", b"Infinity", b"-Infinity"] {
        if rest.starts_with(word) {
            return Ok(at + word.len());
        }
        if word.starts_with(rest) {
            return Err(cut(bytes.len()));
        }
    }
    let length = rest.iter().take_while(|b| matches!(b, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E')).count();
    match rest.first() {
        Some(b'0'..=b'9' | b'-') if rest[..length].iter().any(u8::is_ascii_digit) => Ok(at + length),
        _ => Err(broken(at, "no JSON value starts here")),
    }
}

/// The index after the first JSON value at or after `at` (white space is skipped).
///
/// # Errors
/// [`Broken`], with `cut` set where the bytes end inside the value.
pub fn value_end(bytes: &[u8], at: usize) -> Result<usize, Broken> {
    // what each open bracket is; on top of it, what is expected next is kept in `after_value`
    let mut open: Vec<u8> = Vec::new();
    let mut at = skip_space(bytes, at);
    loop {
        // a value starts here
        match bytes.get(at) {
            None => return Err(cut(bytes.len())),
            Some(b'{') => {
                open.push(b'{');
                at = skip_space(bytes, at + 1);
                if bytes.get(at) == Some(&b'}') {
                    open.pop();
                    at += 1;
                } else {
                    at = key_end(bytes, at)?;
                    if open.len() > DEPTH_MAX {
                        return Err(broken(at, "nested too deeply"));
                    }
                    continue;
                }
            }
            Some(b'[') => {
                open.push(b'[');
                at = skip_space(bytes, at + 1);
                if bytes.get(at) == Some(&b']') {
                    open.pop();
                    at += 1;
                } else {
                    if open.len() > DEPTH_MAX {
                        return Err(broken(at, "nested too deeply"));
                    }
                    continue;
                }
            }
            Some(b'"') => at = string_end(bytes, at)?,
            Some(_) => at = scalar_end(bytes, at)?,
        }
        // a value has ended here
        loop {
            let Some(&bracket) = open.last() else { return Ok(at) };
            at = skip_space(bytes, at);
            match (bytes.get(at), bracket) {
                (None, _) => return Err(cut(bytes.len())),
                (Some(b','), b'{') => {
                    at = key_end(bytes, skip_space(bytes, at + 1))?;
                    break;
                }
                (Some(b','), _) => {
                    at = skip_space(bytes, at + 1);
                    break;
                }
                (Some(b'}'), b'{') | (Some(b']'), b'[') => {
                    open.pop();
                    at += 1;
                }
                (Some(_), _) => return Err(broken(at, "expected a comma or a closing bracket")),
            }
        }
    }
}

/// From the quote of a key to the start of its value.
fn key_end(bytes: &[u8], at: usize) -> Result<usize, Broken> {
    match bytes.get(at) {
        None => return Err(cut(bytes.len())),
        Some(b'"') => {}
        Some(_) => return Err(broken(at, "expected a key")),
    }
    let at = skip_space(bytes, string_end(bytes, at)?);
    match bytes.get(at) {
        None => Err(cut(bytes.len())),
        Some(b':') => Ok(skip_space(bytes, at + 1)),
        Some(_) => Err(broken(at, "expected a colon after a key")),
    }
}

/// The keys of the object that `bytes` starts with (or that is the first element of the array it starts with), as
/// far as the bytes go. The second answer: whether the root is an array.
pub fn first_object_keys(bytes: &[u8]) -> (Vec<String>, bool) {
    let mut keys = Vec::new();
    let mut at = skip_space(bytes, 0);
    let is_array = bytes.get(at) == Some(&b'[');
    if is_array {
        at = skip_space(bytes, at + 1);
    }
    if bytes.get(at) != Some(&b'{') {
        return (keys, is_array);
    }
    at = skip_space(bytes, at + 1);
    while bytes.get(at) == Some(&b'"') {
        let Ok(end) = string_end(bytes, at) else { break };
        keys.push(String::from_utf8_lossy(&bytes[at + 1..end - 1]).into_owned());
        let Ok(value) = key_end(bytes, at) else { break };
        let Ok(after) = value_end(bytes, value) else { break };
        at = skip_space(bytes, after);
        if bytes.get(at) != Some(&b',') {
            break;
        }
        at = skip_space(bytes, at + 1);
    }
    (keys, is_array)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_of_a_cut_document_are_those_before_the_cut() {
        let text = br#"[{"a":{"x":1},"b":[1,2],"c":"long te"#;
        assert_eq!(first_object_keys(text), (vec!["a".to_owned(), "b".to_owned(), "c".to_owned()], true));
    }

    fn any_json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            (-1e9..1e9f64).prop_map(Into::into),
            ".*".prop_map(serde_json::Value::String),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(serde_json::Value::Array),
                proptest::collection::vec((".*", inner), 0..6)
                    .prop_map(|pairs| serde_json::Value::Object(pairs.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_value_ends_where_it_ends(value in any_json(), pretty in any::<bool>()) {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
            let text = text.unwrap();
            prop_assert_eq!(value_end(text.as_bytes(), 0).unwrap(), text.len());
            let twice = format!("{text} {text}");
            prop_assert_eq!(value_end(twice.as_bytes(), 0).unwrap(), text.len());
        }

        #[test]
        fn a_prefix_of_an_object_is_cut_and_never_a_panic(value in any_json(), share in 0.0..1.0f64) {
            let text = serde_json::to_string(&serde_json::json!({"k": value})).unwrap();
            let at = (text.len() as f64 * share) as usize;
            prop_assert!(value_end(&text.as_bytes()[..at], 0).unwrap_err().cut);
        }

        #[test]
        fn any_bytes_end_or_are_broken(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(end) = value_end(&bytes, 0) {
                prop_assert!(end <= bytes.len());
            }
        }
    }
}
