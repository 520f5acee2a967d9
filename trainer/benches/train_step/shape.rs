//! The models and the row that are measured.

use std::path::Path;

use serde_json::{Value, json};

/// Tokens of each segment of the row: 2,048 together.
pub(crate) const LENGTHS: [usize; 5] = [512, 96, 700, 256, 484];
/// Qwen3's vocabulary.
pub(crate) const VOCAB_LARGE: usize = 151_936;
/// Small, so that 16,384 tokens take a minute: memory for logits does not depend on it.
pub(crate) const HIDDEN_LARGE: usize = 256;

/// A dense model, with the output matrix tied to the embedding, as in small models of both families.
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    family: &'static str,
    pub(crate) vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    n_layers: usize,
    n_heads: usize,
    n_kv_heads: usize,
    /// Steps of a process, the first of which does not count.
    pub(crate) n_steps: usize,
}

impl Shape {
    pub(crate) fn all() -> [Self; 4] {
        let small = Self {
            name: "qwen3-25m",
            family: "qwen3",
            vocab_size: 32_000,
            hidden_size: 384,
            intermediate_size: 1024,
            n_layers: 8,
            n_heads: 6,
            n_kv_heads: 2,
            n_steps: 4,
        };
        let medium = Self {
            name: "qwen3-100m",
            hidden_size: 768,
            intermediate_size: 2048,
            n_layers: 12,
            n_heads: 12,
            n_kv_heads: 4,
            n_steps: 3,
            ..small
        };
        // SmolLM2-135M with 20 layers instead of 30
        let smol = Self {
            name: "llama-100m",
            family: "llama",
            vocab_size: 49_152,
            hidden_size: 576,
            intermediate_size: 1536,
            n_layers: 20,
            n_heads: 9,
            n_kv_heads: 3,
            n_steps: 3,
        };
        [Self { name: "llama-25m", family: "llama", ..small }, smol, small, medium]
    }

    /// `config.json` as transformers has it.
    pub(crate) fn config(&self) -> Value {
        let architecture = if self.family == "qwen3" { "Qwen3ForCausalLM" } else { "LlamaForCausalLM" };
        json!({
            "model_type": self.family, "architectures": [architecture], "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size, "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.n_layers, "num_attention_heads": self.n_heads,
            "num_key_value_heads": self.n_kv_heads, "head_dim": 64, "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0, "hidden_act": "silu", "tie_word_embeddings": true
        })
    }

    /// A model that has little besides an output matrix of a large vocabulary.
    pub(crate) fn output_only() -> Value {
        json!({
            "model_type": "qwen3", "vocab_size": VOCAB_LARGE, "hidden_size": HIDDEN_LARGE, "intermediate_size": 64,
            "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
            "max_position_embeddings": 65_536, "tie_word_embeddings": true
        })
    }
}

/// Tokens that are all over the vocabulary, the same each time.
pub(crate) fn tokens(n_tokens: usize, vocab_size: usize) -> Vec<usize> {
    (0..n_tokens).map(|i| (i * 7919 + 13) % vocab_size).collect()
}

pub(crate) fn write_row(folder: &Path, row: &Value) {
    std::fs::create_dir_all(folder).expect("folder");
    std::fs::write(folder.join("row.json"), row.to_string()).expect("row");
}
