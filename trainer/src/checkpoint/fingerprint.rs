//! What makes a model another one: the sizes and switches of its config that weights have to fit.

use serde_json::{Map, Value, json};

use crate::config::ModelConfig;

/// Names and values, in an order in which the first difference says most.
pub(crate) fn fingerprint(config: &ModelConfig) -> Map<String, Value> {
    let experts = config.experts.as_ref();
    let fields = [
        ("model_type", json!(config.family.model_type())),
        ("vocab_size", json!(config.vocab_size)),
        ("hidden_size", json!(config.hidden_size)),
        ("num_hidden_layers", json!(config.n_layers)),
        ("num_attention_heads", json!(config.n_heads)),
        ("num_key_value_heads", json!(config.n_kv_heads)),
        ("head_dim", json!(config.head_dim)),
        ("intermediate_size", json!(config.intermediate_size)),
        ("tie_word_embeddings", json!(config.tied_embeddings)),
        ("qkv_bias", json!(config.qkv_bias)),
        ("output_bias", json!(config.output_bias)),
        ("mlp_bias", json!(config.mlp_bias)),
        ("num_experts", json!(experts.map(|e| e.n_experts))),
        ("num_experts_per_tok", json!(experts.map(|e| e.top_k))),
        ("moe_intermediate_size", json!(experts.map(|e| e.intermediate_size))),
        ("norm_topk_prob", json!(experts.map(|e| e.normalised))),
        ("layers_with_experts", json!(experts.map(|e| &e.layers))),
        ("max_position_embeddings", json!(config.positions_max)),
        // as text: what a number is read back as must not decide
        ("rms_norm_eps", json!(config.norm_eps.to_string())),
        ("rope_theta", json!(config.rope_theta.to_string())),
        ("rope_scaling", json!(format!("{:?}", config.rope_scaling))),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The first field that differs: its name, its saved value, and its value here.
pub(super) fn first_difference(saved: &Map<String, Value>, here: &ModelConfig) -> Option<(String, String, String)> {
    let shown = |value: Option<&Value>| value.map_or_else(|| "not there".to_owned(), Value::to_string);
    let here = fingerprint(here);
    let of_here = here.keys().chain(saved.keys().filter(|name| !here.contains_key(*name)));
    of_here
        .filter(|name| saved.get(*name) != here.get(*name))
        .map(|name| (name.clone(), shown(saved.get(name)), shown(here.get(name))))
        .next()
}
