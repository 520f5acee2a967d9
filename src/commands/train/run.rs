//! A training run: where it stands, and what it does with one train step after the other.

use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::Result;
use arrow::array::AsArray;
use arrow::datatypes::{Float64Type, Int64Type};
use dressage_schemas::tables::quarantine::QuarantineRow;
use dressage_schemas::tables::trainer_logprobs::TrainerLogprobRow;
use dressage_segmenter::{Session, SessionSettings, StoredPlan};
use dressage_storage::{BlockingFolder, Lake, training};
use dressage_trainer::metrics::{BatchTotals, RowContext, StepMetrics, names};
use dressage_trainer::micro_batch::Segment;
use dressage_trainer::settings::OnNotFinite;
use dressage_trainer::{NotFiniteReport, Progress, SegmentLogprobs, Trainer, device_memory};
use tokio::runtime::Handle;
use xxhash_rust::xxh3::xxh3_64;

use super::checkpoint::{Publisher, weight_version};
use super::feed::{Fed, Feed, FeedSettings};
use super::file::TrainFile;
use super::journal::Journal;
use super::model_files::Stored;
use super::page::Bar;
use super::plans::Plans;
use crate::commands::batches::record::now_micros;
use crate::failure::Failure;
use crate::interrupt::Stop;
use crate::output::Output;

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// Nothing is left to train.
    NothingLeft,
    /// `train_steps_max` was reached.
    StepsMax,
    /// It was asked to.
    Stopped,
}

/// What a run did in this process.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) train_steps: u64,
    pub(super) skipped: u64,
    pub(super) tokens: f64,
    pub(super) trained_tokens: f64,
    pub(super) seconds: f64,
    pub(super) input_stall_seconds: f64,
    /// Metrics of the first train step and of the last.
    pub(super) first: Option<StepMetrics>,
    pub(super) last: Option<StepMetrics>,
    pub(super) plans: Vec<String>,
    /// Train steps with a gradient.
    pub(super) with_gradient: u64,
    /// Trajectories that the last plan left for the next one.
    pub(super) carried: u64,
    /// Of the wall time, what checkpoints took.
    pub(super) checkpoint_seconds: f64,
}

/// A training run in this process.
pub(super) struct Run<'a> {
    pub(super) handle: Handle,
    pub(super) lake: Lake,
    pub(super) file: &'a TrainFile,
    pub(super) trainer: Trainer,
    pub(super) progress: Progress,
    pub(super) publisher: Publisher<'a>,
    pub(super) journal: Journal,
    pub(super) plans: Plans<'a>,
    /// Where the tokenizer's files are.
    pub(super) tokenizer: &'a BlockingFolder,
    pub(super) stop: Stop,
    pub(super) output: Output,
    pub(super) bar: Bar,
    pub(super) done: Done,
    /// Train steps since the last checkpoint, and when that was.
    pub(super) since_checkpoint: (u64, Instant),
}

