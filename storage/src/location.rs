//! From a store's URI and settings to clients: one settings struct, two constructors, so that the table format and
//! our own objects always talk to the same place with the same credentials.

use std::collections::HashMap;
use std::path::{Component, Path as FsPath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dressage_schemas::Table;
use lance::session::Session;
use lance_io::object_store::{ObjectStoreParams, StorageOptionsAccessor};
use object_store::aws::{AmazonS3, AmazonS3Builder, S3ConditionalPut};
use object_store::local::LocalFileSystem;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{ClientOptions, ObjectStore, RetryConfig};
use url::Url;

use crate::durable::DurableLocal;
use crate::error::{Cause, Error, Result};
use crate::settings::{S3Settings, StoreSettings};

/// How often one HTTP request is retried below the table format. Low, because whole operations are retried above
/// it under `retry_timeout_ms`.
const REQUEST_RETRIES_MAX: usize = 3;

/// A client for our own objects.
#[derive(Clone)]
pub(crate) struct Objects {
    /// The client.
    pub(crate) store: Arc<dyn ObjectStore>,
    /// The same client, where it takes large objects in parts.
    pub(crate) parts: Option<Arc<dyn MultipartStore>>,
    /// Where the place is in it.
    pub(crate) root: Path,
}

/// Where a store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Location {
    /// A folder, absolute.
    Local(PathBuf),
    /// A bucket and a key prefix without slashes at its ends (may be empty).
    S3 {
        /// The bucket.
        bucket: String,
        /// The prefix.
        prefix: String,
    },
    /// This process's memory, by name.
    Memory(String),
}

impl Location {
    /// Reads a URI as a user types it.
    pub(crate) fn parse(uri: &str) -> Result<Self> {
        let bad = |expected| Error::Setting { setting: "store", value: uri.to_owned(), expected };
        if uri.is_empty() {
            return Err(bad("a folder, file://, s3://bucket/prefix or memory://name"));
        }
        if let Some(rest) = uri.strip_prefix("s3://") {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            let prefix = prefix.trim_matches('/');
            if bucket.is_empty() || prefix.contains("//") {
                return Err(bad("s3://bucket/prefix"));
            }
            return Ok(Self::S3 { bucket: bucket.to_owned(), prefix: prefix.to_owned() });
        }
        if let Some(name) = uri.strip_prefix("memory://") {
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            let name = name.trim_end_matches('/').to_ascii_lowercase();
            if name.is_empty() || !name.chars().all(plain) {
                return Err(bad("memory:// followed by letters, digits, - or _"));
            }
            return Ok(Self::Memory(name));
        }
        let path = if uri.starts_with("file://") {
            let url = Url::parse(uri).map_err(|_| bad("a file:// URL with an absolute path"))?;
            url.to_file_path().map_err(|()| bad("a file:// URL with an absolute path"))?
        } else if uri.contains("://") {
            return Err(bad("a folder, file://, s3://bucket/prefix or memory://name"));
        } else {
            PathBuf::from(uri)
        };
        let path = std::path::absolute(&path).map_err(|_| bad("a path"))?;
        let path = without_parents(&path);
        if path.is_file() {
            return Err(bad("a folder but a file"));
        }
        Ok(Self::Local(path))
    }

    /// The URI as we print it: never with credentials.
    pub(crate) fn display(&self) -> String {
        match self {
            Self::Local(path) => path.display().to_string(),
            Self::S3 { bucket, prefix } if prefix.is_empty() => format!("s3://{bucket}"),
            Self::S3 { bucket, prefix } => format!("s3://{bucket}/{prefix}"),
            Self::Memory(name) => format!("memory://{name}"),
        }
    }

    /// The folder, where it is one.
    pub(crate) fn folder(&self) -> Option<&FsPath> {
        match self {
            Self::Local(path) => Some(path),
            Self::S3 { .. } | Self::Memory(_) => None,
        }
    }

