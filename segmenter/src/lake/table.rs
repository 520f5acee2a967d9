//! A stored table as the engine sees it: its columns, its exact row count, and which filters the store takes.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::DFSchema;
use datafusion::common::stats::Precision;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr};
use dressage_schemas::Table;
use tokio::runtime::Handle;

use super::predicate::{is_flag, kept_rows_estimate, sql_predicate};
use super::scan::{LakeScan, OwnFilter, ScanPlan};
use super::source::{ExcludedRows, Fragment, LakeSource};

/// Tables below this many rows are read in one partition: more would cost more than they save.
pub(super) const ROWS_PER_PARTITION_MIN: u64 = 32_768;

/// A scan that is expected to keep fewer rows than this is one partition.
const LOOK_UP_ROWS_MAX: usize = 4_096;

/// Which rows of a table are seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rows {
    /// All that were ever written.
    Written,
    /// Those that are in force: of the copies of a trajectory, the highest revision; of others, no repetition.
    Effective,
}

/// One stored table.
#[derive(Debug)]
pub(crate) struct LakeTable {
    source: Arc<dyn LakeSource>,
    table: Table,
    rows: Rows,
    schema: SchemaRef,
    io: Handle,
}

impl LakeTable {
    /// The table, read on the runtime `io`.
    pub(crate) fn new(source: Arc<dyn LakeSource>, table: Table, rows: Rows, io: Handle) -> Self {
        // without the schema's metadata, which would travel into every result
        let schema = Arc::new(Schema::new(table.schema().fields().clone()));
        Self { source, table, rows, schema, io }
    }

    /// The filter of a scan that does not tell it to the source, because the table is in memory.
    fn own_filter(&self, state: &dyn Session, schema: &SchemaRef, filters: &[Expr]) -> Result<Option<OwnFilter>> {
        let filtered: HashSet<&str> = filters.iter().flat_map(Expr::column_refs).map(|c| c.name.as_str()).collect();
        let more = self.schema.fields().iter().filter(|f| filtered.contains(f.name().as_str()));
        let more = more.filter(|f| schema.field_with_name(f.name()).is_err());
        let read = Arc::new(Schema::new(schema.fields().iter().chain(more).cloned().collect::<Vec<_>>()));
        if !self.source.is_resident(self.table, &read) {
            return Ok(None);
        }
        let filter = conjunction(filters.iter().cloned());
        let known = DFSchema::try_from(Arc::clone(&read))?;
        let filter: Option<Arc<dyn PhysicalExpr>> =
            filter.map(|filter| state.create_physical_expr(filter, &known)).transpose()?;
        Ok(Some(OwnFilter { read, filter }))
    }

    async fn excluded(&self) -> Result<ExcludedRows> {
        if self.rows == Rows::Written {
            return Ok(ExcludedRows::default());
        }
        let (source, table) = (Arc::clone(&self.source), self.table);
        let task = self.io.spawn(async move { source.hidden(table).await });
        let excluded = task.await.map_err(|e| DataFusionError::ExecutionJoin(Box::new(e)))?;
        excluded.map_err(|e| DataFusionError::External(Box::new(e)))
    }
}

#[async_trait]
impl TableProvider for LakeTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        Ok(filters
            .iter()
            .map(|filter| match sql_predicate(filter, &self.schema) {
                Some(_) => TableProviderFilterPushDown::Exact,
                None => TableProviderFilterPushDown::Unsupported,
            })
            .collect())
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let schema = match projection {
            Some(indices) => Arc::new(self.schema.project(indices)?),
            None => Arc::clone(&self.schema),
        };
        let mut predicates = Vec::with_capacity(filters.len());
        for filter in filters {
            let Some(predicate) = sql_predicate(filter, &self.schema) else {
                return datafusion::common::internal_err!("{filter} was not offered to {}", self.table);
            };
            predicates.push(predicate);
        }
        let own_filter = self.own_filter(state, &schema, filters)?;
        let excluded = self.excluded().await?;
        let mut fragments = self.source.fragments(self.table);
        for fragment in &mut fragments {
            fragment.row_count = fragment.row_count.saturating_sub(excluded.count_in(fragment));
        }
        let visible = fragments.iter().map(|f| f.row_count).sum::<u64>() as usize;
        let (rows, target) = match filters {
            [] => (Precision::Exact(visible), state.config().target_partitions()),
            filters => {
                let kept = kept_rows_estimate(filters, visible);
                // a look-up is one search in an index, not one in each of several parts
                let target = if kept < LOOK_UP_ROWS_MAX { 1 } else { state.config().target_partitions() };
                (Precision::Inexact(kept), target)
            }
        };
        let plan = ScanPlan {
            table: self.table,
            row_bytes: row_bytes(self.table, &schema),
            batch_rows: batch_rows(self.table, &schema, state.config().batch_size()),
            schema,
            filter: (!predicates.is_empty()).then(|| predicates.join(" AND ")),
            own_filter,
            most_match: filters.iter().all(is_flag),
            partitions: partitions(fragments, target),
            excluded,
            rows,
        };
        Ok(Arc::new(LakeScan::new(Arc::clone(&self.source), self.io.clone(), plan, limit)))
    }
}

