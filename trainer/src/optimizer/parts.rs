//! AdamW among several ranks: gradients on their way to a sum, and the update of one rank's part.

use tch::{Kind, Tensor, no_grad};

use super::adamw::{AdamW, scale_by};
use crate::error::Result;
use crate::model::Model;
use crate::native::set_gradient;

impl AdamW {
    /// Takes this rank's gradient off a parameter, in f32 and shaped like it; zeros if it has none. Of a bf16 parameter it is the
    /// sum so far, which stays, unless gradients are shared out.
    pub(crate) fn take_gradient(&mut self, model: &Model, at: usize) -> Result<Tensor> {
        let parameter = &model.all_parameters()[at];
        let slot = &mut self.slots[at];
        if !self.shares_gradients && slot.sum.is_some() {
            slot.accumulate(parameter)?;
            return Ok(slot.sum.as_ref().map(Tensor::shallow_clone).unwrap_or_default());
        }
        let tensor = parameter.tensor();
        match parameter.gradient()? {
            Some(gradient) => {
                set_gradient(tensor, None)?;
                Ok(gradient.f_to_kind(Kind::Float)?)
            }
            None => Ok(Tensor::f_zeros(tensor.size(), (Kind::Float, tensor.device()))?),
        }
    }

    /// Replaces this rank's gradient of a parameter by the sum over all, `[n]` f32.
    pub(crate) fn put_gradient(&mut self, model: &Model, at: usize, sum: &Tensor) -> Result<()> {
        let tensor = model.all_parameters()[at].tensor();
        let sum = sum.f_view(tensor.size().as_slice())?;
        match &mut self.slots[at].sum {
            Some(own) => no_grad(|| Ok(own.f_copy_(&sum)?)),
            None => set_gradient(tensor, Some(&sum)),
        }
    }

    /// Forgets what [`Self::take_gradient`] left.
    pub(crate) fn drop_gradient(&mut self, at: usize) -> Result<()> {
        if let (false, Some(sum)) = (self.shares_gradients, &mut self.slots[at].sum) {
            let _ = no_grad(|| sum.f_zero_())?;
        }
        Ok(())
    }

    /// Adds to the sum of this rank's part of a parameter.
    pub(crate) fn add_to_part(&mut self, at: usize, part: &Tensor) -> Result<()> {
        if let Some(sum) = &mut self.slots[at].sum {
            let _ = no_grad(|| sum.f_add_(part))?;
        }
        Ok(())
    }

    /// The sums of this rank's parts, where gradients are shared out.
    pub(crate) fn parts(&self) -> Vec<Option<Tensor>> {
        self.slots.iter().map(|slot| slot.sum.as_ref().map(Tensor::shallow_clone)).collect()
    }

    /// Clips and updates this rank's part of every parameter; `grad_norm` is that of all parts of all ranks. The rest of a
    /// parameter stays as it was.
    pub(crate) fn update_parts(
        &mut self,
        model: &Model,
        parts: &[Option<Tensor>],
        grad_norm: f64,
        learning_rate: f64,
    ) -> Result<()> {
        // a small tensor may have no number for this rank
        let of = |part: &Option<Tensor>| part.as_ref().filter(|part| part.numel() > 0).map(Tensor::shallow_clone);
        let parts: Vec<Option<Tensor>> = parts.iter().map(of).collect();
        let all: Vec<Tensor> = parts.iter().flatten().map(Tensor::shallow_clone).collect();
        if let Some(factor) = self.clip_factor(grad_norm).filter(|_| !all.is_empty()) {
            scale_by(&all, factor)?;
        }
        for decays in [true, false] {
            self.update(model, &parts, decays, learning_rate)?;
        }
        self.count_empty(&parts)
    }

    /// Counts an update of the parameters that this rank has no number of, as those that have some are counted: a checkpoint
    /// says it once for all ranks.
    fn count_empty(&mut self, parts: &[Option<Tensor>]) -> Result<()> {
        for (slot, part) in self.slots.iter_mut().zip(parts) {
            if part.is_none() {
                let _ = no_grad(|| slot.steps.f_add_scalar_(1.0))?;
            }
        }
        Ok(())
    }
}
