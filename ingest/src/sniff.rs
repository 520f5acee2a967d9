//! What a source looks like, from its first bytes.

use crate::importer::{Confidence, Importer, Shape, Sniff};
use crate::importers;
use crate::json;

/// How many values importers see.
const RECORDS_MAX: usize = 16;
/// How many lines are looked at for the first value.
const LINES_MAX: usize = 64;

/// Looks at the first bytes of a source that is no zip archive.
pub(crate) fn look(head: &[u8], complete: bool) -> Sniff<'_> {
    let mut sniff = Sniff {
        shape: Shape::Binary,
        head,
        complete,
        records: Vec::new(),
        keys: Vec::new(),
        root_is_array: false,
        members: Vec::new(),
    };
    if let Some(shape) = magic(head) {
        sniff.shape = shape;
        return sniff;
    }
    let start = head.iter().position(|b| !b.is_ascii_whitespace() && *b != 0).unwrap_or(head.len());
    let text = &head[start..];
    if text.is_empty() {
        // a file of zeros held something before the power went
        sniff.shape = if complete && !head.contains(&0) { Shape::Empty } else { Shape::Binary };
        return sniff;
    }
    if is_document(text, complete) {
        sniff.shape = Shape::JsonDocument;
        (sniff.keys, sniff.root_is_array) = json::first_object_keys(text);
        if complete && let Ok((value, _)) = json::parse(text) {
            sniff.records.push(value);
        }
        return sniff;
    }
    sniff.records = first_records(text, complete);
    match sniff.records.first() {
        Some(first) => {
            sniff.shape = Shape::JsonLines;
            sniff.keys = first.as_object().map(|map| map.keys().cloned().collect()).unwrap_or_default();
        }
        // one line that is longer than what we see of it
        None if text.starts_with(b"{\"") && !complete && !text.contains(&b'\n') => {
            sniff.shape = Shape::JsonLines;
            sniff.keys = json::first_object_keys(text).0;
        }
        None if is_text(text) => sniff.shape = Shape::Text,
        None => {}
    }
    sniff
}

/// What a zip archive with these members looks like.
pub(crate) fn look_at_zip(head: &[u8], complete: bool, members: Vec<String>) -> Sniff<'_> {
    Sniff { shape: Shape::Zip, head, complete, records: Vec::new(), keys: Vec::new(), root_is_array: false, members }
}

