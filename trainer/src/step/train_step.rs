//! One train step, from its first micro-batch to its update.

use tch::{Device, Tensor};

use super::gradient_search::{GradientSearch, TokenGradients};
use super::not_finite::{NotFiniteReport, first_not_finite};
use super::pass::{Pass, no_logprobs};
use super::report::{MicroBatchOutcome, StepReport, TrainStepOutcome};
use super::trainer::Trainer;
use crate::error::{Error, Result};
use crate::loss::{LossInput, LossStats, Quantity};
use crate::metrics::names;
use crate::micro_batch::{MicroBatch, ModelLimits, Needs, Place};
use crate::model::Model;
use crate::optimizer::StepOutcome;
use crate::parallel::Reduction;
use crate::scores::TokenScores;
use crate::settings::OnNotFinite;

/// A train step that has begun. Dropped without [`TrainStep::finish`] it has changed nothing.
#[derive(Debug)]
#[must_use = "a step that is not finished updates nothing"]
pub struct TrainStep<'t> {
    pub(super) trainer: &'t mut Trainer,
    /// None before the first micro-batch that was computed.
    pub(super) stats: Option<LossStats>,
    pub(super) not_finite: Option<NotFiniteReport>,
    pub(super) n_micro_batches: u64,
    last_place: Place,
    /// Whether what an earlier step left was looked after.
    is_clean: bool,
    /// How many micro-batches there will be, where that was said.
    pub(super) n_expected: Option<u64>,
    /// Whether this rank has run a backward.
    pub(super) has_computed: bool,
    /// What was sent to the other ranks.
    pub(super) reduction: Reduction,
    /// How far this micro-batch has gone through the model with the others.
    pub(super) walked: Walked,
}

/// How far a micro-batch has gone through a model whose weights ranks share out.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Walked {
    pub(super) forward: bool,
    pub(super) back: bool,
}

/// What one micro-batch gave.
struct Losses {
    logprobs: Tensor,
    stats: LossStats,
    not_finite: Option<NotFiniteReport>,
}

impl<'t> TrainStep<'t> {
    pub(super) fn begin(trainer: &'t mut Trainer, n_expected: Option<u64>) -> Self {
        Self {
            trainer,
            stats: None,
            not_finite: None,
            n_micro_batches: 0,
            last_place: Place::default(),
            is_clean: false,
            n_expected,
            has_computed: false,
            reduction: Reduction::default(),
            walked: Walked::default(),
        }
    }

    /// What a micro-batch has to fit: [`Trainer::limits`].
    pub fn limits(&self) -> ModelLimits {
        self.trainer.limits()
    }

    /// What a micro-batch has to have for the loss: [`Trainer::needs`].
    pub fn needs(&self) -> Needs {
        self.trainer.needs()
    }

    /// The model, with the gradients summed up so far on its parameters (under bf16 they are in the optimiser).
    pub fn model(&self) -> &Model {
        &self.trainer.model
    }

    /// Forward, loss, backward; the gradients are added to the step's. `batch` may be on the CPU or on the model's device; on
    /// the CPU is better, since its tokens are looked at there. `old_logprobs` `[N]` are those of [`Trainer::logprobs`];
    /// none: the ratio is over this step's own, and 1.
    ///
    /// A micro-batch in which nothing is trained costs nothing. After one with a number that is none the rest of the step
    /// is not computed.
    ///
    /// # Errors
    ///
    /// [`Error::OldLogprobsMissing`] if they are needed, [`Error::Loss`] if they are not as many as there are trained
    /// tokens, [`Error::TokenRange`] and the like for a micro-batch that was read for another model, [`Error::Torch`] for want
    /// of memory. Drop the step then.
    pub fn micro_batch(&mut self, batch: &MicroBatch, old_logprobs: Option<&Tensor>) -> Result<MicroBatchOutcome> {
        self.n_micro_batches += 1;
        self.last_place = batch.place();
        self.walked = Walked::default();
        self.enter(&format!("micro-batch {}", batch.place().micro_batch));
        let outcome = self.compute(batch, old_logprobs);
        // the others would find out only when they wait for this rank in vain
        if let (Err(error), Some(parallel)) = (&outcome, &self.trainer.parallel)
            && !matches!(error, Error::Collective(_))
        {
            parallel.group().give_up(&error.to_string());
        }
        outcome
    }

