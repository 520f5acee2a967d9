//! What a `config.json` says about a model: its family, its sizes, and what is switched on.

use serde_json::Value;

use crate::error::{Error, Result};
use crate::files::ModelFiles;
use crate::rope::RopeScaling;

/// The model families that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Llama 2 and 3, SmolLM2, and whatever else calls itself so.
    Llama,
    /// Qwen2 and Qwen2.5: biases on q, k and v.
    Qwen2,
    /// Qwen3: q and k are normalised per head.
    Qwen3,
    /// Qwen3 with experts.
    Qwen3Moe,
}

impl Family {
    const KNOWN: &'static str = "llama, qwen2, qwen3, qwen3_moe";

    fn parse(model_type: &str) -> Result<Self> {
        match model_type {
            "llama" => Ok(Self::Llama),
            "qwen2" => Ok(Self::Qwen2),
            "qwen3" => Ok(Self::Qwen3),
            "qwen3_moe" => Ok(Self::Qwen3Moe),
            other => Err(Error::UnknownArchitecture { model_type: other.to_owned(), known: Self::KNOWN }),
        }
    }

    /// As `config.json` names it.
    pub fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Qwen3Moe => "qwen3_moe",
        }
    }

    fn architecture(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
            Self::Qwen3Moe => "Qwen3MoeForCausalLM",
        }
    }
}

/// The experts of a model that has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpertsConfig {
    /// Experts of a layer.
    pub n_experts: i64,
    /// Experts that a token goes to.
    pub top_k: i64,
    /// Inner width of one expert.
    pub intermediate_size: i64,
    /// Whether the gate weights of the chosen experts are made to sum up to one.
    pub normalised: bool,
    /// Which layers have experts, one entry a layer.
    pub layers: Vec<bool>,
}

/// A model as its `config.json` describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// The family.
    pub family: Family,
    /// Tokens that there are.
    pub vocab_size: i64,
    /// Width of the residual stream.
    pub hidden_size: i64,
    /// Inner width of a layer without experts.
    pub intermediate_size: i64,
    /// Layers.
    pub n_layers: usize,
    /// Query heads.
    pub n_heads: i64,
    /// Key and value heads.
    pub n_kv_heads: i64,
    /// Width of a head.
    pub head_dim: i64,
    /// Positions that the model was made for.
    pub positions_max: i64,
    /// Added to the mean square in a norm.
    pub norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// How those are stretched.
    pub rope_scaling: RopeScaling,
    /// Whether the output matrix is the embedding.
    pub tied_embeddings: bool,
    /// Whether q, k and v have a bias.
    pub qkv_bias: bool,
    /// Whether the output projection of the attention has one.
    pub output_bias: bool,
    /// Whether the projections of a layer without experts have one.
    pub mlp_bias: bool,
    /// Whether q and k are normalised per head.
    pub qk_norm: bool,
    /// The experts, if it has them.
    pub experts: Option<ExpertsConfig>,
    /// The file as it was, so that saving loses nothing.
    raw: Value,
}

impl ModelConfig {
    /// Reads `config.json`.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownArchitecture`], [`Error::UnsupportedFeature`] naming the key, [`Error::ConfigField`] for values
    /// that are missing or contradict each other, and what reading the file says.
    pub fn load(files: &dyn ModelFiles) -> Result<Self> {
        let bytes = files.open("config.json")?;
        let raw =
            serde_json::from_slice(&bytes).map_err(|source| Error::ConfigSyntax { place: files.place(), source })?;
        Self::parse(raw)
    }

