//! Lines to records: line ends, NUL runs, raw newlines inside strings, glued and cut values.

use crate::importer::{Record, RecordError, Rejected, Sink};
use crate::json::{self, Part};
use crate::rule;

/// How many lines a record with raw newlines in its strings may span.
const JOINED_LINES_MAX: usize = 4_096;

/// Gives every record of `bytes` to `read`, and what cannot be read to the sink as rejected. Returns how many records
/// there were. A [`RecordError::Stopped`] or [`RecordError::Failed`] ends it.
pub(crate) fn each_record<S: Sink>(
    bytes: &[u8],
    byte_offset: u64,
    first_line: u64,
    read: &mut impl FnMut(&Record<'_>, &mut S) -> Result<(), RecordError>,
    sink: &mut S,
) -> Result<u64, RecordError> {
    let mut records = 0;
    let mut at = 0;
    let mut line = first_line;
    while at < bytes.len() {
        let end = line_end(bytes, at);
        let (start, stop) = trim(bytes, at, end);
        let mut next = end + 1;
        let mut lines = 1;
        if start < stop {
            records += 1;
            let record =
                Record { bytes: &bytes[start..stop], byte_offset: byte_offset + start as u64, line: Some(line) };
            match read(&record, sink) {
                Ok(()) => records += nul_tail(bytes, (stop, end), byte_offset, line, sink)?,
                Err(RecordError::Syntax(broken)) => {
                    let joined = if broken.cut { join(bytes, start, end) } else { None };
                    match joined {
                        Some((stop, count)) => {
                            next = line_end(bytes, stop) + 1;
                            lines = count;
                            let record = Record { bytes: &bytes[start..stop], ..record };
                            settle(read(&record, sink), &record, sink)?;
                        }
                        None => records += take_apart(&record, read, sink)?.saturating_sub(1),
                    }
                }
                Err(error) => settle(Err(error), &record, sink)?,
            }
        } else {
            records += nul_tail(bytes, (at, end), byte_offset, line, sink)?;
        }
        at = next;
        line += lines;
    }
    Ok(records)
}

/// Rejects NULs that go on to the end: only the last line of a source has no line end, so nothing follows them. Between
/// records they are skipped, because a writer that was started again has gone on behind them. Returns how many records
/// they count for.
fn nul_tail(
    bytes: &[u8],
    (from, end): (usize, usize),
    byte_offset: u64,
    line: u64,
    sink: &mut impl Sink,
) -> Result<u64, RecordError> {
    let tail = &bytes[from..end];
    let Some(first) = memchr::memchr(0, tail).filter(|_| end == bytes.len()) else { return Ok(0) };
    let place = byte_offset + (from + first) as u64;
    sink.reject(nuls(place, (tail.len() - first) as u64, line))?;
    Ok(1)
}

/// NULs that are kept of a tail of them: all are alike.
const NULS_KEPT: u64 = 16;

/// The rejection of NULs where records should be.
pub(crate) fn nuls(byte_offset: u64, byte_length: u64, line: u64) -> Rejected {
    Rejected {
        byte_offset,
        byte_length,
        line: Some(line),
        trajectory_id: None,
        rule: rule::NUL_BYTES.into(),
        reason: format!(
            "from byte {byte_offset} on the source holds NUL bytes only, {byte_length} of them: room that was never filled, \
             or a crash that took what was written last; what precedes them was read"
        ),
        raw: vec![0; byte_length.min(NULS_KEPT) as usize],
    }
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    memchr::memchr(b'\n', bytes.get(at..).unwrap_or_default()).map_or(bytes.len(), |found| at + found)
}

fn is_filler(byte: u8) -> bool {
    matches!(byte, 0 | b' ' | b'\t' | b'\r' | 0x0b | 0x0c)
}

fn trim(bytes: &[u8], mut start: usize, mut end: usize) -> (usize, usize) {
    while start < end && is_filler(bytes[start]) {
        start += 1;
    }
    while end > start && is_filler(bytes[end - 1]) {
        end -= 1;
    }
    (start, end)
}

/// A record whose line is cut may go on in the next lines: a raw newline in a string. Not so if a following line is a
/// whole value by itself: then the first one is really cut.
fn join(bytes: &[u8], start: usize, end: usize) -> Option<(usize, u64)> {
    let value_end = json::value_end(bytes, start).ok()?;
    let rest = &bytes[value_end..line_end(bytes, value_end)];
    if !rest.iter().all(|b| is_filler(*b)) {
        return None;
    }
    let lines = memchr::memchr_iter(b'\n', &bytes[start..value_end]).count();
    if lines == 0 || lines > JOINED_LINES_MAX {
        return None;
    }
    let mut at = end + 1;
    while at < value_end {
        let stop = line_end(bytes, at);
        if bytes[at..stop].trim_ascii_start().starts_with(b"{\"")
            && json::value_end(&bytes[..stop], at).is_ok_and(|e| trim(bytes, e, stop).0 == stop)
        {
            return None;
        }
        at = stop + 1;
    }
    Some((value_end, lines as u64 + 1))
}

/// Reads the complete values inside a broken line, and rejects the rest of it. Returns how many parts it had.
fn take_apart<S: Sink>(
    whole: &Record<'_>,
    read: &mut impl FnMut(&Record<'_>, &mut S) -> Result<(), RecordError>,
    sink: &mut S,
) -> Result<u64, RecordError> {
    let parts = json::recover(whole.bytes);
    let count = parts.len() as u64;
    for part in parts {
        let part_of = |range: &std::ops::Range<usize>| Record {
            bytes: &whole.bytes[range.clone()],
            byte_offset: whole.byte_offset + range.start as u64,
            line: whole.line,
        };
        match part {
            Part::Value(range) => {
                let record = part_of(&range);
                settle(read(&record, sink), &record, sink)?;
            }
            Part::Broken { range, reason, cut } => {
                let record = part_of(&range);
                let rule = if cut { rule::CUT_RECORD } else { rule::NOT_JSON };
                let reason = format!("{reason}; the record starts with {}", excerpt(record.bytes));
                sink.reject(Rejected::record(&record, rule, reason))?;
            }
        }
    }
    Ok(count)
}

/// Rejects what was refused; hands on what ends the reading.
pub(crate) fn settle(
    outcome: Result<(), RecordError>,
    record: &Record<'_>,
    sink: &mut impl Sink,
) -> Result<(), RecordError> {
    match outcome {
        Ok(()) => Ok(()),
        Err(RecordError::Syntax(broken)) => {
            let reason = format!("byte {} of the record: {}", broken.byte_offset, broken.reason);
            sink.reject(Rejected::record(record, rule::NOT_JSON, reason))
        }
        Err(RecordError::Refused { rule, reason, trajectory_id }) => {
            let mut rejected = Rejected::record(record, rule, reason);
            rejected.trajectory_id = trajectory_id;
            sink.reject(rejected)
        }
        Err(error @ (RecordError::Stopped | RecordError::Failed(_))) => Err(error),
    }
}

/// The first characters of some bytes, for a person.
pub(crate) fn excerpt(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]);
    let mut out = String::new();
    for c in text.chars().take(40) {
        // quotes and backslashes stay: a reason is shown as it is, or escaped once by who prints it
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    if bytes.len() > 40 {
        out.push('…');
    }
    format!("`{out}`")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollout::Rollout;

    #[derive(Default)]
    struct Seen {
        values: Vec<String>,
        rejected: Vec<(String, u64, u64)>,
    }

    impl Sink for Seen {
        fn rollout(&mut self, rollout: Rollout) -> Result<(), RecordError> {
            self.values.push(rollout.trajectory_id);
            Ok(())
        }

        fn reject(&mut self, rejected: Rejected) -> Result<(), RecordError> {
            self.rejected.push((rejected.rule.into_owned(), rejected.line.unwrap(), rejected.byte_offset));
            Ok(())
        }
    }

    fn read_all(text: &[u8]) -> Seen {
        let mut seen = Seen::default();
        let mut read = |record: &Record<'_>, sink: &mut Seen| {
            let (value, _) = record.json()?;
            sink.rollout(Rollout::new(format!("{}:{}:{value}", record.line.unwrap_or(0), record.byte_offset)))
        };
        each_record(text, 0, 1, &mut read, &mut seen).unwrap();
        seen
    }

    #[test]
    fn crlf_blank_lines_and_a_missing_last_newline_are_normal() {
        let seen = read_all(b"{\"a\":1}\r\n\r\n  \n{\"b\":\"x\\r\\ny\"}");
        assert_eq!(seen.values, ["1:0:{\"a\":1}", "4:14:{\"b\":\"x\\r\\ny\"}"]);
        assert!(seen.rejected.is_empty());
    }

    #[test]
    fn a_nul_run_between_records_is_skipped() {
        let seen = read_all(b"{\"a\":1}\n\0\0\0\0\n\0\0{\"b\":2}\n");
        assert_eq!(seen.values.len(), 2);
        assert!(seen.rejected.is_empty());
    }

    #[test]
    fn nuls_to_the_end_are_one_rejection_and_the_records_before_are_read() {
        for (text, line, at) in
            [(&b"{\"a\":1}\n\0\0\0\0"[..], 2, 8), (b"{\"a\":1}\0\0\0", 1, 7), (b"{\"a\":1}\n \0\0 \0", 2, 9)]
        {
            let seen = read_all(text);
            assert_eq!(seen.values, ["1:0:{\"a\":1}"]);
            assert_eq!(seen.rejected, [("nul_bytes".into(), line, at)]);
        }
        // what is cut is told once
        assert_eq!(read_all(b"{\"a\":\"x\0\0").rejected, [("cut_record".into(), 1, 0)]);
    }

    #[test]
    fn an_excerpt_shows_quotes_as_they_are_and_control_characters_escaped() {
        assert_eq!(excerpt(b"{\"a\": \"C:\\x\ty"), "`{\"a\": \"C:\\x\\ty`");
    }

    #[test]
    fn a_raw_newline_inside_a_string_joins_its_lines() {
        let seen = read_all(b"{\"a\":\"x\ny\"}\n{\"b\":2}\n");
        assert_eq!(seen.values, ["1:0:{\"a\":\"x\\ny\"}", "3:12:{\"b\":2}"]);
    }

    #[test]
    fn a_cut_record_is_rejected_with_its_place_and_the_next_line_is_read() {
        let seen = read_all(b"{\"a\":1}\n{\"b\":\"cu\n{\"c\":3}\n{\"d\":[1,");
        assert_eq!(seen.values, ["1:0:{\"a\":1}", "3:17:{\"c\":3}"]);
        assert_eq!(seen.rejected, [("cut_record".into(), 2, 8), ("cut_record".into(), 4, 25)]);
    }

    #[test]
    fn glued_records_keep_their_own_offsets() {
        let seen = read_all(b"{\"a\":1}{\"b\":2}\n{\"x\":\"y{\"c\":3}\n");
        assert_eq!(seen.values, ["1:0:{\"a\":1}", "1:7:{\"b\":2}", "2:22:{\"c\":3}"]);
        assert_eq!(seen.rejected, [("cut_record".into(), 2, 15)]);
    }
}
