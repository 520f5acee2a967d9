//! Data parallelism: one train step over the micro-batches of several ranks, with the numbers of one.
//!
//! Takes what each rank's backward passes left, gives the sum of all to the optimiser of each. Refuses to divide by anything:
//! the weights of segments are of the whole train step already ([`crate::loss`]).
//!
//! ```text
//!   backward:   head ─▶ layer n ─▶ … ─▶ layer 1 ─▶ embedding          units, in this order on all ranks
//!                 └───┬────┘             └──┬──────────┘
//!                   bucket                bucket                       sent when its last unit is done
//!
//!   shard = "none"        all-reduce                  every rank updates everything
//!           "optimizer"   reduce-scatter              a rank updates its part ─▶ all-gather of weights
//!           "gradients"   reduce-scatter after every micro-batch, summed up in parts  ─▶ all-gather of weights
//!           "parameters"  as "gradients"; a unit's weights are gathered when it runs, and given back after it
//! ```
//!
//! A parameter's numbers are counted through and cut into as many parts as there are ranks; the last ones may be shorter, or
//! empty. Every rank sends the same buckets in the same order, whether it had something to train on or not.
//!
//! Why not PyTorch's `c10d::Reducer`: it waits for autograd to be done with every parameter, and the output matrix's gradient is
//! summed up by hand here, a chunk of the vocabulary at a time ([`crate::TokenScores`]), so that its hook never fires. It also
//! divides by the number of ranks, and knows neither f32 sums of bf16 gradients nor parts.

mod agreement;
mod buckets;
mod reduction;
mod shard;
mod update;

use std::sync::Arc;

use tch::no_grad;

pub(crate) use agreement::StepSoFar;
pub(crate) use reduction::Reduction;
pub(crate) use shard::Shard;

use crate::collective::Collectives;
use crate::error::Result;
use crate::model::Model;
use crate::optimizer::AdamW;
use crate::settings::{ParallelSettings, ShardLevel};
use buckets::{Bucket, buckets_of};

/// How this rank works with the others.
#[derive(Debug)]
pub(crate) struct DataParallel {
    group: Arc<dyn Collectives>,
    level: ShardLevel,
    shard: Shard,
    /// Places of parameters by unit, in the order of the backward pass.
    units: Vec<Vec<usize>>,
    buckets: Vec<Bucket>,
}

impl DataParallel {
    /// Gives all ranks the weights of rank 0.
    pub(crate) fn new(model: &mut Model, group: Arc<dyn Collectives>, settings: ParallelSettings) -> Result<Self> {
        group.enter("start, weights of rank 0");
        for parameter in model.all_parameters() {
            no_grad(|| group.broadcast(&parameter.tensor().f_detach()?, 0).map_err(crate::Error::from))?;
        }
        let shard = Shard::new(group.rank(), group.world_size());
        let units = model.units();
        let numels: Vec<usize> = model.all_parameters().iter().map(|p| p.tensor().numel()).collect();
        let buckets = buckets_of(&units, &numels, settings.bucket_bytes_max);
        if settings.shard == ShardLevel::Parameters {
            model.share_out(&group, shard)?;
        }
        Ok(Self { group, level: settings.shard, shard, units, buckets })
    }

    pub(crate) fn group(&self) -> &dyn Collectives {
        &*self.group
    }

    pub(crate) fn shard(&self) -> Shard {
        self.shard
    }

    /// Whether gradients are shared out after every micro-batch.
    pub(crate) fn shares_gradients(&self) -> bool {
        self.level >= ShardLevel::Gradients
    }

    /// Goes through a backward pass with the others without one of its own: its part of every unit's sums is 0.
    pub(crate) fn walk_back(&self, reduction: &mut Reduction, model: &Model, optimizer: &mut AdamW) -> Result<()> {
        model.walk_back(&mut |unit| reduction.unit_left_out(self, unit, model, optimizer))
    }

    /// Whether a rank updates only its part.
    pub(crate) fn shares_optimizer(&self) -> bool {
        self.level >= ShardLevel::Optimizer
    }
}
