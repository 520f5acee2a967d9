//! A matrix with or without a bias.

use tch::Tensor;

use crate::error::Result;

/// `x · weightᵀ + bias`.
#[derive(Debug)]
pub(crate) struct Projection {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Projection {
    pub(crate) fn new(weight: Tensor, bias: Option<Tensor>) -> Self {
        Self { weight, bias }
    }

    /// `[T, columns]` to `[T, rows]`.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.f_linear(&self.weight, self.bias.as_ref())?)
    }
}
