//! A lake in memory: tables made of batches, with the same contract as a store. For trying queries out and for tests
//! that need no disk; it remembers what was asked of it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, RecordBatchOptions, UInt64Array};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{Field, Int32Type, Int64Type, Schema};
use async_trait::async_trait;
use datafusion::common::DFSchema;
use datafusion::error::DataFusionError;
use datafusion::prelude::SessionContext;
use dressage_schemas::{ErrorKind, Table};
use futures::StreamExt;

use super::source::{ExcludedRows, Fragment, LakeSource, ROW_ADDRESS, ScanRequest, SourceError, SourceStream};

/// Tables in memory; each batch is one fragment.
#[derive(Debug, Default)]
pub struct MemoryLake {
    tables: BTreeMap<Table, Vec<RecordBatch>>,
    requests: Mutex<Vec<ScanRequest>>,
}

impl MemoryLake {
    /// A lake without rows.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one fragment to a table; its columns must be the table's.
    #[must_use]
    pub fn with(mut self, table: Table, fragment: RecordBatch) -> Self {
        self.tables.entry(table).or_default().push(fragment);
        self
    }

    /// The scans that were asked for so far, oldest first.
    pub fn requests(&self) -> Vec<ScanRequest> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn batches(&self, table: Table) -> &[RecordBatch] {
        self.tables.get(&table).map_or(&[], Vec::as_slice)
    }

    /// Rows that go on from a checkpoint that an earlier row goes on from.
    fn overtaken_checkpoints(&self) -> Result<ExcludedRows, SourceError> {
        let mut followed = HashSet::new();
        let mut hidden = Vec::new();
        for (id, batch) in self.batches(Table::Checkpoints).iter().enumerate() {
            let text = |name: &str| batch.column_by_name(name).map(|c| c.as_string::<i32>().clone());
            let (Some(run), Some(after)) = (text("train_run"), text("after_checkpoint_id")) else {
                return Err(SourceError::new(ErrorKind::Invalid, "not a batch of checkpoints"));
            };
            for row in 0..batch.num_rows() {
                let from = after.is_valid(row).then(|| after.value(row).to_owned());
                if !followed.insert((run.value(row).to_owned(), from)) {
                    hidden.push(address(id as u64, row));
                }
            }
        }
        Ok(ExcludedRows::new(hidden))
    }

    fn read(&self, request: &ScanRequest) -> Result<Vec<RecordBatch>, DataFusionError> {
        let mut out = Vec::new();
        let mut left = request.limit.map_or(usize::MAX, |n| n as usize);
        for (id, batch) in self.batches(request.table).iter().enumerate() {
            if request.fragments.as_ref().is_some_and(|wanted| !wanted.contains(&(id as u64))) {
                continue;
            }
            let addressed = with_addresses(batch, id as u64)?;
            let filtered = match &request.filter {
                Some(sql) => filtered(&addressed, sql)?,
                None => addressed,
            };
            let mut offset = 0;
            while offset < filtered.num_rows() && left > 0 {
                let length = request.batch_rows.min(filtered.num_rows() - offset).min(left);
                out.push(projected(&filtered.slice(offset, length), request)?);
                offset += length;
                left -= length;
            }
        }
        Ok(out)
    }
}

/// Addresses as Lance makes them: the fragment above, the row below.
fn address(fragment: u64, row: usize) -> u64 {
    fragment << 32 | row as u64
}

fn with_addresses(batch: &RecordBatch, fragment: u64) -> Result<RecordBatch, DataFusionError> {
    let addresses: UInt64Array = (0..batch.num_rows()).map(|row| address(fragment, row)).collect();
    let mut fields: Vec<_> = batch.schema().fields().iter().cloned().collect();
    fields.push(Arc::new(Field::new(ROW_ADDRESS, arrow::datatypes::DataType::UInt64, false)));
    let mut columns = batch.columns().to_vec();
    columns.push(Arc::new(addresses));
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}

fn filtered(batch: &RecordBatch, sql: &str) -> Result<RecordBatch, DataFusionError> {
    let context = SessionContext::new();
    let schema = DFSchema::try_from(batch.schema().as_ref().clone())?;
    let expr = context.parse_sql_expr(sql, &schema)?;
    let expr = context.create_physical_expr(expr, &schema)?;
    let mask = expr.evaluate(batch)?.into_array(batch.num_rows())?;
    let Some(mask) = mask.as_boolean_opt() else {
        return datafusion::common::plan_err!("{sql} is not a predicate");
    };
    let mask: BooleanArray = mask.iter().map(|keep| Some(keep == Some(true))).collect();
    Ok(filter_record_batch(batch, &mask)?)
}

fn projected(batch: &RecordBatch, request: &ScanRequest) -> Result<RecordBatch, DataFusionError> {
    let mut names: Vec<&str> = request.columns.iter().map(String::as_str).collect();
    if request.row_address {
        names.push(ROW_ADDRESS);
    }
    let indices = names.iter().map(|name| batch.schema().index_of(name)).collect::<Result<Vec<_>, _>>()?;
    let columns: Vec<ArrayRef> = indices.iter().map(|i| Arc::clone(batch.column(*i))).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(Arc::new(batch.schema().project(&indices)?), columns, &options)?)
}

#[async_trait]
impl LakeSource for MemoryLake {
    fn fragments(&self, table: Table) -> Vec<Fragment> {
        self.batches(table)
            .iter()
            .enumerate()
            .map(|(id, batch)| Fragment { id: id as u64, row_count: batch.num_rows() as u64 })
            .collect()
    }

    async fn scan(&self, request: ScanRequest) -> Result<SourceStream, SourceError> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).push(request.clone());
        let batches = self.read(&request).map_err(|e| SourceError::new(ErrorKind::Invalid, e))?;
        Ok(futures::stream::iter(batches.into_iter().map(Ok)).boxed())
    }

    async fn hidden(&self, table: Table) -> Result<ExcludedRows, SourceError> {
        if table == Table::Checkpoints {
            return self.overtaken_checkpoints();
        }
        if table != Table::Trajectories {
            return Ok(ExcludedRows::default());
        }
        // of the copies of a trajectory: the highest revision, then the longest, then the last written
        let mut best: HashMap<i64, ((i32, i64, i64), u64)> = HashMap::new();
        let mut hidden = Vec::new();
        for (id, batch) in self.batches(Table::Trajectories).iter().enumerate() {
            let int = |name: &str| batch.column_by_name(name).map(|c| c.as_primitive::<Int64Type>().clone());
            let revisions = batch.column_by_name("revision").map(|c| c.as_primitive::<Int32Type>().clone());
            let (Some(keys), Some(writes), Some(extents), Some(revisions)) =
                (int("trajectory_key"), int("write_id"), int("extent"), revisions)
            else {
                return Err(SourceError::new(ErrorKind::Invalid, "not a batch of trajectories"));
            };
            for row in 0..batch.num_rows() {
                let rank = (revisions.value(row), extents.value(row), writes.value(row));
                let here = address(id as u64, row);
                match best.get_mut(&keys.value(row)) {
                    None => {
                        best.insert(keys.value(row), (rank, here));
                    }
                    Some(kept) if kept.0 < rank => {
                        hidden.push(kept.1);
                        *kept = (rank, here);
                    }
                    Some(_) => hidden.push(here),
                }
            }
        }
        Ok(ExcludedRows::new(hidden))
    }
}
