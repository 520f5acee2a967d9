//! Joining small fragments, and dropping deleted rows for good. Versions that readers have pinned stay as they are.

use std::sync::Arc;

use dressage_schemas::Table;
use lance::dataset::index::DatasetIndexRemapperOptions;
use lance::dataset::optimize::{CompactionOptions, commit_compaction, plan_compaction};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::index;
use crate::lake::Lake;
use crate::maintain::info::table_info;
use crate::writer::commit::flush_fragments;

/// How far to go.
#[derive(Debug, Clone)]
pub struct CompactOptions {
    /// Only this table.
    pub table: Option<Table>,
    /// Fragments with fewer rows are joined.
    pub target_rows: usize,
    /// Fragments of about this many bytes are left alone, however few rows they have: else every run would rewrite
    /// all payload for the sake of some new rows.
    pub target_bytes: u64,
}

impl Default for CompactOptions {
    fn default() -> Self {
        Self { table: None, target_rows: 1 << 20, target_bytes: 1 << 30 }
    }
}

/// What was joined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CompactReport {
    /// One entry a table that changed.
    pub tables: Vec<CompactedTable>,
}

/// What was joined in one table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CompactedTable {
    /// The table.
    pub table: String,
    /// Its version now.
    pub version: u64,
    /// Fragments before.
    pub fragments_removed: u64,
    /// Fragments instead.
    pub fragments_added: u64,
}

/// Rows of a batch while payload is rewritten: a value of routed experts may have many megabytes.
const PAYLOAD_BATCH_ROWS: usize = 8;
const BATCH_ROWS: usize = 4_096;

/// Joins small fragments of all tables (or one), and brings their indexes up to date.
///
/// # Errors
/// `Conflict` where somebody else rewrote the same fragments meanwhile.
pub async fn compact(lake: &Lake, options: &CompactOptions) -> Result<CompactReport> {
    let mut tables = Vec::new();
    for table in Table::ALL.into_iter().filter(|t| options.table.is_none_or(|only| only == *t)) {
        tables.extend(compact_table(lake, table, options).await?);
    }
    for (table, column) in index::INDEXED {
        if options.table.is_none_or(|only| only == table) {
            let dataset = lake.latest(table).await?;
            if index::unindexed_rows(&dataset, table, column).await? > 0 {
                index::refresh(lake, table, column).await?;
            }
        }
    }
    Ok(CompactReport { tables })
}

/// Rows of a fragment of the wanted size, by the mean size of the table's rows.
async fn target_rows(lake: &Lake, table: Table, options: &CompactOptions) -> Result<usize> {
    let info = table_info(lake, table).await?;
    let row_bytes = (info.bytes_live / (info.rows + info.rows_deleted).max(1)).max(1);
    let rows = usize::try_from(options.target_bytes / row_bytes).unwrap_or(usize::MAX);
    Ok(rows.clamp(1, options.target_rows.max(1)))
}

async fn compact_table(lake: &Lake, table: Table, options: &CompactOptions) -> Result<Option<CompactedTable>> {
    let fail = |e| Error::table("compact", table, e);
    let mut dataset = lake.latest(table).await?.as_ref().clone();
    let payload = table == Table::Steps;
    let plan_options = CompactionOptions {
        target_rows_per_fragment: target_rows(lake, table, options).await?,
        batch_size: Some(if payload { PAYLOAD_BATCH_ROWS } else { BATCH_ROWS }),
        io_buffer_size: Some(lake.settings().read_ahead_bytes_max),
        num_threads: Some(1),
        materialize_deletions_threshold: 0.0,
        ..CompactionOptions::default()
    };
    let plan = plan_compaction(&dataset, &plan_options).await.map_err(fail)?;
    if plan.num_tasks() == 0 {
        return Ok(None);
    }
    let mut done = Vec::with_capacity(plan.num_tasks());
    for task in plan.compaction_tasks() {
        let result = task.execute(&dataset).await.map_err(fail)?;
        // the manifest that will name these files must not reach the disk before them
        flush_fragments(lake, table, &result.new_fragments).await?;
        done.push(result);
    }
    let remap = Arc::new(DatasetIndexRemapperOptions::default());
    let metrics = commit_compaction(&mut dataset, done, remap, &plan_options).await.map_err(fail)?;
    let version = dataset.version_id();
    lake.remember(table, &Arc::new(dataset));
    Ok(Some(CompactedTable {
        table: table.name().to_owned(),
        version,
        fragments_removed: metrics.fragments_removed as u64,
        fragments_added: metrics.fragments_added as u64,
    }))
}
