//! A folder for a thread that is on no async runtime: the trainer's.

use std::io::{self, Write};
use std::path::PathBuf;

use bytes::Bytes;
use dressage_schemas::tables::checkpoints::CheckpointFile;
use tokio::runtime::Handle;

use super::name::check_name;
use super::write::{write_local, write_remote};
use super::{ObjectEntry, ObjectFolder, Place};
use crate::error::Result;

/// An [`ObjectFolder`] whose calls wait. None of them may be made from an async task, which would stop the runtime that
/// they wait for.
#[derive(Debug, Clone)]
pub struct BlockingFolder {
    folder: ObjectFolder,
    runtime: Handle,
}

impl BlockingFolder {
    pub(super) fn new(folder: ObjectFolder, runtime: Handle) -> Self {
        Self { folder, runtime }
    }

    /// The same for async tasks.
    pub fn folder(&self) -> &ObjectFolder {
        &self.folder
    }

    /// Where it is, without credentials.
    pub fn uri(&self) -> &str {
        self.folder.uri()
    }

    /// See [`ObjectFolder::local_path`].
    ///
    /// # Errors
    /// `Invalid` for a name that is no path below the folder.
    pub fn local_path(&self, name: &str) -> Result<Option<PathBuf>> {
        self.folder.local_path(name)
    }

    /// See [`ObjectFolder::read`].
    ///
    /// # Errors
    /// As there.
    pub fn read(&self, name: &str) -> Result<Bytes> {
        self.runtime.block_on(self.folder.read(name))
    }

    /// See [`ObjectFolder::exists`].
    ///
    /// # Errors
    /// As there.
    pub fn exists(&self, name: &str) -> Result<bool> {
        self.runtime.block_on(self.folder.exists(name))
    }

    /// See [`ObjectFolder::list`].
    ///
    /// # Errors
    /// As there.
    pub fn list(&self) -> Result<Vec<ObjectEntry>> {
        self.runtime.block_on(self.folder.list())
    }

    /// See [`ObjectFolder::delete`].
    ///
    /// # Errors
    /// As there.
    pub fn delete(&self, name: &str) -> Result<()> {
        self.runtime.block_on(self.folder.delete(name))
    }

    /// See [`ObjectFolder::verify`].
    ///
    /// # Errors
    /// As there.
    pub fn verify(&self, files: &[CheckpointFile]) -> Result<()> {
        self.runtime.block_on(self.folder.verify(files))
    }

    /// Writes a file, or replaces it: `content` is called once with what takes its bytes, in any portions. Gives its
    /// name, size and hash when it is durable. Takes memory for five parts of 16 MiB on S3, one MiB on a disk, and the
    /// whole file in a memory store. Nothing of it is seen if anything fails, `content` included; an upload to S3 that
    /// ends with the process may leave parts that no listing shows, until the bucket's rules for unfinished uploads
    /// remove them.
    ///
    /// # Errors
    /// `Exhausted` naming the file where the disk is full or the file too large for S3 (see
    /// [`FILE_BYTES_MAX`](super::FILE_BYTES_MAX)); `Unavailable` where the store does not answer within
    /// `retry_timeout_ms`; what `content` gave, as a failure to write this file.
    pub fn write(
        &self,
        name: &str,
        content: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> Result<CheckpointFile> {
        check_name("file", name)?;
        let (bytes, hash) = match &self.folder.place {
            Place::Local { folder, fsync } => write_local(folder, name, *fsync, content)?,
            Place::Remote(remote) => {
                let path = remote.path(name, self.folder.uri())?;
                write_remote(remote, path, self.folder.shown(name), &self.runtime, content)?
            }
        };
        crate::fault::point("after", "file");
        Ok(CheckpointFile { path: name.to_owned(), bytes: i64::try_from(bytes).unwrap_or(i64::MAX), hash })
    }
}
