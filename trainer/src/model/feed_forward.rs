//! The gated feed-forward block of a layer without experts.

use tch::Tensor;

use super::projection::Projection;
use crate::error::Result;

/// `down(silu(gate(x)) · up(x))`.
#[derive(Debug)]
pub(crate) struct FeedForward {
    pub(crate) gate: Projection,
    pub(crate) up: Projection,
    pub(crate) down: Projection,
}

impl FeedForward {
    /// `[T, hidden]` to `[T, hidden]`.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let gated = self.gate.forward(x)?.f_silu()?.f_mul(&self.up.forward(x)?)?;
        self.down.forward(&gated)
    }
}
