//! Transformer language models of the Llama and Qwen families over packed rows.

mod attention;
mod experts;
mod feed_forward;
mod layer;
mod norm;
mod parameters;
mod projection;
mod shared_out;
mod trace;
mod units;

use tch::{Device, Kind, Tensor, no_grad};

use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::files::{ModelFiles, ModelSink};
use crate::native::{global_norm, set_gradient};
use crate::rope::Angles;
use crate::row::PackedRow;
use crate::weights::{ParameterSpec, load_parameters, parameter_specs, random_parameters, save_parameters, write_json};
use layer::Layer;
use norm::Norm;
use parameters::NamedTensors;
pub use parameters::Parameter;
use shared_out::SharedOut;
pub use trace::{ForwardOptions, Trace};

/// How a model is kept in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelOptions {
    /// Where.
    pub device: Device,
    /// [`Kind::BFloat16`] or [`Kind::Float`], whatever the files have.
    pub kind: Kind,
    /// Whether it is trained; a reference model is not, and keeps no gradients.
    pub trainable: bool,
}

impl Default for ModelOptions {
    fn default() -> Self {
        Self { device: Device::Cpu, kind: Kind::Float, trainable: true }
    }
}

/// A language model.
#[derive(Debug)]
pub struct Model {
    config: ModelConfig,
    options: ModelOptions,
    parameters: Vec<Parameter>,
    embedding: Tensor,
    layers: Vec<Layer>,
    final_norm: Norm,
    /// Output matrix; the embedding itself where they are tied.
    head: Tensor,
    /// This rank's part of the weights, where ranks share them out.
    shared_out: Option<SharedOut>,
}

impl Model {
    /// Loads a model as Hugging Face lays it out: `config.json`, and `model.safetensors` or the shards that
    /// `model.safetensors.index.json` lists.
    ///
    /// # Errors
    ///
    /// What [`ModelConfig::load`] says; [`Error::TensorMissing`], [`Error::TensorExtra`], [`Error::TensorShape`] and
    /// [`Error::TensorKind`] naming the tensor, before any is copied; [`Error::WeightsFile`] for a damaged file.
    pub fn load(files: &dyn ModelFiles, options: ModelOptions) -> Result<Self> {
        options.check()?;
        let config = ModelConfig::load(files)?;
        let parameters = load_parameters(files, &config, options.kind, options.device)?;
        Self::build(config, options, parameters)
    }

    /// A model that nobody trained yet: matrices are normally distributed with `deviation` (0.02 is usual). Repeats
    /// itself after `tch::manual_seed`.
    ///
    /// # Errors
    ///
    /// [`Error::Torch`] if there is not enough memory.
    pub fn random(config: ModelConfig, deviation: f64, options: ModelOptions) -> Result<Self> {
        options.check()?;
        let parameters = random_parameters(&config, deviation, options.kind, options.device)?;
        Self::build(config, options, parameters)
    }

    fn build(config: ModelConfig, options: ModelOptions, parameters: Vec<(ParameterSpec, Tensor)>) -> Result<Self> {
        let parameters = parameters
            .into_iter()
            .map(|(spec, tensor)| Ok(Parameter::new(spec.name, tensor.f_set_requires_grad(options.trainable)?)))
            .collect::<Result<Vec<_>>>()?;
        let tensors = NamedTensors::of(&parameters);
        let embedding = tensors.get("model.embed_tokens.weight")?;
        let head = match config.tied_embeddings {
            true => embedding.shallow_clone(),
            false => tensors.get("lm_head.weight")?,
        };
        let layers = (0..config.n_layers).map(|l| Layer::build(&config, l, &tensors)).collect::<Result<Vec<_>>>()?;
        let final_norm = Norm::new(tensors.get("model.norm.weight")?, config.norm_eps);
        Ok(Self { config, options, embedding, layers, final_norm, head, parameters, shared_out: None })
    }

    /// Writes `config.json` and the weights in `kind` (bf16 or f32), as [`Model::load`], transformers, vLLM and SGLang
    /// read them. The tokenizer's files are not the model's: copying them is the caller's work. Where ranks share the weights
    /// out all of them call it together, and each has all weights in the CPU's memory meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::FileWrite`] from the sink, [`Error::Setting`] for another kind.
    pub fn save(&self, sink: &mut dyn ModelSink, kind: Kind, shard_bytes_max: u64) -> Result<()> {
        if self.shares_weights() {
            return self.save_with(&self.gathered_on_cpu()?, sink, kind, shard_bytes_max);
        }
        let specs = parameter_specs(&self.config).into_iter();
        let parameters: Vec<_> = specs.zip(&self.parameters).map(|(s, p)| (s, p.tensor().shallow_clone())).collect();
        self.save_values(&parameters, sink, kind, shard_bytes_max)
    }

