//! Files that are no tables: models and checkpoints, in a folder, under an `s3://` URL, or in a store's memory.
//!
//! ```text
//!   ObjectFolder::open(uri)          ┐            ┌ read · list · exists · verify · delete      (async)
//!   ObjectFolder::in_store(lake, …)  ┘──▶ files ──┤
//!                                                 └ blocking(runtime) ──▶ BlockingFolder: the same, and write
//! ```
//!
//! A file is there whole or not at all: in a folder it is written aside and renamed, on S3 an upload shows when it is
//! complete. What `write` acknowledged is on the disk or in the object store.

mod blocking;
mod name;
mod remote;
mod write;

use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;

use blake3::Hasher;
use bytes::Bytes;
use dressage_schemas::tables::checkpoints::CheckpointFile;
use lance::session::Session;
use lance_io::object_store::ObjectStoreRegistry;

pub use blocking::BlockingFolder;
pub(crate) use name::{check_name, check_part};

use crate::durable;
use crate::error::{Cause, Error, Result};
use crate::lake::Lake;
use crate::location::{Location, Objects};
use crate::retry::RetryLimit;
use crate::settings::StoreSettings;
use remote::Remote;

/// Bytes of one request when a large object is read or written. S3 takes at most 10,000 parts of an upload, and some
/// services want them all of one size, so this bounds the size of a file: see [`FILE_BYTES_MAX`].
pub(crate) const PART_BYTES: usize = 16 << 20;
/// Such requests at once.
pub(crate) const PARTS_IN_FLIGHT: usize = 3;
/// The largest file that is written to S3: 10,000 parts.
pub const FILE_BYTES_MAX: u64 = 10_000 * PART_BYTES as u64;

/// What a file that is being written aside is called at its end, after a dot and 16 hex digits.
const ASIDE: &str = ".part";

/// Whether a file was written aside and not put in its place: it is being written, or its writer died.
fn is_aside(name: &str) -> bool {
    let random = name.strip_suffix(ASIDE).and_then(|rest| rest.rsplit_once('.')).map(|(_, random)| random);
    random.is_some_and(|r| r.len() == 16 && r.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Files under one folder. Cheap to clone.
#[derive(Clone)]
pub struct ObjectFolder {
    uri: String,
    place: Place,
}

#[derive(Clone)]
enum Place {
    Local { folder: PathBuf, fsync: bool },
    Remote(Remote),
}

/// One file of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectEntry {
    /// Below the folder, with forward slashes.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Microseconds since 1970.
    pub modified_at: i64,
}

impl std::fmt::Debug for ObjectFolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectFolder").field("uri", &self.uri).finish_non_exhaustive()
    }
}

impl ObjectFolder {
    /// The files under a folder, `file://…`, `s3://bucket/prefix` or `memory://name`. Nothing is read or made; of the
    /// settings, those of S3, `retry_timeout_ms` and `local_fsync` count, not the `uri`.
    ///
    /// # Errors
    /// `Invalid` where the URI or a setting cannot work.
    pub async fn open(uri: &str, settings: &StoreSettings) -> Result<Self> {
        let location = Location::parse(uri).map_err(|e| match e {
            Error::Setting { value, expected, .. } => Error::Setting { setting: "folder", value, expected },
            other => other,
        })?;
        crate::secret::remember(settings.s3.secret_access_key.reveal());
        crate::secret::remember(settings.s3.session_token.reveal());
        let uri = location.display();
        if let Some(folder) = location.folder() {
            let place = Place::Local { folder: folder.to_owned(), fsync: settings.local_fsync };
            return Ok(Self { uri, place });
        }
        // keeps nothing: it only resolves the memory of a process
        let session = Session::new(0, 0, Arc::new(ObjectStoreRegistry::default()));
        let objects = location.objects(settings, &session).await?;
        let retry = RetryLimit { uri: uri.clone(), timeout_ms: settings.retry_timeout_ms };
        Ok(Self { uri, place: Place::Remote(Remote { objects, retry }) })
    }

    /// The files under a path below the root of a store, such as `checkpoints/run-1`.
    ///
    /// # Errors
    /// `Invalid` for a path that is empty, absolute or leads out of the store.
    pub fn in_store(lake: &Lake, path: &str) -> Result<Self> {
        check_name("path in the store", path)?;
        let opened = &lake.inner;
        let uri = format!("{}/{path}", opened.uri);
        if let Some(folder) = opened.location.folder() {
            let place = Place::Local { folder: folder.join(path), fsync: opened.settings.local_fsync };
            return Ok(Self { uri, place });
        }
        let root = remote::below(&opened.root, path, &uri)?;
        let objects = Objects { store: opened.objects.clone(), parts: opened.parts.clone(), root };
        let retry = lake.retry_limit();
        Ok(Self { uri, place: Place::Remote(Remote { objects, retry }) })
    }

