//! Files in an object store: every request is repeated while the store does not answer.

use std::ops::Range;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt};

use super::{ObjectEntry, PART_BYTES, PARTS_IN_FLIGHT};
use crate::error::{Cause, Error, Result};
use crate::location::Objects;
use crate::retry::RetryLimit;

/// A folder in an object store.
#[derive(Clone)]
pub(super) struct Remote {
    pub(super) objects: Objects,
    pub(super) retry: RetryLimit,
}

/// A path below another. Parsed, not built: what stands in a name is what the object is called.
pub(super) fn below(root: &Path, name: &str, shown: &str) -> Result<Path> {
    let text = if root.as_ref().is_empty() { name.to_owned() } else { format!("{root}/{name}") };
    Path::parse(&text).map_err(|e| Error::object("name", shown, e.into()))
}

impl Remote {
    /// The path of a file.
    pub(super) fn path(&self, name: &str, uri: &str) -> Result<Path> {
        below(&self.objects.root, name, &format!("{uri}/{name}"))
    }

    /// What an object is; none where it is not there.
    pub(super) async fn head(&self, path: &Path, shown: &str) -> Result<Option<ObjectMeta>> {
        let store = self.objects.store.as_ref();
        let look = |_| async {
            match store.head(path).await {
                Ok(meta) => Ok(Some(meta)),
                Err(object_store::Error::NotFound { .. }) => Ok(None),
                Err(e) => Err(Error::object("look at", shown, e)),
            }
        };
        self.retry.run("look at an object", look).await
    }

    /// A whole object.
    pub(super) async fn read(&self, path: &Path, shown: &str) -> Result<Bytes> {
        let meta = self.found(path, shown).await?;
        if meta.size <= PART_BYTES as u64 {
            return self.range(path, shown, &meta, 0..meta.size).await;
        }
        let mut whole = Vec::new();
        let size = usize::try_from(meta.size).unwrap_or(usize::MAX);
        whole.try_reserve_exact(size).map_err(|e| Error::ObjectAccess {
            action: "read",
            object: shown.to_owned(),
            kind: dressage_schemas::ErrorKind::Exhausted,
            source: Cause::of(&e),
        })?;
        self.ranges(path, shown, &meta, |bytes| whole.extend_from_slice(&bytes)).await?;
        Ok(whole.into())
    }

    /// The bytes of an object in order, a range at a time.
    pub(super) async fn for_each_range(&self, path: &Path, shown: &str, look: impl FnMut(Bytes)) -> Result<()> {
        let meta = self.found(path, shown).await?;
        self.ranges(path, shown, &meta, look).await
    }

    async fn ranges(&self, path: &Path, shown: &str, meta: &ObjectMeta, mut look: impl FnMut(Bytes)) -> Result<()> {
        let part = PART_BYTES as u64;
        let starts = (0..meta.size.div_ceil(part)).map(|n| n * part);
        let mut read = futures::stream::iter(starts)
            .map(|start| self.range(path, shown, meta, start..(start + part).min(meta.size)))
            .buffered(PARTS_IN_FLIGHT);
        while let Some(bytes) = read.try_next().await? {
            look(bytes);
        }
        Ok(())
    }

    async fn found(&self, path: &Path, shown: &str) -> Result<ObjectMeta> {
        let missing = || object_store::Error::NotFound { path: path.to_string(), source: "no such object".into() };
        self.head(path, shown).await?.ok_or_else(|| Error::object("read", shown, missing()))
    }

    /// Some bytes of the object that `meta` was told of, and of no other that took its place.
    async fn range(&self, path: &Path, shown: &str, meta: &ObjectMeta, range: Range<u64>) -> Result<Bytes> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let store = self.objects.store.as_ref();
        let failed = |e| Error::object("read", shown, e);
        let get = |_| {
            let range = range.clone();
            async move {
                let wanted = range.end - range.start;
                let options =
                    GetOptions { range: Some(range.into()), if_match: meta.e_tag.clone(), ..GetOptions::default() };
                let bytes = store.get_opts(path, options).await.map_err(failed)?.bytes().await.map_err(failed)?;
                if bytes.len() as u64 == wanted {
                    return Ok(bytes);
                }
                Err(Error::ObjectAccess {
                    action: "read",
                    object: shown.to_owned(),
                    kind: dressage_schemas::ErrorKind::Unavailable,
                    source: Cause::words(format!("{} bytes came instead of {wanted}", bytes.len())),
                })
            }
        };
        self.retry.run("read an object", get).await
    }

    /// All objects at any depth.
    pub(super) async fn list(&self, uri: &str) -> Result<Vec<ObjectEntry>> {
        let root = &self.objects.root;
        let prefix = (!root.as_ref().is_empty()).then_some(root);
        let skipped = prefix.map_or(0, |prefix| prefix.as_ref().len() + 1);
        let list = |_| async {
            let listed = self.objects.store.list(prefix).map_err(|e| Error::object("list", uri, e));
            let entries = listed.try_filter_map(|meta| async move {
                let name = meta.location.as_ref().get(skipped..).unwrap_or_default().to_owned();
                let modified_at = meta.last_modified.timestamp_micros();
                Ok((!name.is_empty()).then_some(ObjectEntry { name, bytes: meta.size, modified_at }))
            });
            entries.try_collect().await
        };
        self.retry.run("list objects", list).await
    }

    /// Removes an object; nothing happens where there is none.
    pub(super) async fn delete(&self, path: &Path, shown: &str) -> Result<()> {
        let store = self.objects.store.as_ref();
        let remove = |_| async {
            match store.delete(path).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                Err(e) => Err(Error::object("delete", shown, e)),
            }
        };
        self.retry.run("delete an object", remove).await
    }
}
