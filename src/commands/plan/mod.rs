//! `dressage plan`: samples to train steps, ranks and micro-batches, or what they would be.

mod compare;
mod page;
mod plot;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use dressage_segmenter::plan::{
    CostModel, GroupOrder, Plan, PlanRequest, PlanSettings, Planner, Remainder, Scope, Trained,
};
use dressage_segmenter::{Session, SessionSettings};
use dressage_storage::maintain::snapshots;
use dressage_storage::{Lake, Snapshot, plans};
use serde_json::{Value, json};

use super::Context;
use super::store_access::{NAMED, QueryArgs, block_on, note_unknown, session_settings};
use crate::failure::{Failure, Outcome};

/// Plan train steps: which samples, on which rank, in which micro-batch
///
/// Takes whole groups in the order in which they were recorded, keeps all segments of a trajectory in one train step,
/// packs micro-batches under a number of tokens, gives every rank as many of them and about as much to compute, and
/// stores the result with the versions, SQL, settings and seed that it follows from. Planning the same again is the same
/// plan. Says what was left out, and why. Where the plans before (--after) have everything, nothing is stored, a note says
/// so, and the exit code is 0; with --json `plan_id` is then null.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dressage plan --run nightly --global-batch-size 256 --max-tokens-per-micro-batch 32768 --world-size 8
  dressage plan --global-batch-size 64 --max-tokens-per-micro-batch 16384 --remainder carry --after 1f2e3d4c
  dressage plan --global-batch-size 64 --max-tokens-per-micro-batch 16384 --set staleness_keep_versions=2 --json
  dressage plan --global-batch-size 64 --max-tokens-per-micro-batch 16384 --dry-run \\
    --estimator grpo --estimator rloo --estimator mine.sql --plot advantages.svg")]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    query: QueryArgs,

    /// Plan over all runs of the store; groups of different runs are never mixed
    #[arg(long, conflicts_with = "run", help_heading = "Reading")]
    all_runs: bool,

    /// Trajectories of a train step
    #[arg(long, value_name = "N")]
    global_batch_size: u64,

    /// Tokens of a micro-batch; a longer sample has one to itself
    #[arg(long, value_name = "N")]
    max_tokens_per_micro_batch: u64,

    /// Data-parallel ranks
    #[arg(long, value_name = "N", default_value_t = 1)]
    world_size: u32,

    /// Take groups in a random order instead of the recorded one
    #[arg(long)]
    shuffle: bool,

    /// The seed of that order
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    seed: i64,

    /// What to do with groups at the end that do not fill a train step
    #[arg(long, value_name = "POLICY", default_value = "smaller-step")]
    remainder: RemainderArg,

    /// Go on after this plan: take nothing that it, or a plan before it, has
    #[arg(long, value_name = "PLAN")]
    after: Option<String>,

    /// What a token is taken to cost when ranks are balanced
    #[arg(long, value_name = "COST", default_value_t = CostModel::default().linear)]
    cost_linear: f64,

    /// What a token costs more for each token of its sample: attention
    #[arg(long, value_name = "COST", default_value_t = CostModel::default().quadratic)]
    cost_quadratic: f64,

    /// Store nothing: say what the plan would be, and compare estimators
    #[arg(long)]
    dry_run: bool,

    /// Draw how advantages are spread; .svg or .png
    #[arg(long, value_name = "FILE", requires = "dry_run")]
    plot: Option<PathBuf>,
}

/// As [`Remainder`], on the command line.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum RemainderArg {
    /// A last, smaller train step.
    SmallerStep,
    /// Leave them for the plan that goes on --after this one.
    Carry,
}

impl PlanArgs {
    fn settings(&self) -> PlanSettings {
        PlanSettings {
            order: if self.shuffle { GroupOrder::Shuffled } else { GroupOrder::Recorded },
            seed: self.seed,
            remainder: match self.remainder {
                RemainderArg::SmallerStep => Remainder::SmallerStep,
                RemainderArg::Carry => Remainder::Carry,
            },
            cost: CostModel { linear: self.cost_linear, quadratic: self.cost_quadratic },
            ..PlanSettings::new(self.global_batch_size, self.max_tokens_per_micro_batch, self.world_size)
        }
    }

    fn scope(&self) -> Scope {
        match &self.query.run {
            Some(run) => Scope::Run(run.clone()),
            None if self.all_runs => Scope::AllRuns,
            None => Scope::OnlyRun,
        }
    }
}

/// What every plan of one call shares.
struct Asked<'a> {
    args: &'a PlanArgs,
    session: SessionSettings,
    snapshot: Snapshot,
    trained: Trained,
}

impl Asked<'_> {
    /// A session in which one estimator is in force.
    fn session(&self, estimator: Option<&str>) -> Result<Session> {
        let mut settings = self.session.clone();
        if let Some(estimator) = estimator {
            settings.set.insert("estimator".to_owned(), estimator.to_owned());
        }
        Ok(Session::open(self.snapshot.clone(), settings)?)
    }

    async fn planner<'s>(&self, session: &'s Session) -> Result<Planner<'s>> {
        let request =
            PlanRequest { scope: self.args.scope(), trained: self.trained.clone(), settings: self.args.settings() };
        let source = Arc::new(self.snapshot.clone());
        Ok(Planner::new(session, source, self.snapshot.versions(), request).await?)
    }
}

/// What the flags of a plan say must not be said again by a variable, which would change nothing.
fn refuse_variables(args: &PlanArgs) -> Result<()> {
    for (name, _) in &args.query.variables {
        let flag = match name.as_str() {
            "global_batch_size" => "--global-batch-size",
            "run" => "--run",
            _ => continue,
        };
        return Err(Failure::invalid(format!("--set {name}=… has no part in a plan: use {flag}")));
    }
    Ok(())
}