    /// Where it is, without credentials.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// The same for a thread outside of an async runtime, and with writing. The runtime must have threads of its own
    /// (`new_multi_thread`).
    pub fn blocking(&self, runtime: tokio::runtime::Handle) -> BlockingFolder {
        BlockingFolder::new(self.clone(), runtime)
    }

    /// Where a file lies on the local disk, so that it can be mapped; none where the folder is not on one. The file need
    /// not be there.
    ///
    /// # Errors
    /// `Invalid` for a name that is no path below the folder.
    pub fn local_path(&self, name: &str) -> Result<Option<PathBuf>> {
        check_name("file", name)?;
        Ok(match &self.place {
            Place::Local { folder, .. } => Some(folder.join(name)),
            Place::Remote(_) => None,
        })
    }

    /// A whole file. A large one is fetched in ranges, some at a time: beyond the result, that takes memory for
    /// three ranges of 16 MiB.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` where somebody replaced it meanwhile; `Unavailable`.
    pub async fn read(&self, name: &str) -> Result<Bytes> {
        check_name("file", name)?;
        match &self.place {
            Place::Local { folder, .. } => {
                let path = folder.join(name);
                let read = move || std::fs::read(&path).map_err(|e| durable::failed("read", &path, &e));
                on_disk("reading a file", read).await.map(Bytes::from)
            }
            Place::Remote(remote) => remote.read(&remote.path(name, &self.uri)?, &self.shown(name)).await,
        }
    }

    /// Whether a file is there.
    ///
    /// # Errors
    /// `Invalid` for a name that is no path below the folder; whatever the store answers.
    pub async fn exists(&self, name: &str) -> Result<bool> {
        check_name("file", name)?;
        match &self.place {
            Place::Local { folder, .. } => {
                let path = folder.join(name);
                on_disk("looking for a file", move || Ok(path.is_file())).await
            }
            Place::Remote(remote) => {
                Ok(remote.head(&remote.path(name, &self.uri)?, &self.shown(name)).await?.is_some())
            }
        }
    }

    /// All files at any depth, by name. Empty where the folder is not there.
    ///
    /// # Errors
    /// Whatever the store answers.
    pub async fn list(&self) -> Result<Vec<ObjectEntry>> {
        let mut found = self.list_all().await?;
        found.retain(|entry| !is_aside(&entry.name));
        Ok(found)
    }

