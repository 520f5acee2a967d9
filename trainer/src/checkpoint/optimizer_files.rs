//! The optimiser's state as it was written: in one file, or in one a rank.

use std::ops::Range;

use safetensors::SafeTensors;
use tch::{Kind, Tensor};

use super::restore::check_all_f32;
use super::state::StateFile;
use super::{OPTIMIZER, file_of};
use crate::error::{Error, Result};
use crate::files::{FileBytes, ModelFiles};
use crate::model::Model;
use crate::optimizer::AdamW;
use crate::parallel::Shard;
use crate::weights::{parse_tensors, shape_of, tensor_of};

/// An f32 number.
const NUMBER_BYTES: usize = 4;

/// The files, in the order of the ranks that wrote them.
pub(super) struct OptimizerFiles(Vec<(String, FileBytes)>);

impl OptimizerFiles {
    pub(super) fn open(files: &dyn ModelFiles, state: &StateFile) -> Result<Self> {
        let n_files = state.optimizer_files();
        let open = |rank| {
            let name = file_of(OPTIMIZER, rank, n_files);
            let bytes = state.open(files, &name)?;
            Ok((name, bytes))
        };
        (0..n_files).map(open).collect::<Result<_>>().map(Self)
    }

    pub(super) fn parse(&self) -> Result<StoredOptimizer<'_>> {
        let parsed = self.0.iter().map(|(name, bytes)| parse_tensors(name, bytes)).collect::<Result<_>>()?;
        Ok(StoredOptimizer { names: self.0.iter().map(|(name, _)| name.as_str()).collect(), files: parsed })
    }
}

/// Their tensors.
pub(super) struct StoredOptimizer<'a> {
    names: Vec<&'a str>,
    files: Vec<SafeTensors<'a>>,
}

impl StoredOptimizer<'_> {
    /// Whether they are the state of this optimiser.
    pub(super) fn check(&self, files: &dyn ModelFiles, optimizer: &AdamW, model: &Model) -> Result<()> {
        for (rank, (name, tensors)) in self.names.iter().zip(&self.files).enumerate() {
            let shapes: Vec<_> = tensors.iter().map(|(tensor, view)| (tensor, shape_of(&view))).collect();
            optimizer.check_state(model, &shapes, Shard::new(rank, self.files.len()))?;
            check_all_f32(files, name, tensors)?;
        }
        Ok(())
    }

    /// The numbers of a range of a tensor, counted through over all files, `[n]`; without a range the whole of a count, which is
    /// the same in all.
    pub(super) fn read(&self, tensor: &str, range: Option<Range<i64>>) -> Result<Tensor> {
        let Some(range) = range else {
            return tensor_of(tensor, &self.view(0, tensor)?);
        };
        let mut bytes = Vec::new();
        let mut start = 0;
        for file in 0..self.files.len() {
            let view = self.view(file, tensor)?;
            let len = view.shape().iter().product::<usize>() as i64;
            let (from, to) =
                (range.start.clamp(start, start + len) - start, range.end.clamp(start, start + len) - start);
            // within the tensor, so neither is negative
            bytes.extend_from_slice(&view.data()[from as usize * NUMBER_BYTES..to as usize * NUMBER_BYTES]);
            start += len;
        }
        Ok(Tensor::f_from_data_size(&bytes, &[range.end - range.start], Kind::Float)?)
    }

    fn view(&self, file: usize, tensor: &str) -> Result<safetensors::tensor::TensorView<'_>> {
        let missing = |source| Error::WeightsFile { name: self.names[file].to_owned(), source };
        self.files[file].tensor(tensor).map_err(missing)
    }
}
