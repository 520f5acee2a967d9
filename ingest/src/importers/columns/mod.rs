//! Arrow IPC (file and stream) and Parquet with the columns of `schemas::tables::rollout`: one segment a row.
//!
//! The reading thread decodes batches (no copy of a token: arrays are slices of what was read) and cuts them between
//! trajectories; the parsing threads turn rows into rollouts.

mod cells;
mod open;
mod rows;

use arrow::array::RecordBatch;

pub(crate) use open::{Input, NotRows, open};
pub(crate) use rows::read_piece;

/// The formats that are read here, as `--format` and column `format` name them.
pub(crate) const FORMATS: [&str; 2] = ["arrow", "parquet"];

/// What a byte of a batch takes: the batch, its rows and their encoded payload.
pub(crate) const MEMORY_FACTOR: u64 = 3;

/// Rows of whole trajectories.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) batches: Vec<RecordBatch>,
    /// Number of the first row in its source.
    pub(crate) row_offset: u64,
}

impl Piece {
    pub(crate) fn row_count(&self) -> u64 {
        self.batches.iter().map(|b| b.num_rows() as u64).sum()
    }
}