    /// The same, with what is being written and what writers that died left.
    pub(crate) async fn list_all(&self) -> Result<Vec<ObjectEntry>> {
        let mut found = match &self.place {
            Place::Local { folder, .. } => {
                let folder = folder.clone();
                on_disk("listing files", move || list_folder(&folder)).await?
            }
            Place::Remote(remote) => remote.list(&self.uri).await?,
        };
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Removes a file; nothing happens where there is none.
    ///
    /// # Errors
    /// Whatever the store answers.
    pub async fn delete(&self, name: &str) -> Result<()> {
        check_name("file", name)?;
        match &self.place {
            Place::Local { folder, .. } => {
                let path = folder.join(name);
                let remove = move || match std::fs::remove_file(&path) {
                    Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(durable::failed("delete", &path, &e)),
                    _ => Ok(()),
                };
                on_disk("deleting a file", remove).await
            }
            Place::Remote(remote) => remote.delete(&remote.path(name, &self.uri)?, &self.shown(name)).await,
        }
    }

    /// Removes the folder with everything in it; gives the number of files.
    pub(crate) async fn delete_all(&self) -> Result<u64> {
        let files = self.list_all().await?;
        match &self.place {
            Place::Local { folder, .. } => {
                let folder = folder.clone();
                let remove = move || match std::fs::remove_dir_all(&folder) {
                    Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(durable::failed("delete", &folder, &e)),
                    _ => Ok(()),
                };
                on_disk("deleting files", remove).await?;
            }
            Place::Remote(_) => {
                for file in &files {
                    self.delete(&file.name).await?;
                }
            }
        }
        Ok(files.len() as u64)
    }

    /// Whether files are there with the sizes that were written down. Reads a listing and no file.
    ///
    /// # Errors
    /// `Corrupt` naming the first file that is missing or of another size.
    pub async fn verify_sizes(&self, files: &[CheckpointFile]) -> Result<()> {
        let found = self.list().await?;
        for file in files {
            let entry = found.binary_search_by(|e| e.name.as_str().cmp(&file.path)).ok().map(|at| &found[at]);
            if let Some(detail) = size_fault(file, entry.map(|e| e.bytes)) {
                return Err(Error::FileDamaged { object: self.shown(&file.path), detail });
            }
        }
        Ok(())
    }

    /// Whether files are what was written: sizes, and hashes over every byte. Reads all of them, in little memory.
    ///
    /// # Errors
    /// `Corrupt` naming the first file that is missing or not what was written; `Unavailable`.
    pub async fn verify(&self, files: &[CheckpointFile]) -> Result<()> {
        self.verify_sizes(files).await?;
        for file in files {
            self.verify_hash(file).await?;
        }
        Ok(())
    }

    /// Whether every byte of a file is what was written.
    pub(crate) async fn verify_hash(&self, file: &CheckpointFile) -> Result<()> {
        check_name("file", &file.path)?;
        let hash = self.hash(&file.path).await?;
        if hash == file.hash {
            return Ok(());
        }
        let detail = format!("its BLAKE3 is {hash}, not {}", file.hash);
        Err(Error::FileDamaged { object: self.shown(&file.path), detail })
    }

    /// The hash of a file as it is now.
    async fn hash(&self, name: &str) -> Result<String> {
        match &self.place {
            Place::Local { folder, .. } => {
                let path = folder.join(name);
                let hash = move || {
                    let mut hasher = Hasher::new();
                    let file = std::fs::File::open(&path).map_err(|e| durable::failed("read", &path, &e))?;
                    hasher.update_reader(file).map_err(|e| durable::failed("read", &path, &e))?;
                    Ok(short_hash(&hasher))
                };
                on_disk("hashing a file", hash).await
            }
            Place::Remote(remote) => {
                let mut hasher = Hasher::new();
                let path = remote.path(name, &self.uri)?;
                let update = |bytes: Bytes| {
                    hasher.update(&bytes);
                };
                remote.for_each_range(&path, &self.shown(name), update).await?;
                Ok(short_hash(&hasher))
            }
        }
    }

    /// A file as messages name it.
    pub(crate) fn shown(&self, name: &str) -> String {
        format!("{}/{name}", self.uri)
    }
}

/// How a file differs in size from what was written down; `found` is none where it is missing.
pub(crate) fn size_fault(file: &CheckpointFile, found: Option<u64>) -> Option<String> {
    match found {
        None => Some("it is missing".to_owned()),
        Some(bytes) if u64::try_from(file.bytes) == Ok(bytes) => None,
        Some(bytes) => Some(format!("it has {bytes} bytes, not {}", file.bytes)),
    }
}

/// The first 32 hex digits.
fn short_hash(hasher: &Hasher) -> String {
    hasher.finalize().to_hex().chars().take(32).collect()
}

/// Runs something that waits for the disk apart from the async threads.
async fn on_disk<T: Send + 'static>(
    what: &'static str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(lost) => Err(Error::TaskLost { what, source: Cause::of(&lost) }),
    }
}

fn list_folder(root: &FsPath) -> Result<Vec<ObjectEntry>> {
    let mut found = Vec::new();
    let mut folders = vec![(root.to_owned(), String::new())];
    while let Some((folder, prefix)) = folders.pop() {
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            Err(e) => return Err(durable::failed("list", &folder, &e)),
        };
        for entry in entries {
            let entry = entry.map_err(|e| durable::failed("list", &folder, &e))?;
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            // followed: a folder of a model may be made of links
            let meta = match std::fs::metadata(entry.path()) {
                Ok(meta) => meta,
                // removed since it was listed
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                Err(e) => return Err(durable::failed("look at", &entry.path(), &e)),
            };
            if meta.is_dir() {
                folders.push((entry.path(), format!("{name}/")));
            } else {
                found.push(ObjectEntry { name, bytes: meta.len(), modified_at: modified_at(&meta) });
            }
        }
    }
    Ok(found)
}

fn modified_at(meta: &std::fs::Metadata) -> i64 {
    let since = meta.modified().ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    since.and_then(|since| i64::try_from(since.as_micros()).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_written_aside_is_left_out() {
        assert!(is_aside("model.safetensors.0123456789abcdef.part"));
        for shown in ["model.part", "a.0123.part", "x.0123456789abcdeg.part", "a.0123456789abcdef"] {
            assert!(!is_aside(shown), "{shown}");
        }
    }
}
