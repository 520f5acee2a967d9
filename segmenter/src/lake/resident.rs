//! Small tables that stay in memory: their scalar columns are read from the store once, and every later scan of the
//! session is served from there.
//!
//! A plan looks at the same columns of `trajectories` and `steps` some thirty times. A look at a small table costs its
//! requests and their set-up, not its bytes, so one that reads it whole is worth all later ones. Payload and long texts
//! are never kept; neither is a table of more rows than one partition has, which a filter makes smaller at the store.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use async_trait::async_trait;
use dressage_schemas::{ErrorKind, Table};
use futures::{StreamExt, TryStreamExt};
use tokio::sync::Mutex;

use super::source::{ExcludedRows, Fragment, LakeSource, ROW_ADDRESS, ScanRequest, SourceError, SourceStream};
use super::table::{ROWS_PER_PARTITION_MIN, row_bytes};

/// The tables that views join again and again.
const TABLES: [Table; 4] = [Table::Trajectories, Table::Steps, Table::Rewards, Table::WeightVersions];

/// A table whose scalar columns are fewer bytes than this (estimated) is read whole the first time, so that a second
/// query, which asks for other columns, does not read again.
const WHOLE_BYTES_MAX: u64 = 4 << 20;

/// A source with its small tables in memory.
#[derive(Debug)]
pub(crate) struct ResidentLake {
    store: Arc<dyn LakeSource>,
    bytes_max: u64,
    bytes_held: AtomicU64,
    shelves: BTreeMap<Table, Shelf>,
}

/// What is kept of one table.
#[derive(Debug, Default)]
struct Shelf {
    /// It turned out larger than there was room for.
    refused: AtomicBool,
    /// By column, all stored rows in stored order. Locked while they are read, so that they are read once.
    columns: Mutex<HashMap<String, ArrayRef>>,
}

impl ResidentLake {
    /// Keeps at most `bytes_max` bytes of columns; 0 keeps none.
    pub(crate) fn over(store: Arc<dyn LakeSource>, bytes_max: u64) -> Self {
        let shelves = TABLES.into_iter().map(|table| (table, Shelf::default())).collect();
        Self { store, bytes_max, bytes_held: AtomicU64::new(0), shelves }
    }

    fn row_count(&self, table: Table) -> u64 {
        self.store.fragments(table).iter().map(|f| f.row_count).sum()
    }

    /// The columns, read from the store where they are not kept yet; none where they do not fit.
    async fn columns(&self, shelf: &Shelf, request: &ScanRequest) -> Result<Option<Vec<ArrayRef>>, SourceError> {
        let mut names = request.columns.clone();
        if request.row_address {
            names.push(ROW_ADDRESS.to_owned());
        }
        let mut kept = shelf.columns.lock().await;
        if !names.iter().all(|name| kept.contains_key(name)) {
            let mut wanted: Vec<String> = match self.whole(request.table) {
                Some(whole) => whole,
                None => names.clone(),
            };
            wanted.retain(|name| !kept.contains_key(name));
            let Some(batch) = self.read(request.table, wanted).await? else {
                shelf.refused.store(true, Ordering::Relaxed);
                return Ok(None);
            };
            for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
                kept.insert(field.name().clone(), Arc::clone(column));
            }
        }
        Ok(names.iter().map(|name| kept.get(name).cloned()).collect())
    }

    /// All columns that may be kept, where all of them are few bytes.
    fn whole(&self, table: Table) -> Option<Vec<String>> {
        let schema = table.schema();
        let fields: Vec<Field> =
            schema.fields().iter().filter(|f| may_be_kept(table, f.name())).map(|f| f.as_ref().clone()).collect();
        let mut names: Vec<String> = fields.iter().map(|f| f.name().clone()).collect();
        names.push(ROW_ADDRESS.to_owned());
        let bytes = self.row_count(table) * row_bytes(table, &Schema::new(fields)) as u64;
        (bytes <= WHOLE_BYTES_MAX.min(self.bytes_max)).then_some(names)
    }

    /// One scan of all rows; none where they are more bytes than there is room for.
    async fn read(&self, table: Table, mut columns: Vec<String>) -> Result<Option<RecordBatch>, SourceError> {
        let row_address = columns.iter().any(|name| name == ROW_ADDRESS);
        columns.retain(|name| name != ROW_ADDRESS);
        if columns.is_empty() {
            // a scan has at least one column
            columns.push(table.schema().field(0).name().clone());
        }
        let schema = projected(table, &columns, row_address);
        let request = ScanRequest {
            most_match: false,
            table,
            columns,
            filter: None,
            limit: None,
            fragments: None,
            batch_rows: ROWS_PER_PARTITION_MIN as usize,
            row_address,
        };
        let mut batches = Vec::new();
        let mut found = self.store.scan(request).await?;
        let mut bytes = 0;
        while let Some(batch) = found.try_next().await? {
            bytes += batch.get_array_memory_size() as u64;
            if self.bytes_held.load(Ordering::Relaxed) + bytes > self.bytes_max {
                return Ok(None);
            }
            batches.push(RecordBatch::try_new(Arc::clone(&schema), batch.columns().to_vec()).map_err(shape)?);
        }
        let batch = concat_batches(&schema, &batches).map_err(shape)?;
        self.bytes_held.fetch_add(batch.get_array_memory_size() as u64, Ordering::Relaxed);
        Ok(Some(batch))
    }
}

