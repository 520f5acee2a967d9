//! A file mapped into memory, so that weights are copied once: from the page cache into their tensor.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

use memmap2::Mmap;

/// The bytes of a file, read when they are looked at.
#[derive(Debug)]
pub(crate) struct MappedFile(Option<Mmap>);

impl MappedFile {
    /// Maps a file for reading. Somebody who shortens the file meanwhile ends this process (SIGBUS): published
    /// weights are never rewritten, only replaced.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        // an empty file cannot be mapped
        if file.metadata()?.len() == 0 {
            return Ok(Self(None));
        }
        // SAFETY: the map is read-only and private to this value; see above for what a concurrent writer would do
        let map = unsafe { Mmap::map(&file)? };
        Ok(Self(Some(map)))
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}
