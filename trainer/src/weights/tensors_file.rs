//! A safetensors file: written one tensor at a time, so that no second copy of a model is ever in memory, and read from a
//! mapped file in the same way.

use std::io;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value, json};
use tch::{Device, Kind, Tensor};

use crate::error::{Error, Result};
use crate::files::ModelSink;

/// A tensor that is about to be written.
#[derive(Debug)]
pub(crate) struct FileTensor {
    /// Its name in the file.
    pub(crate) name: String,
    /// Its type in the file, whatever it has in memory.
    pub(crate) kind: Kind,
    /// Its values.
    pub(crate) tensor: Tensor,
}

impl FileTensor {
    /// Its size in the file.
    pub(crate) fn n_bytes(&self) -> usize {
        self.tensor.numel() * self.kind.elt_size_in_bytes()
    }

    fn bytes(&self) -> Result<Vec<u8>> {
        let tensor = self.tensor.f_detach()?.f_to_device(Device::Cpu)?.f_to_kind(self.kind)?.f_contiguous()?;
        let mut bytes = vec![0; self.n_bytes()];
        tensor.f_copy_data_u8(&mut bytes, tensor.numel())?;
        Ok(bytes)
    }
}

/// Length of the header (8 bytes, little-endian), header (JSON: type, shape and byte range of each tensor), numbers.
pub(crate) fn write_tensors(name: &str, tensors: &[FileTensor], sink: &mut dyn ModelSink) -> Result<()> {
    let mut header = Map::new();
    // transformers refuses files that do not say where they come from
    header.insert("__metadata__".to_owned(), json!({ "format": "pt" }));
    let mut offset = 0;
    for tensor in tensors {
        let range = [offset, offset + tensor.n_bytes()];
        let dtype = dtype_of(tensor.kind)?;
        let described = json!({ "dtype": dtype, "shape": tensor.tensor.size(), "data_offsets": range });
        header.insert(tensor.name.clone(), described);
        offset += tensor.n_bytes();
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    // readers want the numbers aligned
    header.resize(header.len().next_multiple_of(8), b' ');
    // an operation that fails between two writes cannot be told to the sink, which only knows io::Error
    let mut failed = None;
    let written = sink.write(name, &mut |out| {
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        for tensor in tensors {
            match tensor.bytes() {
                Ok(bytes) => out.write_all(&bytes)?,
                Err(error) => {
                    failed = Some(error);
                    return Err(io::Error::other("a tensor could not be copied"));
                }
            }
        }
        Ok(())
    });
    match failed {
        Some(error) => Err(error),
        None => written,
    }
}

/// The tensors of a file's bytes: its header is read and checked against their length, and no number is.
pub(crate) fn parse_tensors<'a>(name: &str, bytes: &'a [u8]) -> Result<SafeTensors<'a>> {
    SafeTensors::deserialize(bytes).map_err(|source| Error::WeightsFile { name: name.to_owned(), source })
}

/// The shape of a stored tensor, as libtorch counts.
pub(crate) fn shape_of(view: &TensorView<'_>) -> Vec<i64> {
    view.shape().iter().map(|n| *n as i64).collect()
}

/// A stored tensor, copied on the CPU as it is.
pub(crate) fn tensor_of(name: &str, view: &TensorView<'_>) -> Result<Tensor> {
    Ok(Tensor::f_from_data_size(view.data(), &shape_of(view), kind_of(name, view.dtype())?)?)
}

/// The type of a stored tensor's numbers in memory.
pub(crate) fn kind_of(tensor: &str, dtype: Dtype) -> Result<Kind> {
    match dtype {
        Dtype::F32 => Ok(Kind::Float),
        Dtype::BF16 => Ok(Kind::BFloat16),
        Dtype::F16 => Ok(Kind::Half),
        other => Err(Error::TensorKind { tensor: tensor.to_owned(), found: format!("{other:?}") }),
    }
}

fn dtype_of(kind: Kind) -> Result<&'static str> {
    match kind {
        Kind::Float => Ok("F32"),
        Kind::BFloat16 => Ok("BF16"),
        other => {
            Err(Error::Setting { setting: "kind", value: format!("{other:?}"), problem: "weights are bf16 or f32" })
        }
    }
}