    fn compute(&mut self, batch: &MicroBatch, old_logprobs: Option<&Tensor>) -> Result<MicroBatchOutcome> {
        if let Some(report) = self.not_finite.clone() {
            self.take_part()?;
            return Ok(MicroBatchOutcome { trainer_logprobs: no_logprobs()?, not_finite: Some(report) });
        }
        let device = self.trainer.model.options().device;
        let Some(pass) = Pass::of(batch, device)? else {
            self.take_part()?;
            return Ok(MicroBatchOutcome { trainer_logprobs: no_logprobs()?, not_finite: None });
        };
        if old_logprobs.is_none() && self.trainer.needs_old_logprobs() {
            let steps = self.trainer.settings.step.train_steps_per_policy;
            return Err(Error::OldLogprobsMissing { place: batch.place(), steps });
        }
        self.forget_leftovers()?;
        self.trainer.has_gradients = true;
        self.has_computed = true;
        let losses = self.run(batch, &pass, old_logprobs)?;
        self.take_part()?;
        match losses.not_finite {
            None => {
                self.trainer.optimizer.accumulate(&self.trainer.model)?;
                match &mut self.stats {
                    Some(stats) => stats.add(&losses.stats)?,
                    none => *none = Some(losses.stats),
                }
            }
            Some(report) => self.not_finite = Some(report),
        }
        let trainer_logprobs = losses.logprobs.f_to_device(Device::Cpu)?;
        Ok(MicroBatchOutcome { trainer_logprobs, not_finite: self.not_finite.clone() })
    }

    /// A step before this one may have been dropped half way.
    pub(super) fn forget_leftovers(&mut self) -> Result<()> {
        if !self.is_clean {
            self.trainer.forget_gradients()?;
            self.is_clean = true;
        }
        Ok(())
    }

    fn run(&mut self, batch: &MicroBatch, pass: &Pass, old_logprobs: Option<&Tensor>) -> Result<Losses> {
        let sends_now = self.sends_now();
        let Self { trainer, reduction, walked, .. } = self;
        let Trainer { model, reference, settings, objective, optimizer, parallel, .. } = &mut **trainer;
        let (model, objective, parallel) = (&*model, &*objective, parallel.as_ref().filter(|_| sends_now));
        let device = model.options().device;
        let moved;
        let batch = if batch.trained.rows.device() == device {
            batch
        } else {
            moved = batch.to_device(device)?;
            &moved
        };
        let old_logprobs = old_logprobs.map(|old| old.f_to_device(device)).transpose()?;
        // before the pass whose activations are kept
        let reference = reference.as_ref();
        let ref_logprobs =
            reference.map(|r| pass.reference_logprobs(r, settings.model.score_options(false))).transpose()?;

        let with_entropy = objective.needs_entropy() || settings.step.report_entropy;
        let (forward, score) = (settings.model.forward_options(), settings.model.score_options(with_entropy));
        let trace = match parallel {
            Some(_) => model.forward_in_pieces(&pass.row, forward)?,
            None => model.forward(&pass.row, forward)?,
        };
        walked.forward = true;
        let scores = trace.scores(Some(&pass.wanted), score)?;
        let logprobs = scores.logprobs.f_index_select(0, &pass.rows)?;
        let entropy = scores.entropy.as_ref().map(|entropy| entropy.f_index_select(0, &pass.rows)).transpose()?;
        let input = LossInput {
            old_logprobs: old_logprobs.as_ref(),
            ref_logprobs: ref_logprobs.as_ref(),
            entropy: entropy.as_ref(),
            ..LossInput::of(batch, &logprobs)
        };
        let output = objective.evaluate(&input)?;
        output.loss.f_backward()?;
        let gradients = TokenGradients::of(&scores, &pass.rows)?;

        let optional = |quantity, values: Option<&'_ Tensor>| values.map(|v| (quantity, v.shallow_clone()));
        let mut looked_at = vec![(Quantity::TrainerLogprobs, logprobs.shallow_clone())];
        looked_at.extend(optional(Quantity::OldLogprobs, old_logprobs.as_ref()));
        looked_at.extend(optional(Quantity::RefLogprobs, ref_logprobs.as_ref()));
        // one that is only reported on does not stop a step
        looked_at.extend(optional(Quantity::Entropy, entropy.as_ref().filter(|_| objective.needs_entropy())));
        looked_at.push((Quantity::Loss, output.token_loss.shallow_clone()));
        looked_at.push((Quantity::Gradient, gradients.logprobs.shallow_clone()));
        looked_at.extend(optional(Quantity::Gradient, gradients.entropy.as_ref()));
        let looked_at: Vec<_> = looked_at.iter().map(|(quantity, values)| (*quantity, values)).collect();

        let mut not_finite = first_not_finite(&looked_at, batch)?;
        if not_finite.is_none() {
            let (norm, of_parameter) = match parallel {
                Some(parallel) => {
                    let sent = |unit| reduction.unit_done(parallel, unit, model, optimizer);
                    trace.backward_in_pieces(scores, &mut { sent })?;
                    walked.back = true;
                    reduction.own_norm()?
                }
                None => {
                    trace.backward(scores)?;
                    (model.gradient_norm()?.unwrap_or(0.0), None)
                }
            };
            if !norm.is_finite() {
                let parameter = of_parameter.map(|at| model.all_parameters()[at].name().to_owned());
                let search = GradientSearch { model, batch, pass, gradients: &gradients, forward, scores: score };
                not_finite = Some(search.report(norm, parameter)?);
            }
        }
        Ok(Losses { logprobs: logprobs.f_detach()?, stats: output.stats, not_finite })
    }

