//! Traces of what was read and known already: rows of `ingest_log` with the outcome `unchanged`, one for each place
//! that a trajectory was read at, however often.

use std::collections::HashSet;

use dressage_schemas::Table;
use dressage_schemas::tables::ingest_log::IngestLogRow;
use dressage_storage::{Lake, ScanOptions};
use futures::TryStreamExt;
use xxhash_rust::xxh3::Xxh3;

use super::stored::{for_each, longs, texts};
use crate::error::{Error, Result};

const COLUMNS: [&str; 5] = ["trajectory_key", "source", "byte_offset", "byte_length", "record_hash"];

/// What the log has, as far as somebody asked.
#[derive(Default)]
pub(crate) struct Traces {
    /// Digests of rows that this ingest sent, and once `is_complete`, of all that are stored.
    seen: HashSet<u64>,
    is_complete: bool,
    waiting: Vec<IngestLogRow>,
}

impl Traces {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Notes a trajectory that the store has already.
    pub(crate) fn note(&mut self, row: IngestLogRow) {
        self.waiting.push(row);
    }

    /// Takes note of rows that are written with their trajectories. At most `rows_max` digests are kept: a trace too
    /// many does no harm.
    pub(crate) fn written(&mut self, rows: &[IngestLogRow], rows_max: usize) {
        if self.seen.len() + rows.len() > rows_max {
            self.seen.clear();
            self.is_complete = false;
        }
        self.seen.extend(rows.iter().take(rows_max).map(digest_of));
    }

    /// The rows that the log does not have. Of a log longer than `rows_max`, those of the trajectories at hand are
    /// read each time.
    pub(crate) async fn drain(&mut self, lake: &Lake, rows_max: usize) -> Result<Vec<IngestLogRow>> {
        if self.waiting.is_empty() {
            return Ok(Vec::new());
        }
        let mut fresh = std::mem::take(&mut self.waiting);
        if !self.is_complete {
            let snapshot = lake.snapshot(None).await.map_err(Error::Storage)?;
            if snapshot.row_count(Table::IngestLog) > rows_max {
                let mut stored = HashSet::new();
                let mut keys: Vec<i64> = fresh.iter().map(|row| row.trajectory_key).collect();
                keys.sort_unstable();
                keys.dedup();
                for_each(&snapshot, Table::IngestLog, &COLUMNS, &keys, |batch| stored.extend(digests(batch))).await?;
                fresh.retain(|row| !stored.contains(&digest_of(row)));
            } else {
                let options = ScanOptions::columns(COLUMNS);
                let mut rows = snapshot.scan(Table::IngestLog, options).await.map_err(Error::Storage)?;
                while let Some(batch) = rows.try_next().await.map_err(Error::Storage)? {
                    self.seen.extend(digests(&batch));
                }
                self.is_complete = true;
            }
        }
        fresh.retain(|row| self.seen.insert(digest_of(row)));
        Ok(fresh)
    }
}

fn digests(batch: &arrow::array::RecordBatch) -> Vec<u64> {
    let (Some(keys), Some(offsets), Some(lengths)) =
        (longs(batch, "trajectory_key"), longs(batch, "byte_offset"), longs(batch, "byte_length"))
    else {
        return Vec::new();
    };
    let (Some(sources), Some(hashes)) = (texts(batch, "source"), texts(batch, "record_hash")) else {
        return Vec::new();
    };
    (0..batch.num_rows())
        .map(|r| digest(keys.value(r), sources.value(r), [offsets.value(r), lengths.value(r)], hashes.value(r)))
        .collect()
}

fn digest_of(row: &IngestLogRow) -> u64 {
    digest(row.trajectory_key, &row.source, [row.byte_offset, row.byte_length], &row.record_hash)
}

/// What makes two rows the same trace: which trajectory, and which bytes of which source.
fn digest(key: i64, source: &str, range: [i64; 2], record_hash: &str) -> u64 {
    let mut hash = Xxh3::new();
    for number in [key, range[0], range[1]] {
        hash.update(&number.to_le_bytes());
    }
    for text in [source, record_hash] {
        hash.update(&(text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    }
    hash.digest()
}
