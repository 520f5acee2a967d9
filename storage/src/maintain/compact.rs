//! Joining small fragments, and dropping deleted rows for good. Versions that readers have pinned stay as they are.

use std::sync::Arc;

use arrow::array::Int32Array;
use dressage_schemas::Table;
use futures::TryStreamExt;
use lance::Dataset;
use lance::dataset::index::DatasetIndexRemapperOptions;
use lance::dataset::optimize::{CompactionOptions, commit_compaction, plan_compaction};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::index;
use crate::lake::Lake;
use crate::maintain::info::table_info;
use crate::physical::typed;
use crate::scan::{self, ScanOptions};
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

/// Rows of a batch while payload is rewritten, at least: a value of routed experts may have many megabytes.
const PAYLOAD_BATCH_ROWS_MIN: usize = 8;
/// Bytes of such a batch, if all its rows were as large as the largest one.
const PAYLOAD_BATCH_BYTES: u64 = 32 << 20;
const BATCH_ROWS: usize = 4_096;

/// Memory of a row of `steps` without its tokens: lists of hashes and spans.
const STEP_BYTES: u64 = 8 << 10;
/// Memory of a token's id and log-prob.
const TOKEN_BYTES: u64 = 8;

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

/// Rows of `steps` that are rewritten at once. Each batch costs some milliseconds of waiting, whatever is in it, so that
/// a fixed small number would make small rows slow; how large the largest row is follows from its number of tokens.
async fn payload_batch_rows(lake: &Lake, dataset: &Arc<Dataset>) -> Result<usize> {
    const COLUMNS: [&str; 2] = ["n_context_tokens", "n_output_tokens"];
    let read_ahead = lake.settings().read_ahead_bytes_max;
    let mut rows = scan::scan(Table::Steps, dataset, ScanOptions::columns(COLUMNS), read_ahead).await?;
    let (mut largest, mut total) = (0_u64, 0_u64);
    while let Some(batch) = rows.try_next().await? {
        let context: &Int32Array = typed(Table::Steps, &batch, COLUMNS[0])?;
        let output: &Int32Array = typed(Table::Steps, &batch, COLUMNS[1])?;
        for (context, output) in context.values().iter().zip(output.values()) {
            let tokens = u64::try_from(i64::from(*context) + i64::from(*output)).unwrap_or(0);
            largest = largest.max(tokens);
            total += tokens;
        }
    }
    let stored = table_info(lake, Table::Steps).await?.bytes_live;
    Ok(batch_rows(largest, total, stored))
}

/// As many rows as fit into a batch, by the tokens of the largest row, those of all rows, and the bytes of all rows.
fn batch_rows(largest: u64, total: u64, stored_bytes: u64) -> usize {
    // router choices are what makes a token large; they are stored as they are in memory
    let token_bytes = TOKEN_BYTES + stored_bytes / total.max(1);
    let row_bytes = STEP_BYTES + largest * token_bytes;
    usize::try_from(PAYLOAD_BATCH_BYTES / row_bytes).unwrap_or(BATCH_ROWS).clamp(PAYLOAD_BATCH_ROWS_MIN, BATCH_ROWS)
}

async fn compact_table(lake: &Lake, table: Table, options: &CompactOptions) -> Result<Option<CompactedTable>> {
    let fail = |e| Error::table("compact", table, e);
    let latest = lake.latest(table).await?;
    let rows = if table == Table::Steps { payload_batch_rows(lake, &latest).await? } else { BATCH_ROWS };
    let mut dataset = latest.as_ref().clone();
    let plan_options = CompactionOptions {
        target_rows_per_fragment: target_rows(lake, table, options).await?,
        batch_size: Some(rows),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_rows_are_rewritten_by_the_thousand_and_large_ones_a_few_at_a_time() {
        assert_eq!(batch_rows(100, 100_000, 400_000), 3_572);
        assert_eq!(batch_rows(0, 0, 0), BATCH_ROWS);
        // 32,000 tokens of 48 layers and 8 experts each
        assert_eq!(batch_rows(32_000, 3_200_000, 3_200_000 * 384), PAYLOAD_BATCH_ROWS_MIN);
        // one long rollout among many short ones
        assert_eq!(batch_rows(100_000, 200_000, 800_000), 27);
    }
}
