//! One layer: attention and a feed-forward block, each on a normalised input and added to the residual stream.

use tch::Tensor;

use super::RowContext;
use super::attention::Attention;
use super::experts::Experts;
use super::feed_forward::FeedForward;
use super::norm::Norm;
use super::parameters::NamedTensors;
use super::projection::Projection;
use crate::config::ModelConfig;
use crate::error::Result;
use crate::routing::LayerRouting;

/// What follows the attention.
#[derive(Debug)]
enum Block {
    Dense(FeedForward),
    Experts(Experts),
}

/// One layer of a model.
#[derive(Debug)]
pub(crate) struct Layer {
    input_norm: Norm,
    attention: Attention,
    block_norm: Norm,
    block: Block,
}

impl Layer {
    pub(crate) fn build(config: &ModelConfig, index: usize, tensors: &NamedTensors) -> Result<Self> {
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let norm = |part: &str| Ok::<_, crate::Error>(Norm::new(tensors.get(&name(part))?, config.norm_eps));
        let projection = |part: &str| {
            let weight = tensors.get(&name(&format!("{part}.weight")))?;
            Ok::<_, crate::Error>(Projection::new(weight, tensors.optional(&name(&format!("{part}.bias")))))
        };
        let head_norms = match config.qk_norm {
            true => Some((norm("self_attn.q_norm.weight")?, norm("self_attn.k_norm.weight")?)),
            false => None,
        };
        let attention = Attention {
            query: projection("self_attn.q_proj")?,
            key: projection("self_attn.k_proj")?,
            value: projection("self_attn.v_proj")?,
            output: projection("self_attn.o_proj")?,
            head_norms,
            n_heads: config.n_heads,
            n_kv_heads: config.n_kv_heads,
            head_dim: config.head_dim,
        };
        let block = match &config.experts {
            Some(experts) if config.has_experts(index) => Block::Experts(Experts {
                router: tensors.get(&name("mlp.gate.weight"))?,
                gate_up: tensors.get(&name("mlp.experts.gate_up_proj"))?,
                down: tensors.get(&name("mlp.experts.down_proj"))?,
                n_experts: experts.n_experts,
                top_k: experts.top_k,
                normalised: experts.normalised,
            }),
            _ => Block::Dense(FeedForward {
                gate: projection("mlp.gate_proj")?,
                up: projection("mlp.up_proj")?,
                down: projection("mlp.down_proj")?,
            }),
        };
        Ok(Self {
            input_norm: norm("input_layernorm.weight")?,
            attention,
            block_norm: norm("post_attention_layernorm.weight")?,
            block,
        })
    }

    /// Whether it has experts, and so a choice to make.
    pub(crate) fn has_experts(&self) -> bool {
        matches!(self.block, Block::Experts(_))
    }

    /// `[T, hidden]` to `[T, hidden]`, and the experts chosen, `[T, top_k]`, if it has some.
    pub(crate) fn forward(
        &self,
        x: &Tensor,
        row: &RowContext,
        routing: &LayerRouting,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let attended = self.attention.forward(&self.input_norm.forward(x)?, row)?;
        let x = x.f_add(&attended)?;
        let normed = self.block_norm.forward(&x)?;
        let (block, chosen) = match &self.block {
            Block::Dense(block) => (block.forward(&normed)?, None),
            Block::Experts(experts) => {
                let (mixed, chosen) = experts.forward(&normed, routing)?;
                (mixed, Some(chosen))
            }
        };
        Ok((x.f_add(&block)?, chosen))
    }
}
