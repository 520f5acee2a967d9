//! Part of one step's routed experts, without reading the rest: some tokens, some layers.

use std::ops::Range;

use dressage_codec::{Decoder, FIXED_BYTES, Header, Layout, Routes};
use dressage_schemas::Table;
use lance::dataset::BlobFile;

use crate::error::{Error, Result};
use crate::physical::ROUTED_EXPERTS;
use crate::snapshot::Snapshot;

/// Heads are read in two requests: this much, and the rest where the head is longer.
const HEAD_BYTES_GUESS: u64 = 4 << 10;

/// An open value of `routed_experts`: its head is read, its frames are not.
#[derive(Debug)]
pub struct RoutedExperts {
    blob: BlobFile,
    header: Header,
    size: u64,
}

impl Snapshot {
    /// Opens the routed experts of the step at a row address; none where it has none. Reads only the head.
    ///
    /// # Errors
    /// `NotFound` for an address that is not in this version, `Corrupt` for a damaged head.
    pub async fn routed_experts(&self, row_address: u64) -> Result<Option<RoutedExperts>> {
        let dataset = self.dataset(Table::Steps)?;
        let blobs = dataset
            .take_blobs_by_addresses(&[row_address], ROUTED_EXPERTS)
            .await
            .map_err(|e| Error::table("read routed experts of", Table::Steps, e))?;
        let Some(blob) = blobs.into_iter().next() else {
            return Err(Error::RowMissing { table: Table::Steps, row_address });
        };
        let Some(blob) = blob else { return Ok(None) };
        let size = blob.size();
        let mut head = read(&blob, 0..HEAD_BYTES_GUESS.min(size)).await?;
        let needed = Header::head_bytes(&head).map_err(|e| damaged(&e))? as u64;
        if needed > size {
            return Err(Error::Damaged { table: Table::Steps, detail: "routed experts end within their head".into() });
        }
        if needed > head.len() as u64 {
            head = read(&blob, 0..needed).await?;
        }
        let header = Header::parse(&head).map_err(|e| damaged(&e))?;
        Ok(Some(RoutedExperts { blob, header, size }))
    }
}

impl RoutedExperts {
    /// Shape and mode.
    pub fn layout(&self) -> &Layout {
        self.header.layout()
    }

    /// Bytes of the whole value as stored.
    pub fn stored_bytes(&self) -> u64 {
        self.size
    }

    /// Reads and decodes rows × layers. Only the frames that overlap them are read.
    ///
    /// # Errors
    /// `Invalid` for a range outside the value, `Corrupt` for damaged frames.
    pub async fn slice(&self, rows: Range<usize>, layers: Range<usize>) -> Result<Routes> {
        let frames = self.header.frame_ranges(rows.clone(), layers.clone()).map_err(|e| Error::Setting {
            setting: "slice of routed experts",
            value: e.to_string(),
            expected: "inside the value",
        })?;
        let wanted: Vec<Range<u64>> = frames.iter().map(|f| f.bytes.clone()).collect();
        // neighbouring frames come in one request: the client joins adjacent ranges
        let read = self.blob.read_ranges(&wanted).await;
        let read = read.map_err(|e| Error::table("read routed experts of", Table::Steps, e))?;
        let mut decoder = Decoder::new().map_err(|e| damaged(&e))?;
        let mut fetched = read.iter();
        decoder
            .decode_frames(&self.header, rows, layers, self.header.layout().dtype, |_| {
                fetched.next().map(|b| b.as_ref())
            })
            .map_err(|e| damaged(&e))
    }
}

async fn read(blob: &BlobFile, range: Range<u64>) -> Result<bytes::Bytes> {
    debug_assert!(HEAD_BYTES_GUESS >= FIXED_BYTES as u64);
    blob.read_range(range).await.map_err(|e| Error::table("read routed experts of", Table::Steps, e))
}

fn damaged(error: &dressage_codec::Error) -> Error {
    Error::Damaged { table: Table::Steps, detail: format!("routed experts: {error}") }
}
