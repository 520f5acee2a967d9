//! The stream itself: windows are read ahead within the budget, and their micro-batches given out in order.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::error::DataFusionError;
use dressage_schemas::Table;
use dressage_storage::Snapshot;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::assemble;
use super::columns::{self, BatchColumn};
use super::hash::ContentHash;
use super::plan::{PlacedSample, StoredPlan};
use super::rows::{TakenRows, Wanted, WindowRows};
use super::sample::Sample;
use super::window::{self, Slot, Window};
use crate::error::{Error, Result};
use crate::runtime::{self, CpuRuntime, CpuTask};

/// The unit in which the budget is counted.
const PERMIT_BYTES: u64 = 4 << 10;

/// Which micro-batches, which columns, and how far ahead.
#[derive(Debug, Clone)]
pub struct StreamOptions {
    /// The rank whose micro-batches are wanted.
    pub dp_rank: u32,
    /// Ranks that there are: must be the plan's.
    pub world_size: u32,
    /// Only these train steps; none for all.
    pub train_steps: Option<Range<u32>>,
    /// Only these columns; none for all but router choices.
    pub columns: Option<Vec<BatchColumn>>,
    /// Whether router choices are wanted.
    pub with_experts: bool,
    /// Bytes of micro-batches that are read ahead, estimated. A micro-batch that is larger is read alone.
    pub prefetch_bytes: u64,
    /// Whether content hashes are wanted.
    pub hashes: bool,
}

impl StreamOptions {
    /// All train steps of one rank, all columns but router choices.
    pub fn of_rank(dp_rank: u32, world_size: u32) -> Self {
        Self {
            dp_rank,
            world_size,
            train_steps: None,
            columns: None,
            with_experts: false,
            prefetch_bytes: 256 << 20,
            hashes: true,
        }
    }
}

/// One micro-batch.
#[derive(Debug, Clone)]
pub struct MicroBatch {
    /// 0-based.
    pub train_step: i32,
    /// The rank.
    pub dp_rank: u32,
    /// 0-based within (train step, rank).
    pub micro_batch: i32,
    /// One row a sample; none where the rank has nothing to do.
    pub batch: RecordBatch,
    /// Tokens of its samples.
    pub n_tokens: i64,
    /// Their trained tokens.
    pub mask_sum: i64,
    /// Hash of its values; none where it was not asked for or some columns are missing.
    pub content_hash: Option<ContentHash>,
    /// Hash of its router choices; none where they were not asked for.
    pub experts_hash: Option<ContentHash>,
}

/// A stream of micro-batches. Reading goes on beside the consumer and ends when this is dropped.
#[derive(Debug)]
pub struct MicroBatches {
    micro_batch_counts: Vec<i32>,
    job: Arc<Job>,
    windows: mpsc::UnboundedReceiver<Reading>,
    /// Windows that are still to come.
    windows_left: usize,
    /// The window that is waited for.
    reading: Option<Reading>,
    ready: VecDeque<MicroBatch>,
    /// The budget's part of `ready`.
    held: Option<OwnedSemaphorePermit>,
    _driver: CpuTask<()>,
}

/// A window that is being read.
#[derive(Debug)]
struct Reading {
    task: CpuTask<Result<Vec<MicroBatch>>>,
    held: OwnedSemaphorePermit,
}

