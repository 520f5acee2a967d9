//! Objects that are not ours: the files that an ingest reads from a bucket, as streams and listings.

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use crate::error::{Error, Result};
use crate::location::{Location, s3_client};
use crate::settings::S3Settings;

/// How long a request to a source is retried.
const SOURCE_RETRY_TIMEOUT_MS: u64 = 60_000;

/// One object that can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceEntry {
    /// `s3://bucket/key`.
    pub uri: String,
    /// Bytes.
    pub size: u64,
    /// Microseconds since 1970.
    pub modified_at: i64,
    /// As the service names this version of the object.
    pub e_tag: Option<String>,
}

/// An open object.
pub struct SourceObject {
    /// What it is.
    pub entry: SourceEntry,
    /// Its bytes, in order. A connection that breaks is an error here, never a short stream.
    pub bytes: BoxStream<'static, Result<Bytes>>,
}

impl std::fmt::Debug for SourceObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourceObject").field("entry", &self.entry).finish_non_exhaustive()
    }
}

/// Opens an object.
///
/// # Errors
/// `NotFound`, `Invalid` for something that is no `s3://` URI, `Unavailable`.
pub async fn open_source(uri: &str, s3: &S3Settings) -> Result<SourceObject> {
    let (bucket, key) = bucket_and_key(uri)?;
    let store = s3_client(&bucket, s3, SOURCE_RETRY_TIMEOUT_MS)?;
    let found = store.get(&Path::from(key.as_str())).await.map_err(|e| Error::object("read", uri, e))?;
    let entry = entry(&bucket, &found.meta);
    let name = uri.to_owned();
    let size = found.meta.size;
    let bytes = found.into_stream().map_err(move |e| Error::object("read", name.clone(), e)).boxed();
    Ok(SourceObject { bytes: whole(bytes, uri.to_owned(), size), entry })
}

