//! From parameters to weights files as Hugging Face, vLLM and SGLang read them: safetensors, in shards if large.

use std::io::{self, Write};

use serde_json::{Map, Value, json};
use tch::Kind;

use super::layout::ParameterSpec;
use super::tensors_file::{FileTensor, write_tensors};
use crate::error::Result;
use crate::files::ModelSink;

/// Writes all parameters in `kind`, and the index if they take more than one file.
pub(crate) fn save_parameters(
    parameters: &[(ParameterSpec, tch::Tensor)],
    kind: Kind,
    shard_bytes_max: u64,
    sink: &mut dyn ModelSink,
) -> Result<()> {
    let mut tensors = Vec::new();
    for (spec, tensor) in parameters {
        for part in &spec.parts {
            let tensor = match part.place {
                None => tensor.shallow_clone(),
                Some((expert, first_row)) => tensor.f_select(0, expert)?.f_narrow(0, first_row, part.shape[0])?,
            };
            tensors.push(FileTensor { name: part.name.clone(), kind, tensor });
        }
    }
    let shards = shards_of(tensors, shard_bytes_max);
    let n_shards = shards.len();
    let mut weight_map = Map::new();
    let mut total_bytes = 0;
    for (index, shard) in shards.iter().enumerate() {
        let name = match n_shards {
            1 => "model.safetensors".to_owned(),
            _ => format!("model-{:05}-of-{n_shards:05}.safetensors", index + 1),
        };
        write_tensors(&name, shard, sink)?;
        for tensor in shard {
            weight_map.insert(tensor.name.clone(), name.clone().into());
            total_bytes += tensor.n_bytes();
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
fn shards_of(tensors: Vec<FileTensor>, shard_bytes_max: u64) -> Vec<Vec<FileTensor>> {
    let mut shards: Vec<Vec<FileTensor>> = Vec::new();
    let mut filled = 0u64;
    for tensor in tensors {
        let n_bytes = tensor.n_bytes() as u64;
        if shards.is_empty() || filled.saturating_add(n_bytes) > shard_bytes_max {
            shards.push(Vec::new());
            filled = 0;
        }
        filled += n_bytes;
        if let Some(shard) = shards.last_mut() {
            shard.push(tensor);
        }
    }
    shards
}

#[cfg(test)]
mod tests {
    use tch::{Device, Tensor};

    use super::*;

    fn tensor(n: i64) -> FileTensor {
        let tensor = Tensor::zeros([n], (Kind::Float, Device::Cpu));
        FileTensor { name: format!("t{n}"), kind: Kind::Float, tensor }
    }

    fn sizes(sizes: &[i64], shard_bytes_max: u64) -> Vec<usize> {
        shards_of(sizes.iter().map(|n| tensor(*n)).collect(), shard_bytes_max).iter().map(Vec::len).collect()
    }

    #[test]
    fn shards_are_filled_in_order_and_a_large_tensor_stands_alone() {
        assert_eq!(sizes(&[1, 1, 1], 100), [3]);
        assert_eq!(sizes(&[1, 1, 1], 8), [2, 1]);
        assert_eq!(sizes(&[1, 9, 1, 1], 8), [1, 1, 2]);
    }
}
