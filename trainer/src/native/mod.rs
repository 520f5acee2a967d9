//! The only place with `unsafe`: libtorch's functions that tch does not wrap, and files mapped into memory.

mod c10d;
mod mapped;
mod torch;

pub(crate) use c10d::{Group, Said, Store, Work};
pub(crate) use mapped::MappedFile;
pub(crate) use torch::{
    AdamwStep, allocate_storage, backward, fused_adamw, global_norm, load_cuda, release_storage, scale, set_gradient,
};
pub use torch::{DeviceMemory, RngState, device_memory, reset_device_memory, seed};
