//! Which of a tensor's numbers belong to a rank.

use std::ops::Range;

use tch::Tensor;

use crate::error::Result;

/// One rank's part of every tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shard {
    rank: i64,
    world_size: i64,
}

impl Shard {
    pub(crate) fn new(rank: usize, world_size: usize) -> Self {
        Self { rank: rank as i64, world_size: world_size.max(1) as i64 }
    }

    /// Everything, of a rank that is alone.
    pub(crate) fn whole() -> Self {
        Self::new(0, 1)
    }

    pub(crate) fn is_whole(self) -> bool {
        self.world_size == 1
    }

    pub(crate) fn world_size(self) -> i64 {
        self.world_size
    }

    /// How many numbers each rank is given of `numel`, the last ones padded.
    pub(crate) fn padded_len(self, numel: i64) -> i64 {
        (numel + self.world_size - 1) / self.world_size
    }

    /// This rank's numbers; empty for the last ranks of a small tensor.
    pub(crate) fn range(self, numel: i64) -> Range<i64> {
        let len = self.padded_len(numel);
        (self.rank * len).min(numel)..((self.rank + 1) * len).min(numel)
    }

    /// How many of them there are.
    pub(crate) fn len(self, numel: i64) -> i64 {
        let range = self.range(numel);
        range.end - range.start
    }

    /// This rank's numbers of a contiguous tensor, `[len]`, in its own memory; the tensor itself for a rank that is alone.
    pub(crate) fn of(self, tensor: &Tensor) -> Result<Tensor> {
        if self.is_whole() {
            return Ok(tensor.shallow_clone());
        }
        let range = self.range(tensor.numel() as i64);
        Ok(tensor.f_view([-1])?.f_narrow(0, range.start, range.end - range.start)?)
    }

    /// A rank's numbers of a tensor of `numel`, `[n]`, with as many more as make it as long as every rank's.
    pub(crate) fn padded(self, part: Tensor, numel: i64) -> Result<Tensor> {
        let padding = self.padded_len(numel) - part.numel() as i64;
        Ok(if padding == 0 { part } else { part.f_constant_pad_nd([0, padding])? })
    }

    /// Fills a tensor from the padded numbers of all ranks that begin at `start` of their rows, `[world_size, …]`; where those of
    /// the next tensor begin.
    pub(crate) fn fill(self, tensor: &Tensor, rows: &Tensor, start: i64) -> Result<i64> {
        let numel = tensor.numel() as i64;
        let len = self.padded_len(numel);
        let numbers = rows.f_narrow(1, start, len)?.f_reshape([-1])?.f_narrow(0, 0, numel)?;
        tensor.shallow_clone().f_copy_(&numbers.f_view(tensor.size().as_slice())?)?;
        Ok(start + len)
    }

    /// All ranks' numbers, a row each: `[world_size, padded_len]`. A copy only where numbers have to be padded.
    pub(crate) fn rows(self, tensor: &Tensor) -> Result<Tensor> {
        let numel = tensor.numel() as i64;
        let padding = self.padded_len(numel) * self.world_size - numel;
        let flat = tensor.f_reshape([-1])?;
        let flat = if padding == 0 { flat } else { flat.f_constant_pad_nd([0, padding])? };
        Ok(flat.f_view([self.world_size, -1])?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_belongs_to_one_rank() {
        for world_size in 1..=5 {
            for numel in 0..=17 {
                let ranges: Vec<_> = (0..world_size).map(|rank| Shard::new(rank, world_size).range(numel)).collect();
                let all: Vec<i64> = ranges.iter().cloned().flatten().collect();
                assert_eq!(all, (0..numel).collect::<Vec<_>>(), "{numel} over {world_size}");
                let longest = Shard::new(0, world_size).padded_len(numel);
                assert!(ranges.iter().all(|range| range.end - range.start <= longest));
            }
        }
    }

    #[test]
    fn a_part_is_in_the_memory_of_the_whole() {
        let whole = Tensor::from_slice(&[0i64, 1, 2, 3, 4]);
        let mut part = Shard::new(1, 2).of(&whole.view([5, 1])).unwrap();
        assert_eq!(part, Tensor::from_slice(&[3i64, 4]));
        let _ = part.fill_(9);
        assert_eq!(whole, Tensor::from_slice(&[0i64, 1, 2, 9, 9]));
        assert_eq!(Shard::new(3, 4).of(&whole).unwrap().numel(), 0);
    }

    #[test]
    fn rows_are_the_parts_with_padding() {
        let rows = Shard::new(0, 2).rows(&Tensor::from_slice(&[1i64, 2, 3])).unwrap();
        assert_eq!(rows, Tensor::from_slice(&[1i64, 2, 3, 0]).view([2, 2]));
    }
}
