//! Weights on disk, as Hugging Face lays them out, and parameters in memory: which of the one makes which of the other.

mod layout;
mod load;
mod save;
mod tensors_file;

pub(crate) use layout::{ParameterSpec, parameter_specs};
pub(crate) use load::{StoredWeights, load_parameters, random_parameters};
pub(crate) use save::{save_parameters, write_json};
pub(crate) use tensors_file::{FileTensor, parse_tensors, shape_of, tensor_of, write_tensors};
