//! A micro-batch as a model runs it: its packed row, and which of its tokens are scored.

use tch::{Device, Kind, Tensor};

use crate::error::Result;
use crate::micro_batch::MicroBatch;
use crate::model::{ForwardOptions, Model};
use crate::row::PackedRow;
use crate::scores::ScoreOptions;

/// T tokens, of which N are scored.
#[derive(Debug)]
pub(super) struct Pass {
    pub(super) row: PackedRow,
    /// `[T]`: the loss mask.
    pub(super) wanted: Vec<bool>,
    /// `[N]` int64 on the model's device: places of the scored tokens.
    pub(super) rows: Tensor,
}

impl Pass {
    /// None for a micro-batch in which nothing is trained: there is nothing to run.
    pub(super) fn of(batch: &MicroBatch, device: Device) -> Result<Option<Self>> {
        if batch.n_trained() == 0 {
            return Ok(None);
        }
        let Some(row) = PackedRow::of(batch)? else { return Ok(None) };
        let mut wanted = vec![false; row.n_tokens()];
        for place in batch.trained_rows() {
            // rows were counted up from 0 by the reader
            wanted[*place as usize] = true;
        }
        Ok(Some(Self { row, wanted, rows: batch.trained.rows.f_to_device(device)? }))
    }

    /// Log-probs of the scored tokens under a model, `[N]` f32 on its device, without gradient.
    pub(super) fn logprobs(&self, model: &Model, options: ScoreOptions) -> Result<Tensor> {
        let trace = model.forward(&self.row, ForwardOptions { gradients: false, recompute: false })?;
        let scores = trace.scores(Some(&self.wanted), options)?;
        Ok(scores.logprobs.f_index_select(0, &self.rows)?)
    }

    /// As [`Self::logprobs`] of a frozen reference. Recorded experts are the policy's: its router chooses for itself.
    pub(super) fn reference_logprobs(&self, reference: &Model, options: ScoreOptions) -> Result<Tensor> {
        let row = self.row.clone().with_routed_experts(vec![None; self.row.lengths().len()])?;
        let pass = Self { row, wanted: self.wanted.clone(), rows: self.rows.shallow_clone() };
        pass.logprobs(reference, options)
    }
}

/// Of no tokens.
pub(super) fn no_logprobs() -> Result<Tensor> {
    Ok(Tensor::f_zeros([0], (Kind::Float, Device::Cpu))?)
}
