//! What a sample costs to train on: so much a token, and so much more a pair of tokens that attend to each other.

use serde::Serialize;

/// Coefficients of the cost of a sample of `n` tokens: `linear · n + quadratic · n²`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CostModel {
    /// Cost of a token: every layer's matrices.
    pub linear: f64,
    /// Cost of a token for each token of its sample: attention.
    pub quadratic: f64,
}

impl Default for CostModel {
    /// A dense model of about seven billion parameters: attention costs as much as the rest at 50,000 tokens.
    fn default() -> Self {
        Self { linear: 1.0, quadratic: 2e-5 }
    }
}

impl CostModel {
    /// The cost of a sample.
    pub fn of(&self, n_tokens: u64) -> f64 {
        let n = n_tokens as f64;
        n.mul_add(self.linear, self.quadratic * n * n)
    }

    /// Whether costs are finite, positive and grow with length.
    pub(super) fn is_usable(&self) -> bool {
        let usable = |c: f64| c.is_finite() && (0.0..=1e9).contains(&c);
        usable(self.linear) && usable(self.quadratic) && self.linear + self.quadratic > 0.0
    }
}
