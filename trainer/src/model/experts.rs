//! A layer's experts: the router chooses some for each token, or is told which (routing replay).

use tch::{Device, Kind, Tensor};

use crate::error::Result;
use crate::routing::LayerRouting;

/// The experts of one layer, and their router.
#[derive(Debug)]
pub(crate) struct Experts {
    /// `[experts, hidden]`.
    pub(crate) router: Tensor,
    /// `[experts, 2 · inner, hidden]`: gate above up.
    pub(crate) gate_up: Tensor,
    /// `[experts, hidden, inner]`.
    pub(crate) down: Tensor,
    pub(crate) n_experts: i64,
    pub(crate) top_k: i64,
    /// Whether the gate weights of a token's experts sum up to one.
    pub(crate) normalised: bool,
}

impl Experts {
    /// `[T, hidden]` to `[T, hidden]`, and the experts of each token, `[T, top_k]`.
    pub(crate) fn forward(&self, x: &Tensor, routing: &LayerRouting) -> Result<(Tensor, Tensor)> {
        let probabilities = x.f_linear::<&Tensor>(&self.router, None)?.f_softmax(-1, Kind::Float)?;
        let chosen = self.choose(&probabilities, routing)?;
        let mut weights = probabilities.f_gather(1, &chosen, false)?;
        if self.normalised {
            weights = weights.f_div(&weights.f_sum_dim_intlist([-1i64].as_slice(), true, None)?)?;
        }
        let mixed = self.mix(x, &chosen, &weights.f_to_kind(x.f_kind()?)?)?;
        Ok((mixed, chosen))
    }

    fn choose(&self, probabilities: &Tensor, routing: &LayerRouting) -> Result<Tensor> {
        let free = || Ok::<_, crate::Error>(probabilities.f_detach()?.f_topk(self.top_k, -1, true, true)?.1);
        match routing {
            LayerRouting::Free => free(),
            LayerRouting::Replay { ids, recorded } => Ok(ids.f_where_self(recorded, &free()?)?),
            LayerRouting::Fixed { ids } => Ok(ids.shallow_clone()),
        }
    }

    /// Sorts (token, rank) pairs by expert, so that each expert sees its tokens as one matrix.
    fn mix(&self, x: &Tensor, chosen: &Tensor, weights: &Tensor) -> Result<Tensor> {
        let flat = chosen.f_reshape([-1])?;
        // stable, so that tokens keep their order within an expert and sums repeat
        let order = flat.f_argsort_stable(true, 0, false)?;
        let token = order.f_floor_divide_scalar(self.top_k)?;
        let counts = flat.f_bincount::<&Tensor>(None, self.n_experts)?.f_to_device(Device::Cpu)?;
        let counts = Vec::<i64>::try_from(counts)?;
        let parts = x.f_index_select(0, &token)?.f_split_with_sizes(counts.as_slice(), 0)?;
        // an unbind's gradient is put together once, a select's is as large as all experts, once for each
        let gate_up = self.gate_up.f_unbind(0)?;
        let down = self.down.f_unbind(0)?;
        let mut outputs = Vec::with_capacity(counts.len());
        for (expert, part) in parts.iter().enumerate().filter(|(expert, _)| counts[*expert] > 0) {
            let halves = part.f_linear::<&Tensor>(&gate_up[expert], None)?.f_chunk(2, -1)?;
            let gated = halves[0].f_silu()?.f_mul(&halves[1])?;
            outputs.push(gated.f_linear::<&Tensor>(&down[expert], None)?);
        }
        let sorted_weights = weights.f_reshape([-1])?.f_index_select(0, &order)?.f_unsqueeze(1)?;
        let weighted = Tensor::f_cat(&outputs, 0)?.f_mul(&sorted_weights)?;
        Ok(x.f_zeros_like()?.f_index_add(0, &token, &weighted)?)
    }
}
