//! Where a command writes what it was asked for: a file that is there whole or not at all, or standard output.
//!
//! ```text
//!   create ─▶ .NAME.XXXXXX beside it ─▶ keep: sync, rename over NAME
//!                    └─ dropped before (an error, Ctrl-C) ─▶ removed; NAME is as it was
//!   - and what is no regular file (a pipe, a device) ─▶ written as it comes
//! ```
//!
//! Encoders wrap or lose the errors of what they write to. So a destination remembers its first failure, and
//! [`Witness::judge`] puts it in the place of whatever the encoder made of it.

mod folder;

use std::fmt;
use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Stdout, Write, stdout};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use tempfile::{Builder, NamedTempFile};

pub(crate) use folder::{DestinationFolder, FolderFile};

/// Small writes are gathered into ones of this size.
const BUFFER_BYTES: usize = 1 << 16;

/// What is being written.
#[derive(Debug)]
pub(crate) struct Destination {
    out: Out,
    bytes: u64,
    witness: Witness,
    halt: Halt,
}

/// Set, it lets the next write to a [`Destination`] fail.
#[derive(Debug, Clone, Default)]
pub(crate) struct Halt(Arc<AtomicBool>);

impl Halt {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn check(&self) -> io::Result<()> {
        if self.0.load(Ordering::Relaxed) { Err(io::Error::other("stopped")) } else { Ok(()) }
    }
}

#[derive(Debug)]
enum Out {
    Stdout(Stdout),
    /// Standard output without its search for line ends.
    Bytes(BufWriter<File>),
    Aside {
        file: BufWriter<NamedTempFile>,
        target: PathBuf,
    },
}

/// Whether this path is standard output.
pub(crate) fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// How long a command that is stopped waits for a write to end. A consumer that does not read may keep it in one; a file
/// never does, and leaving it there would leave what is beside it.
pub(crate) fn patience(path: &Path) -> Option<Duration> {
    let consumer = is_stdout(path) || std::fs::metadata(path).is_ok_and(|there| !there.is_file());
    consumer.then_some(Duration::from_secs(3))
}

impl Destination {
    /// Begins to write to this path, of text a person may read as it comes; `-` is standard output.
    ///
    /// # Errors
    /// Where no file can be made there.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        if is_stdout(path) {
            return Ok(Self::of(Out::Stdout(stdout()), path));
        }
        Self::begin(path)
    }

    /// The same for bytes that are no text.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub(crate) fn create_binary(path: &Path) -> Result<Self> {
        if is_stdout(path) {
            let out = stdout().as_fd().try_clone_to_owned().map_err(|e| WriteFailed::of(path, e))?;
            return Ok(Self::of(Out::Bytes(BufWriter::with_capacity(BUFFER_BYTES, File::from(out))), path));
        }
        Self::begin(path)
    }

    fn begin(path: &Path) -> Result<Self> {
        let failed = |error| WriteFailed::of(path, error);
        // behind a link is the file that is meant
        let target = if path.is_symlink() { path.canonicalize().unwrap_or_else(|_| path.into()) } else { path.into() };
        let there = match std::fs::metadata(&target) {
            Ok(there) if !there.is_file() => {
                let file = File::options().write(true).open(&target).map_err(failed)?;
                return Ok(Self::of(Out::Bytes(BufWriter::with_capacity(BUFFER_BYTES, file)), path));
            }
            Ok(there) => Some(there.permissions()),
            Err(_) => None,
        };
        if there.as_ref().is_some_and(Permissions::readonly) {
            return Err(failed(io::Error::from(io::ErrorKind::PermissionDenied)).into());
        }
        let file = aside(&target).map_err(failed)?;
        if let Some(permissions) = there {
            file.as_file().set_permissions(permissions).map_err(failed)?;
        }
        let file = BufWriter::with_capacity(BUFFER_BYTES, file);
        Ok(Self::of(Out::Aside { file, target }, path))
    }

    fn of(out: Out, path: &Path) -> Self {
        let witness = Witness::of(path.to_path_buf());
        Self { out, bytes: 0, witness, halt: Halt::default() }
    }

    /// Whether it is a file that appears only when it is kept.
    pub(crate) fn is_whole_or_nothing(&self) -> bool {
        matches!(self.out, Out::Aside { .. })
    }

    /// Who knows what went wrong with it, to be asked when it is gone.
    pub(crate) fn witness(&self) -> Witness {
        self.witness.clone()
    }

    /// What stops whoever writes to it, on another thread.
    pub(crate) fn halt(&self) -> Halt {
        self.halt.clone()
    }

    /// Puts what was written in its place, and says how many bytes that is.
    ///
    /// # Errors
    /// Where what waits cannot be written, or the place cannot be taken.
    pub(crate) fn keep(mut self) -> Result<u64> {
        let path = self.witness.path.clone();
        let failed = |error| WriteFailed::of(&path, error);
        self.flush().map_err(failed)?;
        // asked to stop at the very end
        self.halt.check().map_err(failed)?;
        if let Out::Aside { file, target } = self.out {
            let file = file.into_inner().map_err(|e| failed(e.into_error()))?;
            // a disk may take bytes that it finds no room for later
            file.as_file().sync_all().map_err(failed)?;
            file.persist(&target).map_err(|e| failed(e.error))?;
        }
        Ok(self.bytes)
    }
}