impl Run<'_> {
    /// Trains until there is a reason to end; the last train step is in a checkpoint then.
    pub(super) fn train(&mut self) -> Result<Ended> {
        let ended = loop {
            if let Some(ended) = self.has_ended() {
                break ended;
            }
            let Some(plan) = self.handle.block_on(self.plans.next(&mut self.progress))? else {
                break Ended::NothingLeft;
            };
            if !self.done.plans.iter().any(|id| id == plan.plan_id()) {
                self.done.plans.push(plan.plan_id().to_owned());
            }
            self.plan(&plan)?;
        };
        self.checkpoint()?;
        Ok(ended)
    }

    fn has_ended(&self) -> Option<Ended> {
        if self.stop.is_asked() {
            return Some(Ended::Stopped);
        }
        let max = self.file.train_steps_max?;
        (self.trainer.train_steps() >= max).then_some(Ended::StepsMax)
    }

    /// Trains what is left of a plan.
    fn plan(&mut self, plan: &StoredPlan) -> Result<()> {
        let n_train_steps = plan.row().n_train_steps;
        self.bar.plan(plan, self.progress.next_train_step);
        self.done.carried = carried(plan);
        if self.progress.next_train_step >= n_train_steps {
            return Ok(());
        }
        let rewards = self.handle.block_on(rewards(plan))?;
        let mut feed = self.feed(plan, self.progress.next_train_step..n_train_steps)?;
        let trained = self.train_steps(plan, &mut feed, &rewards);
        // also after an error: what was streamed is written down on the way out
        let closed = feed.close();
        trained.and(closed)
    }

    fn train_steps(&mut self, plan: &StoredPlan, feed: &mut Feed, rewards: &HashMap<i64, f64>) -> Result<()> {
        while self.progress.next_train_step < plan.row().n_train_steps && self.has_ended().is_none() {
            self.score_policy(plan)?;
            self.train_step(plan, feed, rewards)?;
            let (steps, at) = self.since_checkpoint;
            let settings = &self.file.checkpoints;
            if settings.every_train_steps.is_some_and(|every| steps >= every) || at.elapsed() >= settings.every.0 {
                self.checkpoint()?;
            }
        }
        Ok(())
    }

    fn feed(&self, plan: &StoredPlan, train_steps: Range<i32>) -> Result<Feed> {
        let settings = FeedSettings {
            limits: self.trainer.limits(),
            needs: self.trainer.needs(),
            routed_experts: self.file.data.routed_experts,
            prefetch_bytes: self.file.data.prefetch_bytes.0,
        };
        Feed::start(&self.handle, (&self.lake, plan), train_steps, settings, self.output)
    }

    /// Before the first of the train steps that share a policy: log-probs of all of them under the weights of now.
    fn score_policy(&mut self, plan: &StoredPlan) -> Result<()> {
        let n_steps = i32::try_from(self.trainer.settings().step.train_steps_per_policy).unwrap_or(i32::MAX);
        let from = self.progress.next_train_step;
        let known = self.progress.old_logprobs.keys().any(|(train_step, _)| *train_step == from);
        if known || !self.trainer.needs_old_logprobs() {
            return Ok(());
        }
        let until = from.saturating_add(n_steps).min(plan.row().n_train_steps);
        let mut feed = self.feed(plan, from..until)?;
        let scored = self.score(&mut feed, from..until);
        let closed = feed.close();
        scored.and(closed)
    }

    fn score(&mut self, feed: &mut Feed, train_steps: Range<i32>) -> Result<()> {
        for train_step in train_steps {
            for micro_batch in 0..feed.n_micro_batches(train_step) {
                let batch = feed.next()?.batch;
                let logprobs = self.trainer.logprobs(&batch)?;
                self.progress.old_logprobs.insert((train_step, micro_batch), logprobs);
            }
        }
        Ok(())
    }

    /// One train step: forward and backward over its micro-batches, the update, and the record of it.
    fn train_step(&mut self, plan: &StoredPlan, feed: &mut Feed, rewards: &HashMap<i64, f64>) -> Result<()> {
        let started = Instant::now();
        let train_step = self.progress.next_train_step;
        let optimizer_step = self.trainer.train_steps();
        let context = RowContext {
            train_run: self.progress.train_run.clone(),
            plan_id: Some(plan.plan_id().to_owned()),
            train_step,
            optimizer_step: i64::try_from(optimizer_step).unwrap_or(i64::MAX),
            weight_version: Some(weight_version(&self.progress.train_run, optimizer_step as i64)),
            recorded_at: now_micros(),
        };
        feed.take_waited();
        let mut totals = BatchTotals::default();
        let mut keys: Vec<i64> = Vec::new();
        let mut logprobs = Vec::new();
        let mut step = self.trainer.begin_step();
        for micro_batch in 0..feed.n_micro_batches(train_step) {
            let fed = feed.next()?;
            let old = self.progress.old_logprobs.get(&(train_step, micro_batch));
            let outcome = step.micro_batch(&fed.batch, old)?;
            totals.add(&fed.batch);
            keys.extend(fed.keys.iter().map(|(key, _)| *key));
            if self.file.metrics.logprobs && outcome.not_finite.is_none() {
                logprobs.extend(logprob_rows(&context, &fed, outcome.by_segment(&fed.batch)?));
            }
        }
        let report = step.finish()?;
        let stall = feed.take_waited();

        keys.sort_unstable();
        keys.dedup();
        let mut metrics = StepMetrics::new();
        let of_step: Vec<f64> = keys.iter().filter_map(|key| rewards.get(key).copied()).collect();
        metrics.rewards(&of_step);
        metrics.extend(report.metrics.iter().copied());
        metrics.batches(&totals);
        metrics.set(names::PEAK_MEMORY_BYTES, self.peak_memory_bytes()?);
        metrics.times(started.elapsed().as_secs_f64(), stall.as_secs_f64());
        let skipped = report.not_finite();
        if let Some(why) = skipped {
            self.refused(&context, why)?;
        }
        self.progress.old_logprobs.retain(|(of, _), _| *of != train_step);
        self.progress.next_train_step += 1;
        self.since_checkpoint.0 += 1;
        self.journal.step(&context, &metrics, logprobs)?;
        self.count(metrics, skipped.is_some(), stall);
        Ok(())
    }

    /// A train step whose numbers are none: into quarantine with it, and on or not, as set.
    fn refused(&mut self, context: &RowContext, why: &NotFiniteReport) -> Result<()> {
        let row = quarantine_row(context, why);
        self.handle.block_on(training::append_quarantine(&self.lake, &[row]))?;
        if self.trainer.settings().step.on_not_finite == OnNotFinite::Skip {
            self.output.note(&format!("skipped a train step without an update: {why}"));
            return Ok(());
        }
        // the weights are those of the train step before: nothing of what was trained so far is lost
        self.checkpoint()?;
        Err(Failure::corrupt(format!(
            "{why}; the weights were not touched, and the record is in table quarantine. Look at that trajectory, leave it \
             out of the plan, or go on without such train steps with [step] on_not_finite = \"skip\""
        )))
    }

    /// Publishes where the run stands, if it moved since the last time.
    fn checkpoint(&mut self) -> Result<()> {
        if self.since_checkpoint.0 == 0 {
            return Ok(());
        }
        let began = Instant::now();
        // its train steps count as trained from then on: their record has to be there
        self.journal.flush()?;
        let row = self.publisher.publish(&self.trainer, &self.progress, &Stored(self.tokenizer))?;
        self.bar.note(&format!("checkpoint {}", row.checkpoint_id));
        self.since_checkpoint = (0, Instant::now());
        if let Err(error) = self.publisher.thin_out() {
            self.output.note(&format!("warning: old checkpoints were not removed: {error:#}"));
        }
        self.done.checkpoint_seconds += began.elapsed().as_secs_f64();
        Ok(())
    }

    fn count(&mut self, metrics: StepMetrics, skipped: bool, stall: Duration) {
        let of = |name| metrics.get(name).unwrap_or(0.0);
        self.done.train_steps += 1;
        self.done.with_gradient += u64::from(of(names::GRAD_NORM) > 0.0);
        self.done.skipped += u64::from(skipped);
        self.done.tokens += of(names::TOKENS);
        self.done.trained_tokens += of(names::TRAINED_TOKENS);
        self.done.seconds += of(names::STEP_SECONDS);
        self.done.input_stall_seconds += stall.as_secs_f64();
        self.bar.step(&metrics);
        self.done.first.get_or_insert_with(|| metrics.clone());
        self.done.last = Some(metrics);
    }

    fn peak_memory_bytes(&self) -> Result<f64> {
        let device = self.trainer.model().options().device;
        Ok(match device_memory(device)? {
            Some(memory) => memory.peak_bytes as f64,
            None => dressage_ingest::peak_rss_bytes() as f64,
        })
    }
}

