//! Rejected records as rows of `quarantine`, each once however often its source is read.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::Int64Array;
use dressage_schemas::Table;
use dressage_schemas::tables::quarantine::QuarantineRow;
use dressage_storage::{Lake, ScanOptions};
use futures::TryStreamExt;
use xxhash_rust::xxh3::Xxh3;

use super::flow::Job;
use crate::budget::Permit;
use crate::error::{Error, Result};
use crate::importer::Rejected;
use crate::rule;

/// Memory of a row besides its raw bytes.
const ROW_BYTES: u64 = 512;

/// Where a rejected record was read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadFrom<'a> {
    pub(crate) source: &'a str,
    pub(crate) format: &'a str,
    /// Of a whole trajectory: what it says.
    pub(crate) content_hash: Option<&'a str>,
}

impl<'a> ReadFrom<'a> {
    pub(crate) fn job(job: &'a Job) -> Self {
        Self { source: &job.info.name, format: job.format, content_hash: None }
    }
}

/// Rows that wait for the next group, and the keys of all that are stored.
#[derive(Default)]
pub(crate) struct Quarantine {
    /// Read from the store when the first record is rejected; eight bytes a row.
    seen: Option<HashSet<i64>>,
    rows: Vec<QuarantineRow>,
    permits: Vec<Arc<Permit>>,
}

impl Quarantine {
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Takes a rejected record; how much memory its row takes, 0 where the store has it already.
    pub(crate) async fn add(
        &mut self,
        lake: &Lake,
        rejected: Rejected,
        from: ReadFrom<'_>,
        permit: Option<Arc<Permit>>,
    ) -> Result<u64> {
        let seen = match &mut self.seen {
            Some(seen) => seen,
            none => none.insert(stored_keys(lake).await?),
        };
        let quarantine_key = key_of(&rejected, &from);
        if !seen.insert(quarantine_key) {
            return Ok(0);
        }
        let bytes = rejected.raw.len() as u64 + ROW_BYTES;
        let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        self.rows.push(QuarantineRow {
            quarantine_key,
            source: from.source.to_owned(),
            line: rejected.line.map(number),
            byte_offset: number(rejected.byte_offset),
            byte_length: number(rejected.byte_length),
            format: Some(from.format.to_owned()).filter(|format| !format.is_empty()),
            trajectory_id: rejected.trajectory_id,
            rule: rejected.rule.into_owned(),
            reason: rejected.reason,
            raw: rejected.raw,
            quarantined_at: super::now_micros(),
        });
        self.permits.extend(permit);
        Ok(bytes)
    }

    /// The rows to write now, and the memory to give back afterwards.
    pub(crate) fn drain(&mut self) -> (Vec<QuarantineRow>, Vec<Arc<Permit>>) {
        (std::mem::take(&mut self.rows), std::mem::take(&mut self.permits))
    }
}

/// The same bytes at the same place under the same rule are the same rejection, whatever the file is called. A record
/// without bytes (a row of a table) is told by its source's name, and so is a source that is not recognised: each file
/// is to be named for what it is.
fn key_of(rejected: &Rejected, from: &ReadFrom<'_>) -> i64 {
    let mut hash = Xxh3::new();
    hash.update(&rejected.byte_offset.to_le_bytes());
    hash.update(&rejected.byte_length.to_le_bytes());
    for text in
        [rejected.rule.as_bytes(), rejected.trajectory_id.as_deref().unwrap_or_default().as_bytes(), &rejected.raw]
    {
        hash.update(&(text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    if rejected.raw.is_empty() || rejected.rule == rule::UNRECOGNISED {
        hash.update(from.source.as_bytes());
    }
    if let Some(content_hash) = from.content_hash {
        hash.update(content_hash.as_bytes());
    }
    hash.digest() as i64
}

async fn stored_keys(lake: &Lake) -> Result<HashSet<i64>> {
    let snapshot = lake.snapshot(None).await.map_err(Error::Storage)?;
    let options = ScanOptions::columns(["quarantine_key"]);
    let mut rows = snapshot.scan(Table::Quarantine, options).await.map_err(Error::Storage)?;
    let mut keys = HashSet::new();
    while let Some(batch) = rows.try_next().await.map_err(Error::Storage)? {
        if let Some(column) = batch.column(0).as_any().downcast_ref::<Int64Array>() {
            keys.extend(column.values().iter().copied());
        }
    }
    Ok(keys)
}
