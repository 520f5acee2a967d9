//! Storing plans, and reading them back: `batches` first, the row of `plans` last, so that a plan is seen whole or not
//! at all.

use std::sync::Arc;

use arrow::array::{Array, Int32Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use dressage_schemas::Table;
use dressage_schemas::tables::plans::{self, PlanRow};
use dressage_schemas::tables::streamed::{self, StreamedRow};
use futures::TryStreamExt;

use crate::error::{Error, Result};
use crate::lake::{Lake, now_micros};
use crate::maintain::rm_run::quoted;
use crate::physical::typed;
use crate::retry::random;
use crate::scan::{self, BatchStream, ScanOptions};
use crate::writer::commit::{append_rows, commit_rows, write_rows};

/// The tag of the snapshot that a plan pins.
pub fn snapshot_tag(plan_id: &str) -> String {
    format!("{TAG_PREFIX}{plan_id}")
}

/// What the tags of plans' snapshots begin with.
pub(crate) const TAG_PREFIX: &str = "plan:";

/// Stores a plan with its rows of `batches`, which must be under that table's schema and in plan order. Gives the row
/// as stored, or the one that was there: a plan is a function of what its id is the hash of, so it is stored once.
///
/// Sets `plan_write_id` in both, and `created_at`. Rows that an interrupted attempt left have another `plan_write_id`,
/// so they never show.
///
/// # Errors
/// `Invalid` for batches that do not fit the schema; whatever the store answers.
pub async fn append(lake: &Lake, plan: PlanRow, batches: &[RecordBatch]) -> Result<PlanRow> {
    if let Some(there) = exact(lake, &plan.plan_id).await? {
        return Ok(there);
    }
    // 62 random bits, as the ids of other writes
    let plan = PlanRow { plan_write_id: (random() >> 2) as i64, created_at: now_micros(), ..plan };
    let stamped = batches.iter().map(|b| stamp(b, plan.plan_write_id)).collect::<Result<Vec<_>>>()?;
    let row = plans::batch(std::slice::from_ref(&plan)).map_err(|e| Error::shape(Table::Plans, &e))?;
    // the files of both are written and flushed side by side: until its commit, nothing names them
    let row = [row];
    let (batches, row) =
        tokio::try_join!(write_rows(lake, Table::Batches, &stamped), write_rows(lake, Table::Plans, &row))?;
    commit_rows(lake, Table::Batches, batches).await?;
    commit_rows(lake, Table::Plans, row).await?;
    Ok(plan)
}

/// The batch with its `plan_write_id` set.
fn stamp(batch: &RecordBatch, plan_write_id: i64) -> Result<RecordBatch> {
    const T: Table = Table::Batches;
    let shape = |e| Error::shape(T, &e);
    let at = batch.schema().index_of("plan_write_id").map_err(shape)?;
    let mut columns = batch.columns().to_vec();
    columns[at] = Arc::new(Int64Array::from_value(plan_write_id, batch.num_rows()));
    RecordBatch::try_new(T.schema(), columns).map_err(shape)
}

/// Writes down what was streamed. The same micro-batch may be written again; the first counts.
///
/// # Errors
/// Whatever the store answers.
pub async fn append_streamed(lake: &Lake, rows: &[StreamedRow]) -> Result<()> {
    let batch = streamed::batch(rows).map_err(|e| Error::shape(Table::Streamed, &e))?;
    append_rows(lake, Table::Streamed, &[batch]).await
}

/// The plan whose id begins with `prefix`.
///
/// # Errors
/// `NotFound` where there is none, `Invalid` where there are several.
pub async fn find(lake: &Lake, prefix: &str) -> Result<PlanRow> {
    let mut found = list(lake).await?;
    found.retain(|plan| plan.plan_id.starts_with(prefix));
    match (found.len(), found.pop()) {
        (1, Some(plan)) => Ok(plan),
        (0, _) | (_, None) => Err(Error::PlanMissing { plan: prefix.to_owned() }),
        (count, Some(_)) => Err(Error::PlanAmbiguous { plan: prefix.to_owned(), count }),
    }
}

/// The plan with exactly this id, if it is there.
///
/// # Errors
/// Where the store cannot be read.
pub async fn exact(lake: &Lake, plan_id: &str) -> Result<Option<PlanRow>> {
    Ok(read_plans(lake, Some(format!("plan_id = {}", quoted(plan_id)))).await?.pop())
}

/// All plans, oldest first.
///
/// # Errors
/// Where the store cannot be read.
pub async fn list(lake: &Lake) -> Result<Vec<PlanRow>> {
    read_plans(lake, None).await
}

async fn read_plans(lake: &Lake, filter: Option<String>) -> Result<Vec<PlanRow>> {
    let options = ScanOptions { filter, ..ScanOptions::default() };
    let mut rows = scan_latest(lake, Table::Plans, options).await?;
    let mut plans = Vec::new();
    while let Some(batch) = rows.try_next().await? {
        plans.extend(plan_rows(&batch)?);
    }
    // of two planners that stored the same plan at the same time the first counts, as in the view
    plans.sort_by(|a, b| (&a.plan_id, a.created_at, a.plan_write_id).cmp(&(&b.plan_id, b.created_at, b.plan_write_id)));
    plans.dedup_by(|later, first| later.plan_id == first.plan_id);
    plans.sort_by(|a, b| (a.created_at, &a.plan_id).cmp(&(b.created_at, &b.plan_id)));
    Ok(plans)
}

/// Rows of `batches` that belong to a plan, in plan order. `filter` is a SQL predicate over that table's columns,
/// such as `dp_rank = 0`.
///
/// # Errors
/// `Invalid` for an unknown column or a predicate that cannot be read.
pub async fn scan_batches(
    lake: &Lake,
    plan: &PlanRow,
    columns: Option<Vec<String>>,
    filter: Option<&str>,
) -> Result<BatchStream> {
    let own = format!("plan_id = {} AND plan_write_id = {}", quoted(&plan.plan_id), plan.plan_write_id);
    let filter = filter.map_or_else(|| own.clone(), |more| format!("{own} AND ({more})"));
    scan_latest(lake, Table::Batches, ScanOptions { columns, filter: Some(filter), ..ScanOptions::default() }).await
}

/// What was streamed of a plan, the first of each micro-batch, in plan order.
///
/// # Errors
/// Where the store cannot be read.
pub async fn list_streamed(lake: &Lake, plan_id: &str) -> Result<Vec<StreamedRow>> {
    let options = ScanOptions::default().filter(format!("plan_id = {}", quoted(plan_id)));
    let mut batches = scan_latest(lake, Table::Streamed, options).await?;
    let mut rows = Vec::new();
    while let Some(batch) = batches.try_next().await? {
        rows.extend(streamed_rows(&batch)?);
    }
    let place = |r: &StreamedRow| (r.train_step, r.dp_rank, r.micro_batch);
    rows.sort_by(|a, b| (place(a), a.streamed_at, &a.content_hash).cmp(&(place(b), b.streamed_at, &b.content_hash)));
    rows.dedup_by(|later, first| place(later) == place(first));
    Ok(rows)
}

async fn scan_latest(lake: &Lake, table: Table, options: ScanOptions) -> Result<BatchStream> {
    let dataset = lake.latest(table).await?;
    scan::scan(table, &dataset, options, lake.settings().read_ahead_bytes_max).await
}

fn plan_rows(batch: &RecordBatch) -> Result<Vec<PlanRow>> {
    const T: Table = Table::Plans;
    let text = |name| typed::<StringArray>(T, batch, name);
    let int = |name| typed::<Int64Array>(T, batch, name);
    let small = |name| typed::<Int32Array>(T, batch, name);
    let created_at: &TimestampMicrosecondArray = typed(T, batch, "created_at")?;
    let (plan_id, run_id, versions) = (text("plan_id")?, text("run_id")?, text("versions")?);
    let (settings, sql, sql_hash) = (text("settings")?, text("sql")?, text("sql_hash")?);
    let (after, summary) = (text("after_plan_id")?, text("summary")?);
    let (write_id, snapshot_id, seed) = (int("plan_write_id")?, int("snapshot_id")?, int("seed")?);
    let (n_samples, n_tokens) = (int("n_samples")?, int("n_tokens")?);
    let (world_size, n_train_steps) = (small("world_size")?, small("n_train_steps")?);
    let maybe = |column: &StringArray, row| column.is_valid(row).then(|| column.value(row).to_owned());
    let rows = (0..batch.num_rows()).map(|row| PlanRow {
        plan_id: plan_id.value(row).to_owned(),
        plan_write_id: write_id.value(row),
        created_at: created_at.value(row),
        run_id: maybe(run_id, row),
        snapshot_id: snapshot_id.value(row),
        versions: versions.value(row).to_owned(),
        settings: settings.value(row).to_owned(),
        sql: sql.value(row).to_owned(),
        sql_hash: sql_hash.value(row).to_owned(),
        seed: seed.value(row),
        world_size: world_size.value(row),
        n_train_steps: n_train_steps.value(row),
        n_samples: n_samples.value(row),
        n_tokens: n_tokens.value(row),
        after_plan_id: maybe(after, row),
        summary: summary.value(row).to_owned(),
    });
    Ok(rows.collect())
}

fn streamed_rows(batch: &RecordBatch) -> Result<Vec<StreamedRow>> {
    const T: Table = Table::Streamed;
    let small = |name| typed::<Int32Array>(T, batch, name);
    let int = |name| typed::<Int64Array>(T, batch, name);
    let (plan_id, hash): (&StringArray, &StringArray) = (typed(T, batch, "plan_id")?, typed(T, batch, "content_hash")?);
    let experts: &StringArray = typed(T, batch, "experts_hash")?;
    let (train_step, dp_rank, micro_batch) = (small("train_step")?, small("dp_rank")?, small("micro_batch")?);
    let (n_samples, n_tokens) = (int("n_samples")?, int("n_tokens")?);
    let at: &TimestampMicrosecondArray = typed(T, batch, "streamed_at")?;
    let rows = (0..batch.num_rows()).map(|row| StreamedRow {
        plan_id: plan_id.value(row).to_owned(),
        train_step: train_step.value(row),
        dp_rank: dp_rank.value(row),
        micro_batch: micro_batch.value(row),
        n_samples: n_samples.value(row),
        n_tokens: n_tokens.value(row),
        content_hash: hash.value(row).to_owned(),
        experts_hash: experts.is_valid(row).then(|| experts.value(row).to_owned()),
        streamed_at: at.value(row),
    });
    Ok(rows.collect())
}
