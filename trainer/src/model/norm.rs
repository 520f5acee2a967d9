//! Root-mean-square normalisation.

use tch::Tensor;

use crate::error::Result;

/// Divides the last dimension by its root mean square and multiplies with a weight.
#[derive(Debug)]
pub(crate) struct Norm {
    weight: Tensor,
    eps: f64,
}

impl Norm {
    pub(crate) fn new(weight: Tensor, eps: f64) -> Self {
        Self { weight, eps }
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.f_rms_norm(self.weight.size(), Some(&self.weight), self.eps)?)
    }
}