    /// Takes the contents of a `config.json`.
    ///
    /// # Errors
    ///
    /// As [`ModelConfig::load`].
    pub fn parse(raw: Value) -> Result<Self> {
        let fields = Fields(&raw);
        let family = Family::parse(fields.text("model_type")?)?;
        fields.refuse_unsupported(family)?;
        let hidden_size = fields.positive("hidden_size")?;
        let n_heads = fields.positive("num_attention_heads")?;
        let n_kv_heads = fields.optional_positive("num_key_value_heads")?.unwrap_or(n_heads);
        if n_heads % n_kv_heads != 0 {
            return Err(field("num_key_value_heads", format!("is {n_kv_heads}, which does not divide {n_heads}")));
        }
        let head_dim = match fields.optional_positive("head_dim")? {
            Some(head_dim) => head_dim,
            // the default of its config class, whatever the other sizes are
            None if family == Family::Qwen3 => 128,
            None if hidden_size % n_heads == 0 => hidden_size / n_heads,
            None => return Err(field("hidden_size", format!("is {hidden_size}, not a multiple of {n_heads} heads"))),
        };
        if head_dim % 2 != 0 {
            return Err(field("head_dim", format!("is {head_dim}: rotary embeddings need an even one")));
        }
        let n_layers = fields.positive("num_hidden_layers")? as usize;
        let bias = fields.switch("attention_bias")?.unwrap_or(false);
        Ok(Self {
            family,
            vocab_size: fields.positive("vocab_size")?,
            hidden_size,
            intermediate_size: fields.positive("intermediate_size")?,
            n_layers,
            n_heads,
            n_kv_heads,
            head_dim,
            positions_max: fields.positive("max_position_embeddings")?,
            norm_eps: fields.number("rms_norm_eps")?.unwrap_or(1e-6),
            rope_theta: fields.rope("rope_theta")?.and_then(Value::as_f64).unwrap_or(10_000.0),
            rope_scaling: fields.rope_scaling()?,
            tied_embeddings: fields.switch("tie_word_embeddings")?.unwrap_or(false),
            // what Qwen2 has is not in its config
            qkv_bias: bias || family == Family::Qwen2,
            output_bias: bias && family != Family::Qwen2,
            mlp_bias: family == Family::Llama && fields.switch("mlp_bias")?.unwrap_or(false),
            qk_norm: matches!(family, Family::Qwen3 | Family::Qwen3Moe),
            experts: if family == Family::Qwen3Moe { Some(fields.experts(n_layers)?) } else { None },
            raw,
        })
    }

    /// The contents of a `config.json` for weights that are saved in `dtype` (`bfloat16`, `float32`): the one that
    /// was read, with that type in it.
    pub fn to_json(&self, dtype: &str) -> Value {
        let mut json = self.raw.clone();
        if let Some(fields) = json.as_object_mut() {
            // the name until transformers 4.55, which servers still read
            if fields.contains_key("torch_dtype") || !fields.contains_key("dtype") {
                fields.insert("torch_dtype".to_owned(), dtype.into());
            }
            if fields.contains_key("dtype") {
                fields.insert("dtype".to_owned(), dtype.into());
            }
            fields.entry("architectures").or_insert_with(|| Value::Array(vec![self.family.architecture().into()]));
        }
        json
    }

    /// Whether layer `index` has experts.
    pub fn has_experts(&self, index: usize) -> bool {
        self.experts.as_ref().is_some_and(|e| e.layers.get(index).copied().unwrap_or(false))
    }
}

fn field(field: &str, problem: String) -> Error {
    Error::ConfigField { field: field.to_owned(), problem }
}

/// Reads single values, with errors that name them.
struct Fields<'a>(&'a Value);

