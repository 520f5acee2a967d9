//! How many bytes each column takes, from the files' footers: no data is read.

use std::sync::Arc;

use dressage_schemas::Table;
use lance::dataset::statistics::DatasetStatisticsExt;
use serde::Serialize;

use super::info::list_objects;
use crate::error::{Error, Result};
use crate::physical::ROUTED_EXPERTS;
use crate::snapshot::Snapshot;

/// Stored bytes of one column, as compressed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ColumnSize {
    /// The table.
    pub table: String,
    /// The column.
    pub column: String,
    /// Its bytes over all files of the version, list offsets and validity included.
    pub bytes: u64,
}

/// The size of every column of a snapshot, largest first.
///
/// # Errors
/// Where a table cannot be read.
pub async fn column_sizes(snapshot: &Snapshot) -> Result<Vec<ColumnSize>> {
    let mut sizes = Vec::new();
    for table in Table::ALL {
        let dataset = snapshot.dataset(table)?;
        let stats = Arc::clone(dataset).calculate_data_stats().await;
        let stats = stats.map_err(|e| Error::table("read the footers of", table, e))?;
        for field in &dataset.schema().fields {
            let mut ids = vec![field.id];
            let mut inner: Vec<_> = field.children.iter().collect();
            while let Some(child) = inner.pop() {
                ids.push(child.id);
                inner.extend(&child.children);
            }
            let bytes = stats.fields.iter().filter(|s| ids.contains(&(s.id as i32))).map(|s| s.bytes_on_disk).sum();
            sizes.push(ColumnSize { table: table.name().to_owned(), column: field.name.clone(), bytes });
        }
    }
    // packed blobs lie beside the data files, which hold only where in them each value is
    let blobs: u64 = list_objects(snapshot.lake(), Table::Steps)
        .await?
        .iter()
        .filter(|(path, _)| path.starts_with("data/") && path.matches('/').count() > 1)
        .map(|(_, object)| object.size)
        .sum();
    if let Some(experts) = sizes.iter_mut().find(|s| s.table == Table::Steps.name() && s.column == ROUTED_EXPERTS) {
        experts.bytes += blobs;
    }
    sizes.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| (&a.table, &a.column).cmp(&(&b.table, &b.column))));
    Ok(sizes)
}
