//! The storage room's snapshot as a source: the one place where the two meet.

use async_trait::async_trait;
use dressage_schemas::Table;
use dressage_storage::{ScanOptions, Snapshot};
use futures::{StreamExt, TryStreamExt};

use super::source::{ExcludedRows, Fragment, LakeSource, ScanRequest, SourceError, SourceStream};

fn failed(error: dressage_storage::Error) -> SourceError {
    SourceError::new(error.kind(), error)
}

#[async_trait]
impl LakeSource for Snapshot {
    fn fragments(&self, table: Table) -> Vec<Fragment> {
        Self::fragments(self, table).into_iter().map(|f| Fragment { id: f.id, row_count: f.row_count as u64 }).collect()
    }

    async fn scan(&self, request: ScanRequest) -> Result<SourceStream, SourceError> {
        let options = ScanOptions {
            columns: Some(request.columns),
            filter: request.filter,
            limit: request.limit,
            fragments: request.fragments,
            batch_rows: request.batch_rows,
            row_address: request.row_address,
            most_match: request.most_match,
            unordered: false,
        };
        let batches = Self::scan(self, request.table, options).await.map_err(failed)?;
        Ok(batches.map_err(failed).boxed())
    }

    async fn hidden(&self, table: Table) -> Result<ExcludedRows, SourceError> {
        let rows = match table {
            Table::Trajectories => self.superseded().await,
            Table::Contents | Table::Quarantine | Table::Checkpoints => self.duplicates(table).await,
            // the views of weight versions, plans and streamed take the first of each themselves, those of what a trainer
            // wrote the last; the others have no copies
            Table::WeightVersions
            | Table::Steps
            | Table::Rewards
            | Table::IngestLog
            | Table::Snapshots
            | Table::Batches
            | Table::Plans
            | Table::Streamed
            | Table::TrainMetrics
            | Table::TrainerLogprobs => return Ok(ExcludedRows::default()),
        };
        rows.map(ExcludedRows::from).map_err(failed)
    }
}
