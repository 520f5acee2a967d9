//! What the store has of single trajectories: asked only where a copy came that is not the same, so that the common
//! ways, new and unchanged, read no steps.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use arrow::array::{
    Array, AsArray, Int32Array, Int64Array, LargeBinaryArray, LargeStringArray, RecordBatch, StringArray,
};
use arrow::datatypes::DataType;
use dressage_schemas::Table;
use dressage_schemas::tables::contents::ContentRow;
use dressage_storage::{ScanOptions, Snapshot};
use futures::TryStreamExt;

use super::copies::{Said, SaidStep, is_sampled};
use crate::error::{Error, Result};

/// Keys in one question to the store.
const KEYS_PER_QUERY: usize = 512;

/// Where a stored copy came from and how much it is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Head {
    pub(crate) format: String,
    pub(crate) instance_id: String,
    pub(crate) source: String,
    pub(crate) n_tokens: i64,
    pub(crate) n_messages: i64,
}

/// One attempt to write one trajectory: (trajectory_key, write_id).
pub(crate) type Attempt = (i64, i64);

/// The heads of these attempts.
pub(crate) async fn heads(snapshot: &Snapshot, wanted: &HashSet<Attempt>) -> Result<HashMap<Attempt, Head>> {
    const COLUMNS: [&str; 7] =
        ["trajectory_key", "write_id", "format", "instance_id", "source", "n_tokens", "n_messages"];
    let mut heads = HashMap::new();
    for_each(snapshot, Table::Trajectories, &COLUMNS, &keys_of(wanted), |batch| {
        let (Some(keys), Some(writes)) = (longs(batch, "trajectory_key"), longs(batch, "write_id")) else { return };
        for row in 0..batch.num_rows() {
            let attempt = (keys.value(row), writes.value(row));
            if wanted.contains(&attempt) {
                let text = |name| texts(batch, name).map(|t| t.value(row).to_owned()).unwrap_or_default();
                let n_messages =
                    batch.column_by_name("n_messages").and_then(|c| c.as_any().downcast_ref::<Int32Array>());
                let head = Head {
                    format: text("format"),
                    instance_id: text("instance_id"),
                    source: text("source"),
                    n_tokens: longs(batch, "n_tokens").map_or(0, |n| n.value(row)),
                    n_messages: n_messages.map_or(0, |n| i64::from(n.value(row))),
                };
                heads.insert(attempt, head);
            }
        }
    })
    .await?;
    Ok(heads)
}

/// What the steps of these attempts say.
pub(crate) async fn said(snapshot: &Snapshot, wanted: &HashSet<Attempt>) -> Result<HashMap<Attempt, Said<'static>>> {
    const COLUMNS: [&str; 7] =
        ["trajectory_key", "write_id", "step_index", "segment_index", "messages", "flags", "token_ids"];
    let mut found: HashMap<Attempt, Said<'static>> = wanted.iter().map(|a| (*a, Said::default())).collect();
    for_each(snapshot, Table::Steps, &COLUMNS, &keys_of(wanted), |batch| {
        let (Some(keys), Some(writes)) = (longs(batch, "trajectory_key"), longs(batch, "write_id")) else { return };
        let index = batch.column_by_name("step_index").and_then(|c| c.as_any().downcast_ref::<Int32Array>());
        let segment = batch.column_by_name("segment_index");
        let tokens = batch.column_by_name("token_ids").and_then(|c| c.as_any().downcast_ref::<LargeBinaryArray>());
        for row in 0..batch.num_rows() {
            let Some(said) = found.get_mut(&(keys.value(row), writes.value(row))) else { continue };
            let sampled = is_sampled(list(batch, "flags", row).iter());
            let own = tokens.filter(|t| sampled && t.is_valid(row));
            said.steps.push(SaidStep {
                step_index: index.map_or(0, |i| i.value(row)),
                given: segment.is_some_and(|s| s.is_valid(row)),
                messages: Cow::Owned(list(batch, "messages", row)),
                token_ids: own.map(|t| Cow::Owned(t.value(row).to_vec())),
            });
        }
    })
    .await?;
    for said in found.values_mut() {
        said.steps.sort_by_key(|s| s.step_index);
    }
    Ok(found)
}