/// The stream, ending in an error if it has fewer bytes than the object.
fn whole(bytes: BoxStream<'static, Result<Bytes>>, uri: String, size: u64) -> BoxStream<'static, Result<Bytes>> {
    let state = (bytes, 0_u64, false);
    futures::stream::try_unfold(state, move |(mut bytes, seen, done)| {
        let uri = uri.clone();
        async move {
            if done {
                return Ok(None);
            }
            match bytes.try_next().await? {
                Some(chunk) => {
                    let seen = seen + chunk.len() as u64;
                    Ok(Some((chunk, (bytes, seen, false))))
                }
                None if seen == size => Ok(None),
                None => Err(Error::ObjectAccess {
                    action: "read",
                    object: uri,
                    kind: dressage_schemas::ErrorKind::Unavailable,
                    source: crate::error::Cause::words(format!("it ended after {seen} of {size} bytes")),
                }),
            }
        }
    })
    .boxed()
}

/// Objects under a prefix (`s3://bucket/prefix/`), or that match a pattern with `*`, `?` or `**` in the key, in order
/// of their keys. One object where the URI names one exactly.
///
/// # Errors
/// `NotFound` where nothing matches, `Invalid` for something that is no `s3://` URI, `Unavailable`.
pub async fn list_sources(uri: &str, s3: &S3Settings) -> Result<Vec<SourceEntry>> {
    let (bucket, key) = bucket_and_key(uri)?;
    let store = s3_client(&bucket, s3, SOURCE_RETRY_TIMEOUT_MS)?;
    list_in(store.as_ref(), &bucket, &key, uri).await
}

async fn list_in(store: &dyn ObjectStore, bucket: &str, key: &str, uri: &str) -> Result<Vec<SourceEntry>> {
    let pattern = key.contains(['*', '?']);
    if !pattern && !key.is_empty() && !key.ends_with('/') {
        match store.head(&Path::from(key)).await {
            Ok(meta) => return Ok(vec![entry(bucket, &meta)]),
            // a folder given without its slash
            Err(object_store::Error::NotFound { .. }) => {}
            Err(e) => return Err(Error::object("look at", uri, e)),
        }
    }
    let fixed = key.split(['*', '?']).next().unwrap_or_default();
    // listings go by whole path parts
    let folder = if pattern { fixed.rsplit_once('/').map_or("", |(folder, _)| folder) } else { fixed };
    let prefix = (!folder.trim_matches('/').is_empty()).then(|| Path::from(folder));
    let mut found: Vec<SourceEntry> = store
        .list(prefix.as_ref())
        .map_err(|e| Error::object("list", uri, e))
        .try_filter(|meta| {
            let keep = meta.size > 0 && (!pattern || matches_glob(key, meta.location.as_ref()));
            futures::future::ready(keep)
        })
        .map_ok(|meta| entry(bucket, &meta))
        .try_collect()
        .await?;
    found.sort_by(|a, b| a.uri.cmp(&b.uri));
    if found.is_empty() {
        let missing = object_store::Error::NotFound { path: key.to_owned(), source: "no object matches".into() };
        return Err(Error::object("list", uri, missing));
    }
    Ok(found)
}

fn entry(bucket: &str, meta: &object_store::ObjectMeta) -> SourceEntry {
    SourceEntry {
        uri: format!("s3://{bucket}/{}", meta.location),
        size: meta.size,
        modified_at: meta.last_modified.timestamp_micros(),
        e_tag: meta.e_tag.clone(),
    }
}

fn bucket_and_key(uri: &str) -> Result<(String, String)> {
    let bad = Error::Setting { setting: "source", value: uri.to_owned(), expected: "s3://bucket/key" };
    let Some(rest) = uri.strip_prefix("s3://") else { return Err(bad) };
    let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() {
        return Err(bad);
    }
    // the location's own check of the bucket part
    Location::parse(&format!("s3://{bucket}"))?;
    Ok((bucket.to_owned(), key.to_owned()))
}

/// `*` and `?` match within one path part, `**` any number of parts.
fn matches_glob(pattern: &str, key: &str) -> bool {
    let pattern: Vec<&str> = pattern.split('/').collect();
    let key: Vec<&str> = key.split('/').collect();
    matches_parts(&pattern, &key)
}

fn matches_parts(pattern: &[&str], key: &[&str]) -> bool {
    match (pattern.split_first(), key.split_first()) {
        (None, None) => true,
        (Some((&"**", rest)), _) => {
            matches_parts(rest, key) || key.split_first().is_some_and(|(_, tail)| matches_parts(pattern, tail))
        }
        (Some((part, rest)), Some((name, tail))) => {
            matches_part(part.as_bytes(), name.as_bytes()) && matches_parts(rest, tail)
        }
        _ => false,
    }
}

/// Greedy with one step back: linear in practice, no recursion that a long name could blow up.
fn matches_part(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(b'?') => {
                p += 1;
                n += 1;
            }
            Some(c) if *c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    p = at + 1;
                    n = from + 1;
                    star = Some((at, from + 1));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

#[cfg(test)]
mod tests {
    use object_store::PutPayload;
    use object_store::memory::InMemory;

    use super::*;

    #[test]
    fn globs_match_keys_as_a_shell_would() {
        for (pattern, key, wanted) in [
            ("runs/*.jsonl", "runs/a.jsonl", true),
            ("runs/*.jsonl", "runs/x/a.jsonl", false),
            ("runs/**/*.jsonl", "runs/x/y/a.jsonl", true),
            ("runs/**/*.jsonl", "runs/a.jsonl", true),
            ("r?ns/a*b*c", "runs/a12b3c", true),
            ("r?ns/a*b*c", "runs/a12b3d", false),
        ] {
            assert_eq!(matches_glob(pattern, key), wanted, "{pattern} {key}");
        }
    }

    #[tokio::test]
    async fn a_folder_a_pattern_and_one_object_are_listed() {
        let store = InMemory::new();
        for key in ["d/b.jsonl", "d/a.jsonl", "d/e/c.jsonl", "other"] {
            store.put(&Path::from(key), PutPayload::from_static(b"x")).await.unwrap();
        }
        let list = async |key: &str| -> Vec<String> {
            list_in(&store, "b", key, "s3://b/x").await.unwrap().into_iter().map(|e| e.uri).collect()
        };
        assert_eq!(list("d").await, ["s3://b/d/a.jsonl", "s3://b/d/b.jsonl", "s3://b/d/e/c.jsonl"]);
        assert_eq!(list("d/*.jsonl").await, ["s3://b/d/a.jsonl", "s3://b/d/b.jsonl"]);
        assert_eq!(list("other").await, ["s3://b/other"]);
        assert!(list_in(&store, "b", "none/*", "s3://b/none/*").await.is_err());
    }
}
