//! The parameters of a model by name, for the optimiser, for checkpoints and for building layers.

use std::collections::HashMap;

use tch::Tensor;

use crate::error::{Error, Result};

/// One tensor that is trained.
#[derive(Debug)]
pub struct Parameter {
    name: String,
    tensor: Tensor,
}

impl Parameter {
    pub(crate) fn new(name: String, tensor: Tensor) -> Self {
        Self { name, tensor }
    }

    /// Its name: that of the stored tensor, or `….mlp.experts.gate_up_proj` and `….down_proj` for the experts of a
    /// layer together.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its values. The gradient, where there is one, is `tensor().grad()`.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// The gradient, or none before the first backward.
    ///
    /// # Errors
    ///
    /// [`Error::Torch`] if libtorch refuses.
    pub fn gradient(&self) -> Result<Option<Tensor>> {
        let gradient = self.tensor.f_grad()?;
        Ok(gradient.defined().then_some(gradient))
    }

    /// Whether weight decay applies: to matrices, not to norms and biases.
    pub fn decays(&self) -> bool {
        self.tensor.dim() > 1
    }
}

/// Parameters by name, while layers are built of them.
pub(crate) struct NamedTensors<'a>(HashMap<&'a str, &'a Tensor>);

impl<'a> NamedTensors<'a> {
    pub(crate) fn of(parameters: &'a [Parameter]) -> Self {
        Self(parameters.iter().map(|p| (p.name.as_str(), &p.tensor)).collect())
    }

    /// The tensor of this name; it shares its storage with the parameter.
    pub(crate) fn get(&self, name: &str) -> Result<Tensor> {
        self.optional(name).ok_or_else(|| Error::TensorMissing { tensor: name.to_owned() })
    }

    pub(crate) fn optional(&self, name: &str) -> Option<Tensor> {
        self.0.get(name).map(|t| t.shallow_clone())
    }
}
