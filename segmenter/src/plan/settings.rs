//! What a user tunes about a plan.

use serde::{Deserialize, Serialize};

use super::cost::CostModel;
use crate::error::{Error, Result};

/// What happens to the groups at the end that do not fill a train step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Remainder {
    /// They are a last, smaller train step; its loss weights are those of a step of its size.
    #[default]
    SmallerStep,
    /// They are left for the next plan, which goes on after this one.
    Carry,
}

/// In which order groups are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupOrder {
    /// As recorded: by the time of the first trajectory of a group, then by ids.
    #[default]
    Recorded,
    /// Shuffled by the seed.
    Shuffled,
}

/// How samples become train steps and micro-batches.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlanSettings {
    /// Trajectories of a train step. Lower means more optimiser steps, each from fewer trajectories.
    pub global_batch_size: u64,
    /// Tokens of a micro-batch: what fits into the memory of a rank. Higher means fewer passes.
    pub max_tokens_per_micro_batch: u64,
    /// Data-parallel ranks.
    pub world_size: u32,
    /// In which order groups are taken.
    pub order: GroupOrder,
    /// The seed of the shuffle.
    pub seed: i64,
    /// What happens to the groups at the end that do not fill a train step.
    pub remainder: Remainder,
    /// What a sample is taken to cost when ranks are balanced.
    pub cost: CostModel,
}

impl PlanSettings {
    /// A plan of this shape, in recorded order.
    pub fn new(global_batch_size: u64, max_tokens_per_micro_batch: u64, world_size: u32) -> Self {
        Self {
            global_batch_size,
            max_tokens_per_micro_batch,
            world_size,
            order: GroupOrder::default(),
            seed: 0,
            remainder: Remainder::default(),
            cost: CostModel::default(),
        }
    }

    /// Refuses what nothing could be planned with.
    pub(super) fn check(&self) -> Result<()> {
        let positive = |key: &str, value: u64, most: u64, expected| match value {
            1.. if value <= most => Ok(()),
            _ => Err(Error::InvalidSetting { key: key.to_owned(), value: value.to_string(), expected }),
        };
        positive("global_batch_size", self.global_batch_size, 1 << 31, "between 1 and 2147483648 trajectories")?;
        positive(
            "max_tokens_per_micro_batch",
            self.max_tokens_per_micro_batch,
            1 << 40,
            "between 1 and 1099511627776 tokens",
        )?;
        positive("world_size", self.world_size.into(), 65_536, "between 1 and 65536 ranks")?;
        if !self.cost.is_usable() {
            return Err(Error::InvalidSetting {
                key: "cost_linear and cost_quadratic".to_owned(),
                value: format!("{}, {}", self.cost.linear, self.cost.quadratic),
                expected: "numbers between 0 and 1000000000, not both 0",
            });
        }
        Ok(())
    }
}
