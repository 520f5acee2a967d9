//! Weights that ranks share out: each keeps its part of every parameter, and a unit's are put together while it runs.
//!
//! A parameter keeps its shape and its place in graphs, and has no numbers in between. All ranks hold the same units in the same
//! order, so one that has nothing to compute walks along ([`Model::walk_forward`], [`Model::walk_back`]).

use std::cell::Cell;
use std::sync::Arc;

use tch::{Device, Tensor, no_grad};

use super::Model;
use super::units::HEAD_UNIT;
use crate::collective::Collectives;
use crate::error::Result;
use crate::native::{allocate_storage, release_storage};
use crate::parallel::Shard;

/// This rank's part of all weights.
#[derive(Debug)]
pub(super) struct SharedOut {
    group: Arc<dyn Collectives>,
    shard: Shard,
    units: Vec<Vec<usize>>,
    /// By parameter, `[n]` each.
    parts: Vec<Tensor>,
    /// By unit: how many hold it.
    n_holders: Vec<Cell<usize>>,
}

/// A unit whose weights are there as long as this lives.
#[derive(Debug)]
pub(crate) struct Held<'m> {
    model: &'m Model,
    unit: usize,
}

impl Held<'_> {
    pub(super) fn unit(&self) -> usize {
        self.unit
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // a tensor that is whole, as it was allocated, can be released
        let _ = self.model.release(self.unit);
    }
}

impl Model {
    /// Keeps this rank's part of the weights only.
    pub(crate) fn share_out(&mut self, group: &Arc<dyn Collectives>, shard: Shard) -> Result<()> {
        let units = self.units();
        let part = |p: &super::Parameter| {
            let own = shard.of(&p.tensor().f_detach()?)?;
            let mut part = own.f_zeros_like()?;
            part.f_copy_(&own)?;
            Ok(part)
        };
        let parts = self.parameters.iter().map(part).collect::<Result<_>>()?;
        self.parameters.iter().try_for_each(|parameter| release_storage(parameter.tensor()))?;
        let n_holders = units.iter().map(|_| Cell::new(0)).collect();
        self.shared_out = Some(SharedOut { group: Arc::clone(group), shard, units, parts, n_holders });
        Ok(())
    }

    /// Whether ranks share the weights out.
    pub(crate) fn shares_weights(&self) -> bool {
        self.shared_out.is_some()
    }

    /// This rank's numbers of a parameter, in their own memory.
    pub(crate) fn part(&self, at: usize, shard: Shard) -> Result<Tensor> {
        match &self.shared_out {
            Some(shared) => Ok(shared.parts[at].shallow_clone()),
            None => shard.of(&self.parameters[at].tensor().f_detach()?),
        }
    }

    /// Takes over the values of a parameter, or this rank's part of them.
    pub(crate) fn take_weights(&self, at: usize, values: &Tensor) -> Result<()> {
        match &self.shared_out {
            Some(shared) => shared.parts[at].shallow_clone().f_copy_(&shared.shard.of(&values.f_contiguous()?)?)?,
            None => self.parameters[at].tensor().f_detach()?.f_copy_(values)?,
        }
        Ok(())
    }

    /// Puts a unit's weights together, with the other ranks, until the value is dropped. None where every rank has them anyway.
    pub(super) fn hold(&self, unit: usize) -> Result<Option<Held<'_>>> {
        let Some(shared) = &self.shared_out else { return Ok(None) };
        let n_holders = &shared.n_holders[unit];
        if n_holders.get() == 0 {
            no_grad(|| self.gather(shared, unit))?;
        }
        n_holders.set(n_holders.get() + 1);
        Ok(Some(Held { model: self, unit }))
    }

    fn gather(&self, shared: &SharedOut, unit: usize) -> Result<()> {
        let parameters = || shared.units[unit].iter().map(|at| (*at, self.parameters[*at].tensor()));
        let padded = |(at, tensor): (usize, &Tensor)| {
            shared.shard.padded(shared.parts[at].shallow_clone(), tensor.numel() as i64)
        };
        let part = Tensor::f_cat(&parameters().map(padded).collect::<Result<Vec<_>>>()?, 0)?;
        let len = shared.shard.world_size() * part.numel() as i64;
        let whole = part.f_new_empty([len], (part.f_kind()?, part.device()))?;
        shared.group.all_gather(&whole, &part)?;
        let rows = whole.f_view([shared.shard.world_size(), -1])?;
        let mut start = 0;
        for (_, tensor) in parameters() {
            allocate_storage(tensor)?;
            // the numbers are what they were when a graph was made with them: it must not take this for a change
            start = shared.shard.fill(&tensor.f_data()?, &rows, start)?;
        }
        Ok(())
    }

    fn release(&self, unit: usize) -> Result<()> {
        let Some(shared) = &self.shared_out else { return Ok(()) };
        let n_holders = &shared.n_holders[unit];
        n_holders.set(n_holders.get().saturating_sub(1));
        if n_holders.get() == 0 {
            shared.units[unit].iter().try_for_each(|at| release_storage(self.parameters[*at].tensor()))?;
        }
        Ok(())
    }

    /// Goes through a forward pass with the other ranks without running it. Nothing where every rank has the weights.
    pub(crate) fn walk_forward(&self) -> Result<()> {
        if !self.shares_weights() {
            return Ok(());
        }
        let embedding = self.hold(self.embedding_unit())?;
        // what a pass holds longer, since its output matrix is the embedding
        let _embedding = embedding.filter(|_| self.config.tied_embeddings);
        for layer in 0..self.layers.len() {
            self.hold(self.unit_of_layer(layer))?;
        }
        self.hold(HEAD_UNIT).map(drop)
    }

    /// As [`Self::walk_forward`] for the way back; `done` is told the units as [`super::Trace::backward_in_pieces`] does.
    pub(crate) fn walk_back(&self, done: &mut dyn FnMut(usize) -> Result<()>) -> Result<()> {
        done(HEAD_UNIT)?;
        for layer in (0..self.layers.len()).rev() {
            let unit = self.unit_of_layer(layer);
            drop(self.hold(unit)?);
            done(unit)?;
        }
        done(self.embedding_unit())
    }

    /// All weights, with the other ranks, as copies in the CPU's memory; in the order of parameters.
    pub(crate) fn gathered_on_cpu(&self) -> Result<Vec<Tensor>> {
        let mut weights: Vec<Tensor> = self.parameters.iter().map(|_| Tensor::new()).collect();
        for (unit, parameters) in self.units().iter().enumerate() {
            let _held = self.hold(unit)?;
            for at in parameters {
                let tensor = self.parameters[*at].tensor().f_detach()?;
                weights[*at] = no_grad(|| tensor.f_to_device_(Device::Cpu, tensor.kind(), false, true))?;
            }
        }
        Ok(weights)
    }

    /// Goes along with [`Self::gathered_on_cpu`] of another rank.
    pub(crate) fn walk_all(&self) -> Result<()> {
        if self.shares_weights() {
            (0..self.units().len()).try_for_each(|unit| self.hold(unit).map(drop))?;
        }
        Ok(())
    }
}
