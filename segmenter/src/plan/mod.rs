//! The batch planner: samples to train steps, data-parallel ranks and micro-batches.
//!
//! ```text
//!   samples ─▶ whole groups, in order ─▶ train steps ─▶ micro-batches under the cap ─▶ ranks, level
//!                                             └─▶ planned ─▶ loss_weights/*.sql
//!   steps (scalars, addresses) ───────────────────────────────────────────────────────▶ rows of batches
//! ```
//!
//! Takes a session over a pinned snapshot and settings; gives a [`Plan`]: a row of `plans` and rows of `batches`. It is
//! a function of its input: the same versions, SQL, settings and seed give the same id and the same rows, whatever order
//! rows are read in. It knows no tensor and no clock, and reads scalar columns only.

mod advantages;
mod balance;
mod cost;
mod exclude;
mod identity;
mod order;
mod pack;
mod report;
mod rows;
mod samples;
mod scope;
mod settings;
mod step_rows;
mod weights;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use dressage_schemas::Table;
use dressage_schemas::tables::plans::PlanRow;

use self::identity::Identity;
use self::order::Steps;
use self::report::Totals;
use self::rows::{ReadyStep, RowWriter};
use self::samples::{Planned, Samples};
use self::step_rows::StepRows;
use self::weights::LossWeights;
use crate::error::{Error, Result};
use crate::lake::LakeSource;
use crate::session::Session;

pub use advantages::{AdvantageReport, Advantages};
pub use cost::CostModel;
pub use exclude::Trained;
pub use pack::{PackOptions, PackedStep, pack};
pub use report::{Dropped, PlanReport, RemainderReport, StepReport};
pub use scope::Scope;
pub use settings::{GroupOrder, PlanSettings, Remainder};

/// Up to so many rows of `trajectories` and `steps` two queries of a plan run at once; of larger stores each has the
/// session's memory for itself.
const ROWS_AT_ONCE_MAX: u64 = 65_536;

/// Which runs, after which plan, how.
#[derive(Debug, Clone)]
pub struct PlanRequest {
    /// Which runs.
    pub scope: Scope,
    /// What earlier plans have.
    pub trained: Trained,
    /// How.
    pub settings: PlanSettings,
}

/// A plan that is about to be made: what it is a function of is known, nothing is read yet.
#[derive(Debug)]
pub struct Planner<'a> {
    session: &'a Session,
    source: Arc<dyn LakeSource>,
    trained: Trained,
    identity: Identity,
    weights: LossWeights,
    plan_id: String,
}

/// A plan: rows for the tables `plans` and `batches`.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The row of `plans`, but for what only the store knows: `snapshot_id`, `plan_write_id`, `created_at`.
    pub row: PlanRow,
    /// The rows of `batches`, in plan order, with `plan_write_id` 0.
    pub batches: Vec<RecordBatch>,
    /// The plan in numbers.
    pub report: PlanReport,
    /// Each train step in numbers.
    pub steps: Vec<StepReport>,
    /// How its advantages are spread.
    pub advantages: Advantages,
}

impl<'a> Planner<'a> {
    /// Settles what the plan is a function of. Sets the session's `run` and `global_batch_size` to the plan's.
    ///
    /// # Errors
    /// `Invalid` for settings that cannot be, or where several runs are in the store and none is named.
    pub async fn new(
        session: &'a Session,
        source: Arc<dyn LakeSource>,
        versions: &BTreeMap<Table, u64>,
        request: PlanRequest,
    ) -> Result<Self> {
        request.settings.check()?;
        let run_id = scope::settle(session, &request.scope).await?;
        session.set("run", run_id.as_deref())?;
        session.set("global_batch_size", Some(&request.settings.global_batch_size.to_string()))?;
        let aggregation = session.settings_in_force().remove("loss_aggregation").unwrap_or_default();
        let weights = LossWeights::of(&aggregation)?;
        let after = request.trained.after_plan_id().map(str::to_owned);
        let identity =
            identity::identity(session, versions, run_id, after, request.settings, (aggregation, weights)).await?;
        let plan_id = identity.plan_id()?;
        Ok(Self { session, source, trained: request.trained, identity, weights, plan_id })
    }

