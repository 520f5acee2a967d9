//! Bytes that can be read at any place: a local file, or a copy of a stream in a temporary one.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A range of a file with a position of its own; clones share the file and nothing else.
#[derive(Debug, Clone)]
pub(crate) struct Section {
    file: Arc<File>,
    start: u64,
    end: u64,
    at: u64,
}

impl Section {
    /// All of a file.
    pub(crate) fn of(file: File) -> io::Result<Self> {
        let end = file.metadata()?.len();
        Ok(Self { file: Arc::new(file), start: 0, end, at: 0 })
    }

    /// A copy of a stream in an unnamed temporary file: gone when the last clone is.
    pub(crate) fn spool(stream: &mut dyn Read) -> io::Result<Self> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("dressage-{}-{count}.spool", std::process::id()));
        let mut file = File::options().read(true).write(true).create_new(true).open(&path)?;
        std::fs::remove_file(&path)?;
        io::copy(stream, &mut file)?;
        file.flush()?;
        Self::of(file)
    }

    pub(crate) fn byte_length(&self) -> u64 {
        self.end - self.start
    }

    /// A part of it, clipped to what is there.
    pub(crate) fn part(&self, start: u64, byte_length: u64) -> Self {
        let start = self.start.saturating_add(start).min(self.end);
        let end = start.saturating_add(byte_length).min(self.end);
        Self { file: Arc::clone(&self.file), start, end, at: 0 }
    }

    /// Exactly these bytes.
    pub(crate) fn read_exact_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        if at.saturating_add(buffer.len() as u64) > self.byte_length() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.file.read_exact_at(buffer, self.start + at)
    }
}

impl Read for Section {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.byte_length().saturating_sub(self.at);
        let wanted = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = self.file.read_at(&mut buffer[..wanted], self.start + self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for Section {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.byte_length().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spooled_stream_reads_back_in_parts() {
        let mut section = Section::spool(&mut &b"0123456789"[..]).unwrap();
        section.seek(SeekFrom::End(-3)).unwrap();
        let mut tail = String::new();
        section.read_to_string(&mut tail).unwrap();
        assert_eq!(tail, "789");
        let mut part = String::new();
        section.part(2, 4).read_to_string(&mut part).unwrap();
        assert_eq!(part, "2345");
        assert!(section.read_exact_at(&mut [0; 4], 8).is_err());
    }
}
