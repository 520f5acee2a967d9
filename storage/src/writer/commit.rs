//! The commit of a group, table by table in the order of `Table::ALL`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use dressage_schemas::Table;
use futures::TryStreamExt;
use lance::Dataset;
use lance::dataset::transaction::{Operation, Transaction};
use lance::dataset::{CommitBuilder, InsertBuilder, WriteMode};
use lance_table::format::Fragment;

use super::fence::Fence;
use super::step_stream::StepStream;
use super::{CommitReceipt, weight_versions};
use crate::door;
use crate::durable;
use crate::error::{Error, Result};
use crate::fault;
use crate::lake::Lake;
use crate::physical;

/// Attempts at one table before the wait between them is ours instead of the table format's.
const COMMIT_CONFLICTS_MAX: u32 = 1_000;

/// Rows that are committed in one go.
#[derive(Default)]
pub(super) struct Group {
    /// Being written already.
    pub(super) steps: Option<StepStream>,
    /// Of all other tables.
    pub(super) others: BTreeMap<Table, Vec<RecordBatch>>,
}

/// Commits a group; with the version of `trajectories` that holds its rows, where it has such.
pub(super) async fn commit_group(
    lake: &Lake,
    mut group: Group,
    fence: &mut Fence,
) -> Result<(CommitReceipt, Option<Arc<Dataset>>)> {
    // a store that began to lie since the last commit is found before anything more is trusted to it
    fence.verify(lake).await?;
    fence.next_group();
    let mut receipt = CommitReceipt { commits: 1, ..CommitReceipt::default() };
    let mut trajectories = None;
    for table in Table::ALL {
        let Some((transaction, rows)) = write_files(lake, &mut group, table).await? else { continue };
        let fragments = fragments_of(&transaction);
        receipt.bytes_stored +=
            lake.retry_limit().run("list data files", |_| stored_bytes(lake, table, fragments)).await?;
        flush_fragments(lake, table, fragments).await?;
        fault::point("written", table);
        let uuid = transaction.uuid.clone();
        let dataset = commit(lake, table, transaction).await?;
        fault::point("after", table);
        fence.passed(lake, table, &dataset, &uuid).await?;
        receipt.versions.insert(table.name().to_owned(), dataset.version_id());
        receipt.rows.insert(table.name().to_owned(), rows);
        if table == Table::Trajectories {
            trajectories = Some(dataset);
        }
    }
    Ok((receipt, trajectories))
}

/// Writes the data files of a table, not yet visible; none where nothing is pending.
async fn write_files(lake: &Lake, group: &mut Group, table: Table) -> Result<Option<(Transaction, u64)>> {
    if table == Table::Steps {
        return match group.steps.take() {
            Some(stream) => stream.finish().await.map(Some),
            None => Ok(None),
        };
    }
    let Some(mut batches) = group.others.remove(&table) else { return Ok(None) };
    if table == Table::WeightVersions {
        batches = weight_versions::number(lake, &batches).await?;
    }
    let rows: u64 = batches.iter().map(|b| b.num_rows() as u64).sum();
    if rows == 0 {
        return Ok(None);
    }
    let transaction = write_batches(lake, table, &batches).await?;
    Ok(Some((transaction, rows)))
}

/// Writes batches to data files of a table, not yet visible.
pub(crate) async fn write_batches(lake: &Lake, table: Table, batches: &[RecordBatch]) -> Result<Transaction> {
    let physical = batches.iter().map(|b| physical::to_physical(table, b)).collect::<Result<Vec<_>>>()?;
    let params = lake.write_params(WriteMode::Append);
    lake.retry_limit()
        .run("write data files", |_| async {
            // data files that a failed attempt left are named by no manifest
            let dataset = lake.any(table).await?;
            let insert = InsertBuilder::new(dataset).with_params(&params);
            insert.execute_uncommitted(physical.clone()).await.map_err(|e| Error::table("write", table, e))
        })
        .await
}

/// Rows of one table in one durable commit, outside of a writer. Makes the table where an early release did not.
pub(crate) async fn append_rows(lake: &Lake, table: Table, batches: &[RecordBatch]) -> Result<()> {
    let written = write_rows(lake, table, batches).await?;
    commit_rows(lake, table, written).await
}

