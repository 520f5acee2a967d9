//! What can go wrong with an event file.

use std::path::{Path, PathBuf};

use dressage_schemas::ErrorKind;

/// Why an event file was not written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventFileError {
    /// The file system refused.
    #[error("cannot {what} {path}", path = path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A record in the middle of the file does not match its checksum, or is no event.
    #[error("{path} is damaged at byte {byte}: move it away, and a new file is begun", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the record begins.
        byte: u64,
    },
}

impl EventFileError {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { source, .. } => match source.kind() {
                std::io::ErrorKind::NotFound => ErrorKind::NotFound,
                std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ErrorKind::Exhausted,
                std::io::ErrorKind::PermissionDenied => ErrorKind::Invalid,
                _ => ErrorKind::Unavailable,
            },
            Self::Damaged { .. } => ErrorKind::Corrupt,
        }
    }

    pub(super) fn io(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { what, path: path.to_owned(), source }
    }
}
