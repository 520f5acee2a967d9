//! A parsing thread: takes pieces of work, gives prepared trajectories and rejections to the committer.

use std::io::{self, Read};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};

use super::flow::{DocumentUse, End, Job, Outcome, Shared, Task, Work};
use super::sink::PipeSink;
use crate::budget::{Permit, Stopped};
use crate::error::Error;
use crate::importer::{
    Archive, ArchiveReader, Member, Record, RecordError, RecordReader, Rejected, SessionReader, Sink,
};
use crate::importers::columns;
use crate::json;
use crate::prepare::Preparer;
use crate::records::{each_record, excerpt, nuls, settle};
use crate::report::Counts;
use crate::rule;
use crate::source::SourceFailed;
use crate::source::archive::ZipFile;
use crate::source::blocks::{Block, Blocks, Next};
use crate::source::object::why_unreadable;

/// Runs until there is no more work.
pub(crate) fn run(shared: &Shared, tasks: &Mutex<Receiver<Task>>, mut preparer: Preparer) {
    loop {
        // the lock is held only while waiting for the next task
        let task = tasks.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(task) = task else { return };
        let seq = task.seq;
        let outcome = match do_task(shared, &mut preparer, task) {
            Ok(()) => Outcome::Done,
            Err(End::Stopped) => return,
            Err(End::Failed(error)) => Outcome::Failed(error),
        };
        if shared.deliver(seq, outcome).is_err() {
            return;
        }
    }
}

fn do_task(shared: &Shared, preparer: &mut Preparer, task: Task) -> Result<(), End> {
    let Task { seq, job, permit, work } = task;
    let mut sink = PipeSink::new(shared, preparer, seq, Arc::clone(&job), Arc::clone(&permit));
    if !matches!(work, Work::Block { .. } | Work::Rows { .. }) {
        sink = sink.with_outlet();
    }
    let done = match work {
        Work::Block { reader, block } => {
            read_block(&*reader, &block, &mut sink).map(|n| Counts::add(&shared.counts.records, n))
        }
        Work::Session { reader, blocks } => {
            growing(&permit, || read_session(shared, reader, blocks, &job, &permit, &mut sink))
        }
        Work::Document { reader, stream, byte_offset } => {
            growing(&permit, || read_document(shared, reader, stream, byte_offset, &job, &permit, &mut sink))
        }
        Work::Archive { reader, archive } => {
            growing(&permit, || read_archive(shared, reader, archive, &job, &permit, &mut sink))
        }
        Work::Rows { piece } => {
            Counts::add(&shared.counts.records, piece.row_count());
            columns::read_piece(&piece, &mut sink)
        }
    };
    match done {
        Ok(()) => Ok(()),
        Err(RecordError::Failed(error)) => Err(End::Failed(error)),
        Err(RecordError::Stopped) => Err(End::Stopped),
        // readers' refusals were settled record by record; what is left concerns the source as a whole
        Err(error @ (RecordError::Syntax(_) | RecordError::Refused { .. })) => {
            let whole = Record { bytes: &[], byte_offset: 0, line: None };
            match settle(Err(error), &whole, &mut sink) {
                Ok(()) => Ok(()),
                Err(RecordError::Failed(error)) => Err(End::Failed(error)),
                Err(_) => Err(End::Stopped),
            }
        }
    }
}

fn growing<T>(permit: &Permit, work: impl FnOnce() -> T) -> T {
    permit.begin_growing();
    let done = work();
    permit.end_growing();
    done
}

fn read_block(reader: &dyn RecordReader, block: &Block, sink: &mut PipeSink<'_>) -> Result<u64, RecordError> {
    let mut read = |record: &Record<'_>, sink: &mut PipeSink<'_>| reader.record(record, &mut sink.at(record));
    each_record(&block.bytes, block.byte_offset, block.first_line, &mut read, sink)
}

fn read_session(
    shared: &Shared,
    mut reader: Box<dyn SessionReader>,
    mut blocks: Blocks,
    job: &Job,
    permit: &Permit,
    sink: &mut PipeSink<'_>,
) -> Result<(), RecordError> {
    loop {
        let grow = |bytes: u64| permit.grow(bytes * job.memory_factor).map_err(io::Error::other);
        let next = blocks.next(grow);
        // what the reader holds is torn, except at the very end
        if shared.is_stopping() && !matches!(next, Ok(Next::End)) {
            return Ok(());
        }
        match next {
            Ok(Next::End) => break,
            Ok(Next::TooLong { head, byte_offset, byte_length, line }) => {
                sink.reject(too_long(shared, head, byte_offset, byte_length, line))?;
            }
            Ok(Next::Block(block)) => {
                // the block, and what the reader may keep of it
                let before = reader.held_bytes();
                let arrived = block.bytes.len() as u64;
                permit.grow(arrived * job.memory_factor).map_err(|_| RecordError::Stopped)?;
                let mut read = |record: &Record<'_>, sink: &mut PipeSink<'_>| reader.record(record, sink);
                let records = each_record(&block.bytes, block.byte_offset, block.first_line, &mut read, sink)?;
                Counts::add(&shared.counts.records, records);
                if let Some(held) = before.and(reader.held_bytes()) {
                    permit.shrink_to(held * job.memory_factor);
                }
            }
            // what was read so far is still good
            Err(error) => {
                sink.reject(damaged(error, &job.info.name, blocks.byte_offset())?)?;
                break;
            }
        }
    }
    reader.finish(sink)
}