impl StoredPlan {
    /// The micro-batches of one rank, in order of train step and micro-batch.
    ///
    /// # Errors
    /// `Invalid` for another world size than the plan's, or a rank or train step that it does not have; what the store
    /// says.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn stream(&self, options: StreamOptions) -> Result<MicroBatches> {
        let train_steps = self.check(&options)?;
        let (samples, slots) = self.share(options.dp_rank, &train_steps).await?;
        let micro_batch_counts = counts(&slots, &train_steps);
        let columns = columns::chosen(options.columns.as_deref(), options.with_experts);
        let with_experts = columns.iter().any(|column| column.is_routed());
        let expert_bytes = if with_experts { self.expert_bytes_a_token(&samples).await? } else { 0 };
        let job = Arc::new(Job {
            plan_id: self.plan_id().to_owned(),
            snapshot: self.pinned().clone(),
            schema: columns::schema(&columns),
            wanted: Wanted {
                token_ids: columns.contains(&BatchColumn::TokenIds),
                logprobs: columns.contains(&BatchColumn::Logprobs),
                experts: with_experts,
            },
            columns,
            max_segment_tokens: self.max_segment_tokens()?,
            expert_bytes,
            dp_rank: options.dp_rank,
            hashes: options.hashes,
            samples,
            slots,
            cpu: CpuRuntime::new(std::thread::available_parallelism().map_or(1, usize::from))
                .map_err(|e| Error::Start { source: Box::new(DataFusionError::IoError(e)) })?,
        });
        let of_slot = |slot: &Slot| -> u64 {
            job.samples[slot.samples.clone()].iter().map(|s| window::sample_bytes(s, expert_bytes)).sum()
        };
        let windows = window::windows(&job.slots, of_slot, options.prefetch_bytes);
        let (send, receive) = mpsc::unbounded_channel();
        let windows_left = windows.len();
        let driver = runtime::io_task(drive(Arc::clone(&job), windows, options.prefetch_bytes, send));
        Ok(MicroBatches {
            micro_batch_counts,
            job,
            windows: receive,
            windows_left,
            reading: None,
            ready: VecDeque::new(),
            held: None,
            _driver: driver,
        })
    }

    /// The train steps that are meant, if the options fit the plan.
    fn check(&self, options: &StreamOptions) -> Result<Range<i32>> {
        let world_size = self.world_size();
        if options.world_size != world_size {
            return Err(Error::WorldSize {
                plan_id: self.plan_id().to_owned(),
                planned: world_size,
                given: options.world_size,
            });
        }
        if options.dp_rank >= world_size {
            return Err(Error::RankRange { dp_rank: options.dp_rank, world_size });
        }
        let Some(asked) = &options.train_steps else { return Ok(0..self.row().n_train_steps) };
        let n_train_steps = self.n_train_steps();
        if asked.start >= asked.end || asked.end > n_train_steps {
            return Err(Error::TrainStepRange {
                plan_id: self.plan_id().to_owned(),
                asked: format!("{}..{}", asked.start, asked.end),
                n_train_steps,
            });
        }
        Ok(asked.start as i32..asked.end as i32)
    }

    /// Decoded bytes of router choices a token, as the first step says; the same model chose for all.
    async fn expert_bytes_a_token(&self, samples: &[PlacedSample]) -> Result<u64> {
        let Some(first) = samples.iter().find_map(|s| s.step_rows.first()) else { return Ok(0) };
        let routed = self.pinned().routed_experts(*first).await.map_err(Error::storage)?;
        Ok(routed.map_or(0, |routed| {
            let layout = routed.layout();
            (layout.layers * layout.topk * dressage_codec::Dtype::narrowest(layout.n_experts).size()) as u64
        }))
    }
}

fn counts(slots: &[Slot], train_steps: &Range<i32>) -> Vec<i32> {
    let mut counts = vec![0; train_steps.len()];
    for slot in slots {
        counts[(slot.train_step - train_steps.start) as usize] += 1;
    }
    counts
}

impl MicroBatches {
    /// The columns of every batch.
    pub fn schema(&self) -> &SchemaRef {
        &self.job.schema
    }

    /// The places of its samples, in order.
    pub fn samples(&self) -> &[PlacedSample] {
        &self.job.samples
    }

    /// Micro-batches of each train step of the stream, in order.
    pub fn micro_batch_counts(&self) -> &[i32] {
        &self.micro_batch_counts
    }

    /// The next micro-batch; none at the end.
    ///
    /// # Errors
    /// What the store says; `Corrupt`, naming trajectory and segment, where the steps do not make the sample that the
    /// plan says. Nothing comes after an error.
    ///
    /// # Cancel safety
    /// No micro-batch is lost if the future is dropped.
    pub async fn next(&mut self) -> Result<Option<MicroBatch>> {
        loop {
            if let Some(next) = self.ready.pop_front() {
                return Ok(Some(next));
            }
            self.held = None;
            if self.reading.is_none() {
                self.reading = self.windows.recv().await;
            }
            let Some(reading) = &mut self.reading else {
                return match std::mem::take(&mut self.windows_left) {
                    0 => Ok(None),
                    n => Err(lost(format!("the reader ended {n} windows early"))),
                };
            };
            let done = reading.task.join().await;
            self.windows_left -= 1;
            let held = self.reading.take().map(|reading| reading.held);
            match done.map_err(died).flatten() {
                Ok(window) => {
                    self.ready.extend(window);
                    self.held = held;
                }
                Err(error) => {
                    self.windows_left = 0;
                    self.windows.close();
                    while self.windows.try_recv().is_ok() {}
                    return Err(error);
                }
            }
        }
    }
}

fn lost(how: String) -> Error {
    Error::Internal { source: Box::new(DataFusionError::Internal(how)) }
}

fn died(error: tokio::task::JoinError) -> Error {
    Error::Internal { source: Box::new(DataFusionError::ExecutionJoin(Box::new(error))) }
}