/// A new file in the folder of the one that it will replace, with the permissions that any new file has.
fn aside(target: &Path) -> io::Result<NamedTempFile> {
    let name = target.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::IsADirectory))?;
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let prefix = format!(".{}.", name.to_string_lossy());
    // the mask of the process is taken off by the system
    Builder::new().prefix(&prefix).permissions(Permissions::from_mode(0o666)).tempfile_in(folder).map_err(bare)
}

/// The system's own error: the path that `tempfile` adds is one that nobody named.
fn bare(error: io::Error) -> io::Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> =
        error.get_ref().map(|inner| inner as &(dyn std::error::Error + 'static));
    while let Some(inner) = cause {
        if let Some(code) = inner.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return io::Error::from_raw_os_error(code);
        }
        cause = inner.source();
    }
    error
}

impl Write for Destination {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.halt.check()?;
        let written = match &mut self.out {
            Out::Stdout(out) => out.write(bytes),
            Out::Bytes(out) => out.write(bytes),
            Out::Aside { file, .. } => file.write(bytes),
        };
        let written = self.witness.look(written)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = match &mut self.out {
            Out::Stdout(out) => out.flush(),
            Out::Bytes(out) => out.flush(),
            Out::Aside { file, .. } => file.flush(),
        };
        self.witness.look(flushed)
    }
}

/// Remembers the first failure of a [`Destination`]. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Witness {
    path: PathBuf,
    seen: Arc<Mutex<Option<io::Error>>>,
}

impl Witness {
    fn of(path: PathBuf) -> Self {
        Self { path, seen: Arc::default() }
    }

    fn look<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result
            && !matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
        {
            self.seen.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| copy(error));
        }
        result
    }

    /// The result, with the failure of the destination, where there was one, in the place of its error.
    ///
    /// # Errors
    /// The result's own, or the destination's.
    pub(crate) fn judge<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| match self.seen.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(seen) => WriteFailed::of(&self.path, seen).into(),
            None => error,
        })
    }
}

fn copy(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

/// A destination did not take what was written; the cause decides what kind of failure it is.
#[derive(Debug)]
pub(crate) struct WriteFailed {
    place: String,
    source: io::Error,
}

impl WriteFailed {
    /// Of this path, `-` being standard output.
    pub(crate) fn of(path: &Path, source: io::Error) -> Self {
        let place = if is_stdout(path) { "standard output".to_owned() } else { path.display().to_string() };
        Self { place, source }
    }
}

impl fmt::Display for WriteFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot write {}", self.place)?;
        f.write_str(match self.source.kind() {
            io::ErrorKind::StorageFull => ": its disk is full; free some space, or write to another disk",
            io::ErrorKind::QuotaExceeded => ": your quota on its disk is used up; free some space, or write elsewhere",
            io::ErrorKind::FileTooLarge => {
                ": it has reached the size that a file may have; raise that limit (ulimit -f), or write less at once"
            }
            _ => "",
        })
    }
}

impl std::error::Error for WriteFailed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// What a folder holds, in order.
    pub(super) fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).expect("a folder");
        let mut names: Vec<String> =
            entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_only_when_it_is_kept_and_nothing_else_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out.csv");
        std::fs::write(&path, "old").expect("written");
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("set");
        let mut left = Destination::create(&path).expect("begins");
        left.write_all(b"half").expect("taken");
        assert_eq!(std::fs::read_to_string(&path).expect("there"), "old");
        drop(left);
        assert_eq!((std::fs::read_to_string(&path).expect("there").as_str(), names(folder.path()).len()), ("old", 1));

        let mut kept = Destination::create(&path).expect("begins");
        kept.write_all(b"whole").expect("taken");
        assert_eq!(kept.keep().expect("kept"), 5);
        assert_eq!(std::fs::read_to_string(&path).expect("there"), "whole");
        assert_eq!(names(folder.path()), ["out.csv"]);
        let mode = std::fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o640, "as it was");
    }

    #[test]
    fn a_link_stays_a_link_and_a_device_is_written_to() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("real"), "old").expect("written");
        let link = folder.path().join("link");
        symlink("real", &link).expect("linked");
        let mut out = Destination::create(&link).expect("begins");
        out.write_all(b"new").expect("taken");
        out.keep().expect("kept");
        assert!(link.is_symlink());
        assert_eq!(std::fs::read_to_string(folder.path().join("real")).expect("there"), "new");

        let mut null = Destination::create(Path::new("/dev/null")).expect("begins");
        assert!(!null.is_whole_or_nothing());
        null.write_all(b"gone").expect("taken");
        null.keep().expect("kept");
        assert!(!Path::new("/dev/null").is_file());
    }

    #[test]
    fn a_full_disk_is_told_by_its_path_whatever_the_encoder_says() {
        let path = Path::new("/dev/full");
        let mut out = Destination::create(path).expect("begins");
        let witness = out.witness();
        out.write_all(&vec![0; 2 * BUFFER_BYTES]).expect_err("it is full");
        let error = witness.judge::<()>(Err(anyhow::anyhow!("the encoder is unhappy"))).unwrap_err();
        assert!(error.to_string().contains("/dev/full") && error.to_string().contains("disk is full"), "{error}");
        assert_eq!(crate::failure::kind_of(&error), dressage_schemas::ErrorKind::Exhausted);
    }
}
