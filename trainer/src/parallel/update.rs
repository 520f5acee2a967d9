//! The update where each rank has only its part of the optimiser: the norm over all parts, then the weights of all.

use std::collections::VecDeque;

use tch::{Device, Tensor, no_grad};

use super::DataParallel;
use crate::collective::{Pending, Reduce, exchange_text};
use crate::error::Result;
use crate::model::Model;
use crate::native::global_norm;
use crate::optimizer::{AdamW, StepOutcome};

/// Buckets of weights under way at most: each is a copy.
const UNDER_WAY_MAX: usize = 2;

impl DataParallel {
    /// Clips and updates by this rank's parts of the gradients, and gives every rank the weights of all parts.
    pub(crate) fn update_parts(
        &self,
        model: &Model,
        optimizer: &mut AdamW,
        parts: &[Option<Tensor>],
        learning_rate: f64,
    ) -> Result<StepOutcome> {
        let own: Vec<Tensor> = parts.iter().flatten().filter(|p| p.numel() > 0).map(Tensor::shallow_clone).collect();
        let own_norm = if own.is_empty() { 0.0 } else { global_norm(&own)?.f_double_value(&[])? };
        let square = Tensor::f_from_slice(&[own_norm * own_norm])?.f_to_device(model.options().device)?;
        self.group.all_reduce(&square, Reduce::Sum)?;
        let grad_norm = square.f_to_device(Device::Cpu)?.f_double_value(&[0])?.sqrt();
        if !grad_norm.is_finite() {
            return Ok(StepOutcome::NotFinite { parameter: self.first_not_finite(model, parts)? });
        }
        optimizer.update_parts(model, parts, grad_norm, learning_rate)?;
        if !model.shares_weights() {
            self.gather_weights(model)?;
        }
        optimizer.forget_gradients(model)?;
        Ok(StepOutcome::Updated { grad_norm })
    }

    /// The first parameter, on any rank, with a gradient that is no number.
    fn first_not_finite(&self, model: &Model, parts: &[Option<Tensor>]) -> Result<String> {
        let mut own = String::new();
        for (at, part) in parts.iter().enumerate() {
            let Some(part) = part else { continue };
            if part.f_isfinite()?.f_all()?.f_int64_value(&[])? == 0 {
                own = at.to_string();
                break;
            }
        }
        let all = exchange_text(&*self.group, &own)?;
        let first = all.iter().filter_map(|text| text.parse::<usize>().ok()).min();
        let name = first.and_then(|at| model.all_parameters().get(at)).map(|parameter| parameter.name().to_owned());
        // each may be finite, and the sum of their squares not
        Ok(name.unwrap_or_else(|| "all together".to_owned()))
    }

    /// Puts the weights together that each rank updated its part of.
    pub(crate) fn gather_weights(&self, model: &Model) -> Result<()> {
        no_grad(|| {
            let mut under_way = VecDeque::new();
            for bucket in &self.buckets {
                if under_way.len() >= UNDER_WAY_MAX
                    && let Some(first) = under_way.pop_front()
                {
                    self.take_weights(model, first)?;
                }
                let parts = bucket.parameters.iter().map(|at| {
                    let weights = model.all_parameters()[*at].tensor().f_detach()?;
                    self.shard.padded(self.shard.of(&weights)?, weights.numel() as i64)
                });
                let part = Tensor::f_cat(&parts.collect::<Result<Vec<_>>>()?, 0)?;
                let len = self.shard.world_size() * part.numel() as i64;
                let whole = part.f_new_empty([len], (part.f_kind()?, part.device()))?;
                let pending = self.group.start_all_gather(&whole, &part)?;
                under_way.push_back((&bucket.parameters, whole, pending));
            }
            under_way.into_iter().try_for_each(|gathered| self.take_weights(model, gathered))
        })
    }

    fn take_weights(&self, model: &Model, gathered: (&Vec<usize>, Tensor, Pending)) -> Result<()> {
        let (parameters, whole, pending) = gathered;
        pending.wait()?;
        let rows = whole.f_view([self.shard.world_size(), -1])?;
        let mut start = 0;
        for at in parameters {
            start = self.shard.fill(&model.all_parameters()[*at].tensor().f_detach()?, &rows, start)?;
        }
        Ok(())
    }
}