    /// The URI of a table for the table format.
    pub(crate) fn table_uri(&self, table: Table) -> Result<String> {
        let name = format!("{table}.lance");
        Ok(match self {
            Self::Local(path) => file_url(&path.join(name))?,
            Self::S3 { bucket, prefix } if prefix.is_empty() => format!("s3://{bucket}/{name}"),
            Self::S3 { bucket, prefix } => format!("s3://{bucket}/{prefix}/{name}"),
            Self::Memory(store) => format!("shared-memory://{store}/{name}"),
        })
    }

    /// Options of the table format for this place.
    pub(crate) fn table_params(&self, settings: &StoreSettings) -> Result<ObjectStoreParams> {
        let mut params = ObjectStoreParams::default();
        match self {
            Self::Local(_) if settings.local_fsync => {
                params.object_store_wrapper = Some(Arc::new(DurableLocal::new()));
            }
            Self::Local(_) | Self::Memory(_) => {}
            Self::S3 { .. } => {
                let options = s3_table_options(&settings.s3, settings.retry_timeout_ms)?;
                params.storage_options_accessor = Some(Arc::new(StorageOptionsAccessor::with_static_options(options)));
            }
        }
        Ok(params)
    }

    /// A client for our own objects, and the path of the place in it.
    pub(crate) async fn objects(&self, settings: &StoreSettings, session: &Session) -> Result<Objects> {
        match self {
            Self::Local(path) => {
                let store = LocalFileSystem::new().with_fsync(settings.local_fsync);
                let root =
                    Path::from_absolute_path(path).map_err(|e| Error::object("open", self.display(), e.into()))?;
                Ok(Objects { store: Arc::new(store), parts: None, root })
            }
            Self::S3 { bucket, prefix } => {
                let store = s3_client(bucket, &settings.s3, settings.retry_timeout_ms)?;
                Ok(Objects { parts: Some(store.clone()), store, root: Path::from(prefix.as_str()) })
            }
            Self::Memory(name) => {
                // the table format's own client: only it can reach its memory
                let uri = format!("shared-memory://{name}/");
                let (store, root) = lance_io::object_store::ObjectStore::from_uri_and_params(
                    session.store_registry(),
                    &uri,
                    &ObjectStoreParams::default(),
                )
                .await
                .map_err(|e| Error::table("open", Table::Trajectories, e))?;
                Ok(Objects { store: store.inner.clone(), parts: None, root })
            }
        }
    }
}

/// Takes `.` and `..` out of an absolute path: object paths have no such parts. What stands before a `..` is resolved
/// first where it exists, because the parent of a symbolic link is the parent of what it points to.
fn without_parents(path: &FsPath) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                out = out.canonicalize().unwrap_or(out);
                out.pop();
            }
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    out
}

/// A `file://` URL of an absolute path.
fn file_url(path: &FsPath) -> Result<String> {
    Url::from_file_path(path).map(String::from).map_err(|()| Error::Setting {
        setting: "store",
        value: path.display().to_string(),
        expected: "an absolute path",
    })
}

/// Refuses a plain-text endpoint unless it was asked for.
fn checked_endpoint(s3: &S3Settings) -> Result<Option<&str>> {
    let Some(endpoint) = s3.endpoint.as_deref() else {
        return Ok(None);
    };
    let bad = |expected| Error::Setting { setting: "s3 endpoint", value: endpoint.to_owned(), expected };
    let url = Url::parse(endpoint).map_err(|_| bad("a URL such as https://host:port"))?;
    match url.scheme() {
        "https" => Ok(Some(endpoint)),
        "http" if s3.allow_http => Ok(Some(endpoint)),
        "http" => Err(bad("allowed: it is plain http, over which keys and data can be read; set allow_http to use it")),
        _ => Err(bad("an http or https URL")),
    }
}