/// Trajectories of groups that did not fill a train step and wait for the plan after this one.
fn carried(plan: &StoredPlan) -> u64 {
    let summary: serde_json::Value = serde_json::from_str(&plan.row().summary).unwrap_or_default();
    match summary["remainder"]["policy"].as_str() {
        Some("carry") => summary["remainder"]["n_trajectories"].as_u64().unwrap_or(0),
        _ => 0,
    }
}

/// The rewards of the plan's trajectories, as the plan saw them.
async fn rewards(plan: &StoredPlan) -> Result<HashMap<i64, f64>> {
    let mut settings = SessionSettings { set: plan.variables().clone(), ..SessionSettings::default() };
    // rewards depend on neither, and the files that they may name need not be there any more
    settings.set.retain(|name, _| name != "estimator" && name != "filter");
    let session = Session::open(plan.pinned().clone(), settings)?;
    let mut rows = session.sql("SELECT trajectory_key, reward FROM trajectories WHERE reward IS NOT NULL").await?;
    let mut rewards = HashMap::new();
    while let Some(batch) = rows.next_batch().await? {
        let keys = batch.column(0).as_primitive::<Int64Type>();
        let values = batch.column(1).as_primitive::<Float64Type>();
        rewards.extend(keys.values().iter().copied().zip(values.values().iter().copied()));
    }
    Ok(rewards)
}