    /// The plan's id.
    pub fn plan_id(&self) -> &str {
        &self.plan_id
    }

    /// Makes the plan.
    ///
    /// # Errors
    /// `Invalid` where nothing is there to be planned ([`Error::AllPlanned`] where the plans before have all of it), `Exhausted` naming the limit of memory, what the store says.
    pub async fn plan(&self) -> Result<Plan> {
        let settings = &self.identity.plan;
        let at_once = self.is_small();
        let samples = Samples::read(self.session, &self.trained);
        let (samples, dropped) = both(at_once, samples, scope::dropped(self.session)).await?;
        let steps = order::train_steps(&samples, settings);
        if steps.trajectories.is_empty() {
            return Err(nothing(&samples, &steps, &dropped, settings));
        }
        let planned: Vec<Vec<Planned>> = steps.trajectories.iter().map(|s| order::samples_of(s, &samples)).collect();
        let mut taken = vec![false; samples.trajectories.len()];
        steps.trajectories.iter().flatten().for_each(|&t| taken[t] = true);
        let held = samples.len() * size_of::<Planned>() * 4;
        let weights = weights::loss_weights(self.session, self.weights, &samples, &planned);
        let step_rows = StepRows::read(self.session, &self.source, &samples, &taken, held);
        let (weights, step_rows) = both(at_once, weights, step_rows).await?;

        let options = PackOptions {
            max_tokens: settings.max_tokens_per_micro_batch,
            world_size: settings.world_size as usize,
            cost: settings.cost,
        };
        let mut writer = RowWriter::new(&self.plan_id, &samples, &step_rows);
        let mut reports = Vec::with_capacity(planned.len());
        for (train_step, step) in planned.iter().enumerate() {
            let lengths: Vec<u64> = step.iter().map(|p| p.sample.n_tokens.unsigned_abs()).collect();
            let packed = pack(&lengths, &options);
            let n_trajectories = steps.trajectories[train_step].len();
            reports.push(StepReport::of(train_step, step, n_trajectories, &packed, settings));
            let weights = &weights[train_step];
            writer.write(&ReadyStep { train_step, samples: step, weights, packed: &packed })?;
        }
        let batches = writer.finish()?;
        let report = self.report(&samples, &steps, &planned, &reports, dropped);
        let row = self.row(&report)?;
        Ok(Plan { row, batches, report, steps: reports, advantages: Advantages::of(&planned) })
    }

    /// Whether queries of the plan may share the session's memory, and so run at the same time.
    fn is_small(&self) -> bool {
        let rows = |table| self.source.fragments(table).iter().map(|f| f.row_count).sum::<u64>();
        rows(Table::Trajectories) + rows(Table::Steps) <= ROWS_AT_ONCE_MAX
    }

