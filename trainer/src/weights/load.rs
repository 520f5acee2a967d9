//! From a model's files to its parameters: everything is checked before the first number is copied.

use std::collections::{BTreeMap, HashMap};

use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use tch::{Device, Kind, Tensor};

use super::layout::{Initial, ParameterSpec, StoredPart, parameter_specs};
use super::tensors_file::{kind_of, parse_tensors};
use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::files::{FileBytes, ModelFiles};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// What `model.safetensors.index.json` holds.
#[derive(Deserialize)]
struct Index {
    /// File of each tensor.
    weight_map: BTreeMap<String, String>,
}

/// Weights files that have everything a config asks for, before a number of them is looked at.
pub(crate) struct StoredWeights {
    opened: Vec<(String, FileBytes)>,
    specs: Vec<ParameterSpec>,
}

impl StoredWeights {
    /// Opens the files of a model and checks that they fit `config`.
    pub(crate) fn open(files: &dyn ModelFiles, config: &ModelConfig) -> Result<Self> {
        let stored = Self { opened: open_all(files)?, specs: parameter_specs(config) };
        let shards = stored.shards()?;
        Found::of(&shards).check(config, &stored.specs)?;
        drop(shards);
        Ok(stored)
    }

    /// The files by name.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.opened.iter().map(|(name, bytes)| (name.as_str(), &**bytes))
    }

    fn shards(&self) -> Result<Vec<(&str, SafeTensors<'_>)>> {
        self.opened.iter().map(|(name, bytes)| Ok((name.as_str(), parse_tensors(name, bytes)?))).collect()
    }

    /// Gives every parameter, one after the other in the order of [`parameter_specs`], as a plain tensor.
    pub(crate) fn each(
        &self,
        kind: Kind,
        device: Device,
        mut take: impl FnMut(&ParameterSpec, Tensor) -> Result<()>,
    ) -> Result<()> {
        let shards = self.shards()?;
        let found = Found::of(&shards);
        self.specs.iter().try_for_each(|spec| take(spec, found.parameter(spec, kind, device)?))
    }
}

/// Loads every parameter, in the order of [`parameter_specs`], as plain tensors without gradient.
pub(crate) fn load_parameters(
    files: &dyn ModelFiles,
    config: &ModelConfig,
    kind: Kind,
    device: Device,
) -> Result<Vec<(ParameterSpec, Tensor)>> {
    let mut parameters = Vec::new();
    StoredWeights::open(files, config)?.each(kind, device, |spec, tensor| {
        parameters.push((spec.clone(), tensor));
        Ok(())
    })?;
    Ok(parameters)
}

/// Parameters of a model that nobody trained yet: drawn from libtorch's generator, so that `tch::manual_seed` repeats
/// them.
pub(crate) fn random_parameters(
    config: &ModelConfig,
    deviation: f64,
    kind: Kind,
    device: Device,
) -> Result<Vec<(ParameterSpec, Tensor)>> {
    parameter_specs(config)
        .into_iter()
        .map(|spec| {
            // on the CPU and in f32, so that a seed means the same everywhere
            let options = (Kind::Float, Device::Cpu);
            let tensor = match spec.initial {
                Initial::Normal => Tensor::f_randn(&spec.shape, options)?.f_mul_scalar(deviation)?,
                Initial::Ones => Tensor::f_ones(&spec.shape, options)?,
                Initial::Zeros => Tensor::f_zeros(&spec.shape, options)?,
            };
            Ok((spec, tensor.f_to_kind(kind)?.f_to_device(device)?))
        })
        .collect()
}

/// The weights files of a model, by name.
fn open_all(files: &dyn ModelFiles) -> Result<Vec<(String, FileBytes)>> {
    if !files.has(INDEX)? {
        return Ok(vec![(SINGLE.to_owned(), files.open(SINGLE)?)]);
    }
    let damaged = |problem: String| Error::WeightsIndex { name: INDEX.to_owned(), problem };
    let index: Index = serde_json::from_slice(&files.open(INDEX)?).map_err(|error| damaged(error.to_string()))?;
    let mut names: Vec<String> = index.weight_map.into_values().collect();
    names.sort();
    names.dedup();
    if names.is_empty() {
        return Err(damaged("it lists no file".to_owned()));
    }
    names
        .into_iter()
        .map(|name| {
            // a name comes from outside: it may not lead out of the model's place
            if name.contains(['/', '\\']) || name.starts_with('.') {
                return Err(damaged(format!("{name} is no plain file name")));
            }
            let bytes = files.open(&name)?;
            Ok((name, bytes))
        })
        .collect()
}