/// Log-probs of the trained tokens of a micro-batch, a row a segment.
fn logprob_rows(context: &RowContext, fed: &Fed, parts: Vec<SegmentLogprobs>) -> Vec<TrainerLogprobRow> {
    let row =
        |((segment, (trajectory_key, write_id)), part): ((&Segment, &(i64, i64)), SegmentLogprobs)| TrainerLogprobRow {
            train_run: context.train_run.clone(),
            plan_id: context.plan_id.clone(),
            train_step: context.train_step,
            optimizer_step: context.optimizer_step,
            weight_version: context.weight_version.clone(),
            trajectory_key: *trajectory_key,
            write_id: *write_id,
            trajectory_id: segment.trajectory_id.to_string(),
            segment_index: segment.segment_index,
            token_places: part.token_places,
            logprobs: part.logprobs,
            trainer_logprobs: part.trainer_logprobs,
            recorded_at: context.recorded_at,
        };
    let segments = fed.batch.segments().iter().zip(&fed.keys).zip(parts);
    segments.filter(|(_, part)| !part.token_places.is_empty()).map(row).collect()
}

fn quarantine_row(context: &RowContext, why: &NotFiniteReport) -> QuarantineRow {
    let raw = serde_json::json!({
        "train_run": context.train_run,
        "plan_id": context.plan_id,
        "train_step": context.train_step,
        "optimizer_step": context.optimizer_step,
        "micro_batch": why.place.micro_batch,
        "trajectory_id": why.at.as_ref().map(|at| &at.segment.trajectory_id),
        "segment_index": why.at.as_ref().map(|at| at.segment.segment_index),
        "token": why.at.as_ref().map(|at| at.token),
        "quantity": why.quantity.to_string(),
        "parameter": why.parameter,
    })
    .to_string();
    QuarantineRow {
        // the same train step of the same plan refused again is the same record
        quarantine_key: xxh3_64(raw.as_bytes()) as i64,
        source: format!("train:{}", context.train_run),
        line: None,
        byte_offset: 0,
        byte_length: raw.len() as i64,
        format: None,
        trajectory_id: why.at.as_ref().map(|at| at.segment.trajectory_id.to_string()),
        rule: "not_finite".to_owned(),
        reason: why.to_string(),
        raw: raw.into_bytes(),
        quarantined_at: now_micros(),
    }
}
