//! Files of the user's that a query can join with: `--attach name=path.parquet|csv|json`, on the disk or in a bucket.

use std::path::Path;
use std::sync::Arc;

use dressage_storage::S3Settings;
use object_store13::aws::AmazonS3Builder;
use object_store13::client::SpawnedReqwestConnector;
use object_store13::{ClientOptions, ObjectStore, ObjectStoreExt};
use tokio::runtime::Handle;
use url::Url;

use datafusion::catalog::TableProvider;
use datafusion::error::DataFusionError;
use datafusion::prelude::{CsvReadOptions, DataFrame, JsonReadOptions, ParquetReadOptions};

use crate::catalog::Origin;
use crate::error::{Error, Result};
use crate::session::Session;
use crate::settings::is_plain_name;

/// The formats that can be attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Parquet,
    Csv,
    /// One JSON document: an array of objects.
    Json,
    /// One object a line.
    JsonLines,
}

impl Format {
    fn of(path: &str) -> Option<Self> {
        match Path::new(path).extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "parquet" => Some(Self::Parquet),
            "csv" => Some(Self::Csv),
            "json" => Some(Self::Json),
            "jsonl" | "ndjson" => Some(Self::JsonLines),
            _ => None,
        }
    }
}

impl Session {
    /// Makes a local file a table of this session, read when a query needs it. `.json` may hold an array of objects or
    /// one object a line.
    ///
    /// # Errors
    /// `Invalid` for a name that is taken or no name, or an ending that says no format; `NotFound` for a file that is
    /// not there or has no readable schema.
    pub async fn attach(&self, name: &str, path: &str) -> Result<()> {
        let format = self.attachable(name, path)?;
        let failed = |source| Error::Attach { name: name.to_owned(), path: path.to_owned(), source: Box::new(source) };
        // without this a missing file is an empty folder without a schema, and the message says neither
        let start = local_start(path).map_err(|e| failed(DataFusionError::IoError(e)))?;
        let table = self.open_table(path, format, &start).await.map_err(failed)?;
        self.put_attached(name, path, table)
    }

    /// The same for an object of a bucket, `s3://bucket/key`, reached as the store would be.
    ///
    /// # Errors
    /// As for `attach`; also when the bucket does not answer or refuses the keys.
    pub async fn attach_object(&self, name: &str, uri: &str, s3: &S3Settings) -> Result<()> {
        let format = self.attachable(name, uri)?;
        let failed = |source| Error::Attach { name: name.to_owned(), path: uri.to_owned(), source: Box::new(source) };
        let outside = |e: object_store13::Error| failed(DataFusionError::ObjectStore(Box::new(e)));
        let url = Url::parse(uri).map_err(|e| failed(DataFusionError::External(Box::new(e))))?;
        let store = bucket(&url, s3).map_err(outside)?;
        let key = object_store13::path::Path::from_url_path(url.path())
            .map_err(|e| failed(DataFusionError::External(Box::new(e))))?;
        let size = store.head(&key).await.map_err(outside)?.size;
        let start = store.get_range(&key, 0..size.min(START_BYTES as u64)).await.map_err(outside)?;
        self.context().register_object_store(&url, store);
        let table = self.open_table(uri, format, &start).await.map_err(failed)?;
        self.put_attached(name, uri, table)
    }

    fn attachable(&self, name: &str, path: &str) -> Result<Format> {
        if !is_plain_name(name) {
            return Err(Error::InvalidName { what: "table name", name: name.to_owned() });
        }
        if self.catalog().public().origin(name).is_some() {
            return Err(Error::NameTaken { name: name.to_owned() });
        }
        Format::of(path).ok_or_else(|| Error::UnknownAttachment { path: path.to_owned() })
    }

    fn put_attached(&self, name: &str, path: &str, table: Arc<dyn TableProvider>) -> Result<()> {
        if table.schema().fields().is_empty() {
            let source = Box::new(DataFusionError::Plan("it has no columns".to_owned()));
            return Err(Error::Attach { name: name.to_owned(), path: path.to_owned(), source });
        }
        self.catalog().public().put(name.to_owned(), Origin::Attached, table);
        Ok(())
    }

    async fn open_table(
        &self,
        path: &str,
        format: Format,
        start: &[u8],
    ) -> Result<Arc<dyn TableProvider>, DataFusionError> {
        let context = self.context();
        let extension = Path::new(path).extension().and_then(|e| e.to_str()).unwrap_or_default();
        let frame: DataFrame = match format {
            Format::Parquet => context.read_parquet(path, ParquetReadOptions::new().file_extension(extension)).await?,
            Format::Csv => context.read_csv(path, CsvReadOptions::new().file_extension(extension)).await?,
            Format::JsonLines => context.read_json(path, JsonReadOptions::default().file_extension(extension)).await?,
            Format::Json => {
                let lines = !start.is_empty() && !begins_with_bracket(start);
                let options = JsonReadOptions::default().file_extension(extension).newline_delimited(lines);
                context.read_json(path, options).await?
            }
        };
        Ok(frame.into_view())
    }
}

/// How much of a file is looked at to tell an array from lines.
const START_BYTES: usize = 4096;

fn local_start(path: &str) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let mut start = vec![0; START_BYTES];
    let n = std::fs::File::open(path)?.read(&mut start)?;
    start.truncate(n);
    Ok(start)
}

/// Whether the first byte that is no space opens an array.
fn begins_with_bracket(start: &[u8]) -> bool {
    start.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'[')
}

/// DataFusion's client of one bucket. The store's own tables never go through it: the table format has another release
/// of the same library, and the two are kept apart.
fn bucket(url: &Url, s3: &S3Settings) -> object_store13::Result<Arc<dyn ObjectStore>> {
    let mut builder = if s3.access_key_id.is_some() { AmazonS3Builder::new() } else { AmazonS3Builder::from_env() };
    builder = builder
        .with_bucket_name(url.host_str().unwrap_or_default())
        .with_region(s3.region_or_default())
        .with_virtual_hosted_style_request(!s3.uses_path_style())
        .with_client_options(ClientOptions::new().with_allow_http(s3.allow_http))
        // queries run on threads without I/O; the requests stay on the caller's runtime
        .with_http_connector(SpawnedReqwestConnector::new(Handle::current()));
    if let Some(endpoint) = &s3.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    if let Some(id) = &s3.access_key_id {
        builder = builder.with_access_key_id(id).with_secret_access_key(s3.secret_access_key.reveal());
        if !s3.session_token.reveal().is_empty() {
            builder = builder.with_token(s3.session_token.reveal());
        }
    }
    Ok(Arc::new(builder.build()?))
}