    fn report(
        &self,
        samples: &Samples,
        steps: &Steps,
        planned: &[Vec<Planned>],
        reports: &[StepReport],
        dropped: Vec<Dropped>,
    ) -> PlanReport {
        let settings = &self.identity.plan;
        let totals = Totals::of(reports, settings.world_size);
        let mut groups: Vec<u32> =
            steps.trajectories.iter().flatten().map(|&t| samples.trajectories[t].group).collect();
        groups.sort_unstable();
        groups.dedup();
        let rest = &steps.remainder_trajectories;
        PlanReport {
            plan_id: self.plan_id.clone(),
            run_id: self.identity.run_id.clone(),
            estimator: self.session.settings_in_force().remove("estimator").unwrap_or_default(),
            loss_aggregation: self.identity.loss_aggregation.clone(),
            after_plan_id: self.identity.after_plan_id.clone(),
            world_size: settings.world_size,
            max_tokens_per_micro_batch: settings.max_tokens_per_micro_batch,
            global_batch_size: settings.global_batch_size,
            n_train_steps: reports.len() as u64,
            trajectories_per_step: totals.trajectories_per_step,
            n_groups: groups.len() as u64,
            n_trajectories: totals.n_trajectories,
            n_samples: totals.n_samples,
            n_tokens: totals.n_tokens,
            n_trained_tokens: totals.n_trained_tokens,
            n_micro_batches: totals.n_micro_batches,
            micro_batches_per_rank: totals.micro_batches_per_rank,
            packing_efficiency: totals.packing_efficiency,
            packing_bound: totals.packing_bound,
            rank_spread_mean: totals.rank_spread_mean,
            rank_spread_max: totals.rank_spread_max,
            empty_micro_batches: totals.empty_micro_batches,
            oversize_samples: totals.oversize_samples,
            all_masked_samples: planned.iter().flatten().filter(|p| p.sample.mask_sum == 0).count() as u64,
            remainder: RemainderReport {
                policy: settings.remainder,
                n_groups: steps.remainder_groups as u64,
                n_trajectories: rest.len() as u64,
                n_samples: rest.iter().map(|&t| samples.of_trajectory(t).count() as u64).sum(),
            },
            already_trained: samples.already_trained,
            dropped,
        }
    }

    fn row(&self, report: &PlanReport) -> Result<PlanRow> {
        let identity = &self.identity;
        let sql = identity::json(&identity.sql)?;
        let count = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        Ok(PlanRow {
            plan_id: self.plan_id.clone(),
            plan_write_id: 0,
            created_at: 0,
            run_id: identity.run_id.clone(),
            snapshot_id: 0,
            versions: identity::json(&identity.versions)?,
            settings: identity.settings_json()?,
            sql_hash: identity::short_hash(sql.as_bytes()),
            sql,
            seed: identity.plan.seed,
            world_size: i32::try_from(identity.plan.world_size).unwrap_or(i32::MAX),
            n_train_steps: i32::try_from(report.n_train_steps).unwrap_or(i32::MAX),
            n_samples: count(report.n_samples),
            n_tokens: count(report.n_tokens),
            after_plan_id: identity.after_plan_id.clone(),
            summary: identity::json(report)?,
        })
    }
}

/// Both, side by side or one after the other.
async fn both<A, B>(
    at_once: bool,
    first: impl Future<Output = Result<A>>,
    second: impl Future<Output = Result<B>>,
) -> Result<(A, B)> {
    // boxed: either is a whole query
    let (first, second) = (Box::pin(first), Box::pin(second));
    if at_once { tokio::try_join!(first, second) } else { Ok((first.await?, second.await?)) }
}

/// Stops at once where what is held in memory is more than the session may use.
fn check_memory(held_bytes: usize, limit_bytes: u64) -> Result<()> {
    let needed_bytes = held_bytes as u64;
    if needed_bytes > limit_bytes { Err(Error::PlanMemory { needed_bytes, limit_bytes }) } else { Ok(()) }
}

/// Why there is no train step.
fn nothing(samples: &Samples, steps: &Steps, dropped: &[Dropped], settings: &PlanSettings) -> Error {
    let reason = if steps.remainder_groups > 0 {
        let (there, it) = match steps.remainder_trajectories.len() {
            1 => ("1 trajectory that is there does".to_owned(), "it"),
            n => (format!("{n} trajectories that are there do"), "them"),
        };
        format!(
            "the {there} not fill a train step of {}, and --remainder carry leaves {it} for later",
            settings.global_batch_size
        )
    } else if samples.already_trained > 0 {
        return Error::AllPlanned { n_trajectories: samples.already_trained };
    } else if dropped.is_empty() {
        "there are no trajectories".to_owned()
    } else {
        let reasons: Vec<String> =
            dropped.iter().filter(|d| !d.has_samples).map(|d| format!("{} {}", d.n_trajectories, d.reason)).collect();
        format!("every trajectory was left out: {}", reasons.join(", "))
    };
    Error::NothingToPlan { reason }
}
