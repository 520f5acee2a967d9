//! Weights on disk, as Hugging Face lays them out, and parameters in memory: which of the one makes which of the other.

mod layout;
mod load;
mod save;

pub(crate) use layout::{ParameterSpec, parameter_specs};
pub(crate) use load::{load_parameters, random_parameters};
pub(crate) use save::{save_parameters, write_json};
