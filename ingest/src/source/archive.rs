//! Zip archives: members as streams of their own, with their checksums.

use std::io::{self, Read};

use zip::CompressionMethod;

use super::seekable::Section;
use crate::importer::Member;

/// More members than this are not a log.
const MEMBERS_MAX: usize = 1_000_000;

/// An opened zip archive. Clones share the directory.
#[derive(Clone)]
pub(crate) struct ZipFile {
    archive: zip::ZipArchive<Section>,
    section: Section,
    members: Vec<Member>,
    indices: Vec<usize>,
}

impl ZipFile {
    /// Reads the directory; folders are left out.
    pub(crate) fn open(section: Section) -> io::Result<Self> {
        let mut archive = zip::ZipArchive::new(section.clone()).map_err(damaged)?;
        if archive.len() > MEMBERS_MAX {
            let message = format!("{} members, at most {MEMBERS_MAX} are read", archive.len());
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        let mut members = Vec::new();
        let mut indices = Vec::new();
        for index in 0..archive.len() {
            let entry = archive.by_index_raw(index).map_err(damaged)?;
            if entry.is_file() {
                let byte_offset = entry.data_start();
                members.push(Member { name: entry.name().to_owned(), byte_length: entry.size(), byte_offset });
                indices.push(index);
            }
        }
        Ok(Self { archive, section, members, indices })
    }

    pub(crate) fn members(&self) -> &[Member] {
        &self.members
    }

    /// A member's bytes; the last read fails where they do not match the checksum.
    pub(crate) fn member(&mut self, index: usize) -> io::Result<Box<dyn Read + Send>> {
        let Some(&at) = self.indices.get(index) else { return Err(io::ErrorKind::NotFound.into()) };
        let entry = self.archive.by_index_raw(at).map_err(damaged)?;
        if entry.encrypted() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the member is encrypted"));
        }
        let start = entry.data_start();
        let packed = self.section.part(start, entry.compressed_size());
        let inner: Box<dyn Read + Send> = match entry.compression() {
            CompressionMethod::Stored => Box::new(packed),
            CompressionMethod::Deflated => Box::new(flate2::read::DeflateDecoder::new(packed)),
            CompressionMethod::Zstd => Box::new(zstd::stream::read::Decoder::new(packed)?),
            other => {
                let message = format!("the member is compressed with {other}, which is not supported");
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
        };
        Ok(Box::new(Checked { inner, crc: flate2::Crc::new(), expected_crc: entry.crc32(), byte_length: entry.size() }))
    }
}

fn damaged(error: zip::result::ZipError) -> io::Error {
    match error {
        zip::result::ZipError::Io(error) => error,
        other => io::Error::new(io::ErrorKind::InvalidData, other),
    }
}

/// Compares length and checksum at the end, and stops a member that is longer than its directory entry says.
struct Checked {
    inner: Box<dyn Read + Send>,
    crc: flate2::Crc,
    expected_crc: u32,
    byte_length: u64,
}

impl Read for Checked {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.crc.update(&buffer[..read]);
        let so_far = u64::from(self.crc.amount());
        let at_end = read == 0 && !buffer.is_empty();
        let wrong_length = so_far > self.byte_length || (at_end && so_far < self.byte_length);
        // the counter of the checksum has 32 bits; longer members are checked by their checksum alone
        if self.byte_length < u64::from(u32::MAX) && wrong_length {
            let message = format!("the member has not the {} bytes that the directory says", self.byte_length);
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        if at_end && self.crc.sum() != self.expected_crc {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the member does not match its checksum"));
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write};

    use zip::write::SimpleFileOptions;

    use super::*;

    fn zip_of(members: &[(&str, &[u8])], method: CompressionMethod) -> Vec<u8> {
        let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
        for (name, bytes) in members {
            writer.start_file(*name, SimpleFileOptions::default().compression_method(method)).unwrap();
            writer.write_all(bytes).unwrap();
        }
        writer.finish().unwrap().into_inner()
    }

    fn open(bytes: &[u8]) -> ZipFile {
        ZipFile::open(Section::spool(&mut &bytes[..]).unwrap()).unwrap()
    }

    #[test]
    fn members_read_back_under_each_method() {
        let text = b"some text ".repeat(1_000);
        for method in [CompressionMethod::Stored, CompressionMethod::Deflated, CompressionMethod::Zstd] {
            let mut file = open(&zip_of(&[("a.json", b"{}"), ("d/b.json", &text)], method));
            let names: Vec<_> = file.members().iter().map(|m| m.name.clone()).collect();
            assert_eq!(names, ["a.json", "d/b.json"]);
            let mut read = Vec::new();
            file.member(1).unwrap().read_to_end(&mut read).unwrap();
            assert_eq!(read, text);
        }
    }

    #[test]
    fn a_flipped_byte_is_found_by_the_checksum() {
        let mut bytes = zip_of(&[("a", b"0123456789abcdef")], CompressionMethod::Stored);
        let at = bytes.windows(4).position(|w| w == b"4567").unwrap();
        bytes[at] ^= 1;
        let error = open(&bytes).member(0).unwrap().read_to_end(&mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("checksum"));
    }

    #[test]
    fn an_archive_without_its_directory_is_damaged() {
        let bytes = zip_of(&[("a", b"0123456789abcdef")], CompressionMethod::Stored);
        assert!(ZipFile::open(Section::spool(&mut &bytes[..40]).unwrap()).is_err());
    }
}