    /// Ends the step: clips the gradients and updates the weights, or forgets the gradients if a number was none. Either way
    /// the step counts for the schedule. With several ranks all of them end it together, and a number that is none on one of
    /// them is so for all.
    ///
    /// # Errors
    ///
    /// [`Error::Torch`] for want of memory; [`Error::Collective`] if another rank fails, or is at the end of another step.
    pub fn finish(mut self) -> Result<StepReport> {
        self.forget_leftovers()?;
        self.check_count()?;
        let learning_rate = self.trainer.learning_rate();
        self.meet()?;
        let outcome = match self.not_finite.take() {
            Some(report) => TrainStepOutcome::Skipped(report),
            None if !self.trainer.has_gradients => TrainStepOutcome::Updated { grad_norm: 0.0, learning_rate },
            None => self.update(learning_rate)?,
        };
        let n_ranks = self.trainer.ranks().1 as u64;
        let trainer = self.trainer;
        let mut stats = match self.stats {
            Some(stats) => stats,
            None => LossStats::none(trainer.model.options().device)?,
        };
        let mut metrics = Vec::new();
        match &outcome {
            TrainStepOutcome::Updated { grad_norm, .. } => {
                trainer.has_gradients = false;
                metrics.extend(stats.metrics()?);
                metrics.push((names::GRAD_NORM, *grad_norm));
                metrics.push((names::LEARNING_RATE, learning_rate));
                metrics.push((names::SKIPPED_MICRO_BATCHES, 0.0));
            }
            TrainStepOutcome::Skipped(_) => {
                trainer.forget_gradients()?;
                stats = LossStats::none(trainer.model.options().device)?;
                metrics.push((names::SKIPPED_MICRO_BATCHES, (self.n_micro_batches * n_ranks) as f64));
                if trainer.settings.step.on_not_finite == OnNotFinite::Stop {
                    // the run ends in front of this step, and may try it again with other settings
                    return Ok(StepReport { outcome, metrics, stats });
                }
                trainer.skipped_train_steps += 1;
            }
        }
        trainer.train_steps += 1;
        metrics.push((names::SKIPPED_TRAIN_STEPS, trainer.skipped_train_steps as f64));
        Ok(StepReport { outcome, metrics, stats })
    }

    fn update(&mut self, learning_rate: f64) -> Result<TrainStepOutcome> {
        let Trainer { optimizer, model, parallel, .. } = &mut *self.trainer;
        let outcome = match parallel.as_ref().filter(|parallel| parallel.shares_optimizer()) {
            Some(parallel) => {
                let parts = if parallel.shares_gradients() { optimizer.parts() } else { self.reduction.take_parts() };
                parallel.update_parts(model, optimizer, &parts, learning_rate)?
            }
            None => optimizer.step(model, learning_rate)?,
        };
        Ok(match outcome {
            StepOutcome::Updated { grad_norm } => TrainStepOutcome::Updated { grad_norm, learning_rate },
            StepOutcome::NotFinite { parameter } => TrainStepOutcome::Skipped(NotFiniteReport {
                place: self.last_place,
                at: None,
                quantity: Quantity::Gradient,
                value: f64::INFINITY,
                parameter: Some(parameter),
            }),
        })
    }
}

impl TokenGradients {
    fn of(scores: &TokenScores, rows: &Tensor) -> Result<Self> {
        let at = |leaf: &Tensor| {
            let gradient = leaf.f_grad()?;
            Ok::<_, Error>(if gradient.defined() { Some(gradient.f_index_select(0, rows)?) } else { None })
        };
        let logprobs = match at(&scores.logprobs)? {
            Some(gradient) => gradient,
            None => rows.f_zeros_like()?.f_to_kind(tch::Kind::Float)?,
        };
        Ok(Self { logprobs, entropy: scores.entropy.as_ref().map(at).transpose()?.flatten() })
    }
}
