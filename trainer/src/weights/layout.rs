//! The parameters that a config asks for, and the stored tensors that each is made of.
//!
//! All are stored as they are kept, but for experts: a file has one tensor an expert and projection, memory has one a
//! layer and kind (`experts.gate_up_proj` of `[experts, 2 · inner, hidden]`), so that a layer is a few large
//! operations and the optimiser sees a few large tensors.

use crate::config::{ExpertsConfig, ModelConfig};

/// How a parameter begins in a model that is made, not loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Initial {
    /// Normally distributed.
    Normal,
    /// Ones: the weights of norms.
    Ones,
    /// Zeros: biases.
    Zeros,
}

/// A stored tensor, and where it goes within its parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredPart {
    /// Its name in the file.
    pub(crate) name: String,
    /// Its shape there.
    pub(crate) shape: Vec<i64>,
    /// Expert, and first row within that expert's matrix; none if it is the whole parameter.
    pub(crate) place: Option<(i64, i64)>,
}

/// A parameter in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ParameterSpec {
    /// Its name; that of the stored tensor where there is one.
    pub(crate) name: String,
    /// Its shape.
    pub(crate) shape: Vec<i64>,
    /// How it begins.
    pub(crate) initial: Initial,
    /// What it is made of.
    pub(crate) parts: Vec<StoredPart>,
}

impl ParameterSpec {
    fn whole(name: String, shape: Vec<i64>, initial: Initial) -> Self {
        let part = StoredPart { name: name.clone(), shape: shape.clone(), place: None };
        Self { name, shape, initial, parts: vec![part] }
    }
}

/// Every parameter of a model, in the order in which they are saved and updated.
pub(crate) fn parameter_specs(config: &ModelConfig) -> Vec<ParameterSpec> {
    let mut specs = Vec::new();
    let embedding = vec![config.vocab_size, config.hidden_size];
    specs.push(ParameterSpec::whole("model.embed_tokens.weight".to_owned(), embedding.clone(), Initial::Normal));
    for layer in 0..config.n_layers {
        layer_specs(config, layer, &mut specs);
    }
    specs.push(ParameterSpec::whole("model.norm.weight".to_owned(), vec![config.hidden_size], Initial::Ones));
    if !config.tied_embeddings {
        specs.push(ParameterSpec::whole("lm_head.weight".to_owned(), embedding, Initial::Normal));
    }
    specs
}

fn layer_specs(config: &ModelConfig, layer: usize, specs: &mut Vec<ParameterSpec>) {
    let prefix = format!("model.layers.{layer}");
    let hidden = config.hidden_size;
    let (queries, keys) = (config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim);
    let ones = |name: &str, width: i64, specs: &mut Vec<ParameterSpec>| {
        specs.push(ParameterSpec::whole(format!("{prefix}.{name}.weight"), vec![width], Initial::Ones));
    };
    ones("input_layernorm", hidden, specs);
    let projection = |name: &str, rows: i64, columns: i64, bias: bool, specs: &mut Vec<ParameterSpec>| {
        specs.push(ParameterSpec::whole(format!("{prefix}.{name}.weight"), vec![rows, columns], Initial::Normal));
        if bias {
            specs.push(ParameterSpec::whole(format!("{prefix}.{name}.bias"), vec![rows], Initial::Zeros));
        }
    };
    projection("self_attn.q_proj", queries, hidden, config.qkv_bias, specs);
    projection("self_attn.k_proj", keys, hidden, config.qkv_bias, specs);
    projection("self_attn.v_proj", keys, hidden, config.qkv_bias, specs);
    projection("self_attn.o_proj", hidden, queries, config.output_bias, specs);
    if config.qk_norm {
        ones("self_attn.q_norm", config.head_dim, specs);
        ones("self_attn.k_norm", config.head_dim, specs);
    }
    ones("post_attention_layernorm", hidden, specs);
    match &config.experts {
        Some(experts) if config.has_experts(layer) => {
            projection("mlp.gate", experts.n_experts, hidden, false, specs);
            expert_specs(experts, hidden, &format!("{prefix}.mlp.experts"), specs);
        }
        _ => {
            let inner = config.intermediate_size;
            projection("mlp.gate_proj", inner, hidden, config.mlp_bias, specs);
            projection("mlp.up_proj", inner, hidden, config.mlp_bias, specs);
            projection("mlp.down_proj", hidden, inner, config.mlp_bias, specs);
        }
    }
}

fn expert_specs(experts: &ExpertsConfig, hidden: i64, prefix: &str, specs: &mut Vec<ParameterSpec>) {
    let inner = experts.intermediate_size;
    let part = |expert: i64, projection: &str, shape: [i64; 2], first_row: i64| StoredPart {
        name: format!("{prefix}.{expert}.{projection}.weight"),
        shape: shape.to_vec(),
        place: Some((expert, first_row)),
    };
    let mut gate_up = Vec::new();
    let mut down = Vec::new();
    for expert in 0..experts.n_experts {
        gate_up.push(part(expert, "gate_proj", [inner, hidden], 0));
        gate_up.push(part(expert, "up_proj", [inner, hidden], inner));
        down.push(part(expert, "down_proj", [hidden, inner], 0));
    }
    specs.push(ParameterSpec {
        name: format!("{prefix}.gate_up_proj"),
        shape: vec![experts.n_experts, 2 * inner, hidden],
        initial: Initial::Normal,
        parts: gate_up,
    });
    specs.push(ParameterSpec {
        name: format!("{prefix}.down_proj"),
        shape: vec![experts.n_experts, hidden, inner],
        initial: Initial::Normal,
        parts: down,
    });
}
