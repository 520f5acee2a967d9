//! What was streamed, written down as it goes.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use dressage_segmenter::{Ledger, MicroBatch, Verdict};
use dressage_storage::{Lake, plans};

use crate::output::Output;

/// Hashes are written this often: each write is a version of the table. What was not written when the process dies is
/// streamed again with the same hash.
const WRITE_INTERVAL: Duration = Duration::from_secs(10);
/// Or when so many wait.
const WAITING_MAX: usize = 4_096;

/// Compares micro-batches with their records, and records those that are new.
pub(crate) struct Recorder {
    lake: Lake,
    ledger: Ledger,
    output: Output,
    written_at: Instant,
    /// Whether the store takes records; a read-only one is streamed from all the same.
    writable: bool,
}

impl Recorder {
    pub(crate) fn new(lake: Lake, ledger: Ledger, output: Output) -> Self {
        Self { lake, ledger, output, written_at: Instant::now(), writable: true }
    }

    /// Whether it has a hash; a hash other than the recorded one is an error.
    pub(crate) fn check(&mut self, micro_batch: &MicroBatch) -> Result<bool> {
        Ok(self.ledger.check(micro_batch, now_micros())? != Verdict::Unhashed)
    }

    /// Writes what waits, if it is time.
    pub(crate) async fn write_if_due(&mut self) {
        if self.ledger.n_new() >= WAITING_MAX || self.written_at.elapsed() >= WRITE_INTERVAL {
            self.write().await;
        }
    }

    /// Writes what waits; whether everything was recorded.
    pub(crate) async fn finish(mut self) -> bool {
        self.write().await;
        self.writable
    }

    async fn write(&mut self) {
        self.written_at = Instant::now();
        let rows = self.ledger.take_new();
        if rows.is_empty() || !self.writable {
            return;
        }
        if let Err(error) = plans::append_streamed(&self.lake, &rows).await {
            self.writable = false;
            let mut why = error.to_string();
            if let Some(cause) = std::error::Error::source(&error) {
                why.push_str(&format!(" ({cause})"));
            }
            self.output.note(&format!("hashes were not recorded, replays have nothing to compare with: {why}"));
        }
    }
}

/// Microseconds since 1970.
pub(crate) fn now_micros() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| i64::try_from(t.as_micros()).unwrap_or(i64::MAX))
}