    /// As [`Model::save`], with other values for the parameters, in their order: the f32 weights that an optimiser
    /// keeps.
    ///
    /// # Errors
    ///
    /// As [`Model::save`], and [`Error::LengthMismatch`] for another number of tensors.
    pub fn save_with(
        &self,
        values: &[Tensor],
        sink: &mut dyn ModelSink,
        kind: Kind,
        shard_bytes_max: u64,
    ) -> Result<()> {
        let (expected, found) = (self.parameters.len(), values.len());
        if expected != found {
            return Err(Error::LengthMismatch { what: "parameters to save", expected, found });
        }
        let specs = parameter_specs(&self.config).into_iter();
        let parameters: Vec<_> = specs.zip(values).map(|(s, t)| (s, t.shallow_clone())).collect();
        self.save_values(&parameters, sink, kind, shard_bytes_max)
    }

    fn save_values(
        &self,
        parameters: &[(ParameterSpec, Tensor)],
        sink: &mut dyn ModelSink,
        kind: Kind,
        shard_bytes_max: u64,
    ) -> Result<()> {
        save_parameters(parameters, kind, shard_bytes_max, sink)?;
        let dtype = if kind == Kind::Float { "float32" } else { "bfloat16" };
        let config = self.config.to_json(dtype);
        sink.write("config.json", &mut |out| write_json(out, &config))
    }

    /// What it was built by.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// How it is kept.
    pub fn options(&self) -> ModelOptions {
        self.options
    }

    /// Everything that is trained, in a fixed order. Nothing where ranks share the weights out, since they have no numbers then
    /// but while they are used: [`crate::Trainer::save_weights`] puts them together.
    pub fn parameters(&self) -> &[Parameter] {
        if self.shares_weights() { &[] } else { &self.parameters }
    }

    /// As [`Self::parameters`]; those that are shared out must not be read or written, only asked for their shape and gradient.
    pub(crate) fn all_parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Forgets all gradients, and gives their memory back.
    ///
    /// # Errors
    ///
    /// [`Error::Torch`] if libtorch refuses.
    pub fn clear_gradients(&self) -> Result<()> {
        self.parameters.iter().try_for_each(|parameter| set_gradient(parameter.tensor(), None))
    }

    /// The 2-norm of all gradients together, and none before the first backward. Waits for the device.
    ///
    /// # Errors
    ///
    /// [`Error::Torch`] if libtorch refuses.
    pub fn gradient_norm(&self) -> Result<Option<f64>> {
        let gradients = self.parameters.iter().filter_map(|p| p.gradient().transpose()).collect::<Result<Vec<_>>>()?;
        if gradients.is_empty() {
            return Ok(None);
        }
        Ok(Some(global_norm(&gradients)?.f_double_value(&[])?))
    }

    /// The logits of a whole row, `[T, vocab]` in f32, without gradient. For tests and single tokens: a training step
    /// never needs them all at once (see [`Trace::scores`]).
    ///
    /// # Errors
    ///
    /// What [`PackedRow::check`] says, [`Error::Torch`] for want of memory.
    pub fn logits(&self, row: &PackedRow) -> Result<Tensor> {
        let trace = self.forward(row, ForwardOptions { gradients: false, ..ForwardOptions::default() })?;
        no_grad(|| Ok(trace.hidden().f_linear::<&Tensor>(&self.head, None)?.f_to_kind(Kind::Float)?))
    }

    /// Output matrix, `[vocab, hidden]`.
    pub(crate) fn head(&self) -> &Tensor {
        &self.head
    }
}

impl ModelOptions {
    fn check(&self) -> Result<()> {
        if matches!(self.kind, Kind::BFloat16 | Kind::Float) {
            return Ok(());
        }
        Err(Error::Setting { setting: "kind", value: format!("{:?}", self.kind), problem: "bf16 and f32 are possible" })
    }
}

/// What the layers need to know of a row.
#[derive(Debug)]
pub(crate) struct RowContext {
    pub(crate) angles: Angles,
    /// Tokens of each segment.
    pub(crate) lengths: Vec<i64>,
}