/// The rejection of a line over the limit.
pub(crate) fn too_long(shared: &Shared, head: Vec<u8>, byte_offset: u64, byte_length: u64, line: u64) -> Rejected {
    if head.iter().all(|byte| *byte == 0) {
        return nuls(byte_offset, byte_length, line);
    }
    let limit = shared.settings.record_bytes_max();
    let reason = format!(
        "a line of {byte_length} bytes; line_bytes_max and memory_limit_bytes together allow {limit}; raise them to read it"
    );
    Rejected {
        byte_offset,
        byte_length,
        line: Some(line),
        trajectory_id: None,
        rule: rule::TOO_LARGE.into(),
        reason,
        raw: head,
    }
}

/// The rejection of a source that is damaged, or that could not be read to its end: what was read of it so far is
/// kept. A service that does not answer ends the ingest, because the other sources could not be read either.
pub(crate) fn damaged(error: io::Error, source_name: &str, byte_offset: u64) -> Result<Rejected, RecordError> {
    if error.get_ref().is_some_and(|inner| inner.is::<Stopped>()) {
        return Err(RecordError::Stopped);
    }
    if error.get_ref().is_some_and(|inner| inner.is::<SourceFailed>()) {
        let failed = error.into_inner().and_then(|inner| inner.downcast::<SourceFailed>().ok());
        let source = failed.map_or_else(|| io::ErrorKind::Other.into(), |failed| failed.0);
        let why = match source.get_ref().and_then(|inner| inner.downcast_ref::<dressage_storage::Error>()) {
            Some(object) => why_unreadable(object),
            None => Some(source.to_string()),
        };
        let Some(why) = why else {
            let error = Error::Read { source_name: source_name.to_owned(), byte_offset, source };
            return Err(RecordError::Failed(Box::new(error)));
        };
        return Ok(Rejected {
            byte_offset,
            byte_length: 0,
            line: None,
            trajectory_id: None,
            rule: rule::UNREADABLE.into(),
            reason: unreadable_reason(byte_offset, &why),
            raw: Vec::new(),
        });
    }
    let reason = format!("the source is damaged after {byte_offset} bytes: {error}");
    Ok(Rejected {
        byte_offset,
        byte_length: 0,
        line: None,
        trajectory_id: None,
        rule: rule::DAMAGED.into(),
        reason,
        raw: Vec::new(),
    })
}

/// What to say of a source that cannot be read from some byte on.
pub(crate) fn unreadable_reason(byte_offset: u64, why: &str) -> String {
    let place = if byte_offset > 0 { format!(" after {byte_offset} bytes") } else { String::new() };
    format!("the source could not be read{place}: {why}; make it readable and ingest it again")
}

/// Reads a stream that must fit into memory. `Ok(None)`: it was rejected.
fn read_whole(
    mut stream: Box<dyn Read + Send>,
    limit: u64,
    grow: &mut dyn FnMut(u64) -> Result<(), RecordError>,
) -> Result<io::Result<(Vec<u8>, bool)>, RecordError> {
    const STEP: u64 = 1 << 20;
    let mut bytes = Vec::new();
    loop {
        grow(STEP)?;
        match (&mut stream).take(STEP).read_to_end(&mut bytes) {
            Ok(read) if (read as u64) < STEP => return Ok(Ok((bytes, true))),
            Ok(_) if bytes.len() as u64 > limit => return Ok(Ok((bytes, false))),
            Ok(_) => {}
            Err(error) => return Ok(Err(error)),
        }
    }
}

