//! From parameters to weights files as Hugging Face, vLLM and SGLang read them: safetensors, in shards if large.
//!
//! One tensor at a time is in memory as bytes.

use std::io::{self, Write};

use serde_json::{Map, Value, json};
use tch::{Kind, Tensor};

use super::layout::{ParameterSpec, StoredPart};
use crate::error::{Error, Result};
use crate::files::ModelSink;

/// A stored tensor that is about to be written.
struct Entry {
    part: StoredPart,
    tensor: Tensor,
    n_bytes: usize,
}

/// Writes all parameters in `kind`, and the index if they take more than one file.
pub(crate) fn save_parameters(
    parameters: &[(ParameterSpec, Tensor)],
    kind: Kind,
    shard_bytes_max: u64,
    sink: &mut dyn ModelSink,
) -> Result<()> {
    let mut entries = Vec::new();
    for (spec, tensor) in parameters {
        for part in &spec.parts {
            let tensor = match part.place {
                None => tensor.shallow_clone(),
                Some((expert, first_row)) => tensor.f_select(0, expert)?.f_narrow(0, first_row, part.shape[0])?,
            };
            let n_bytes = tensor.numel() * kind.elt_size_in_bytes();
            entries.push(Entry { part: part.clone(), tensor, n_bytes });
        }
    }
    let shards = shards_of(entries, shard_bytes_max);
    let n_shards = shards.len();
    let mut weight_map = Map::new();
    let mut total_bytes = 0;
    for (index, shard) in shards.iter().enumerate() {
        let name = match n_shards {
            1 => "model.safetensors".to_owned(),
            _ => format!("model-{:05}-of-{n_shards:05}.safetensors", index + 1),
        };
        write_shard(&name, shard, kind, sink)?;
        for entry in shard {
            weight_map.insert(entry.part.name.clone(), name.clone().into());
            total_bytes += entry.n_bytes;
        }
    }
    if n_shards > 1 {
        let index = json!({ "metadata": { "total_size": total_bytes }, "weight_map": weight_map });
        sink.write("model.safetensors.index.json", &mut |out| write_json(out, &index))?;
    }
    Ok(())
}

pub(crate) fn write_json(out: &mut dyn Write, value: &Value) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    out.write_all(b"\n")
}

/// In order, each at most `shard_bytes_max` large unless one tensor alone is larger.
fn shards_of(entries: Vec<Entry>, shard_bytes_max: u64) -> Vec<Vec<Entry>> {
    let mut shards: Vec<Vec<Entry>> = Vec::new();
    let mut filled = 0u64;
    for entry in entries {
        let n_bytes = entry.n_bytes as u64;
        if shards.is_empty() || filled.saturating_add(n_bytes) > shard_bytes_max {
            shards.push(Vec::new());
            filled = 0;
        }
        filled += n_bytes;
        if let Some(shard) = shards.last_mut() {
            shard.push(entry);
        }
    }
    shards
}

/// Length of the header (8 bytes, little-endian), header (JSON: type, shape and byte range of each tensor), numbers.
fn write_shard(name: &str, shard: &[Entry], kind: Kind, sink: &mut dyn ModelSink) -> Result<()> {
    let dtype = dtype_of(kind)?;
    let mut header = Map::new();
    // transformers refuses files that do not say where they come from
    header.insert("__metadata__".to_owned(), json!({ "format": "pt" }));
    let mut offset = 0;
    for entry in shard {
        let range = [offset, offset + entry.n_bytes];
        let described = json!({ "dtype": dtype, "shape": entry.part.shape, "data_offsets": range });
        header.insert(entry.part.name.clone(), described);
        offset += entry.n_bytes;
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    // readers want the numbers aligned
    header.resize(header.len().next_multiple_of(8), b' ');
    // an operation that fails between two writes cannot be told to the sink, which only knows io::Error
    let mut failed = None;
    let written = sink.write(name, &mut |out| {
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        for entry in shard {
            match bytes_of(entry, kind) {
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

fn bytes_of(entry: &Entry, kind: Kind) -> Result<Vec<u8>> {
    let tensor = entry.tensor.f_detach()?.f_to_device(tch::Device::Cpu)?.f_to_kind(kind)?.f_contiguous()?;
    let mut bytes = vec![0; entry.n_bytes];
    tensor.f_copy_data_u8(&mut bytes, tensor.numel())?;
    Ok(bytes)
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

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    fn entry(n: i64) -> Entry {
        let part = StoredPart { name: format!("t{n}"), shape: vec![n], place: None };
        Entry { part, tensor: Tensor::zeros([n], (Kind::Float, Device::Cpu)), n_bytes: 4 * n as usize }
    }

    fn sizes(sizes: &[i64], shard_bytes_max: u64) -> Vec<usize> {
        shards_of(sizes.iter().map(|n| entry(*n)).collect(), shard_bytes_max).iter().map(Vec::len).collect()
    }

    #[test]
    fn shards_are_filled_in_order_and_a_large_tensor_stands_alone() {
        assert_eq!(sizes(&[1, 1, 1], 100), [3]);
        assert_eq!(sizes(&[1, 1, 1], 8), [2, 1]);
        assert_eq!(sizes(&[1, 9, 1, 1], 8), [1, 1, 2]);
    }
}