pub(crate) fn run(mut context: Context, args: &PlanArgs) -> Result<Outcome> {
    refuse_variables(args)?;
    let settings =
        if args.dry_run { context.reading_settings(&args.query)? } else { context.query_settings(&args.query)? };
    block_on(async {
        let lake = context.open_lake(&settings).await?;
        let as_of = args.query.as_of.as_deref().map(super::store_access::parse_as_of).transpose()?;
        let snapshot = lake.snapshot(as_of).await?;
        let trained = match &args.after {
            Some(plan) => Trained::by_plan(&lake, plan).await?,
            None => Trained::nothing(),
        };
        let asked = Asked { args, session: session_settings(&settings, &args.query), snapshot, trained };
        // a run that is not there is an error, not a note
        note_unknown(context.output, &asked.session(None)?, &NAMED[1..]).await;
        if args.dry_run {
            return all_planned(&context, &asked, compare::run(&context, &asked).await);
        }
        let session = asked.session(None)?;
        let planner = asked.planner(&session).await?;
        if let Some(there) = plans::exact(&lake, planner.plan_id()).await? {
            let summary =
                serde_json::from_str(&there.summary).context("the stored summary of the plan does not parse")?;
            show(&context, Shown { new: false, summary, steps: None, read_bytes: read_bytes(&asked).await? })?;
            return Ok(Outcome::Done);
        }
        let plan = match store(&lake, &asked.snapshot, &planner).await {
            Ok(plan) => plan,
            Err(error) => return all_planned(&context, &asked, Err(error)),
        };
        let summary = serde_json::to_value(&plan.report).context("the report has no JSON")?;
        let steps = serde_json::to_value(&plan.steps).context("the report has no JSON")?;
        show(&context, Shown { new: true, summary, steps: Some(steps), read_bytes: read_bytes(&asked).await? })?;
        Ok(Outcome::Done)
    })
}

/// A plan that goes on after others and finds nothing left is done, not wrong: a loop of them ends like this.
fn all_planned(context: &Context, asked: &Asked<'_>, planned: Result<Outcome>) -> Result<Outcome> {
    let error = match planned {
        Err(error) => error,
        done => return done,
    };
    let all_planned = error.chain().filter_map(|cause| cause.downcast_ref()).find_map(|cause| match cause {
        dressage_segmenter::Error::AllPlanned { n_trajectories } => Some((cause.to_string(), *n_trajectories)),
        _ => None,
    });
    let Some((said, n_trajectories)) = all_planned else { return Err(error) };
    context.output.note(&format!("{said}; nothing was stored"));
    if context.output.json {
        context.output.json(&json!({
            "plan_id": null,
            "stored": false,
            "new": false,
            "nothing_to_plan": said,
            "after_plan_id": asked.trained.after_plan_id(),
            "already_trained": n_trajectories,
        }))?;
    }
    Ok(Outcome::Done)
}

/// Makes the plan and stores it. Its snapshot is tagged first, so that nothing it reads can be collected meanwhile.
async fn store(lake: &Lake, snapshot: &Snapshot, planner: &Planner<'_>) -> Result<Plan> {
    let tag = plans::snapshot_tag(planner.plan_id());
    let named = snapshots::create(snapshot, Some(&tag)).await?;
    let stored = async {
        let mut plan = planner.plan().await?;
        plan.row.snapshot_id = named.snapshot_id;
        plans::append(lake, plan.row.clone(), &plan.batches).await?;
        anyhow::Ok(plan)
    };
    match stored.await {
        Ok(plan) => Ok(plan),
        Err(error) => {
            // else it would keep its versions for ever; if this fails, too, `store check --repair` does it
            let _ = snapshots::remove(lake, &named).await;
            Err(error)
        }
    }
}

/// The id of the plan in the store: of the one that is there already, or of a new one.
#[allow(dead_code, reason = "for dressage-train")]
pub(crate) async fn store_once(lake: &Lake, snapshot: &Snapshot, planner: &Planner<'_>) -> Result<String> {
    if let Some(there) = plans::exact(lake, planner.plan_id()).await? {
        return Ok(there.plan_id);
    }
    Ok(store(lake, snapshot, planner).await?.row.plan_id)
}

/// Whether a plan failed for want of rollouts to plan.
#[allow(dead_code, reason = "for dressage-train")]
pub(crate) fn is_nothing_to_plan(error: &anyhow::Error) -> bool {
    let of = |cause: &(dyn std::error::Error + 'static)| {
        use dressage_segmenter::Error::{AllPlanned, NothingToPlan};
        matches!(cause.downcast_ref(), Some(NothingToPlan { .. } | AllPlanned { .. }))
    };
    error.chain().any(of)
}

/// A plan as it is printed.
struct Shown {
    new: bool,
    summary: Value,
    steps: Option<Value>,
    read_bytes: u64,
}

/// Bytes that were read of the store so far.
async fn read_bytes(asked: &Asked<'_>) -> Result<u64> {
    Ok(asked.snapshot.io_stats().await?.read_bytes)
}

fn show(context: &Context, shown: Shown) -> Result<()> {
    let Shown { new, summary, steps, read_bytes } = shown;
    if !new {
        context.output.note("the same plan was there already: nothing was stored");
    }
    if context.output.json {
        let mut document = summary;
        document["stored"] = json!(true);
        document["new"] = json!(new);
        document["read_bytes"] = json!(read_bytes);
        if let Some(steps) = steps {
            document["train_steps"] = steps;
        }
        return context.output.json(&document);
    }
    context.output.text(&page::plan(&summary, steps.as_ref(), context.output.paint()))
}