/// The surest importer; among equally sure ones the first in the registry.
pub(crate) fn choose(sniff: &Sniff<'_>) -> Option<&'static dyn Importer> {
    let mut best: Option<(Confidence, &'static dyn Importer)> = None;
    for importer in importers::ALL {
        let confidence = importer.sniff(sniff);
        if confidence > best.map_or(Confidence::No, |(c, _)| c) {
            best = Some((confidence, *importer));
        }
    }
    best.map(|(_, importer)| importer)
}

/// The importer of a name, or the one of its other forms (`inspect` and `inspect-json`) that is surest.
pub(crate) fn choose_form(name: &str, sniff: &Sniff<'_>) -> Option<&'static dyn Importer> {
    let is_form = |other: &str| other.strip_prefix(name).is_some_and(|rest| rest.starts_with('-'));
    let forms = importers::ALL.iter().copied().filter(|importer| is_form(importer.name()));
    let named = importers::by_name(name)?;
    let sureness = named.sniff(sniff);
    let surer = forms.filter(|form| form.sniff(sniff) > sureness).max_by_key(|form| form.sniff(sniff));
    Some(surer.unwrap_or(named))
}

fn magic(head: &[u8]) -> Option<Shape> {
    match head {
        [] => Some(Shape::Empty),
        [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] => Some(Shape::Zip),
        [b'P', b'A', b'R', b'1', ..] => Some(Shape::Parquet),
        [b'A', b'R', b'R', b'O', b'W', b'1', 0, 0, ..] => Some(Shape::ArrowFile),
        // a continuation mark and the length of the schema message, below 64 MiB
        [0xff, 0xff, 0xff, 0xff, _, _, _, 0..=3, ..] => Some(Shape::ArrowStream),
        _ => None,
    }
}

/// Whether the text is one JSON value over several lines, or an array.
fn is_document(text: &[u8], complete: bool) -> bool {
    if !matches!(text.first(), Some(b'{' | b'[')) {
        return false;
    }
    let first_newline = memchr::memchr(b'\n', text);
    match json::value_end(text, 0) {
        Ok(end) => {
            let spans_lines = first_newline.is_some_and(|at| at < end);
            spans_lines || text.first() == Some(&b'[') || (text.len() == end && !complete)
        }
        Err(broken) if broken.cut => match first_newline {
            // the second line of a pretty-printed document is indented, or closes a bracket
            Some(at) => {
                let second = &text[at + 1..];
                let continues = !second.starts_with(b"{") || text[..at].trim_ascii_end().len() == 1;
                continues && json::value_end(&text[..at], 0).is_err_and(|e| e.cut) && looks_nested(text)
            }
            None => text.first() == Some(&b'['),
        },
        Err(_) => false,
    }
}

/// A cut document shows at least one whole key or element before the cut.
fn looks_nested(text: &[u8]) -> bool {
    match text.first() {
        Some(b'{') => !json::first_object_keys(text).0.is_empty(),
        _ => true,
    }
}

/// The first values of a source with one value a line; lines that hold none are passed over.
fn first_records(text: &[u8], complete: bool) -> Vec<serde_json::Value> {
    let mut records = Vec::new();
    let mut lines = text.split(|b| *b == b'\n').peekable();
    for _ in 0..LINES_MAX {
        let Some(line) = lines.next() else { break };
        // the last line that we see may be cut by us
        let is_whole = complete || lines.peek().is_some();
        if !is_whole || records.len() >= RECORDS_MAX {
            break;
        }
        let line = line.trim_ascii();
        if !matches!(line.first(), Some(b'{' | b'[')) {
            continue;
        }
        match json::parse(line) {
            Ok((value, _)) => records.push(value),
            Err(_) => {
                for part in json::recover(line) {
                    if let json::Part::Value(range) = part
                        && let Ok((value, _)) = json::parse(&line[range])
                        && value.is_object()
                    {
                        records.push(value);
                    }
                }
            }
        }
    }
    records
}

/// UTF-8 (the last character may be cut) without control characters that text does not have.
fn is_text(head: &[u8]) -> bool {
    let valid = match std::str::from_utf8(head) {
        Ok(_) => head.len(),
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        Err(_) => return false,
    };
    head[..valid].iter().all(|b| *b >= 0x20 || matches!(b, b'\n' | b'\r' | b'\t' | 0x0c | 0x1b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(text: &[u8]) -> Shape {
        look(text, true).shape
    }

    #[test]
    fn shapes_are_told_by_content() {
        assert_eq!(shape(b""), Shape::Empty);
        assert_eq!(shape(b" \n\n"), Shape::Empty);
        assert_eq!(shape(&[0; 64]), Shape::Binary);
        assert_eq!(shape(b"{\"a\":1}\n{\"a\":2}\n"), Shape::JsonLines);
        assert_eq!(shape(b"{\"a\":1}"), Shape::JsonLines);
        assert_eq!(shape(b"{\n \"a\": 1\n}\n"), Shape::JsonDocument);
        assert_eq!(shape(b"[{\"a\":1},{\"a\":2}]"), Shape::JsonDocument);
        assert_eq!(shape(b"<PLACEHOLDER ROW>\n<PLACEHOLDER ROW>\n"), Shape::Text);
        assert_eq!(shape(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), Shape::Text);
        assert_eq!(shape(b"\x80\x02}q\x00"), Shape::Binary);
        assert_eq!(shape(b"PAR1\x15\x04"), Shape::Parquet);
    }

    #[test]
    fn a_cut_first_line_does_not_hide_that_there_are_lines() {
        assert_eq!(shape(b"{\"a\":\"cu\n{\"a\":2}\n"), Shape::JsonLines);
        assert_eq!(shape(b"{\"a\":1}{\"b\":2}\n{\"c\":3}\n"), Shape::JsonLines);
    }

    #[test]
    fn a_document_longer_than_the_head_shows_its_keys() {
        let text = b"{\n  \"trajectory\": [\n    {\"a\": 1},\n    {\"a\": 2},\n  ";
        let sniff = look(text, false);
        assert_eq!(sniff.shape, Shape::JsonDocument);
        assert!(sniff.has("trajectory"));
        let line = b"{\"id\":\"t1\",\"messages\":[{\"role\":\"user\",\"content\":\"long";
        let sniff = look(line, false);
        assert_eq!(sniff.shape, Shape::JsonLines);
        assert!(sniff.has_all(&["id", "messages"]));
    }
}