/// Payload, and texts and lists of any length, are not.
fn may_be_kept(table: Table, column: &str) -> bool {
    let Ok(field) = table.schema().field_with_name(column).cloned() else { return column == ROW_ADDRESS };
    let binary = matches!(field.data_type(), DataType::Binary | DataType::LargeBinary | DataType::LargeUtf8);
    !binary && !matches!(column, "labels" | "extra" | "detail" | "parts" | "messages" | "tools")
}

/// These columns of a table, as a source gives them.
fn projected(table: Table, columns: &[String], row_address: bool) -> SchemaRef {
    let schema = table.schema();
    let mut fields: Vec<Field> = columns.iter().filter_map(|name| schema.field_with_name(name).ok().cloned()).collect();
    if row_address {
        fields.push(Field::new(ROW_ADDRESS, DataType::UInt64, true));
    }
    Arc::new(Schema::new(fields))
}

fn shape(error: ArrowError) -> SourceError {
    SourceError::new(ErrorKind::Corrupt, error)
}

/// Slices of what is kept.
fn served(request: &ScanRequest, columns: Vec<ArrayRef>) -> Result<SourceStream, SourceError> {
    let rows = columns.first().map_or(0, |column| column.len());
    let rows = request.limit.map_or(rows, |limit| rows.min(usize::try_from(limit).unwrap_or(usize::MAX)));
    let schema = projected(request.table, &request.columns, request.row_address);
    let options = RecordBatchOptions::new().with_row_count(columns.first().map(|column| column.len()));
    let whole = RecordBatch::try_new_with_options(schema, columns, &options).map_err(shape)?;
    let size = request.batch_rows.max(1);
    let slices = (0..rows).step_by(size).map(move |from| Ok(whole.slice(from, size.min(rows - from))));
    Ok(futures::stream::iter(slices.collect::<Vec<_>>()).boxed())
}

#[async_trait]
impl LakeSource for ResidentLake {
    fn fragments(&self, table: Table) -> Vec<Fragment> {
        self.store.fragments(table)
    }

    fn is_resident(&self, table: Table, columns: &Schema) -> bool {
        let Some(shelf) = self.shelves.get(&table).filter(|shelf| !shelf.refused.load(Ordering::Relaxed)) else {
            return false;
        };
        let rows = self.row_count(table);
        rows <= ROWS_PER_PARTITION_MIN
            && columns.fields().iter().all(|field| may_be_kept(table, field.name()))
            && (rows * row_bytes(table, columns) as u64 <= self.bytes_max / 2 || self.whole(table).is_some())
            && self.bytes_max > 0
            && !shelf.refused.load(Ordering::Relaxed)
    }

