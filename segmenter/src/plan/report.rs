//! What a plan is like, in numbers: how full its micro-batches are, how level its ranks, who was left out.

use serde::Serialize;

use super::pack::PackedStep;
use super::samples::Planned;
use super::settings::{PlanSettings, Remainder};

/// One train step in numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepReport {
    /// 0-based.
    pub train_step: usize,
    /// Its groups' live trajectories.
    pub n_trajectories: u64,
    /// Its samples.
    pub n_samples: u64,
    /// Their tokens.
    pub n_tokens: u64,
    /// Their trained tokens.
    pub n_trained_tokens: u64,
    /// Micro-batches of each rank.
    pub micro_batches_per_rank: u64,
    /// Tokens as a share of what its micro-batches could hold.
    pub packing_efficiency: f64,
    /// A share that no packing could exceed: counts must be equal on all ranks, and large samples share with none.
    pub packing_bound: f64,
    /// How much less the idlest rank has to compute than the busiest, as a share of the busiest.
    pub rank_spread: f64,
    /// Micro-batches without a sample, because there are fewer samples than micro-batches.
    pub empty_micro_batches: u64,
    /// Samples longer than a micro-batch may be, each alone in one.
    pub oversize_samples: u64,
}

impl StepReport {
    pub(super) fn of(
        train_step: usize,
        step: &[Planned],
        n_trajectories: usize,
        packed: &PackedStep,
        settings: &PlanSettings,
    ) -> Self {
        let length = |p: &Planned| p.sample.n_tokens.unsigned_abs();
        let cap = settings.max_tokens_per_micro_batch;
        let n_tokens: u64 = step.iter().map(length).sum();
        let oversize_samples = step.iter().filter(|p| length(p) > cap).count() as u64;
        // an oversize sample fills its micro-batch, and no other is emptier for it
        let fills: u64 = step.iter().map(|p| length(p).min(cap)).sum();
        let batches = packed.ranks.iter().map(Vec::len).sum::<usize>() as u64;
        let world = u64::from(settings.world_size.max(1));
        // two samples of more than half the cap never share a micro-batch
        let large = step.iter().filter(|p| length(p) > cap / 2).count() as u64;
        let least_batches = fills.div_ceil(cap.max(1)).max(large).max(1).next_multiple_of(world);
        let costs: Vec<f64> = packed
            .ranks
            .iter()
            .map(|rank| rank.iter().flatten().map(|&i| settings.cost.of(length(&step[i]))).sum())
            .collect();
        let most = costs.iter().copied().fold(0.0, f64::max);
        let least = costs.iter().copied().fold(most, f64::min);
        let share = |room: u64| if room == 0 { 1.0 } else { fills as f64 / room as f64 };
        Self {
            train_step,
            n_trajectories: n_trajectories as u64,
            n_samples: step.len() as u64,
            n_tokens,
            n_trained_tokens: step.iter().map(|p| p.sample.mask_sum.unsigned_abs()).sum(),
            micro_batches_per_rank: packed.ranks.first().map_or(0, |r| r.len() as u64),
            packing_efficiency: share(batches * cap),
            packing_bound: share(least_batches * cap),
            rank_spread: if most > 0.0 { (most - least) / most } else { 0.0 },
            empty_micro_batches: packed.ranks.iter().flatten().filter(|b| b.is_empty()).count() as u64,
            oversize_samples,
        }
    }
}

/// What did not fill a train step at the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RemainderReport {
    /// What was done with it.
    pub policy: Remainder,
    /// Groups.
    pub n_groups: u64,
    /// Their live trajectories.
    pub n_trajectories: u64,
    /// Their samples.
    pub n_samples: u64,
}

/// Who was left out, or in part, for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Dropped {
    /// The reason, as view `drops` gives it.
    pub reason: String,
    /// Whether they are in samples all the same, without effect or with fewer tokens.
    pub has_samples: bool,
    /// Trajectories.
    pub n_trajectories: u64,
    /// Groups that they belong to.
    pub n_groups: u64,
    /// Tokens with gradient that are lost.
    pub n_lost_tokens: u64,
}

