//! The reading thread: opens each source in turn, finds out what it is, and cuts it into pieces of work.

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use super::flow::{DocumentUse, End, Job, Outcome, Shared, Task, Work};
use super::sink::strict;
use super::worker::{self, damaged, too_long};
use crate::budget::Permit;
use crate::error::Error;
use crate::importer::{Importer, Reader, RecordError, RecordReader, Rejected, Shape, Sniff, SourceInfo};
use crate::importers::columns;
use crate::recognise;
use crate::report::Counts;
use crate::rule;
use crate::settings::FORMAT_AUTO;
use crate::sniff;
use crate::source::archive::ZipFile;
use crate::source::blocks::{BLOCK_BYTES, Blocks, Next};
use crate::source::object::{self, ObjectReader};
use crate::source::seekable::Section;
use crate::source::unpack::{RawSource, Unpacked, unpack};
use crate::source::{Origin, Source, stem};

/// Archives inside archives inside archives are not logs.
const NESTING_MAX: usize = 2;
/// Memory of a task before it has read anything.
const START_BYTES: u64 = 64 << 10;

/// Format of a source that holds nothing.
const EMPTY: &str = "empty";

/// A stream of bytes; of a file also the file, and whether its bytes are counted where they are read.
type Opened = (Box<dyn Read + Send>, Option<(Section, bool)>);

/// Why a source was not opened.
enum Unopened {
    /// This one cannot be read; others may well be.
    Unreadable(String),
    /// None can be read now.
    Failed(Error),
}

/// Opens sources and sends work.
pub(crate) struct Dispatcher<'a> {
    shared: &'a Arc<Shared>,
    tasks: SyncSender<Task>,
    objects: ObjectReader,
    next_seq: u64,
}

impl<'a> Dispatcher<'a> {
    pub(crate) fn new(shared: &'a Arc<Shared>, tasks: SyncSender<Task>, objects: ObjectReader) -> Self {
        Self { shared, tasks, objects, next_seq: 0 }
    }

    /// Reads all sources, then says how many pieces there were.
    pub(crate) fn run(mut self, sources: &[Source]) {
        for source in sources {
            if self.shared.is_stopping() {
                break;
            }
            Counts::add(&self.shared.counts.sources_begun, 1);
            match self.source(source) {
                Ok(()) => {}
                Err(End::Stopped) => return,
                Err(End::Failed(error)) => {
                    // nobody is left to be told if this cannot be delivered
                    drop(self.shared.deliver(self.next_seq, Outcome::Failed(error)));
                    return;
                }
            }
        }
        drop(self.shared.deliver(self.next_seq, Outcome::LastSeq));
    }

    fn source(&mut self, source: &Source) -> Result<(), End> {
        match self.open(source) {
            Ok((stream, section)) => {
                // pipes, sockets and devices too: whatever has no size
                let live = source.byte_length.is_none();
                self.stream(source.name.clone(), stream, section, live, 0)
            }
            Err(Unopened::Unreadable(why)) => {
                Counts::add(&self.shared.counts.files, 1);
                self.shared.note_format(rule::UNREADABLE);
                let info = SourceInfo { stem: stem(&source.name), name: source.name.clone() };
                let job = Arc::new(Job { info, format: "", memory_factor: 1 });
                self.reject(&job, self.whole_source(rule::UNREADABLE, &worker::unreadable_reason(0, &why)))
            }
            Err(Unopened::Failed(error)) => Err(error.into()),
        }
    }

    /// Opens a source; a file also for reading at any place.
    fn open(&self, source: &Source) -> Result<Opened, Unopened> {
        let failed = |error: io::Error| Unopened::Unreadable(error.to_string());
        let shared = Arc::clone(self.shared);
        let count = Box::new(move |bytes| Counts::add(&shared.counts.bytes_in, bytes));
        let (stream, file): (Box<dyn Read + Send>, Option<Section>) = match &source.origin {
            Origin::File(path) => {
                let file = File::open(path).map_err(failed)?;
                let section = Section::of(file.try_clone().map_err(failed)?).map_err(failed)?;
                let regular = file.metadata().map_err(failed)?.is_file();
                (Box::new(RawSource { inner: file, count }), regular.then_some(section))
            }
            Origin::StandardInput => (Box::new(RawSource { inner: io::stdin(), count }), None),
            Origin::Object(uri) => {
                let stream =
                    object::open(&self.objects, uri).map_err(|error| match object::why_unreadable(&error) {
                        Some(why) => Unopened::Unreadable(why),
                        None => Unopened::Failed(Error::Storage(error)),
                    })?;
                (Box::new(RawSource { inner: stream, count }), None)
            }
            Origin::Unreadable(why) => return Err(Unopened::Unreadable(why.clone())),
        };
        Ok((stream, file.map(|section| (section, true))))
    }

