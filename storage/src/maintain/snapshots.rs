//! Snapshots with a name: one consistent set of table versions that a plan or a question can come back to.

use std::collections::BTreeMap;

use arrow::array::{Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use dressage_schemas::Table;
use dressage_schemas::tables::snapshots::{SnapshotRow, batch};
use futures::TryStreamExt;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::lake::{Lake, now_micros};
use crate::maintain::rm_run::{delete, quoted};
use crate::physical::typed;
use crate::scan::{self, ScanOptions};
use crate::snapshot::{AsOf, Snapshot};
use crate::writer::commit;

const T: Table = Table::Snapshots;

/// One row of `snapshots`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NamedSnapshot {
    /// Counting up from 1.
    pub snapshot_id: i64,
    /// When, microseconds since 1970.
    pub created_at: i64,
    /// Name; collected by gc only when it has none.
    pub tag: Option<String>,
    /// Version of each table.
    pub versions: BTreeMap<String, u64>,
}

impl NamedSnapshot {
    /// The versions by table.
    pub(crate) fn table_versions(&self) -> BTreeMap<Table, u64> {
        self.versions.iter().filter_map(|(name, v)| Some((Table::parse(name)?, *v))).collect()
    }
}

/// Writes down the versions of a snapshot under the next free id.
///
/// # Errors
/// Where the store cannot be written.
pub async fn create(snapshot: &Snapshot, tag: Option<&str>) -> Result<NamedSnapshot> {
    let lake = snapshot.lake();
    let taken = list(lake).await?.iter().map(|s| s.snapshot_id).max().unwrap_or(0);
    let versions: BTreeMap<String, u64> = snapshot
        .versions()
        .iter()
        .filter(|(table, _)| **table != T)
        .map(|(table, version)| (table.name().to_owned(), *version))
        .collect();
    let named =
        NamedSnapshot { snapshot_id: taken + 1, created_at: now_micros(), tag: tag.map(str::to_owned), versions };
    let json =
        serde_json::to_string(&named.versions).map_err(|e| Error::BatchShape { table: T, detail: e.to_string() })?;
    let row = SnapshotRow {
        snapshot_id: named.snapshot_id,
        created_at: named.created_at,
        versions: json,
        tag: named.tag.clone(),
    };
    let rows = batch(&[row]).map_err(|e| Error::shape(T, &e))?;
    let transaction = commit::write_batches(lake, T, &[rows]).await?;
    commit::flush_fragments(lake, T, commit::fragments_of(&transaction)).await?;
    commit::commit(lake, T, transaction).await?;
    Ok(named)
}

/// Takes a snapshot's row away again. What it named may then be collected, unless another snapshot names it.
///
/// # Errors
/// Where the store cannot be written.
pub async fn remove(lake: &Lake, named: &NamedSnapshot) -> Result<()> {
    // two writers may have taken the same id at the same time
    let tag = named.tag.as_deref().map_or_else(|| "tag IS NULL".to_owned(), |tag| format!("tag = {}", quoted(tag)));
    delete(lake, T, &format!("snapshot_id = {} AND {tag}", named.snapshot_id)).await
}

/// All snapshots, oldest first.
///
/// # Errors
/// Where the store cannot be read.
pub async fn list(lake: &Lake) -> Result<Vec<NamedSnapshot>> {
    let dataset = lake.latest(T).await?;
    let mut rows = scan::scan(T, &dataset, ScanOptions::default(), lake.settings().read_ahead_bytes_max).await?;
    let mut all = Vec::new();
    while let Some(found) = rows.try_next().await? {
        all.extend(read(&found)?);
    }
    all.sort_by_key(|s| (s.snapshot_id, s.created_at));
    Ok(all)
}

/// The versions of the snapshot that is meant; the newest where several match.
pub(crate) async fn find(lake: &Lake, as_of: &AsOf) -> Result<BTreeMap<Table, u64>> {
    let all = list(lake).await?;
    let found = all.iter().rev().find(|s| match as_of {
        AsOf::Snapshot(id) => s.snapshot_id == *id,
        AsOf::Tag(tag) => s.tag.as_deref() == Some(tag),
        AsOf::Time(_) => false,
    });
    found.map(NamedSnapshot::table_versions).ok_or_else(|| Error::SnapshotMissing { as_of: as_of.to_string() })
}

fn read(found: &RecordBatch) -> Result<Vec<NamedSnapshot>> {
    let id: &Int64Array = typed(T, found, "snapshot_id")?;
    let created: &TimestampMicrosecondArray = typed(T, found, "created_at")?;
    let versions: &StringArray = typed(T, found, "versions")?;
    let tag: &StringArray = typed(T, found, "tag")?;
    (0..found.num_rows())
        .map(|row| {
            let versions = serde_json::from_str(versions.value(row)).map_err(|e| Error::Damaged {
                table: T,
                detail: format!("the versions of snapshot {}: {e}", id.value(row)),
            })?;
            Ok(NamedSnapshot {
                snapshot_id: id.value(row),
                created_at: created.value(row),
                tag: tag.is_valid(row).then(|| tag.value(row).to_owned()),
                versions,
            })
        })
        .collect()
}