/// What all windows of a stream share.
#[derive(Debug)]
struct Job {
    plan_id: String,
    snapshot: Snapshot,
    schema: SchemaRef,
    columns: Vec<BatchColumn>,
    wanted: Wanted,
    max_segment_tokens: Option<usize>,
    expert_bytes: u64,
    dp_rank: u32,
    hashes: bool,
    samples: Vec<PlacedSample>,
    slots: Vec<Slot>,
    cpu: CpuRuntime,
}

/// Begins a window whenever the budget has room for it.
async fn drive(job: Arc<Job>, windows: Vec<Window>, prefetch_bytes: u64, send: mpsc::UnboundedSender<Reading>) {
    let permits = |bytes: u64| u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX >> 4).max(1);
    let all = permits(prefetch_bytes);
    let budget = Arc::new(Semaphore::new(all as usize));
    for window in windows {
        // one that is larger than the whole budget is read when nothing else is held
        let Ok(held) = Arc::clone(&budget).acquire_many_owned(permits(window.bytes).min(all)).await else { return };
        let task = runtime::io_task(read(Arc::clone(&job), window));
        if send.send(Reading { task, held }).is_err() {
            return;
        }
    }
}

/// Reads one window and puts its micro-batches together.
async fn read(job: Arc<Job>, window: Window) -> Result<Vec<MicroBatch>> {
    let slots = &job.slots[window.slots.clone()];
    let mut rows = Vec::new();
    for sample in slots.iter().flat_map(|slot| &job.samples[slot.samples.clone()]) {
        let tokens = u64::try_from(sample.n_tokens).unwrap_or(0);
        let bytes = tokens * (8 + job.expert_bytes) / sample.step_rows.len().max(1) as u64;
        rows.extend(sample.step_rows.iter().map(|address| (*address, bytes)));
    }
    let mut takes: Vec<CpuTask<Result<TakenRows>>> = window::takes(rows)
        .into_iter()
        .map(|addresses| runtime::io_task(take(job.snapshot.clone(), addresses, job.wanted)))
        .collect();
    let mut taken = Vec::with_capacity(takes.len());
    for take in &mut takes {
        taken.push(take.join().await.map_err(died)??);
    }
    let rows = Arc::new(WindowRows::new(taken));
    let mut tasks: Vec<CpuTask<Result<MicroBatch>>> = window
        .slots
        .map(|slot| {
            let (job, rows) = (Arc::clone(&job), Arc::clone(&rows));
            let cpu = Arc::clone(&job);
            cpu.cpu.spawn(async move { put_together(&job, &job.slots[slot], &rows) })
        })
        .collect();
    drop(rows);
    let mut ready = Vec::with_capacity(tasks.len());
    for task in &mut tasks {
        ready.push(task.join().await.map_err(died)??);
    }
    Ok(ready)
}

async fn take(snapshot: Snapshot, addresses: Vec<u64>, wanted: Wanted) -> Result<TakenRows> {
    let columns = wanted.columns();
    let rows = snapshot.take(Table::Steps, &addresses, &columns);
    let experts = async {
        match wanted.experts {
            true => snapshot.take_routed_experts(&addresses).await,
            false => Ok(Vec::new()),
        }
    };
    let (rows, experts) = tokio::try_join!(rows, experts).map_err(Error::storage)?;
    TakenRows::new(addresses, &rows, experts)
}

fn put_together(job: &Job, slot: &Slot, rows: &WindowRows) -> Result<MicroBatch> {
    let placed = &job.samples[slot.samples.clone()];
    let broken = |at: usize, problem: String| Error::SampleMismatch {
        plan_id: job.plan_id.clone(),
        train_step: slot.train_step,
        micro_batch: slot.micro_batch,
        trajectory_id: placed.get(at).map(|s| s.trajectory_id.to_string()).unwrap_or_default(),
        segment_index: placed.get(at).map_or(0, |s| s.segment_index),
        problem,
    };
    let mut samples = Vec::with_capacity(placed.len());
    for (at, sample) in placed.iter().enumerate() {
        samples.push(Sample::of(sample, rows, job.max_segment_tokens).map_err(|problem| broken(at, problem))?);
    }
    let batch = assemble::batch(&samples, &job.columns, &job.schema).map_err(|(at, problem)| broken(at, problem))?;
    Ok(MicroBatch {
        train_step: slot.train_step,
        dp_rank: job.dp_rank,
        micro_batch: slot.micro_batch,
        n_tokens: placed.iter().map(|s| s.n_tokens).sum(),
        mask_sum: placed.iter().map(|s| s.mask_sum).sum(),
        content_hash: if job.hashes { ContentHash::of(&batch) } else { None },
        experts_hash: if job.hashes { ContentHash::of_experts(&batch) } else { None },
        batch,
    })
}