fn read_document(
    shared: &Shared,
    reader: DocumentUse,
    stream: Box<dyn Read + Send>,
    byte_offset: u64,
    job: &Job,
    permit: &Permit,
    sink: &mut PipeSink<'_>,
) -> Result<(), RecordError> {
    let limit = shared.settings.held_document_bytes_max();
    let mut grow = |bytes: u64| permit.grow(bytes * job.memory_factor).map_err(|_| RecordError::Stopped);
    let bytes = match read_whole(stream, limit, &mut grow)? {
        Ok((bytes, true)) => bytes,
        Ok((bytes, false)) => {
            let reason = format!(
                "a JSON document of more than {limit} bytes; raise document_bytes_max and memory_limit_bytes to read it"
            );
            let byte_length = bytes.len() as u64;
            let rule = rule::TOO_LARGE.into();
            let rejected =
                Rejected { byte_offset, byte_length, line: None, trajectory_id: None, rule, reason, raw: bytes };
            return sink.reject(rejected);
        }
        Err(error) => return sink.reject(damaged(error, &job.info.name, byte_offset)?),
    };
    let start = bytes.iter().position(|b| !b.is_ascii_whitespace() && *b != 0).unwrap_or(bytes.len());
    let end = bytes.iter().rposition(|b| !b.is_ascii_whitespace() && *b != 0).map_or(start, |at| at + 1);
    let whole = Record { bytes: &bytes[start..end], byte_offset: byte_offset + start as u64, line: Some(1) };
    match reader {
        DocumentUse::Whole(reader) => {
            Counts::add(&shared.counts.records, 1);
            let outcome = reader.record(&whole, &mut sink.at(&whole));
            settle(outcome, &whole, sink)
        }
        DocumentUse::Records(reader) => {
            let mut read = |record: &Record<'_>, sink: &mut PipeSink<'_>| reader.record(record, &mut sink.at(record));
            each_element(shared, &whole, &mut read, sink)
        }
        DocumentUse::Session(mut reader) => {
            let mut read = |record: &Record<'_>, sink: &mut PipeSink<'_>| reader.record(record, sink);
            each_element(shared, &whole, &mut read, sink)?;
            reader.finish(sink)
        }
    }
}

/// The elements of an array as records; a document that is no array is one record.
fn each_element<'s>(
    shared: &Shared,
    whole: &Record<'_>,
    read: &mut impl FnMut(&Record<'_>, &mut PipeSink<'s>) -> Result<(), RecordError>,
    sink: &mut PipeSink<'s>,
) -> Result<(), RecordError> {
    let bytes = whole.bytes;
    if bytes.first() != Some(&b'[') {
        Counts::add(&shared.counts.records, 1);
        let outcome = read(whole, sink);
        return settle(outcome, whole, sink);
    }
    let mut at = 1;
    loop {
        while bytes.get(at).is_some_and(|b| b.is_ascii_whitespace() || *b == b',') {
            at += 1;
        }
        if matches!(bytes.get(at), None | Some(b']')) {
            return Ok(());
        }
        Counts::add(&shared.counts.records, 1);
        match json::value_end(bytes, at) {
            Ok(end) => {
                let line = 1 + memchr::memchr_iter(b'\n', &bytes[..at]).count() as u64;
                let record =
                    Record { bytes: &bytes[at..end], byte_offset: whole.byte_offset + at as u64, line: Some(line) };
                let outcome = read(&record, sink);
                settle(outcome, &record, sink)?;
                at = end;
            }
            Err(broken) => {
                let rest = Record { bytes: &bytes[at..], byte_offset: whole.byte_offset + at as u64, line: None };
                let rule = if broken.cut { rule::CUT_RECORD } else { rule::NOT_JSON };
                let reason = format!("{}; the element starts with {}", broken.reason, excerpt(rest.bytes));
                return sink.reject(Rejected::record(&rest, rule, reason));
            }
        }
    }
}

/// A zip archive that is read member by member under the memory limit.
struct HeldArchive<'a> {
    shared: &'a Shared,
    archive: ZipFile,
    job: &'a Job,
    permit: &'a Permit,
}

impl Archive for HeldArchive<'_> {
    fn members(&self) -> &[Member] {
        self.archive.members()
    }

    fn read(&mut self, index: usize) -> Result<Vec<u8>, RecordError> {
        let limit = self.shared.settings.held_document_bytes_max();
        let Some(member) = self.archive.members().get(index).cloned() else {
            return Err(RecordError::refused(rule::MISSING_FIELD, format!("the archive has no member {index}")));
        };
        let refused =
            |problem: String| RecordError::refused(rule::DAMAGED, format!("member {}: {problem}", member.name));
        if member.byte_length > limit {
            let problem = format!("member {} has {} bytes, at most {limit} are held", member.name, member.byte_length);
            return Err(RecordError::refused(rule::TOO_LARGE, problem));
        }
        let needed = member.byte_length * self.job.memory_factor;
        self.permit.shrink_to(0);
        self.permit.grow(needed).map_err(|_| RecordError::Stopped)?;
        Counts::add(&self.shared.counts.records, 1);
        let failed = |error: io::Error| match damaged(error, &self.job.info.name, member.byte_offset) {
            Ok(rejected) => refused(rejected.reason),
            Err(error) => error,
        };
        let mut bytes = Vec::with_capacity(usize::try_from(member.byte_length).unwrap_or(0));
        let stream = self.archive.member(index).map_err(failed)?;
        stream.take(limit + 1).read_to_end(&mut bytes).map_err(failed)?;
        Ok(bytes)
    }
}

fn read_archive(
    shared: &Shared,
    reader: Box<dyn ArchiveReader>,
    archive: ZipFile,
    job: &Job,
    permit: &Permit,
    sink: &mut PipeSink<'_>,
) -> Result<(), RecordError> {
    let mut held = HeldArchive { shared, archive, job, permit };
    reader.archive(&mut held, sink)
}
