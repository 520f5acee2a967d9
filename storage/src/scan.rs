//! Reading a pinned table: a stream of batches, or single rows by address.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, LargeBinaryBuilder, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::datatypes::Schema;
use bytes::Bytes;
use dressage_schemas::Table;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use lance::Dataset;
use lance::dataset::ProjectionRequest;
use lance::dataset::scanner::MaterializationStyle;
use lance_core::datatypes::BlobHandling;

use crate::error::{Error, Result};
use crate::physical::{self, ROUTED_EXPERTS};

/// Batches, each a result of its own.
pub type BatchStream = BoxStream<'static, Result<RecordBatch>>;

/// Rows per batch where no payload is read.
const BATCH_ROWS: usize = 8_192;
/// Rows per batch where token arrays or texts are read.
const BATCH_ROWS_PAYLOAD: usize = 256;
/// Rows per batch where routed experts are read: one value may have many megabytes.
const BATCH_ROWS_BLOB: usize = 8;
/// A batch ends early when it reaches this size.
const BATCH_BYTES: u64 = 16 << 20;

/// What to read of a table.
#[derive(Debug, Clone, Default)]
pub struct ScanOptions {
    /// Columns, in the order wanted; none means all. An empty list gives batches that have only a row count.
    pub columns: Option<Vec<String>>,
    /// A SQL predicate over stored columns.
    pub filter: Option<String>,
    /// Stop after so many rows.
    pub limit: Option<u64>,
    /// Only these fragments.
    pub fragments: Option<Vec<u64>>,
    /// Most rows of a batch; 0 chooses by what is read.
    pub batch_rows: usize,
    /// Add the column [`ROW_ADDRESS`](crate::ROW_ADDRESS).
    pub row_address: bool,
    /// Give rows in no particular order, which is faster with many fragments.
    pub unordered: bool,
    /// Most rows are expected to match the filter: read whole rows, instead of looking for those that match first. Has no
    /// effect where payload is read.
    pub most_match: bool,
}

impl ScanOptions {
    /// Only these columns.
    pub fn columns<S: Into<String>>(columns: impl IntoIterator<Item = S>) -> Self {
        Self { columns: Some(columns.into_iter().map(Into::into).collect()), ..Self::default() }
    }

    /// With this predicate.
    #[must_use]
    pub fn filter(mut self, predicate: impl Into<String>) -> Self {
        self.filter = Some(predicate.into());
        self
    }

    /// With row addresses.
    #[must_use]
    pub fn with_row_address(mut self) -> Self {
        self.row_address = true;
        self
    }
}

/// Starts a scan.
pub(crate) async fn scan(
    table: Table,
    dataset: &Arc<Dataset>,
    options: ScanOptions,
    read_ahead_bytes: u64,
) -> Result<BatchStream> {
    let columns = options.columns.clone().unwrap_or_else(|| physical::all_columns(table));
    // a misspelt column is told before anything is read
    physical::logical_projection(table, &columns, options.row_address)?;
    let mut scanner = dataset.scan();
    let fail = |e| Error::table("scan", table, e);
    // asking for the address costs nothing and makes an empty projection possible
    scanner.project(&columns).map_err(fail)?.with_row_address();
    scanner.blob_handling(BlobHandling::AllBinary);
    if let Some(filter) = &options.filter {
        scanner.filter(filter).map_err(fail)?;
    }
    if let Some(limit) = options.limit {
        scanner.limit(Some(i64::try_from(limit).unwrap_or(i64::MAX)), None).map_err(fail)?;
    }
    if let Some(wanted) = &options.fragments {
        let wanted: HashSet<u64> = wanted.iter().copied().collect();
        scanner.with_fragments(dataset.iter_fragments().filter(|f| wanted.contains(&f.id)).cloned().collect());
    }
    let payload = columns.iter().any(|c| physical::is_payload(table, c));
    let blob = table == Table::Steps && columns.iter().any(|c| c == ROUTED_EXPERTS);
    let default_rows = if blob {
        BATCH_ROWS_BLOB
    } else if payload {
        BATCH_ROWS_PAYLOAD
    } else {
        BATCH_ROWS
    };
    scanner.batch_size(if options.batch_rows == 0 { default_rows } else { options.batch_rows });
    scanner.io_buffer_size(read_ahead_bytes);
    if payload {
        scanner.batch_size_bytes(BATCH_BYTES).batch_readahead(2).fragment_readahead(2);
    }
    if blob {
        scanner.materialization_readahead_bytes(read_ahead_bytes);
    }
    if options.unordered {
        scanner.scan_in_order(false);
    }
    if options.most_match && !payload {
        scanner.materialization_style(MaterializationStyle::AllEarly);
    }
    let stream = scanner.try_into_stream().await.map_err(fail)?;
    let row_address = options.row_address;
    let batches = stream
        .map_err(move |e| Error::table("read", table, e))
        .and_then(move |batch| futures::future::ready(physical::to_logical(table, &batch, &columns, row_address)));
    Ok(batches.boxed())
}