    /// One stream of bytes: a source, or a member of an archive.
    fn stream(
        &mut self,
        name: String,
        stream: Box<dyn Read + Send>,
        file: Option<(Section, bool)>,
        live: bool,
        depth: usize,
    ) -> Result<(), End> {
        Counts::add(&self.shared.counts.files, 1);
        let unpacked = match unpack(stream, self.shared.settings.expansion_ratio_max, live) {
            Ok(unpacked) => unpacked,
            Err(error) => return self.reject_source(&name, "damaged", damaged(error, &name, 0)),
        };
        let head = unpacked.head.clone();
        let sniff = sniff::look(&head, unpacked.complete);
        match sniff.shape {
            Shape::Empty => {
                self.shared.note_format(EMPTY);
                Ok(())
            }
            Shape::Zip | Shape::Parquet | Shape::ArrowFile => {
                let section = match file {
                    Some((section, counted)) if !unpacked.was_compressed => {
                        if counted {
                            let unseen = section.byte_length().saturating_sub(head.len() as u64);
                            Counts::add(&self.shared.counts.bytes_in, unseen);
                        }
                        section
                    }
                    _ => match Section::spool(&mut unpacked.into_stream()) {
                        Ok(section) => section,
                        Err(error) => return self.reject_source(&name, "damaged", damaged(error, &name, 0)),
                    },
                };
                match sniff.shape {
                    Shape::Zip => self.zip(name, section, &head, depth),
                    shape => self.columns(name, columns::Input::File(shape, section), &sniff),
                }
            }
            Shape::ArrowStream => self.columns(name, columns::Input::Stream(unpacked.into_stream()), &sniff),
            Shape::JsonLines | Shape::JsonDocument | Shape::Text | Shape::Binary => match self.importer_of(&sniff) {
                Some(importer) => self.json(name, importer, sniff.shape, unpacked, live),
                None => self.unrecognised(name, &sniff),
            },
        }
    }

