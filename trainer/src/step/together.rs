//! A train step among several ranks: what is sent when, and what is decided together.

use super::train_step::TrainStep;
use super::trainer::Trainer;
use crate::collective::CollectiveError;
use crate::error::Result;
use crate::loss::LossStats;
use crate::parallel::StepSoFar;

impl TrainStep<'_> {
    /// Says what this rank does from here on.
    pub(super) fn enter(&self, part: &str) {
        if let Some(parallel) = &self.trainer.parallel {
            parallel.group().enter(&format!("train step {}, {part}", self.trainer.train_steps));
        }
    }

    /// Whether gradients are sent during the backward pass of this micro-batch: its own where they are shared out, else those of
    /// the whole step if it is known to be the last.
    pub(super) fn sends_now(&self) -> bool {
        let Some(parallel) = &self.trainer.parallel else { return false };
        parallel.shares_gradients() || self.n_expected == Some(self.n_micro_batches)
    }

    /// Sends what this rank did not send of a micro-batch, so that every rank sends the same: all of it if it had nothing to
    /// compute.
    pub(super) fn take_part(&mut self) -> Result<()> {
        if !self.sends_now() {
            return Ok(());
        }
        self.forget_leftovers()?;
        let Self { trainer, reduction, walked, .. } = self;
        let Trainer { model, optimizer, parallel, has_gradients, .. } = &mut **trainer;
        let Some(parallel) = parallel else { return Ok(()) };
        *has_gradients = true;
        if !walked.forward {
            model.walk_forward()?;
        }
        if !walked.back {
            parallel.walk_back(reduction, model, optimizer)?;
        }
        reduction.send_rest(parallel, model, optimizer)?;
        // the next micro-batch's gradients must not meet these
        if parallel.shares_gradients() { reduction.wait(parallel, model, optimizer) } else { Ok(()) }
    }

    /// A step of another number of micro-batches than was said has sent too early or not at all.
    pub(super) fn check_count(&self) -> Result<()> {
        let found = self.n_micro_batches;
        match (&self.trainer.parallel, self.n_expected) {
            (Some(parallel), Some(expected)) if expected != found => {
                let (rank, world_size) = (parallel.group().rank(), parallel.group().world_size());
                let problem = format!("the train step has {found} micro-batches, and {expected} were announced");
                parallel.group().give_up(&problem);
                Err(CollectiveError::OutOfStep { rank, world_size, problem: problem.into() }.into())
            }
            _ => Ok(()),
        }
    }

    /// Makes the step one of all ranks: its sums, whether a number is none, and the gradients if none is.
    pub(super) fn meet(&mut self) -> Result<()> {
        self.enter("gradients");
        let device = self.trainer.model.options().device;
        let Self { trainer, reduction, stats, not_finite, n_micro_batches, has_computed, .. } = self;
        let Trainer { model, optimizer, parallel, train_steps, has_gradients, .. } = &mut **trainer;
        let Some(parallel) = parallel else { return Ok(()) };
        let is_sent = parallel.shares_gradients() || reduction.has_begun();
        if is_sent {
            reduction.wait(parallel, model, optimizer)?;
        }
        let own_stats = match stats.take() {
            Some(stats) => stats,
            None => LossStats::none(device)?,
        };
        let agreed = parallel.agree(&StepSoFar {
            train_steps: *train_steps,
            n_micro_batches: *n_micro_batches,
            stats: &own_stats,
            has_gradients: *has_computed,
            not_finite: not_finite.as_ref(),
        })?;
        *stats = Some(agreed.stats);
        *not_finite = agreed.not_finite;
        if agreed.has_gradients && not_finite.is_none() {
            *has_gradients = true;
            if !is_sent {
                reduction.send_rest(parallel, model, optimizer)?;
                reduction.wait(parallel, model, optimizer)?;
            }
            parallel.group().enter(&format!("train step {train_steps}, update"));
            return Ok(());
        }
        // sums of nothing are no gradients
        trainer.forget_gradients()
    }
}
