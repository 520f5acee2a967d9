//! Objects of an S3-compatible service as blocking streams: the network is the async runtime's, the reading thread
//! only waits for it.

use std::io::{self, Read};

use bytes::{Buf, Bytes};
use dressage_schemas::ErrorKind;
use dressage_storage::S3Settings;
use dressage_storage::source::{SourceEntry, list_sources, open_source};
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::runtime::Handle;

use super::{Origin, Source};
use crate::error::{Error, Result};

/// How to reach objects from a plain thread.
#[derive(Clone)]
pub(crate) struct ObjectReader {
    pub(crate) runtime: Handle,
    pub(crate) s3: S3Settings,
}

/// The objects that an `s3://` name stands for.
pub(crate) async fn expand_objects(name: &str, s3: &S3Settings) -> Result<Vec<Source>> {
    let entries = list_sources(name, s3).await.map_err(|error| match error.kind() {
        ErrorKind::NotFound => Error::SourceNotFound { source_name: name.to_owned() },
        _ => Error::Storage(error),
    })?;
    let source = |entry: SourceEntry| Source {
        name: entry.uri.clone(),
        origin: Origin::Object(entry.uri),
        byte_length: Some(entry.size),
    };
    Ok(entries.into_iter().map(source).collect())
}

/// Opens an object; called on a plain thread.
pub(crate) fn open(objects: &ObjectReader, uri: &str) -> dressage_storage::Result<ObjectStream> {
    let opened = objects.runtime.block_on(open_source(uri, &objects.s3))?;
    Ok(ObjectStream { runtime: objects.runtime.clone(), bytes: opened.bytes, chunk: Bytes::new() })
}

/// Why this one object cannot be read; none where the service does not answer, which concerns all of them.
pub(crate) fn why_unreadable(error: &dressage_storage::Error) -> Option<String> {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    (error.kind() != ErrorKind::Unavailable).then(|| format!("{error}{cause}"))
}

/// An object's bytes in order.
pub(crate) struct ObjectStream {
    runtime: Handle,
    bytes: BoxStream<'static, dressage_storage::Result<Bytes>>,
    chunk: Bytes,
}

impl Read for ObjectStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.chunk.is_empty() {
            match self.runtime.block_on(self.bytes.next()) {
                None => return Ok(0),
                Some(Ok(chunk)) => self.chunk = chunk,
                Some(Err(error)) => return Err(io::Error::other(error)),
            }
        }
        let length = buffer.len().min(self.chunk.len());
        self.chunk.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}