/// A tensor as a file has it.
struct Stored<'a> {
    file: &'a str,
    dtype: Dtype,
    shape: Vec<i64>,
    data: &'a [u8],
}

/// All tensors of all files, by name.
struct Found<'a>(HashMap<String, Stored<'a>>);

impl<'a> Found<'a> {
    fn of(shards: &'a [(&'a str, SafeTensors<'a>)]) -> Self {
        let mut found = HashMap::new();
        for (file, shard) in shards {
            for (name, view) in shard.iter() {
                let shape = view.shape().iter().map(|n| *n as i64).collect();
                found.insert(name.to_owned(), Stored { file, dtype: view.dtype(), shape, data: view.data() });
            }
        }
        Self(found)
    }

    /// Nothing is missing, left over or of another shape.
    fn check(&self, config: &ModelConfig, specs: &[ParameterSpec]) -> Result<()> {
        let mut expected = HashMap::new();
        for part in specs.iter().flat_map(|s| &s.parts) {
            let stored = self.0.get(&part.name).ok_or_else(|| Error::TensorMissing { tensor: part.name.clone() })?;
            if stored.shape != part.shape {
                return Err(Error::TensorShape {
                    tensor: part.name.clone(),
                    expected: part.shape.clone(),
                    found: stored.shape.clone(),
                });
            }
            kind_of(&part.name, stored.dtype)?;
            expected.insert(part.name.as_str(), ());
        }
        let mut left_over: Vec<&String> = self.0.keys().filter(|name| !expected.contains_key(name.as_str())).collect();
        // which one is named should not depend on the order of a hash map
        left_over.sort();
        for name in left_over {
            // old Llama files have the rotary frequencies, which follow from the config
            if name.ends_with(".rotary_emb.inv_freq") {
                continue;
            }
            if config.tied_embeddings && name == "lm_head.weight" {
                self.check_tied()?;
                continue;
            }
            return Err(Error::TensorExtra { tensor: name.clone(), name: self.0[name].file.to_owned() });
        }
        Ok(())
    }

    /// Some programs save the embedding twice when it is tied. That is fine as long as it is the same.
    fn check_tied(&self) -> Result<()> {
        let (tensor, tied_to) = ("lm_head.weight", "model.embed_tokens.weight");
        let same = match (self.0.get(tensor), self.0.get(tied_to)) {
            (Some(head), Some(embedding)) => head.dtype == embedding.dtype && head.data == embedding.data,
            _ => false,
        };
        if same { Ok(()) } else { Err(Error::TiedTensorsDiffer { tensor, tied_to }) }
    }

    fn parameter(&self, spec: &ParameterSpec, kind: Kind, device: Device) -> Result<Tensor> {
        if let [part] = spec.parts.as_slice()
            && part.place.is_none()
        {
            return Ok(self.tensor(part)?.f_to_device(device)?.f_to_kind(kind)?);
        }
        let parameter = Tensor::f_empty(&spec.shape, (kind, device))?;
        for part in &spec.parts {
            let (expert, first_row) = part.place.unwrap_or_default();
            let mut place = parameter.f_select(0, expert)?.f_narrow(0, first_row, part.shape[0])?;
            place.f_copy_(&self.tensor(part)?)?;
        }
        Ok(parameter)
    }

    /// One stored tensor, copied from the file's bytes as it is.
    fn tensor(&self, part: &StoredPart) -> Result<Tensor> {
        let stored = self.0.get(&part.name).ok_or_else(|| Error::TensorMissing { tensor: part.name.clone() })?;
        let kind = kind_of(&part.name, stored.dtype)?;
        Ok(Tensor::f_from_data_size(stored.data, &stored.shape, kind)?)
    }
}
