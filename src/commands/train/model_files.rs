//! A folder or prefix of the storage room as the trainer's source and target of model files.

use std::io::{self, Write};

use dressage_schemas::ErrorKind;
use dressage_schemas::tables::checkpoints::CheckpointFile;
use dressage_storage::BlockingFolder;
use dressage_trainer::{Error, FileBytes, ModelFiles, ModelSink, Result};

/// Model files anywhere.
#[derive(Debug)]
pub(super) struct Stored<'a>(pub(super) &'a BlockingFolder);

impl ModelFiles for Stored<'_> {
    fn open(&self, name: &str) -> Result<FileBytes> {
        let local = self.0.local_path(name).map_err(|error| failed_read(self.0, name, as_io(error)))?;
        if let Some(path) = local {
            return FileBytes::mapped(&path).map_err(|source| failed_read(self.0, name, source));
        }
        match self.0.read(name) {
            Ok(bytes) => Ok(FileBytes::from(Vec::from(bytes))),
            Err(error) => Err(failed_read(self.0, name, as_io(error))),
        }
    }

    fn has(&self, name: &str) -> Result<bool> {
        self.0.exists(name).map_err(|error| failed_read(self.0, name, as_io(error)))
    }

    fn place(&self) -> String {
        self.0.uri().to_owned()
    }
}

fn failed_read(folder: &BlockingFolder, name: &str, source: io::Error) -> Error {
    let (place, name) = (folder.uri().to_owned(), name.to_owned());
    match source.kind() {
        io::ErrorKind::NotFound => Error::FileMissing { place, name },
        _ => Error::FileRead { place, name, source },
    }
}

/// The storage room's error as the trainer passes it on: its kind survives.
fn as_io(error: dressage_storage::Error) -> io::Error {
    let kind = match error.kind() {
        ErrorKind::NotFound => io::ErrorKind::NotFound,
        ErrorKind::Exhausted => io::ErrorKind::StorageFull,
        ErrorKind::Unavailable => io::ErrorKind::TimedOut,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

/// Where model files are written to; remembers what was.
#[derive(Debug)]
pub(super) struct Sink<'a> {
    folder: &'a BlockingFolder,
    /// What was written, in order.
    pub(super) files: Vec<CheckpointFile>,
}

impl<'a> Sink<'a> {
    pub(super) fn new(folder: &'a BlockingFolder) -> Self {
        Self { folder, files: Vec::new() }
    }
}

impl ModelSink for Sink<'_> {
    fn write(&mut self, name: &str, contents: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>) -> Result<()> {
        let written = self.folder.write(name, contents).map_err(|error| Error::FileWrite {
            place: self.folder.uri().to_owned(),
            name: name.to_owned(),
            source: as_io(error),
        })?;
        self.files.push(written);
        Ok(())
    }
}