    fn importer_of(&self, sniff: &Sniff<'_>) -> Option<&'static dyn Importer> {
        match self.shared.settings.format.as_str() {
            FORMAT_AUTO => sniff::choose(sniff),
            // a format asked for by name reads whatever is JSON; what is not is named for what it is
            name => sniff::choose_form(name, sniff).filter(|_| sniff.is_json()),
        }
    }

    fn json(
        &mut self,
        name: String,
        importer: &'static dyn Importer,
        shape: Shape,
        unpacked: Unpacked,
        live: bool,
    ) -> Result<(), End> {
        let info = SourceInfo { stem: stem(&name), name };
        let reader = importer.reader(&info);
        let job = self.job(info, importer.name(), importer.memory_factor());
        let byte_offset = unpacked.byte_offset;
        let is_document = shape == Shape::JsonDocument;
        let document =
            |reader, unpacked: Unpacked| Work::Document { reader, stream: unpacked.into_stream(), byte_offset };
        let work = match reader {
            Reader::Records(reader) if !is_document => {
                let blocks = self.blocks(unpacked).live(live);
                return self.send_blocks(&job, &Arc::from(reader), blocks);
            }
            Reader::Session(reader) if !is_document => {
                Work::Session { reader, blocks: self.blocks(unpacked).live(live) }
            }
            Reader::Records(reader) => document(DocumentUse::Records(Arc::from(reader)), unpacked),
            Reader::Session(reader) => document(DocumentUse::Session(reader), unpacked),
            Reader::Document(reader) => document(DocumentUse::Whole(Arc::from(reader)), unpacked),
            Reader::Archive(_) => {
                let rejected = self.whole_source(rule::WRONG_TYPE, "the format is a zip archive, and this is none");
                return self.reject(&job, rejected);
            }
        };
        let permit = Arc::new(self.shared.budget.acquire(START_BYTES)?);
        self.send(&job, permit, work)
    }

    fn blocks(&self, unpacked: Unpacked) -> Blocks {
        let byte_offset = unpacked.byte_offset;
        Blocks::new(unpacked.into_stream(), byte_offset, self.shared.settings.record_bytes_max())
    }

    /// Cuts a source whose records stand alone into blocks for all threads.
    fn send_blocks(&mut self, job: &Arc<Job>, reader: &Arc<dyn RecordReader>, mut blocks: Blocks) -> Result<(), End> {
        let factor = job.memory_factor;
        loop {
            if self.shared.is_stopping() {
                return Ok(());
            }
            let permit = self.shared.budget.acquire(BLOCK_BYTES as u64 * factor)?;
            let next = blocks.next(|bytes| permit.grow(bytes * factor).map_err(io::Error::other));
            match next {
                Ok(Next::End) => return Ok(()),
                Ok(Next::Block(block)) => {
                    permit.shrink_to(block.bytes.len() as u64 * factor);
                    self.send(job, Arc::new(permit), Work::Block { reader: Arc::clone(reader), block })?;
                }
                Ok(Next::TooLong { head, byte_offset, byte_length, line }) => {
                    let rejected = too_long(self.shared, head, byte_offset, byte_length, line);
                    self.reject(job, rejected)?;
                }
                Err(error) => {
                    let rejected = end_or_rejected(damaged(error, &job.info.name, blocks.byte_offset()))?;
                    return self.reject(job, rejected);
                }
            }
        }
    }

    fn zip(&mut self, name: String, section: Section, head: &[u8], depth: usize) -> Result<(), End> {
        let mut archive = match ZipFile::open(section) {
            Ok(archive) => archive,
            Err(error) => return self.reject_source(&name, "zip", damaged(error, &name, 0)),
        };
        let members: Vec<String> = archive.members().iter().map(|m| m.name.clone()).collect();
        let sniff = sniff::look_at_zip(head, false, members.clone());
        let wanted = &self.shared.settings.format;
        let importer = match wanted.as_str() {
            FORMAT_AUTO => sniff::choose(&sniff),
            name => sniff::choose_form(name, &sniff),
        };
        if let Some(importer) = importer {
            let info = SourceInfo { stem: stem(&name), name: name.clone() };
            if let Reader::Archive(reader) = importer.reader(&info) {
                let job = self.job(info, importer.name(), importer.memory_factor());
                let permit = Arc::new(self.shared.budget.acquire(START_BYTES)?);
                return self.send(&job, permit, Work::Archive { reader, archive });
            }
        }
        if recognise::archive(&sniff).is_some() || depth >= NESTING_MAX {
            return self.unrecognised(name, &sniff);
        }
        // its members are what is read, and they are counted one by one
        Counts::take_back(&self.shared.counts.files, 1);
        for (index, member) in members.iter().enumerate() {
            if self.shared.is_stopping() {
                return Ok(());
            }
            let member_name = format!("{name}!{member}");
            match archive.member(index) {
                Ok(stream) => self.stream(member_name, stream, None, false, depth + 1)?,
                Err(error) => self.reject_source(&member_name, "zip", damaged(error, &name, 0))?,
            }
        }
        Ok(())
    }

    fn columns(&mut self, name: String, input: columns::Input, sniff: &Sniff<'_>) -> Result<(), End> {
        let format = input.format();
        let mut rows = match columns::open(input) {
            Ok(rows) => rows,
            Err(columns::NotRows::OtherColumns(what)) => {
                let sniffed =
                    Sniff { head: sniff.head, members: Vec::new(), records: Vec::new(), keys: Vec::new(), ..*sniff };
                return self.unrecognised_as(name, &sniffed, &what);
            }
            Err(columns::NotRows::Io(error)) => return self.reject_source(&name, format, damaged(error, &name, 0)),
        };
        let info = SourceInfo { stem: stem(&name), name };
        let job = self.job(info, format, columns::MEMORY_FACTOR);
        loop {
            if self.shared.is_stopping() {
                return Ok(());
            }
            let limit = self.shared.settings.held_document_bytes_max();
            if rows.next_bytes() > limit {
                let reason = format!(
                    "a batch of {} bytes, at most {limit} are held; write smaller batches or raise memory_limit_bytes",
                    rows.next_bytes()
                );
                let rejected =
                    Rejected { byte_offset: rows.row_offset(), ..self.whole_source(rule::TOO_LARGE, &reason) };
                return self.reject(&job, rejected);
            }
            let needed = rows.next_bytes() * job.memory_factor;
            let permit: Arc<Permit> = Arc::new(self.shared.budget.acquire(needed)?);
            match rows.next() {
                Ok(None) => return Ok(()),
                Ok(Some(pieces)) => {
                    for piece in pieces {
                        self.send(&job, Arc::clone(&permit), Work::Rows { piece })?;
                    }
                }
                Err(error) => {
                    let rejected = end_or_rejected(damaged(error, &job.info.name, rows.row_offset()))?;
                    return self.reject(&job, rejected);
                }
            }
        }
    }

    fn job(&self, info: SourceInfo, format: &'static str, memory_factor: u64) -> Arc<Job> {
        self.shared.note_format(format);
        Arc::new(Job { info, format, memory_factor })
    }

    fn send(&mut self, job: &Arc<Job>, permit: Arc<Permit>, work: Work) -> Result<(), End> {
        let seq = self.next_seq;
        self.next_seq += 1;
        self.tasks.send(Task { seq, job: Arc::clone(job), permit, work }).map_err(|_| End::Stopped)
    }

    fn unrecognised(&mut self, name: String, sniff: &Sniff<'_>) -> Result<(), End> {
        let what = recognise::describe(sniff);
        self.unrecognised_as(name, sniff, &what)
    }

    /// A source that is no rollout, or of a format that is not supported: one row that says what it looks like.
    fn unrecognised_as(&mut self, name: String, sniff: &Sniff<'_>, what: &str) -> Result<(), End> {
        self.shared.note_format(rule::UNRECOGNISED);
        let info = SourceInfo { stem: stem(&name), name };
        let job = Arc::new(Job { info, format: "", memory_factor: 1 });
        Counts::add(&self.shared.counts.records, 1);
        let rejected = Rejected {
            raw: sniff.head.to_vec(),
            byte_length: sniff.head.len() as u64,
            ..self.whole_source(rule::UNRECOGNISED, what)
        };
        self.reject(&job, rejected)
    }

    fn whole_source(&self, rule: &'static str, reason: &str) -> Rejected {
        Rejected {
            byte_offset: 0,
            byte_length: 0,
            line: None,
            trajectory_id: None,
            rule: rule.into(),
            reason: reason.to_owned(),
            raw: Vec::new(),
        }
    }

    fn reject_source(
        &mut self,
        name: &str,
        format: &'static str,
        rejected: Result<Rejected, RecordError>,
    ) -> Result<(), End> {
        let info = SourceInfo { stem: stem(name), name: name.to_owned() };
        let job = self.job(info, format, 1);
        let rejected = end_or_rejected(rejected)?;
        self.reject(&job, rejected)
    }

    fn reject(&mut self, job: &Arc<Job>, mut rejected: Rejected) -> Result<(), End> {
        if self.shared.settings.strict {
            return Err(strict(&job.info.name, &rejected).into());
        }
        rejected.raw.truncate(usize::try_from(self.shared.settings.quarantine_bytes_max).unwrap_or(usize::MAX));
        let seq = self.next_seq;
        self.next_seq += 1;
        let permit = Some(Arc::new(self.shared.budget.acquire(rejected.raw.len() as u64)?));
        let rejected = Box::new(rejected);
        self.shared.deliver(seq, Outcome::Rejected { rejected, job: Arc::clone(job), permit })?;
        self.shared.deliver(seq, Outcome::Done)
    }
}

fn end_or_rejected(outcome: Result<Rejected, RecordError>) -> Result<Rejected, End> {
    outcome.map_err(|error| match error {
        RecordError::Failed(error) => End::Failed(error),
        _ => End::Stopped,
    })
}