/// Rows by address, in the order of the addresses; an address may come twice.
pub(crate) async fn take(
    table: Table,
    dataset: &Arc<Dataset>,
    addresses: &[u64],
    columns: &[String],
) -> Result<RecordBatch> {
    let schema = physical::logical_projection(table, columns, false)?;
    if addresses.is_empty() {
        return Ok(RecordBatch::new_empty(schema));
    }
    let (sorted, positions) = sorted_once(addresses);
    let blob_asked = table == Table::Steps && columns.iter().any(|c| c == ROUTED_EXPERTS);
    let plain: Vec<&String> = columns.iter().filter(|c| !(blob_asked && *c == ROUTED_EXPERTS)).collect();
    let plain_batch = if plain.is_empty() {
        RecordBatch::try_new_with_options(
            Arc::new(Schema::empty()),
            Vec::new(),
            &RecordBatchOptions::new().with_row_count(Some(sorted.len())),
        )
        .map_err(|e| Error::shape(table, &e))?
    } else {
        let projection = ProjectionRequest::from_columns(&plain, dataset.schema());
        dataset.take_rows(&sorted, projection).await.map_err(|e| Error::table("read rows of", table, e))?
    };
    if plain_batch.num_rows() != sorted.len() {
        return Err(missing_row(table, dataset, &sorted).await);
    }
    let blobs = if blob_asked { Some(blob_column(dataset, &sorted).await?) } else { None };
    // rows asked for in stored order are given as they were read, without another copy
    let order = (sorted != addresses).then(|| UInt32Array::from(positions));
    let mut arrays: Vec<ArrayRef> = Vec::with_capacity(columns.len());
    for name in columns {
        let array = match &blobs {
            Some(blobs) if name == ROUTED_EXPERTS => blobs,
            _ => physical::column(table, &plain_batch, name)?,
        };
        arrays.push(match &order {
            None => array.clone(),
            Some(order) => arrow::compute::take(array, order, None).map_err(|e| Error::shape(table, &e))?,
        });
    }
    let options = RecordBatchOptions::new().with_row_count(Some(addresses.len()));
    RecordBatch::try_new_with_options(schema, arrays, &options)
        .map_err(|e| Error::Damaged { table, detail: e.to_string() })
}

/// Ascending without repeats, as the store likes to be asked, and where each original address is in it.
fn sorted_once(addresses: &[u64]) -> (Vec<u64>, Vec<u32>) {
    let mut sorted = addresses.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let positions = addresses.iter().map(|a| sorted.partition_point(|s| s < a) as u32).collect();
    (sorted, positions)
}

/// The blob values of rows, in ascending order of address, as they were read.
pub(crate) async fn take_blobs(dataset: &Arc<Dataset>, sorted: &[u64]) -> Result<Vec<Option<Bytes>>> {
    if sorted.is_empty() {
        return Ok(Vec::new());
    }
    let fail = |e| Error::table("read routed experts of", Table::Steps, e);
    let reader = dataset.read_blobs(ROUTED_EXPERTS).map_err(fail)?.with_row_addresses(sorted).preserve_order(true);
    let values = reader.execute().await.map_err(fail)?;
    if values.len() != sorted.len() {
        return Err(missing_row(Table::Steps, dataset, sorted).await);
    }
    Ok(values.into_iter().map(|value| value.data).collect())
}

async fn blob_column(dataset: &Arc<Dataset>, sorted: &[u64]) -> Result<ArrayRef> {
    let values = take_blobs(dataset, sorted).await?;
    let bytes = values.iter().flatten().map(Bytes::len).sum();
    let mut builder = LargeBinaryBuilder::with_capacity(values.len(), bytes);
    for value in values {
        builder.append_option(value);
    }
    Ok(Arc::new(builder.finish()))
}

/// Which of some addresses does not exist.
async fn missing_row(table: Table, dataset: &Arc<Dataset>, addresses: &[u64]) -> Error {
    for address in addresses {
        let projection = ProjectionRequest::from_columns(&[physical::all_columns(table).remove(0)], dataset.schema());
        match dataset.take_rows(&[*address], projection).await {
            Ok(batch) if batch.num_rows() == 1 => {}
            _ => return Error::RowMissing { table, row_address: *address },
        }
    }
    Error::Damaged { table, detail: "fewer rows came back than were asked for".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_and_order_of_addresses_are_kept() {
        let (sorted, positions) = sorted_once(&[9, 3, 9, 4]);
        assert_eq!(sorted, [3, 4, 9]);
        assert_eq!(positions, [2, 0, 2, 1]);
    }
}
