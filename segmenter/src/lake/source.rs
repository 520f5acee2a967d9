//! What the session needs of a store: fragments with row counts, and scans by column names and SQL text.

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use async_trait::async_trait;
use dressage_schemas::{ErrorKind, Table};
use dressage_storage::RowSet;
use futures::stream::BoxStream;

/// Name of the column that a scan adds when row addresses are asked for.
pub const ROW_ADDRESS: &str = "_rowaddr";

/// Batches of a scan.
pub type SourceStream = BoxStream<'static, Result<RecordBatch, SourceError>>;

/// A run of rows that can be scanned by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment {
    /// The store's number of it.
    pub id: u64,
    /// Rows in it, exactly.
    pub row_count: u64,
}

/// What to read of one table.
#[derive(Debug, Clone, PartialEq)]
pub struct ScanRequest {
    /// The table.
    pub table: Table,
    /// The columns, in this order; at least one.
    pub columns: Vec<String>,
    /// A SQL predicate on stored columns; rows for which it is not true are left out.
    pub filter: Option<String>,
    /// Rows to give at most.
    pub limit: Option<u64>,
    /// Only these fragments; none for all.
    pub fragments: Option<Vec<u64>>,
    /// Rows of a batch, at most.
    pub batch_rows: usize,
    /// Whether to add [`ROW_ADDRESS`] (UInt64) as the last column.
    pub row_address: bool,
    /// Whether most rows are expected to match the filter, so that looking for them first is not worth it.
    pub most_match: bool,
}

/// Row addresses of rows that a reader must not see. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct ExcludedRows(RowSet);

impl ExcludedRows {
    /// These addresses.
    pub fn new(addresses: impl IntoIterator<Item = u64>) -> Self {
        Self(RowSet::from_unsorted(addresses.into_iter().collect()))
    }

    /// Whether the row at this address is hidden.
    pub fn contains(&self, address: u64) -> bool {
        self.0.contains(address)
    }

    /// How many rows are hidden.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none is hidden.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many rows of a fragment are hidden.
    pub fn count_in(&self, fragment: &Fragment) -> u64 {
        self.0.count_in_fragment(fragment.id) as u64
    }
}

impl From<RowSet> for ExcludedRows {
    fn from(rows: RowSet) -> Self {
        Self(rows)
    }
}

/// One consistent view of a store's tables: the only thing that the session knows of storage.
///
/// Contract: a source is pinned, so that two scans of it see the same rows; batches come under the table's logical
/// schema (payload as `LargeBinary`), restricted to the columns asked for; a column not asked for is not read.
#[async_trait]
pub trait LakeSource: fmt::Debug + Send + Sync + 'static {
    /// The fragments of a table, in stored order. Known without I/O.
    fn fragments(&self, table: Table) -> Vec<Fragment>;

    /// Whether these columns of a table are in memory, or will be after the first scan: then a scan of all rows costs
    /// less than one that is told a filter.
    fn is_resident(&self, _table: Table, _columns: &Schema) -> bool {
        false
    }

    /// Starts a scan.
    async fn scan(&self, request: ScanRequest) -> Result<SourceStream, SourceError>;

    /// Rows that a reader must not see: of `trajectories`, those that a later or longer copy replaces; of other tables,
    /// those that say again what an earlier row says. Without I/O where a table cannot have any.
    async fn hidden(&self, table: Table) -> Result<ExcludedRows, SourceError>;
}

/// Why a source could not be read.
#[derive(Debug, Clone)]
pub struct SourceError {
    /// What the caller should do.
    pub kind: ErrorKind,
    /// What the store says.
    pub cause: Arc<dyn std::error::Error + Send + Sync>,
}

impl SourceError {
    /// An error of this kind.
    pub fn new(kind: ErrorKind, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { kind, cause: Arc::from(cause.into()) }
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.cause, f)
    }
}

impl std::error::Error for SourceError {
    // transparent: it shows as its cause, so the chain goes on behind it
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.source()
    }
}
