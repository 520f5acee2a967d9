//! What is in a store, from its record, its manifests and a listing: no data is read but the rows of checkpoints.

use std::collections::{BTreeMap, HashSet};

use dressage_schemas::Table;
use futures::TryStreamExt;
use serde::Serialize;

use crate::checkpoints;
use crate::error::{Error, Result};
use crate::lake::Lake;
use crate::objects::ObjectFolder;

/// A store at a glance.
#[derive(Debug, Clone, Serialize)]
pub struct StoreInfo {
    /// Where it is.
    pub uri: String,
    /// Its id.
    pub store_id: String,
    /// Version of its schemas.
    pub schema_version: u32,
    /// When it was made, microseconds since 1970.
    pub created_at: i64,
    /// What made it.
    pub created_by: String,
    /// Whether many writers may share it.
    pub shared_writing: bool,
    /// Each table.
    pub tables: Vec<TableInfo>,
    /// Bytes of all objects of the store.
    pub bytes_stored: u64,
}

/// A table at a glance.
#[derive(Debug, Clone, Default, Serialize)]
pub struct TableInfo {
    /// Its name.
    pub table: String,
    /// Newest version.
    pub version: u64,
    /// Live rows.
    pub rows: u64,
    /// Rows deleted but not yet rewritten.
    pub rows_deleted: u64,
    /// Fragments: many small ones are what `compact` is for.
    pub fragments: u64,
    /// Bytes of the data and blob files of the newest version; of `checkpoints`, also those of the files in the store
    /// that its rows name.
    pub bytes_live: u64,
    /// Bytes of all objects of the table, older versions and leftovers included; of `checkpoints`, also those of all
    /// files of checkpoints in the store.
    pub bytes_stored: u64,
}

/// Looks at a store.
///
/// # Errors
/// Where it cannot be read.
pub async fn info(lake: &Lake) -> Result<StoreInfo> {
    let record = lake.record();
    let mut tables = Vec::with_capacity(Table::ALL.len());
    for table in Table::ALL {
        let mut info = table_info(lake, table).await?;
        if table == Table::Checkpoints {
            add_checkpoint_files(lake, &mut info).await?;
        }
        tables.push(info);
    }
    Ok(StoreInfo {
        uri: lake.uri().to_owned(),
        store_id: record.store_id.clone(),
        schema_version: record.schema_version,
        created_at: record.created_at,
        created_by: record.created_by.clone(),
        shared_writing: record.conditional_writes.is_sound(),
        bytes_stored: tables.iter().map(|t| t.bytes_stored).sum(),
        tables,
    })
}

async fn add_checkpoint_files(lake: &Lake, info: &mut TableInfo) -> Result<()> {
    let rows = checkpoints::list(lake, None).await?;
    let named = rows.iter().filter(|row| !checkpoints::is_elsewhere(&row.location)).map(|row| row.n_bytes).sum::<i64>();
    info.bytes_live += u64::try_from(named).unwrap_or(0);
    let stored = ObjectFolder::in_store(lake, checkpoints::FOLDER)?.list().await?;
    info.bytes_stored += stored.iter().map(|file| file.bytes).sum::<u64>();
    Ok(())
}

/// Looks at one table.
pub(crate) async fn table_info(lake: &Lake, table: Table) -> Result<TableInfo> {
    let dataset = lake.latest(table).await?;
    if !lake.has_table(table).await? {
        let name = table.name().to_owned();
        return Ok(TableInfo { table: name, version: dataset.version_id(), ..TableInfo::default() });
    }
    let objects = list_objects(lake, table).await?;
    let live: HashSet<&str> =
        dataset.iter_fragments().flat_map(|f| &f.files).map(|f| f.path.trim_end_matches(".lance")).collect();
    let is_live = |path: &str| {
        let Some(name) = path.strip_prefix("data/") else { return false };
        let stem = name.split('/').next().unwrap_or(name);
        live.contains(stem.trim_end_matches(".lance"))
    };
    let (mut rows, mut rows_deleted, mut fragments) = (0, 0, 0);
    for fragment in dataset.iter_fragments() {
        let physical = fragment.physical_rows.unwrap_or(0);
        let present = fragment.num_rows().unwrap_or(physical);
        rows += present as u64;
        rows_deleted += (physical - present) as u64;
        fragments += 1;
    }
    Ok(TableInfo {
        table: table.name().to_owned(),
        version: dataset.version_id(),
        rows,
        rows_deleted,
        fragments,
        bytes_live: objects.iter().filter(|(path, _)| is_live(path)).map(|(_, o)| o.size).sum(),
        bytes_stored: objects.values().map(|o| o.size).sum(),
    })
}

/// Size and age of an object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ObjectInfo {
    pub(crate) size: u64,
    /// Microseconds since 1970.
    pub(crate) modified_at: i64,
}

/// All objects of a table, by path below the table's folder.
pub(crate) async fn list_objects(lake: &Lake, table: Table) -> Result<BTreeMap<String, ObjectInfo>> {
    let dataset = lake.latest(table).await?;
    let store = dataset.object_store(None).await.map_err(|e| Error::table("open", table, e))?;
    let data = dataset.data_dir();
    let base = data.as_ref().strip_suffix("/data").unwrap_or(data.as_ref()).to_owned();
    // parsed, not built: the path is encoded already, and `from` would encode it again
    let prefix =
        object_store::path::Path::parse(base.as_str()).map_err(|e| Error::object("list", base.clone(), e.into()))?;
    let mut listed = store.inner.list(Some(&prefix));
    let mut objects = BTreeMap::new();
    while let Some(meta) = listed.try_next().await.map_err(|e| Error::object("list", base.clone(), e))? {
        let path = meta.location.as_ref();
        let below = path.strip_prefix(base.as_str()).unwrap_or(path).trim_start_matches('/');
        let info = ObjectInfo { size: meta.size, modified_at: meta.last_modified.timestamp_micros() };
        objects.insert(below.to_owned(), info);
    }
    Ok(objects)
}
