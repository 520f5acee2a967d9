//! Micro-batches as tensors, made ready while the trainer computes.
//!
//! ```text
//!   store ─▶ stream (read ahead, in bytes) ─▶ checked tensors ─▶ a few that wait ─▶ the trainer's thread
//! ```

use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use dressage_segmenter::{Ledger, MicroBatches, StoredPlan, StreamOptions};
use dressage_storage::Lake;
use dressage_trainer::micro_batch::{MicroBatch, ModelLimits, Needs, Place};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::commands::batches::Recorder;
use crate::output::Output;

/// Micro-batches that wait as tensors. The bytes that wait are bounded before them, by the stream's budget; one is
/// enough to hide that making tensors takes time, two hide that this time varies.
const READY_MAX: usize = 2;

/// What a micro-batch has to fit, and how it is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct FeedSettings {
    pub(super) limits: ModelLimits,
    pub(super) needs: Needs,
    pub(super) routed_experts: bool,
    pub(super) prefetch_bytes: u64,
}

/// A micro-batch, and whose segments it holds.
#[derive(Debug)]
pub(super) struct Fed {
    pub(super) batch: MicroBatch,
    /// Trajectory and attempt of each segment, in order.
    pub(super) keys: Vec<(i64, i64)>,
}

/// Micro-batches of a range of train steps, in order.
#[derive(Debug)]
pub(super) struct Feed {
    handle: Handle,
    ready: mpsc::Receiver<Result<Fed>>,
    task: JoinHandle<()>,
    train_steps: Range<i32>,
    counts: Vec<i32>,
    /// How long the consumer waited since it was last asked.
    waited: Duration,
}

impl Feed {
    /// Begins to read.
    pub(super) fn start(
        handle: &Handle,
        (lake, plan): (&Lake, &StoredPlan),
        train_steps: Range<i32>,
        settings: FeedSettings,
        output: Output,
    ) -> Result<Self> {
        let asked = train_steps.start.unsigned_abs()..train_steps.end.unsigned_abs();
        let (stream, recorder) = handle.block_on(async {
            let ledger = Ledger::of(plan, Some(0), Some(asked.clone())).await?;
            let stream = plan
                .stream(StreamOptions {
                    train_steps: Some(asked),
                    with_experts: settings.routed_experts && settings.limits.router.is_some(),
                    prefetch_bytes: settings.prefetch_bytes,
                    ..StreamOptions::of_rank(0, plan.world_size())
                })
                .await?;
            anyhow::Ok((stream, Recorder::new(lake.clone(), ledger, output)))
        })?;
        let counts = stream.micro_batch_counts().to_vec();
        let (send, ready) = mpsc::channel(READY_MAX);
        let task = handle.spawn(read(stream, recorder, settings, send));
        Ok(Self { handle: handle.clone(), ready, task, train_steps, counts, waited: Duration::ZERO })
    }

    /// Micro-batches of a train step.
    pub(super) fn n_micro_batches(&self, train_step: i32) -> i32 {
        let at = usize::try_from(train_step - self.train_steps.start).unwrap_or(usize::MAX);
        self.counts.get(at).copied().unwrap_or(0)
    }

    /// The next one.
    pub(super) fn next(&mut self) -> Result<Fed> {
        let asked = Instant::now();
        let next = self.handle.block_on(self.ready.recv());
        self.waited += asked.elapsed();
        next.unwrap_or_else(|| Err(anyhow!("the stream of micro-batches ended early")))
    }

    /// How long [`Self::next`] waited since the last call of this.
    pub(super) fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }

    /// Ends reading, and waits until what was streamed is written down.
    pub(super) fn close(self) -> Result<()> {
        drop(self.ready);
        self.handle.block_on(self.task).context("the reader of micro-batches ended early")
    }
}

async fn read(
    mut stream: MicroBatches,
    mut recorder: Recorder,
    settings: FeedSettings,
    send: mpsc::Sender<Result<Fed>>,
) {
    let mut keys: HashMap<(i32, i32), Vec<(i64, i64)>> = HashMap::new();
    for sample in stream.samples() {
        keys.entry((sample.train_step, sample.micro_batch)).or_default().push((sample.trajectory_key, sample.write_id));
    }
    loop {
        let next = match stream.next().await {
            Ok(Some(next)) => next,
            Ok(None) => break,
            Err(error) => {
                // nobody is left to tell where the receiver is gone
                let _ = send.send(Err(error.into())).await;
                break;
            }
        };
        let place = Place {
            train_step: next.train_step,
            dp_rank: i32::try_from(next.dp_rank).unwrap_or(i32::MAX),
            micro_batch: next.micro_batch,
        };
        let keys = keys.remove(&(next.train_step, next.micro_batch)).unwrap_or_default();
        let made = match recorder.check(&next) {
            Ok(_) => tokio::task::spawn_blocking(move || {
                let batch = MicroBatch::read(&next.batch, place, &settings.limits, settings.needs)
                    .map_err(dressage_trainer::Error::from)?;
                Ok(Fed { batch, keys })
            })
            .await
            .unwrap_or_else(|died| Err(died.into())),
            // one that is not what it was when it was first streamed is not trained on
            Err(error) => Err(error),
        };
        let failed = made.is_err();
        if send.send(made).await.is_err() || failed {
            break;
        }
        recorder.write_if_due().await;
    }
    recorder.finish().await;
}
