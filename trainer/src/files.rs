//! Where a model's files come from and go to: a folder here; whatever else the caller implements.

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::ops::Deref;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::native::MappedFile;

/// The files of one model, by their names (`config.json`, `model.safetensors`, …). Implement it to read them from
/// elsewhere than a folder, for example an object store.
pub trait ModelFiles {
    /// The bytes of a file.
    ///
    /// # Errors
    ///
    /// [`Error::FileMissing`] if there is no such file, [`Error::FileRead`] if it cannot be read.
    fn open(&self, name: &str) -> Result<FileBytes>;

    /// Whether there is such a file.
    ///
    /// # Errors
    ///
    /// [`Error::FileRead`] if that cannot be said.
    fn has(&self, name: &str) -> Result<bool>;

    /// Where this is, for messages.
    fn place(&self) -> String;
}

/// The bytes of a file.
#[derive(Debug)]
pub struct FileBytes(Bytes);

#[derive(Debug)]
enum Bytes {
    Mapped(MappedFile),
    Owned(Vec<u8>),
}

impl FileBytes {
    /// A local file, mapped: what of it is looked at is read, and nothing is copied. The file must not be shortened
    /// while the value lives.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn mapped(path: &Path) -> io::Result<Self> {
        MappedFile::open(path).map(|map| Self(Bytes::Mapped(map)))
    }
}

impl From<Vec<u8>> for FileBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Bytes::Owned(bytes))
    }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Mapped(map) => map,
            Bytes::Owned(bytes) => bytes,
        }
    }
}

/// Where the files of a model are written to, one after the other.
pub trait ModelSink {
    /// Writes one file; `contents` is called once, with a buffered writer. A name may have folders in it, with forward
    /// slashes (`trainer/state.json`).
    ///
    /// # Errors
    ///
    /// [`Error::FileWrite`], and what `contents` gives.
    fn write(&mut self, name: &str, contents: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>) -> Result<()>;
}

/// A folder as a source and as a target. Files are written in place: publishing them together is the caller's work.
#[derive(Debug, Clone)]
pub struct Folder(PathBuf);

impl Folder {
    /// The folder at `path`; reading finds out whether it is there, writing makes it.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }
}

impl ModelFiles for Folder {
    fn open(&self, name: &str) -> Result<FileBytes> {
        FileBytes::mapped(&self.0.join(name)).map_err(|source| match source.kind() {
            ErrorKind::NotFound => Error::FileMissing { place: self.place(), name: name.to_owned() },
            _ => Error::FileRead { place: self.place(), name: name.to_owned(), source },
        })
    }

    fn has(&self, name: &str) -> Result<bool> {
        std::fs::exists(self.0.join(name)).map_err(|source| Error::FileRead {
            place: self.place(),
            name: name.to_owned(),
            source,
        })
    }

    fn place(&self) -> String {
        self.0.display().to_string()
    }
}

impl ModelSink for Folder {
    fn write(&mut self, name: &str, contents: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>) -> Result<()> {
        let place = self.0.display().to_string();
        let failed = |source| Error::FileWrite { place: place.clone(), name: name.to_owned(), source };
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(&self.0)).map_err(failed)?;
        let mut writer = BufWriter::with_capacity(1 << 20, File::create(path).map_err(failed)?);
        contents(&mut writer).map_err(failed)?;
        let file = writer.into_inner().map_err(|error| failed(error.into_error()))?;
        file.sync_all().map_err(failed)
    }
}
