//! Takes a broken line apart: several values glued together, a cut value followed by a good one, NUL runs between.

use std::ops::Range;

use super::scan::value_end;

/// How much scanning a broken line may cost, as a multiple of its length: the search for a restart is quadratic in
/// the worst case, and a hostile line must not hold the ingest up.
const WORK_FACTOR: usize = 16;

/// A piece of a broken line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// A complete JSON value.
    Value(Range<usize>),
    /// Bytes that belong to no complete value.
    Broken {
        /// Which.
        range: Range<usize>,
        /// Why.
        reason: String,
        /// The value was cut: it runs into the end of the line or into the next value.
        cut: bool,
    },
}

/// The parts of a line in order. Together they cover all of it but white space and NULs.
///
/// After a broken value the line is taken up again at the first `{"` from which everything up to the end of the line
/// is complete values: an object inside a cut one is followed by the rest of the cut one, so it is not mistaken for a
/// record.
pub fn recover(line: &[u8]) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut work = line.len().saturating_mul(WORK_FACTOR);
    let mut at = skip_filler(line, 0);
    while at < line.len() {
        match value_end(line, at) {
            Ok(end) => {
                parts.push(Part::Value(at..end));
                at = skip_filler(line, end);
            }
            Err(problem) => {
                let restart = restart(line, at + 1, &mut work).unwrap_or(line.len());
                let end = trim_end(line, at, restart);
                let cut = problem.cut || restart < line.len();
                let reason = if cut { "the record ends in the middle".to_owned() } else { problem.reason };
                parts.push(Part::Broken { range: at..end, reason, cut });
                at = skip_filler(line, restart);
            }
        }
    }
    parts
}

fn skip_filler(line: &[u8], mut at: usize) -> usize {
    while line.get(at).is_some_and(|b| matches!(b, 0 | b' ' | b'\t' | b'\r' | b'\n')) {
        at += 1;
    }
    at
}

fn trim_end(line: &[u8], start: usize, mut end: usize) -> usize {
    while end > start + 1 && matches!(line[end - 1], 0 | b' ' | b'\t' | b'\r' | b'\n') {
        end -= 1;
    }
    end
}

/// The first `{"` at or after `from` from which only complete values follow.
fn restart(line: &[u8], from: usize, work: &mut usize) -> Option<usize> {
    for candidate in memchr::memmem::find_iter(&line[from..], b"{\"").map(|i| i + from) {
        let mut at = candidate;
        loop {
            let end = match value_end(line, at) {
                Ok(end) => end,
                Err(problem) => {
                    *work = work.checked_sub(problem.byte_offset.saturating_sub(at).max(1))?;
                    break;
                }
            };
            *work = work.checked_sub(end - at)?;
            at = skip_filler(line, end);
            if at >= line.len() {
                return Some(candidate);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn values(line: &[u8]) -> Vec<&[u8]> {
        recover(line)
            .into_iter()
            .filter_map(|part| match part {
                Part::Value(range) => Some(&line[range]),
                Part::Broken { .. } => None,
            })
            .collect()
    }

    #[test]
    fn glued_objects_are_two_values() {
        assert_eq!(values(br#"{"a":1}{"b":2}"#), [&br#"{"a":1}"#[..], br#"{"b":2}"#]);
    }

    #[test]
    fn a_cut_object_does_not_hide_the_good_one_after_it() {
        let line = br#"{"type":"pr-link","prNu{"type":"x","m":{"id":"m1","c":[{"t":"b"}]}}"#;
        assert_eq!(values(line), [&br#"{"type":"x","m":{"id":"m1","c":[{"t":"b"}]}}"#[..]]);
        assert!(matches!(&recover(line)[0], Part::Broken { range, cut: true, .. } if *range == (0..23)));
    }

    #[test]
    fn an_object_inside_a_cut_one_is_no_record() {
        assert!(values(br#"{"a":{"b":1},"c":"x"#).is_empty());
    }

    #[test]
    fn nul_runs_are_skipped() {
        assert_eq!(values(b"\0\0\0{\"a\":1}\0\0"), [b"{\"a\":1}"]);
        assert!(recover(b"\0\0\0").is_empty());
    }

    #[test]
    fn a_hostile_line_does_not_take_quadratic_time() {
        let line = br#"{"a":["#.repeat(200_000);
        assert_eq!(recover(&line).len(), 1);
    }

    proptest! {
        #[test]
        fn parts_cover_everything_but_filler(line in "[{}\\[\\]\":,a1 \\\\]{0,40}") {
            let line = line.as_bytes();
            let mut at = 0;
            for part in recover(line) {
                let range = match part { Part::Value(range) => range, Part::Broken { range, .. } => range };
                prop_assert!(line[at..range.start].iter().all(|b| matches!(b, 0 | b' ')));
                prop_assert!(range.end > range.start);
                at = range.end;
            }
            prop_assert!(line[at..].iter().all(|b| matches!(b, 0 | b' ')));
        }
    }
}
