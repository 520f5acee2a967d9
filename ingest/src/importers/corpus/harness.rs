//! Reads a file with the importer that recognises it, without the pipeline around it.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::importer::{
    Archive, Confidence, Importer, Member, Reader, Record, RecordError, Rejected, Shape, Sink, Sniff, SourceInfo,
};
use crate::importers::ALL;
use crate::records::{each_record, settle};
use crate::rollout::Rollout;
use crate::sniff::{choose, look, look_at_zip};

/// What a file gave.
#[derive(Default)]
pub(super) struct Read {
    pub(super) format: Option<&'static str>,
    pub(super) rollouts: Vec<Rollout>,
    pub(super) rejected: Vec<Rejected>,
}

impl Read {
    pub(super) fn steps(&self) -> usize {
        self.rollouts.iter().map(|rollout| rollout.steps.len()).sum()
    }

    pub(super) fn rewards(&self) -> Vec<Option<f64>> {
        self.rollouts.iter().map(|rollout| rollout.rewards.last().and_then(|reward| reward.value)).collect()
    }

    pub(super) fn one(&self) -> &Rollout {
        assert_eq!(self.rollouts.len(), 1, "rejected: {:?}", self.rejected);
        &self.rollouts[0]
    }
}

impl Sink for Read {
    fn rollout(&mut self, rollout: Rollout) -> Result<(), RecordError> {
        self.rollouts.push(rollout);
        Ok(())
    }

    fn reject(&mut self, rejected: Rejected) -> Result<(), RecordError> {
        self.rejected.push(rejected);
        Ok(())
    }
}

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A file that ships with the repository.
pub(super) fn shipped(name: &str) -> Read {
    read(&repository().join("tests/data").join(name))
}

/// A kept file beside the repository; none (and a line that says so) where the folder is not there.
pub(super) fn kept(name: &str) -> Option<Read> {
    let path = repository().join("../shared").join(name);
    if !path.exists() {
        eprintln!("skipped: {} is not here", path.display());
        return None;
    }
    Some(read(&path))
}

/// All kept files below a folder, by relative name.
pub(super) fn kept_files(folder: &str) -> Vec<String> {
    let root = repository().join("../shared");
    let mut files = Vec::new();
    let mut folders = vec![root.join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(name) = path.strip_prefix(&root) {
                files.push(name.display().to_string());
            }
        }
    }
    files.sort();
    files
}

/// The importers that recognise the bytes, the surest first.
pub(super) fn recognised(bytes: &[u8]) -> Vec<(&'static dyn Importer, Confidence)> {
    let sniff = sniff(bytes);
    let mut found: Vec<_> = ALL
        .iter()
        .map(|importer| (*importer, importer.sniff(&sniff)))
        .filter(|(_, confidence)| *confidence > Confidence::No)
        .collect();
    found.sort_by_key(|(_, confidence)| std::cmp::Reverse(*confidence));
    found
}

fn read(path: &Path) -> Read {
    let bytes = std::fs::read(path).unwrap();
    let Some(importer) = choose(&sniff(&bytes)) else { return Read::default() };
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    read_with(importer, &name, &bytes)
}

pub(super) fn read_with(importer: &dyn Importer, name: &str, bytes: &[u8]) -> Read {
    let mut out = Read { format: Some(importer.name()), ..Read::default() };
    let bytes = without_mark(bytes);
    let whole = Record { bytes, byte_offset: 0, line: None };
    let is_document = sniff(bytes).shape == Shape::JsonDocument;
    match importer.reader(&SourceInfo { name: name.to_owned(), stem: crate::source::stem(name) }) {
        Reader::Document(reader) => settle(reader.record(&whole, &mut out), &whole, &mut out).unwrap(),
        Reader::Records(reader) if is_document => {
            settle(reader.record(&whole, &mut out), &whole, &mut out).unwrap();
        }
        Reader::Records(reader) => {
            each_record(bytes, 0, 1, &mut |record, out| reader.record(record, out), &mut out).map(|_| ()).unwrap();
        }
        Reader::Session(mut reader) => {
            each_record(bytes, 0, 1, &mut |record, out| reader.record(record, out), &mut out).map(|_| ()).unwrap();
            settle(reader.finish(&mut out), &whole, &mut out).unwrap();
        }
        Reader::Archive(reader) => {
            settle(reader.archive(&mut Zip::open(bytes), &mut out), &whole, &mut out).unwrap();
        }
    }
    out
}

fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// As the pipeline does: what the first 256 KiB show.
fn sniff(bytes: &[u8]) -> Sniff<'_> {
    let bytes = without_mark(bytes);
    let head = &bytes[..bytes.len().min(256 << 10)];
    let complete = head.len() == bytes.len();
    if bytes.starts_with(b"PK\x03\x04") {
        let members = Zip::open(bytes).members.into_iter().map(|member| member.name).collect();
        return look_at_zip(head, complete, members);
    }
    look(head, complete)
}

struct Zip<'a> {
    archive: zip::ZipArchive<std::io::Cursor<&'a [u8]>>,
    members: Vec<Member>,
}

impl<'a> Zip<'a> {
    fn open(bytes: &'a [u8]) -> Self {
        let mut archive = zip::ZipArchive::new(std::io::Cursor::new(bytes)).unwrap();
        let members = (0..archive.len())
            .map(|index| {
                let file = archive.by_index(index).unwrap();
                Member { name: file.name().to_owned(), byte_length: file.size(), byte_offset: file.data_start() }
            })
            .collect();
        Self { archive, members }
    }
}

impl Archive for Zip<'_> {
    fn members(&self) -> &[Member] {
        &self.members
    }

    fn read(&mut self, index: usize) -> Result<Vec<u8>, RecordError> {
        let mut bytes = Vec::new();
        self.archive.by_index(index).unwrap().read_to_end(&mut bytes).unwrap();
        Ok(bytes)
    }
}