/// Writes and flushes data files that no version names yet; none where there are no rows.
pub(crate) async fn write_rows(lake: &Lake, table: Table, batches: &[RecordBatch]) -> Result<Option<Transaction>> {
    if batches.iter().all(|b| b.num_rows() == 0) {
        return Ok(None);
    }
    lake.ensure_table(table).await?;
    for batch in batches {
        door::check(table, batch)?;
    }
    let transaction = write_batches(lake, table, batches).await?;
    flush_fragments(lake, table, fragments_of(&transaction)).await?;
    Ok(Some(transaction))
}

/// Makes what [`write_rows`] wrote visible.
pub(crate) async fn commit_rows(lake: &Lake, table: Table, written: Option<Transaction>) -> Result<()> {
    let Some(transaction) = written else { return Ok(()) };
    fault::point("written", table);
    commit(lake, table, transaction).await?;
    fault::point("after", table);
    Ok(())
}

/// Flushes data files to a local disk, where the store is on one and wants it.
pub(crate) async fn flush_fragments(lake: &Lake, table: Table, fragments: &[Fragment]) -> Result<()> {
    match lake.inner.location.folder() {
        Some(folder) if lake.inner.settings.local_fsync => {
            durable::sync_fragments(folder.join(format!("{table}.lance")), fragments).await
        }
        _ => Ok(()),
    }
}

/// The new fragments of an append.
pub(crate) fn fragments_of(transaction: &Transaction) -> &[Fragment] {
    match &transaction.operation {
        Operation::Append { fragments } => fragments,
        _ => &[],
    }
}

/// Commits an append. Safe to repeat after a lost answer: before each further attempt the versions since the first
/// one are searched for this very transaction.
pub(crate) async fn commit(lake: &Lake, table: Table, transaction: Transaction) -> Result<Arc<Dataset>> {
    let first = lake.latest(table).await?.version_id();
    let timeout = Duration::from_millis(lake.settings().retry_timeout_ms);
    let dataset = lake
        .retry_limit()
        .run("commit", |tries| {
            let mut transaction = transaction.clone();
            async move {
                let latest = lake.latest(table).await?;
                if tries > 0
                    && let Some(done) = find_committed(lake, table, first, &latest, &transaction.uuid).await?
                {
                    return Ok(done);
                }
                // an append conflicts with nothing that we do, so the versions in between need not be read
                transaction.read_version = latest.version_id();
                let done = CommitBuilder::new(latest)
                    .with_store_params(lake.inner.params.clone())
                    .with_session(lake.inner.session.clone())
                    .with_skip_auto_cleanup(true)
                    .with_max_retries(COMMIT_CONFLICTS_MAX)
                    .with_retry_timeout(timeout)
                    .execute(transaction)
                    .await
                    .map_err(|e| Error::table("commit to", table, e))?;
                Ok(Arc::new(done))
            }
        })
        .await?;
    lake.remember(table, &dataset);
    Ok(dataset)
}

/// The version that holds a transaction, if one does.
async fn find_committed(
    lake: &Lake,
    table: Table,
    after: u64,
    latest: &Arc<Dataset>,
    uuid: &str,
) -> Result<Option<Arc<Dataset>>> {
    for version in (after + 1..=latest.version_id()).rev() {
        let found = latest.read_transaction_by_version(version).await;
        let found = found.map_err(|e| Error::table("read the transaction of", table, e))?;
        if found.is_some_and(|t| t.uuid == uuid) {
            return lake.at(table, version).await.map(Some);
        }
    }
    Ok(None)
}

/// Bytes of data files and of the blob files beside them.
async fn stored_bytes(lake: &Lake, table: Table, fragments: &[Fragment]) -> Result<u64> {
    let mut bytes = 0;
    let dataset = lake.any(table).await?;
    let store = dataset.object_store(None).await.map_err(|e| Error::table("open", table, e))?;
    for file in fragments.iter().flat_map(|f| &f.files) {
        bytes += file.file_size_bytes.get().map_or(0, |n| n.get());
        if table == Table::Steps {
            let stem = file.path.strip_suffix(".lance").unwrap_or(&file.path);
            let blobs = dataset.data_dir().join(stem);
            let listed =
                store.inner.list(Some(&blobs)).map_ok(|meta| meta.size).try_fold(0, |a, b| async move { Ok(a + b) });
            bytes += listed.await.map_err(|e| Error::object("list", blobs.to_string(), e))?;
        }
    }
    Ok(bytes)
}