/// The table format's storage options.
fn s3_table_options(s3: &S3Settings, retry_timeout_ms: u64) -> Result<HashMap<String, String>> {
    let mut options = HashMap::from([
        ("aws_region".to_owned(), s3.region_or_default().to_owned()),
        ("aws_virtual_hosted_style_request".to_owned(), (!s3.uses_path_style()).to_string()),
        ("allow_http".to_owned(), s3.allow_http.to_string()),
        ("client_max_retries".to_owned(), REQUEST_RETRIES_MAX.to_string()),
        ("client_retry_timeout".to_owned(), (retry_timeout_ms / 1000).max(1).to_string()),
    ]);
    if let Some(endpoint) = checked_endpoint(s3)? {
        options.insert("aws_endpoint".to_owned(), endpoint.to_owned());
    }
    if let Some(id) = &s3.access_key_id {
        options.insert("aws_access_key_id".to_owned(), id.clone());
        options.insert("aws_secret_access_key".to_owned(), s3.secret_access_key.reveal().to_owned());
        if !s3.session_token.reveal().is_empty() {
            options.insert("aws_session_token".to_owned(), s3.session_token.reveal().to_owned());
        }
    }
    Ok(options)
}

/// A client of one bucket.
pub(crate) fn s3_client(bucket: &str, s3: &S3Settings, retry_timeout_ms: u64) -> Result<Arc<AmazonS3>> {
    // without keys of our own, the environment's chain (instance role, web identity) applies
    let mut builder = if s3.access_key_id.is_some() { AmazonS3Builder::new() } else { AmazonS3Builder::from_env() };
    builder = builder
        .with_bucket_name(bucket)
        .with_region(s3.region_or_default())
        .with_virtual_hosted_style_request(!s3.uses_path_style())
        .with_allow_http(s3.allow_http)
        .with_client_options(ClientOptions::new().with_allow_http(s3.allow_http))
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_retry(RetryConfig {
            max_retries: REQUEST_RETRIES_MAX,
            retry_timeout: Duration::from_millis(retry_timeout_ms),
            ..RetryConfig::default()
        });
    if let Some(endpoint) = checked_endpoint(s3)? {
        builder = builder.with_endpoint(endpoint);
    }
    if let Some(id) = &s3.access_key_id {
        builder = builder.with_access_key_id(id).with_secret_access_key(s3.secret_access_key.reveal());
        if !s3.session_token.reveal().is_empty() {
            builder = builder.with_token(s3.session_token.reveal());
        }
    }
    let store = builder.build().map_err(|e| Error::ObjectAccess {
        action: "configure",
        object: format!("s3://{bucket}"),
        kind: dressage_schemas::ErrorKind::Invalid,
        source: Cause::of(&e),
    })?;
    Ok(Arc::new(store))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_read_as_typed() {
        assert_eq!(Location::parse("s3://b/p/q/").unwrap(), Location::S3 { bucket: "b".into(), prefix: "p/q".into() });
        assert_eq!(Location::parse("memory://t1").unwrap(), Location::Memory("t1".into()));
        assert_eq!(Location::parse("file:///tmp/a%20b").unwrap(), Location::Local("/tmp/a b".into()));
        for refused in ["", "gs://b/p", "s3:///p", "memory://", "memory://a/b"] {
            assert!(Location::parse(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn a_path_through_its_parent_is_the_folder_that_it_names() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("deep/real")).unwrap();
        std::fs::write(root.join("file"), "x").unwrap();
        let at = |tail: &str| Location::parse(root.join(tail).to_str().unwrap());
        assert_eq!(at("new/../lake").unwrap(), Location::Local(root.join("lake")));
        assert_eq!(at("./lake/.").unwrap(), Location::Local(root.join("lake")));
        std::os::unix::fs::symlink(root.join("deep/real"), root.join("link")).unwrap();
        assert_eq!(at("link/../lake").unwrap(), Location::Local(root.join("deep/lake")));
        assert!(at("file").unwrap_err().to_string().contains("a folder but a file"));
    }

    #[test]
    fn odd_folder_names_survive_the_url() {
        let uri = Location::Local("/tmp/a b/ü%".into()).table_uri(Table::Steps).unwrap();
        assert_eq!(Url::parse(&uri).unwrap().to_file_path().unwrap(), PathBuf::from("/tmp/a b/ü%/steps.lance"));
    }

    #[test]
    fn plain_http_is_used_only_when_asked_for() {
        let mut s3 = S3Settings { endpoint: Some("http://h:1".into()), ..S3Settings::default() };
        assert!(checked_endpoint(&s3).is_err());
        s3.allow_http = true;
        assert_eq!(checked_endpoint(&s3).unwrap(), Some("http://h:1"));
    }
}
