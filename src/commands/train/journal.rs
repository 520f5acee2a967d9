//! What is written down of each train step: rows of `train_metrics` and `trainer_logprobs`, and TensorBoard events.
//!
//! Rows are written in the background every few seconds, and always before a checkpoint that covers them. Train steps
//! that a crash takes back are written down again; the views show the last.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, anyhow};
use dressage_schemas::tables::train_metrics::TrainMetricRow;
use dressage_schemas::tables::trainer_logprobs::{self, TrainerLogprobRow};
use dressage_storage::{Lake, training};
use dressage_trainer::Error;
use dressage_trainer::metrics::tensorboard::EventWriter;
use dressage_trainer::metrics::{RowContext, StepMetrics};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Each write is a version of the table.
const WRITE_INTERVAL: Duration = Duration::from_secs(10);
/// Log-probs that wait at most, in bytes.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// The records of one training run.
#[derive(Debug)]
pub(super) struct Journal {
    handle: Handle,
    lake: Lake,
    events: Option<EventWriter>,
    metrics: Vec<TrainMetricRow>,
    logprobs: Vec<TrainerLogprobRow>,
    waiting_bytes: usize,
    written_at: Instant,
    writing: Option<JoinHandle<Result<(), dressage_storage::Error>>>,
}

impl Journal {
    /// Goes on behind `train_step`: what an earlier attempt drew of later steps is dropped by TensorBoard.
    pub(super) fn open(handle: &Handle, lake: &Lake, tensorboard: Option<&Path>, train_step: u64) -> Result<Self> {
        let events = match tensorboard {
            Some(folder) => {
                let mut events = EventWriter::create(folder, now_seconds()).map_err(Error::from)?;
                if train_step > 0 {
                    events
                        .restart(i64::try_from(train_step).unwrap_or(i64::MAX), now_seconds())
                        .map_err(Error::from)?;
                }
                Some(events)
            }
            None => None,
        };
        Ok(Self {
            handle: handle.clone(),
            lake: lake.clone(),
            events,
            metrics: Vec::new(),
            logprobs: Vec::new(),
            waiting_bytes: 0,
            written_at: Instant::now(),
            writing: None,
        })
    }

    /// Takes down a train step.
    pub(super) fn step(
        &mut self,
        context: &RowContext,
        metrics: &StepMetrics,
        logprobs: Vec<TrainerLogprobRow>,
    ) -> Result<()> {
        if let Some(events) = &mut self.events {
            events.step(context.optimizer_step, now_seconds(), metrics).map_err(Error::from)?;
        }
        self.metrics.extend(metrics.rows(context));
        self.waiting_bytes += logprobs.iter().map(|row| row.trainer_logprobs.len() * 12).sum::<usize>();
        self.logprobs.extend(logprobs);
        if self.written_at.elapsed() >= WRITE_INTERVAL || self.waiting_bytes >= WAITING_BYTES_MAX {
            self.begin_write()?;
        }
        Ok(())
    }

    /// Returns when everything taken down so far is in the store.
    pub(super) fn flush(&mut self) -> Result<()> {
        self.begin_write()?;
        self.settle()?;
        if let Some(events) = &mut self.events {
            events.sync().map_err(Error::from)?;
        }
        Ok(())
    }

    /// Hands what waits to a write in the background, once the last one is done: at most two batches are in memory.
    fn begin_write(&mut self) -> Result<()> {
        self.settle()?;
        self.written_at = Instant::now();
        self.waiting_bytes = 0;
        let (metrics, logprobs) = (std::mem::take(&mut self.metrics), std::mem::take(&mut self.logprobs));
        if metrics.is_empty() && logprobs.is_empty() {
            return Ok(());
        }
        let lake = self.lake.clone();
        let logprobs = trainer_logprobs::batch(&logprobs).context("log-probs do not fit their table")?;
        self.writing = Some(self.handle.spawn(async move {
            training::append_metrics(&lake, &metrics).await?;
            training::append_trainer_logprobs(&lake, &[logprobs]).await
        }));
        Ok(())
    }

    /// Waits for the write that is under way.
    fn settle(&mut self) -> Result<()> {
        let Some(writing) = self.writing.take() else { return Ok(()) };
        let written = self.handle.block_on(writing).map_err(|died| anyhow!(died))?;
        written.context("the metrics of the last train steps could not be written")
    }
}

/// Seconds since 1970.
fn now_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
