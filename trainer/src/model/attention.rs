//! Causal attention within the segments of a packed row.
//!
//! One fused call a segment: no mask is made, so memory grows with the row's length and not with its square, and a
//! segment never sees another. On CUDA the same loop runs; a variable-length kernel would save launches where
//! segments are short.

use tch::Tensor;

use super::RowContext;
use super::norm::Norm;
use super::projection::Projection;
use crate::error::Result;

/// One layer's attention.
#[derive(Debug)]
pub(crate) struct Attention {
    pub(crate) query: Projection,
    pub(crate) key: Projection,
    pub(crate) value: Projection,
    pub(crate) output: Projection,
    /// Norms of queries and keys, per head.
    pub(crate) head_norms: Option<(Norm, Norm)>,
    pub(crate) n_heads: i64,
    pub(crate) n_kv_heads: i64,
    pub(crate) head_dim: i64,
}

impl Attention {
    /// `[T, hidden]` to `[T, hidden]`.
    pub(crate) fn forward(&self, x: &Tensor, row: &RowContext) -> Result<Tensor> {
        let mut query = self.query.forward(x)?.f_view([-1, self.n_heads, self.head_dim])?;
        let mut key = self.key.forward(x)?.f_view([-1, self.n_kv_heads, self.head_dim])?;
        let value = self.value.forward(x)?.f_view([-1, self.n_kv_heads, self.head_dim])?;
        if let Some((query_norm, key_norm)) = &self.head_norms {
            query = query_norm.forward(&query)?;
            key = key_norm.forward(&key)?;
        }
        let query = row.angles.turn(&query)?;
        let key = row.angles.turn(&key)?;
        let attended = match row.lengths.as_slice() {
            [_] => self.attend(&query, &key, &value)?,
            lengths => {
                // a split's gradient is put together once, a narrow's once a segment
                let queries = query.f_split_with_sizes(lengths, 0)?;
                let keys = key.f_split_with_sizes(lengths, 0)?;
                let values = value.f_split_with_sizes(lengths, 0)?;
                let mut attended = Vec::with_capacity(lengths.len());
                for ((query, key), value) in queries.iter().zip(&keys).zip(&values) {
                    attended.push(self.attend(query, key, value)?);
                }
                Tensor::f_cat(&attended, 0)?
            }
        };
        self.output.forward(&attended)
    }

    /// One segment: `[n, heads, head_dim]` to `[n, heads · head_dim]`.
    fn attend(&self, query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor> {
        let heads_first = |x: &Tensor| x.f_transpose(0, 1)?.f_unsqueeze(0);
        let attended = Tensor::f_scaled_dot_product_attention::<&Tensor>(
            &heads_first(query)?,
            &heads_first(key)?,
            &heads_first(value)?,
            None,
            0.0,
            true,
            None,
            self.n_heads != self.n_kv_heads,
        )?;
        Ok(attended.f_squeeze_dim(0)?.f_transpose(0, 1)?.f_reshape([-1, self.n_heads * self.head_dim])?)
    }
}
