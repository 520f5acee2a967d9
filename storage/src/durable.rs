//! What is acknowledged on a local folder is on the disk.
//!
//! The table format never flushes its files. Data files are flushed here by name after they are written and before
//! the manifest that names them; manifests go through [`DurableLocal`], which flushes them and their folder before
//! the write returns. Order matters: a manifest on the disk that names a data file that is not would be a store that
//! a power cut had broken.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use lance_io::object_store::WrappingObjectStore;
use lance_table::format::Fragment;
use object_store::list::PaginatedListStore;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, RenameOptions,
};

use crate::error::{Cause, Error, Result};

/// A local file system that flushes what it writes, except for transaction files: their content is in the manifest
/// too, and nothing needs them after a crash.
#[derive(Debug, Clone)]
pub(crate) struct DurableLocal {
    flushing: LocalFileSystem,
    plain: LocalFileSystem,
}

impl DurableLocal {
    /// Over the whole file system, as the table format's own client is.
    pub(crate) fn new() -> Self {
        Self { flushing: LocalFileSystem::new().with_fsync(true), plain: LocalFileSystem::new() }
    }

    fn for_path(&self, path: &Path) -> &LocalFileSystem {
        let transaction = path.parts().any(|p| p.as_ref() == "_transactions");
        if transaction { &self.plain } else { &self.flushing }
    }
}

impl fmt::Display for DurableLocal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DurableLocal")
    }
}

impl WrappingObjectStore for DurableLocal {
    fn wrap(&self, _store_prefix: &str, _original: Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> {
        Arc::new(self.clone())
    }

    fn wrap_paginated(
        &self,
        _store_prefix: &str,
        original: Arc<dyn PaginatedListStore>,
    ) -> Option<Arc<dyn PaginatedListStore>> {
        Some(original)
    }
}

#[async_trait]
impl ObjectStore for DurableLocal {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> object_store::Result<PutResult> {
        self.for_path(location).put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.for_path(location).put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        self.plain.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> object_store::Result<Vec<Bytes>> {
        self.plain.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        self.plain.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.plain.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.plain.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.plain.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> object_store::Result<()> {
        self.flushing.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> object_store::Result<()> {
        self.flushing.rename_opts(from, to, options).await
    }
}

/// Flushes the data files and blob files of fragments that were written but not yet committed, and every folder
/// that gained an entry for them. `table_folder` is `<store>/<table>.lance`.
pub(crate) async fn sync_fragments(table_folder: PathBuf, fragments: &[Fragment]) -> Result<()> {
    let data = table_folder.join("data");
    let files: Vec<PathBuf> = fragments.iter().flat_map(|f| &f.files).map(|f| data.join(&f.path)).collect();
    let task = tokio::task::spawn_blocking(move || sync_files(&table_folder, &data, &files));
    match task.await {
        Ok(done) => done,
        Err(lost) => Err(Error::TaskLost { what: "flushing data files", source: Cause::of(&lost) }),
    }
}

fn sync_files(table_folder: &FsPath, data: &FsPath, files: &[PathBuf]) -> Result<()> {
    let mut paths = BTreeSet::from([table_folder.to_owned(), data.to_owned()]);
    for file in files {
        paths.insert(file.clone());
        // blobs of `data/<name>.lance` are in `data/<name>/`
        let blobs = file.with_extension("");
        if blobs.is_dir() {
            let entries = std::fs::read_dir(&blobs).map_err(|e| failed("list", &blobs, &e))?;
            for entry in entries {
                paths.insert(entry.map_err(|e| failed("list", &blobs, &e))?.path());
            }
            paths.insert(blobs);
        }
    }
    flush_all(&paths.into_iter().collect::<Vec<_>>())
}

/// Files and folders that are flushed at the same time. Nothing is trusted to any of them before all of them are, so
/// their order does not matter, and the disk takes several at once for about the time of one.
const FLUSHES_AT_ONCE: usize = 8;

fn flush_all(paths: &[PathBuf]) -> Result<()> {
    let threads = paths.len().clamp(1, FLUSHES_AT_ONCE);
    let share = paths.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let (first, rest) = paths.split_at(share.min(paths.len()));
        let others: Vec<_> =
            rest.chunks(share).map(|part| scope.spawn(move || part.iter().try_for_each(|path| flush(path)))).collect();
        let mut done = first.iter().try_for_each(|path| flush(path));
        for other in others {
            let flushed = other.join().unwrap_or_else(|_| {
                Err(Error::TaskLost { what: "flushing data files", source: Cause::words("its thread panicked") })
            });
            done = done.and(flushed);
        }
        done
    })
}

/// Flushes a file, or a folder's entries, to the disk.
pub(crate) fn flush(path: &FsPath) -> Result<()> {
    File::open(path).and_then(|f| f.sync_all()).map_err(|e| failed("flush", path, &e))
}

/// What to do about a failure of the local file system, by its file or folder.
pub(crate) fn failed(action: &'static str, path: &FsPath, error: &std::io::Error) -> Error {
    use std::io::ErrorKind as Io;
    let kind = match error.kind() {
        Io::StorageFull | Io::QuotaExceeded | Io::FileTooLarge => dressage_schemas::ErrorKind::Exhausted,
        Io::NotFound => dressage_schemas::ErrorKind::NotFound,
        Io::PermissionDenied | Io::ReadOnlyFilesystem => dressage_schemas::ErrorKind::Invalid,
        _ => dressage_schemas::ErrorKind::Unavailable,
    };
    Error::ObjectAccess { action, object: path.display().to_string(), kind, source: Cause::of(error) }
}
