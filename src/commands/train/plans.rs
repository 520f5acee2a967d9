//! Which plan comes next: the one that was named, one over what the run has not trained on yet, or, in a later epoch,
//! one that it has.

use std::sync::Arc;

use anyhow::Result;
use dressage_segmenter::plan::{PlanRequest, Planner, Trained};
use dressage_segmenter::{Session, SessionSettings, StoredPlan};
use dressage_storage::{Lake, plans};
use dressage_trainer::Progress;

use super::file::TrainFile;
use crate::commands::plan as plan_command;
use crate::failure::Failure;
use crate::output::Output;

/// The ranks of a run on one machine.
const WORLD_SIZE: u32 = 1;

/// How plans come about.
#[derive(Debug)]
pub(super) struct Plans<'a> {
    pub(super) lake: &'a Lake,
    pub(super) file: &'a TrainFile,
    /// Variables of the SQL session that plans are made in.
    pub(super) session: SessionSettings,
    pub(super) output: Output,
}

impl Plans<'_> {
    /// A stored plan, by its id or the beginning of it.
    pub(super) async fn open(&self, id: &str) -> Result<StoredPlan> {
        let plan = StoredPlan::open(self.lake, id).await?;
        if plan.world_size() != WORLD_SIZE {
            return Err(Failure::invalid(format!(
                "plan {} was made for {} ranks, and this is one process: plan with --world-size 1",
                plan.plan_id(),
                plan.world_size()
            )));
        }
        Ok(plan)
    }

    /// The plan to be trained after `last` in the first epoch; none where nothing is left.
    async fn after(&self, last: Option<&str>) -> Result<Option<StoredPlan>> {
        if let Some(named) = &self.file.plan.id {
            let plan = self.open(named).await?;
            return Ok((last != Some(plan.plan_id())).then_some(plan));
        }
        let snapshot = self.lake.snapshot(None).await?;
        let trained = match last {
            Some(plan) => Trained::by_plan(self.lake, plan).await?,
            None => Trained::nothing(),
        };
        let mut settings = self.session.clone();
        for (name, value) in [("estimator", &self.file.plan.estimator), ("filter", &self.file.plan.filter)] {
            settings.set.extend(value.as_ref().map(|value| (name.to_owned(), value.clone())));
        }
        let session = Session::open(snapshot.clone(), settings)?;
        let request =
            PlanRequest { scope: self.file.plan.scope(), trained, settings: self.file.plan.settings(WORLD_SIZE)? };
        let planner = Planner::new(&session, Arc::new(snapshot.clone()), snapshot.versions(), request).await?;
        match plan_command::store_once(self.lake, &snapshot, &planner).await {
            Ok(plan_id) => Ok(Some(self.open(&plan_id).await?)),
            // the end of what there is, unless there never was anything
            Err(error) if last.is_some() && plan_command::is_nothing_to_plan(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The plan that a run goes on with, and its place written to `progress`; none where nothing is left to train.
    ///
    /// In the first epoch plans are made (or the named one is taken) one after the other; later epochs go through the
    /// same ones again. A run that was through all its epochs begins its first again with rollouts that came since.
    pub(super) async fn next(&self, progress: &mut Progress) -> Result<Option<StoredPlan>> {
        self.forget_removed(progress).await?;
        if let Some(id) = &progress.plan_id {
            let plan = self.open(id).await?;
            let n_train_steps = plan.row().n_train_steps;
            if progress.next_train_step < n_train_steps {
                self.refuse_another(&plan, progress)?;
                return Ok(Some(plan));
            }
        }
        let last = progress.plans.last().cloned();
        if progress.epoch == 0
            && let Some(plan) = self.after(last.as_deref()).await?
        {
            progress.plans.push(plan.plan_id().to_owned());
            return Ok(Some(begun(plan, progress)));
        }
        let at = progress.plans.iter().position(|id| Some(id) == progress.plan_id.as_ref());
        let following = at.and_then(|at| progress.plans.get(at + 1)).cloned();
        if progress.epoch > 0
            && let Some(id) = following
        {
            return Ok(Some(begun(self.open(&id).await?, progress)));
        }
        if progress.epoch + 1 < self.file.epochs
            && let Some(first) = progress.plans.first().cloned()
        {
            progress.epoch += 1;
            return Ok(Some(begun(self.open(&first).await?, progress)));
        }
        if progress.epoch > 0
            && let Some(plan) = self.after(last.as_deref()).await?
        {
            progress.epoch = 0;
            progress.plans = vec![plan.plan_id().to_owned()];
            return Ok(Some(begun(plan, progress)));
        }
        Ok(None)
    }

    /// Plans that were removed since, with a run of rollouts or by themselves, were trained as far as they were: the run goes
    /// on without them.
    async fn forget_removed(&self, progress: &mut Progress) -> Result<()> {
        let there: Vec<String> = plans::list(self.lake).await?.into_iter().map(|row| row.plan_id).collect();
        progress.plans.retain(|id| there.contains(id));
        if let Some(id) = progress.plan_id.take_if(|id| !there.contains(id)) {
            self.output.note(&format!(
                "plan {id} is not in the store any more (removed with its rollouts?): going on without it, after {} of its train steps",
                progress.next_train_step
            ));
            progress.next_train_step = 0;
            progress.old_logprobs.clear();
        }
        Ok(())
    }

    /// A run in the middle of a plan does not leave it for another.
    fn refuse_another(&self, current: &StoredPlan, progress: &Progress) -> Result<()> {
        match &self.file.plan.id {
            Some(named) if !current.plan_id().starts_with(named.as_str()) => Err(Failure::invalid(format!(
                "training run {} has trained {} of {} train steps of plan {}: let it finish that one first, or give this \
                 one another --train-run",
                progress.train_run,
                progress.next_train_step,
                current.row().n_train_steps,
                current.plan_id()
            ))),
            _ => Ok(()),
        }
    }
}

fn begun(plan: StoredPlan, progress: &mut Progress) -> StoredPlan {
    progress.plan_id = Some(plan.plan_id().to_owned());
    progress.next_train_step = 0;
    plan
}