/// A plan in numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlanReport {
    /// The plan.
    pub plan_id: String,
    /// Its run; null for all runs.
    pub run_id: Option<String>,
    /// The estimator of advantages.
    pub estimator: String,
    /// How the losses of samples become the loss of a train step.
    pub loss_aggregation: String,
    /// The plan that this one goes on from.
    pub after_plan_id: Option<String>,
    /// Data-parallel ranks.
    pub world_size: u32,
    /// Tokens of a micro-batch.
    pub max_tokens_per_micro_batch: u64,
    /// Trajectories of a train step, as asked for.
    pub global_batch_size: u64,
    /// Train steps.
    pub n_train_steps: u64,
    /// Trajectories of the smallest and of the largest train step.
    pub trajectories_per_step: (u64, u64),
    /// Groups of all train steps.
    pub n_groups: u64,
    /// Trajectories of all train steps.
    pub n_trajectories: u64,
    /// Samples of all train steps.
    pub n_samples: u64,
    /// Their tokens.
    pub n_tokens: u64,
    /// Their trained tokens.
    pub n_trained_tokens: u64,
    /// Micro-batches over all train steps and ranks.
    pub n_micro_batches: u64,
    /// Micro-batches of a rank, fewest and most of a train step.
    pub micro_batches_per_rank: (u64, u64),
    /// Tokens as a share of what all micro-batches could hold.
    pub packing_efficiency: f64,
    /// The share that no packing could exceed.
    pub packing_bound: f64,
    /// Mean over the train steps of how much less the idlest rank has to compute than the busiest.
    pub rank_spread_mean: f64,
    /// The largest of them.
    pub rank_spread_max: f64,
    /// Micro-batches without a sample.
    pub empty_micro_batches: u64,
    /// Samples longer than a micro-batch may be.
    pub oversize_samples: u64,
    /// Samples of which no token is trained: they are streamed and weigh nothing.
    pub all_masked_samples: u64,
    /// Groups at the end that do not fill a train step.
    pub remainder: RemainderReport,
    /// Trajectories that the plans before have.
    pub already_trained: u64,
    /// Trajectories that have no samples, or fewer tokens, by reason.
    pub dropped: Vec<Dropped>,
}

/// Sums over the train steps, for [`PlanReport`].
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) trajectories_per_step: (u64, u64),
    pub(super) micro_batches_per_rank: (u64, u64),
    pub(super) n_trajectories: u64,
    pub(super) n_samples: u64,
    pub(super) n_tokens: u64,
    pub(super) n_trained_tokens: u64,
    pub(super) n_micro_batches: u64,
    pub(super) packing_efficiency: f64,
    pub(super) packing_bound: f64,
    pub(super) rank_spread_mean: f64,
    pub(super) rank_spread_max: f64,
    pub(super) empty_micro_batches: u64,
    pub(super) oversize_samples: u64,
}

impl Totals {
    pub(super) fn of(steps: &[StepReport], world_size: u32) -> Self {
        let span = |get: fn(&StepReport) -> u64| {
            let values = || steps.iter().map(get);
            (values().min().unwrap_or(0), values().max().unwrap_or(0))
        };
        let sum = |get: fn(&StepReport) -> u64| steps.iter().map(get).sum::<u64>();
        // shares are weighted by what they are shares of
        let batches = |step: &StepReport| (step.micro_batches_per_rank * u64::from(world_size)) as f64;
        let room: f64 = steps.iter().map(batches).sum();
        let filled: f64 = steps.iter().map(|s| s.packing_efficiency * batches(s)).sum();
        let least: f64 = steps.iter().map(|s| s.packing_efficiency * batches(s) / s.packing_bound.max(1e-300)).sum();
        let share = |part: f64, of: f64| if of > 0.0 { part / of } else { 1.0 };
        Self {
            trajectories_per_step: span(|s| s.n_trajectories),
            micro_batches_per_rank: span(|s| s.micro_batches_per_rank),
            n_trajectories: sum(|s| s.n_trajectories),
            n_samples: sum(|s| s.n_samples),
            n_tokens: sum(|s| s.n_tokens),
            n_trained_tokens: sum(|s| s.n_trained_tokens),
            n_micro_batches: room as u64,
            packing_efficiency: share(filled, room),
            packing_bound: share(filled, least),
            rank_spread_mean: share(steps.iter().map(|s| s.rank_spread).sum(), steps.len() as f64),
            rank_spread_max: steps.iter().map(|s| s.rank_spread).fold(0.0, f64::max),
            empty_micro_batches: sum(|s| s.empty_micro_batches),
            oversize_samples: sum(|s| s.oversize_samples),
        }
    }
}