    async fn scan(&self, request: ScanRequest) -> Result<SourceStream, SourceError> {
        let plain = request.filter.is_none() && request.fragments.is_none();
        if let Some(shelf) = self.shelves.get(&request.table).filter(|_| plain)
            && self.is_resident(request.table, &projected(request.table, &request.columns, false))
            && let Some(columns) = self.columns(shelf, &request).await?
        {
            return served(&request, columns);
        }
        self.store.scan(request).await
    }

    async fn hidden(&self, table: Table) -> Result<ExcludedRows, SourceError> {
        self.store.hidden(table).await
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::AsArray;
    use arrow::datatypes::Int64Type;
    use dressage_schemas::tables::steps::{self, StepRow};

    use super::*;
    use crate::lake::MemoryLake;

    fn lake(rows: i64) -> Arc<MemoryLake> {
        let rows: Vec<StepRow> = (0..rows).map(|key| StepRow { trajectory_key: key, ..StepRow::default() }).collect();
        let half = rows.len() / 2;
        let batch = |rows: &[StepRow]| steps::batch(rows).unwrap();
        Arc::new(MemoryLake::new().with(Table::Steps, batch(&rows[..half])).with(Table::Steps, batch(&rows[half..])))
    }

    fn request(columns: &[&str], limit: Option<u64>) -> ScanRequest {
        ScanRequest {
            most_match: false,
            table: Table::Steps,
            columns: columns.iter().map(|c| (*c).to_owned()).collect(),
            filter: None,
            limit,
            fragments: None,
            batch_rows: 3,
            row_address: true,
        }
    }

    async fn keys(lake: &ResidentLake, columns: &[&str], limit: Option<u64>) -> Vec<i64> {
        let batches: Vec<RecordBatch> = lake.scan(request(columns, limit)).await.unwrap().try_collect().await.unwrap();
        assert!(batches.iter().all(|b| b.num_rows() <= 3 && b.num_columns() == columns.len() + 1));
        batches.iter().flat_map(|b| b.column(0).as_primitive::<Int64Type>().values().to_vec()).collect()
    }

    #[tokio::test]
    async fn a_small_table_is_read_once_whatever_columns_are_asked_for() {
        let store = lake(8);
        let resident = ResidentLake::over(Arc::clone(&store) as _, 1 << 20);
        assert_eq!(keys(&resident, &["trajectory_key"], None).await, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(keys(&resident, &["trajectory_key", "step_index"], Some(4)).await, [0, 1, 2, 3]);
        assert_eq!(store.requests().len(), 1);
    }

    #[tokio::test]
    async fn payload_is_not_kept_and_filters_go_to_the_store() {
        let store = lake(8);
        let resident = ResidentLake::over(Arc::clone(&store) as _, 1 << 20);
        for _ in 0..2 {
            keys(&resident, &["trajectory_key", "token_ids"], None).await;
            let filtered = ScanRequest { filter: Some("trajectory_key = 3".to_owned()), ..request(&["route"], None) };
            let found: Vec<RecordBatch> = resident.scan(filtered).await.unwrap().try_collect().await.unwrap();
            assert_eq!(found.iter().map(RecordBatch::num_rows).sum::<usize>(), 1);
        }
        assert_eq!(store.requests().len(), 4);
    }

    #[tokio::test]
    async fn what_has_no_room_is_read_each_time() {
        let store = lake(8);
        let resident = ResidentLake::over(Arc::clone(&store) as _, 0);
        for _ in 0..2 {
            assert_eq!(keys(&resident, &["trajectory_key"], None).await, [0, 1, 2, 3, 4, 5, 6, 7]);
        }
        assert_eq!(store.requests().len(), 2);
    }
}