/// The messages with these hashes, as far as they are stored.
pub(crate) async fn messages(snapshot: &Snapshot, hashes: &[&str]) -> Result<Vec<ContentRow>> {
    if hashes.is_empty() {
        return Ok(Vec::new());
    }
    const COLUMNS: [&str; 6] = ["content_hash", "role", "text", "reasoning", "tool_calls", "tool_call_id"];
    let list: Vec<String> = hashes.iter().map(|h| format!("'{h}'")).collect();
    let mut found = Vec::new();
    let filter = format!("content_hash IN ({})", list.join(","));
    scan(snapshot, Table::Contents, &COLUMNS, filter, |batch| {
        let text = |name: &str, row: usize| -> Option<String> {
            let column = batch.column_by_name(name)?;
            let long = column.as_any().downcast_ref::<LargeStringArray>();
            let short = column.as_any().downcast_ref::<StringArray>();
            let value = long.map(|t| t.value(row)).or_else(|| short.map(|t| t.value(row)))?;
            column.is_valid(row).then(|| value.to_owned())
        };
        found.extend((0..batch.num_rows()).map(|row| ContentRow {
            content_hash: text("content_hash", row).unwrap_or_default(),
            role: text("role", row),
            text: text("text", row),
            reasoning: text("reasoning", row),
            tool_calls: text("tool_calls", row),
            tool_call_id: text("tool_call_id", row),
            ..ContentRow::default()
        }));
    })
    .await?;
    Ok(found)
}

/// Where one attempt was read, as the log has it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Logged {
    pub(crate) byte_offset: u64,
    pub(crate) byte_length: u64,
}

/// Hashes of the bytes that these attempts were read from.
pub(crate) async fn record_hashes(
    snapshot: &Snapshot,
    wanted: &HashSet<Attempt>,
) -> Result<HashMap<Attempt, HashSet<String>>> {
    const COLUMNS: [&str; 3] = ["trajectory_key", "write_id", "record_hash"];
    let mut found: HashMap<Attempt, HashSet<String>> = HashMap::new();
    for_each(snapshot, Table::IngestLog, &COLUMNS, &keys_of(wanted), |batch| {
        let (Some(keys), Some(writes)) = (longs(batch, "trajectory_key"), longs(batch, "write_id")) else { return };
        let Some(hashes) = texts(batch, "record_hash") else { return };
        for row in 0..batch.num_rows() {
            let attempt = (keys.value(row), writes.value(row));
            if wanted.contains(&attempt) {
                found.entry(attempt).or_default().insert(hashes.value(row).to_owned());
            }
        }
    })
    .await?;
    Ok(found)
}

/// The log's entries of one attempt.
pub(crate) async fn logged(snapshot: &Snapshot, (key, write_id): Attempt) -> Result<Vec<Logged>> {
    let filter = format!("trajectory_key = {key} AND write_id = {write_id}");
    let mut found = Vec::new();
    scan(snapshot, Table::IngestLog, &["byte_offset", "byte_length"], filter, |batch| {
        let number = |name, row| longs(batch, name).map_or(0, |n| u64::try_from(n.value(row)).unwrap_or(0));
        found.extend(
            (0..batch.num_rows())
                .map(|row| Logged { byte_offset: number("byte_offset", row), byte_length: number("byte_length", row) }),
        );
    })
    .await?;
    Ok(found)
}

fn keys_of(wanted: &HashSet<Attempt>) -> Vec<i64> {
    let mut keys: Vec<i64> = wanted.iter().map(|(key, _)| *key).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// All rows with one of these keys.
pub(crate) async fn for_each(
    snapshot: &Snapshot,
    table: Table,
    columns: &[&str],
    keys: &[i64],
    mut each: impl FnMut(&RecordBatch),
) -> Result<()> {
    for keys in keys.chunks(KEYS_PER_QUERY) {
        let list: Vec<String> = keys.iter().map(i64::to_string).collect();
        let filter = format!("trajectory_key IN ({})", list.join(","));
        scan(snapshot, table, columns, filter, &mut each).await?;
    }
    Ok(())
}

async fn scan(
    snapshot: &Snapshot,
    table: Table,
    columns: &[&str],
    filter: String,
    mut each: impl FnMut(&RecordBatch),
) -> Result<()> {
    let options = ScanOptions::columns(columns.iter().copied()).filter(filter);
    let mut rows = snapshot.scan(table, options).await.map_err(Error::Storage)?;
    while let Some(batch) = rows.try_next().await.map_err(Error::Storage)? {
        each(&batch);
    }
    Ok(())
}

pub(crate) fn longs<'a>(batch: &'a RecordBatch, name: &str) -> Option<&'a Int64Array> {
    batch.column_by_name(name)?.as_any().downcast_ref()
}

pub(crate) fn texts<'a>(batch: &'a RecordBatch, name: &str) -> Option<&'a StringArray> {
    batch.column_by_name(name)?.as_any().downcast_ref()
}

/// A list of texts in one row; empty where it is null.
fn list(batch: &RecordBatch, name: &str, row: usize) -> Vec<String> {
    let Some(column) = batch.column_by_name(name) else { return Vec::new() };
    if !matches!(column.data_type(), DataType::List(_)) || !column.is_valid(row) {
        return Vec::new();
    }
    let items = column.as_list::<i32>().value(row);
    let Some(items) = items.as_any().downcast_ref::<StringArray>() else { return Vec::new() };
    items.iter().flatten().map(str::to_owned).collect()
}