impl<'a> Fields<'a> {
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|v| !v.is_null())
    }

    fn text(&self, key: &str) -> Result<&'a str> {
        self.get(key).and_then(Value::as_str).ok_or_else(|| field(key, "is missing or no text".to_owned()))
    }

    fn optional_positive(&self, key: &str) -> Result<Option<i64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_i64() {
            Some(number) if number > 0 && number <= i64::from(i32::MAX) => Ok(Some(number)),
            _ => Err(field(key, format!("is {value}, not a positive number"))),
        }
    }

    fn positive(&self, key: &str) -> Result<i64> {
        self.optional_positive(key)?.ok_or_else(|| field(key, "is missing".to_owned()))
    }

    fn number(&self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_f64().map(Some).ok_or_else(|| field(key, format!("is {value}, not a number")))
    }

    fn switch(&self, key: &str) -> Result<Option<bool>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| field(key, format!("is {value}, not true or false")))
    }

    /// A rotary setting: in `rope_parameters` since transformers 5, beside `rope_scaling` before.
    fn rope(&self, key: &str) -> Result<Option<&'a Value>> {
        let inside = self.get("rope_parameters").and_then(|p| p.get(key)).filter(|v| !v.is_null());
        let value = inside.or_else(|| self.get(key));
        match value {
            Some(v) if v.as_f64().is_none_or(|n| n <= 0.0) => Err(field(key, format!("is {v}, not a positive number"))),
            other => Ok(other),
        }
    }

    fn rope_scaling(&self) -> Result<RopeScaling> {
        let (key, parameters) = match (self.get("rope_parameters"), self.get("rope_scaling")) {
            (Some(parameters), _) => ("rope_parameters", parameters),
            (None, Some(scaling)) => ("rope_scaling", scaling),
            (None, None) => return Ok(RopeScaling::None),
        };
        let kind = parameters.get("rope_type").or_else(|| parameters.get("type")).and_then(Value::as_str);
        let number = |name: &str| {
            parameters
                .get(name)
                .and_then(Value::as_f64)
                .filter(|n| *n > 0.0)
                .ok_or_else(|| field(&format!("{key}.{name}"), "is missing or not a positive number".to_owned()))
        };
        match kind.unwrap_or("default") {
            "default" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor: number("factor")? }),
            "llama3" => Ok(RopeScaling::Llama3 {
                factor: number("factor")?,
                low_freq_factor: number("low_freq_factor")?,
                high_freq_factor: number("high_freq_factor")?,
                original_positions: number("original_max_position_embeddings")?,
            }),
            other => Err(Error::UnsupportedFeature {
                field: format!("{key}.rope_type"),
                value: format!("\"{other}\""),
                hint: ": default, linear and llama3 are",
            }),
        }
    }

    fn experts(&self, n_layers: usize) -> Result<ExpertsConfig> {
        let n_experts = match self.optional_positive("num_experts")? {
            Some(n) => n,
            None => {
                self.optional_positive("num_local_experts")?.ok_or_else(|| field("num_experts", "is missing".into()))?
            }
        };
        let top_k = self.positive("num_experts_per_tok")?;
        if top_k > n_experts {
            return Err(field("num_experts_per_tok", format!("is {top_k}, more than the {n_experts} experts")));
        }
        let every = self.optional_positive("decoder_sparse_step")?.unwrap_or(1) as usize;
        let dense: Vec<usize> = match self.get("mlp_only_layers") {
            None => Vec::new(),
            Some(list) => serde_json::from_value(list.clone())
                .map_err(|_| field("mlp_only_layers", format!("is {list}, not a list of layers")))?,
        };
        let layers = (0..n_layers).map(|l| !dense.contains(&l) && (l + 1) % every == 0).collect();
        Ok(ExpertsConfig {
            n_experts,
            top_k,
            intermediate_size: self.positive("moe_intermediate_size")?,
            normalised: self.switch("norm_topk_prob")?.unwrap_or(false),
            layers,
        })
    }

    /// What would change the numbers if it were ignored.
    fn refuse_unsupported(&self, family: Family) -> Result<()> {
        let refuse = |key: &str, value: &Value, hint| {
            Err(Error::UnsupportedFeature { field: key.to_owned(), value: value.to_string(), hint })
        };
        if let Some(value) = self.get("hidden_act").filter(|v| v.as_str() != Some("silu")) {
            return refuse("hidden_act", value, ": silu is");
        }
        if let Some(value) = self.get("use_sliding_window").filter(|v| v.as_bool() != Some(false)) {
            return refuse("use_sliding_window", value, ": switch it off if no layer of these weights uses it");
        }
        // Llama has no such switch; a window there is on
        let window = self.get("sliding_window").filter(|_| family == Family::Llama);
        if let Some(value) = window {
            return refuse("sliding_window", value, "");
        }
        if let Some(value) = self.get("layer_types") {
            let all_full = value.as_array().is_some_and(|l| l.iter().all(|t| t.as_str() == Some("full_attention")));
            if !all_full {
                return refuse("layer_types", value, ": full_attention is");
            }
        }
        if let Some(value) = self.get("quantization_config") {
            return refuse("quantization_config", value, ": save the weights in bf16 or f32 first");
        }
        let dropout = self.get("attention_dropout").filter(|v| v.as_f64() != Some(0.0));
        if let Some(value) = dropout {
            return refuse("attention_dropout", value, ": 0.0 is");
        }
        if let Some(value) = self.get("pretraining_tp").filter(|v| v.as_i64() != Some(1)) {
            return refuse("pretraining_tp", value, ": 1 is");
        }
        if let Some(value) = self.get("partial_rotary_factor").filter(|v| v.as_f64() != Some(1.0)) {
            return refuse("partial_rotary_factor", value, ": 1.0 is");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tiny(model_type: &str) -> Value {
        json!({
            "model_type": model_type, "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 64, "rms_norm_eps": 1e-6
        })
    }

    fn with(model_type: &str, key: &str, value: Value) -> Result<ModelConfig> {
        let mut json = tiny(model_type);
        json[key] = value;
        ModelConfig::parse(json)
    }

    #[test]
    fn an_unknown_architecture_is_named() {
        let text = ModelConfig::parse(tiny("gpt_neox")).expect_err("unknown").to_string();
        assert!(text.contains("gpt_neox") && text.contains("qwen3_moe"), "{text}");
    }

    #[test]
    fn what_is_not_implemented_is_refused_by_name() {
        for (key, value) in [
            ("use_sliding_window", json!(true)),
            ("layer_types", json!(["full_attention", "sliding_attention"])),
            ("rope_scaling", json!({"rope_type": "yarn", "factor": 4.0})),
            ("hidden_act", json!("gelu")),
            ("quantization_config", json!({"quant_method": "fp8"})),
            ("attention_dropout", json!(0.1)),
        ] {
            let error = with("qwen2", key, value).expect_err(key);
            assert!(matches!(error, Error::UnsupportedFeature { .. }), "{error}");
            assert!(error.to_string().contains(key), "{error}");
        }
    }

    #[test]
    fn contradictions_and_gaps_are_named() {
        for (key, value) in [
            ("num_key_value_heads", json!(3)),
            ("hidden_size", Value::Null),
            ("hidden_size", json!(-4)),
            ("rope_theta", json!("big")),
            ("head_dim", json!(5)),
        ] {
            let error = with("llama", key, value).expect_err(key);
            assert!(error.to_string().contains(key), "{error}");
        }
    }

    #[test]
    fn old_and_new_names_of_rope_and_experts_are_read() {
        let old = with("llama", "rope_theta", json!(5e5)).expect("old");
        let new = with("llama", "rope_parameters", json!({"rope_type": "default", "rope_theta": 5e5})).expect("new");
        assert_eq!((old.rope_theta, new.rope_theta), (5e5, 5e5));
        let mut json = tiny("qwen3_moe");
        json["num_local_experts"] = json!(4);
        json["num_experts_per_tok"] = json!(2);
        json["moe_intermediate_size"] = json!(8);
        json["mlp_only_layers"] = json!([0]);
        let experts = ModelConfig::parse(json).expect("experts").experts.expect("some");
        assert_eq!((experts.n_experts, experts.layers), (4, vec![false, true]));
    }

    #[test]
    fn a_saved_config_keeps_unknown_keys_and_says_its_type() {
        let config = with("llama", "somebody", json!("else")).expect("config");
        let json = config.to_json("float32");
        assert_eq!((&json["somebody"], &json["torch_dtype"]), (&json!("else"), &json!("float32")));
        assert_eq!(json["architectures"], json!(["LlamaForCausalLM"]));
    }
}
