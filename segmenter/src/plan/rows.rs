//! A packed plan as rows of `batches`, in plan order.

use arrow::array::RecordBatch;
use dressage_schemas::tables::batches::{self, BatchRow};

use super::pack::PackedStep;
use super::samples::{Planned, Samples};
use super::step_rows::StepRows;
use crate::error::{Error, Result};

/// Rows of one batch.
const ROWS_PER_BATCH: usize = 16_384;

/// One train step, ready to be written down.
pub(super) struct ReadyStep<'a> {
    pub(super) train_step: usize,
    pub(super) samples: &'a [Planned],
    pub(super) weights: &'a [f64],
    pub(super) packed: &'a PackedStep,
}

/// Gathers rows into batches.
pub(super) struct RowWriter<'a> {
    plan_id: &'a str,
    samples: &'a Samples,
    steps: &'a StepRows,
    open: Vec<BatchRow>,
    done: Vec<RecordBatch>,
}

impl<'a> RowWriter<'a> {
    pub(super) fn new(plan_id: &'a str, samples: &'a Samples, steps: &'a StepRows) -> Self {
        Self { plan_id, samples, steps, open: Vec::new(), done: Vec::new() }
    }

    pub(super) fn write(&mut self, step: &ReadyStep<'_>) -> Result<()> {
        for (dp_rank, batches) in step.packed.ranks.iter().enumerate() {
            for (micro_batch, items) in batches.iter().enumerate() {
                for (position, &item) in items.iter().enumerate() {
                    let planned = &step.samples[item];
                    let trajectory = &self.samples.trajectories[planned.trajectory];
                    self.open.push(BatchRow {
                        plan_id: self.plan_id.to_owned(),
                        plan_write_id: 0,
                        train_step: small("train_step", step.train_step)?,
                        dp_rank: small("dp_rank", dp_rank)?,
                        micro_batch: small("micro_batch", micro_batch)?,
                        position: small("position", position)?,
                        trajectory_key: trajectory.key,
                        write_id: trajectory.write_id,
                        segment_index: planned.sample.segment_index,
                        n_tokens: planned.sample.n_tokens,
                        mask_sum: planned.sample.mask_sum,
                        advantage: planned.sample.advantage,
                        loss_weight: step.weights[item],
                        step_rows: self.steps.of_segment(planned.trajectory, planned.sample.segment_index),
                    });
                    if self.open.len() == ROWS_PER_BATCH {
                        self.close()?;
                    }
                }
            }
        }
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        if !self.open.is_empty() {
            let batch = batches::batch(&self.open)
                .map_err(|e| Error::ViewShape { column: "batches".to_owned(), problem: e.to_string() })?;
            self.done.push(batch);
            self.open.clear();
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Vec<RecordBatch>> {
        self.close()?;
        Ok(self.done)
    }
}

fn small(column: &str, value: usize) -> Result<i32> {
    i32::try_from(value)
        .map_err(|_| Error::ViewShape { column: column.to_owned(), problem: "is out of range".to_owned() })
}