/// Deals the fragments out in stored order, so that each partition has about the same number of rows.
fn partitions(fragments: Vec<Fragment>, target: usize) -> Vec<Vec<Fragment>> {
    let rows: u64 = fragments.iter().map(|f| f.row_count).sum();
    let wanted = rows.div_ceil(ROWS_PER_PARTITION_MIN).clamp(1, target.max(1) as u64);
    let share = rows.div_ceil(wanted).max(1);
    let mut parts: Vec<Vec<Fragment>> = vec![Vec::new()];
    let mut filled = 0;
    for fragment in fragments {
        if filled >= share && (parts.len() as u64) < wanted {
            parts.push(Vec::new());
            filled = 0;
        }
        filled += fragment.row_count;
        if let Some(part) = parts.last_mut() {
            part.push(fragment);
        }
    }
    parts
}

/// Bytes of a row in memory: a guess by type, so that a join holds the side that takes less of it.
pub(super) fn row_bytes(table: Table, schema: &Schema) -> usize {
    let width = |field: &Field| match (table, field.name().as_str(), field.data_type()) {
        (Table::Steps, "routed_experts", _) => 1 << 20,
        (Table::Steps, "token_ids" | "logprobs", _) => 8 << 10,
        (Table::TrainerLogprobs, "token_places" | "logprobs" | "trainer_logprobs", _) => 4 << 10,
        (Table::Contents, "data", _) | (Table::Quarantine, "raw", _) => 64 << 10,
        (Table::Contents, "text" | "reasoning" | "tool_calls" | "body", _) => 2 << 10,
        (_, "labels" | "extra" | "detail" | "parts" | "reason", _) => 256,
        (_, _, DataType::Boolean) => 1,
        (_, _, DataType::Int32) => 4,
        (_, _, DataType::Int64 | DataType::Float64 | DataType::Timestamp(..)) => 8,
        (_, _, DataType::List(_)) => 64,
        _ => 32,
    };
    schema.fields().iter().map(|field| width(field)).sum()
}

/// Rows of a batch: fewer where a row may be large, so that a batch stays in the tens of megabytes.
fn batch_rows(table: Table, schema: &Schema, most: usize) -> usize {
    let wanted = schema
        .fields()
        .iter()
        .map(|field| match (table, field.name().as_str()) {
            (Table::Steps, "routed_experts") => 16,
            (Table::Steps, "token_ids" | "logprobs") => 512,
            (Table::TrainerLogprobs, "token_places" | "logprobs" | "trainer_logprobs") => 1024,
            (Table::Contents, "data") => 16,
            (Table::Contents, "text" | "reasoning" | "tool_calls" | "body") => 1024,
            (Table::Quarantine, "raw") => 16,
            _ => most,
        })
        .min();
    wanted.unwrap_or(most).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fragments(rows: &[u64]) -> Vec<Fragment> {
        rows.iter().enumerate().map(|(id, &row_count)| Fragment { id: id as u64, row_count }).collect()
    }

    #[test]
    fn fragments_are_dealt_out_evenly_and_all_of_them() {
        let parts = partitions(fragments(&[50_000, 50_000, 50_000, 50_000, 1]), 2);
        let rows: Vec<u64> = parts.iter().map(|p| p.iter().map(|f| f.row_count).sum()).collect();
        assert_eq!(rows, vec![150_000, 50_001]);
        assert_eq!(parts.concat(), fragments(&[50_000, 50_000, 50_000, 50_000, 1]));
    }

    #[test]
    fn a_small_table_is_one_partition_and_an_empty_one_too() {
        assert_eq!(partitions(fragments(&[10, 10, 10]), 8).len(), 1);
        assert_eq!(partitions(Vec::new(), 8), vec![Vec::<Fragment>::new()]);
    }
}
