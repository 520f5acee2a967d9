//! The trainer: a model, what updates it, and how far it has come.

use std::sync::Arc;

use tch::{Device, Tensor};

use super::pass::{Pass, no_logprobs};
use super::train_step::TrainStep;
use crate::collective::Collectives;
use crate::error::{Error, Result};
use crate::loss::Objective;
use crate::micro_batch::{MicroBatch, ModelLimits, Needs, RouterShape};
use crate::model::Model;
use crate::optimizer::AdamW;
use crate::parallel::DataParallel;
use crate::settings::TrainerSettings;

/// A model in training.
#[derive(Debug)]
pub struct Trainer {
    pub(crate) model: Model,
    pub(super) reference: Option<Model>,
    pub(crate) settings: TrainerSettings,
    pub(super) objective: Objective,
    pub(crate) optimizer: AdamW,
    pub(crate) train_steps: u64,
    pub(crate) skipped_train_steps: u64,
    /// None for a rank that is alone.
    pub(crate) parallel: Option<DataParallel>,
    /// Whether a backward was run since the last update: also after a step that was given up half way.
    pub(crate) has_gradients: bool,
}

impl Trainer {
    /// A trainer that has not taken a step yet. A reference that is given is run for every micro-batch, also where `[kl]
    /// coefficient` is 0: the metric `kl` is then all that comes of it. Load it as not trainable.
    ///
    /// # Errors
    ///
    /// [`Error::Settings`] for settings that do not go together, [`Error::Setting`] for a model of another kind or on another
    /// device than they say, [`Error::NoReference`] where one is needed, [`Error::ReferenceVocabulary`] for one that does not
    /// fit, [`Error::Torch`] for want of memory.
    pub fn new(model: Model, reference: Option<Model>, settings: TrainerSettings) -> Result<Self> {
        Self::build(model, reference, settings, None)
    }

    /// A trainer that trains together with the other ranks of `group`, each with the weights of rank 0: every step sums up the
    /// gradients of all, and gives the same weights to all. What ranks share out, `[parallel] shard` says. A group of one rank
    /// is as [`Trainer::new`].
    ///
    /// All ranks take the same steps with as many micro-batches each, also save and restore together. Steps, the norm of
    /// gradients, metrics and whether a step is skipped are of all ranks together.
    ///
    /// # Errors
    ///
    /// As [`Trainer::new`]; [`Error::Collective`] if another rank fails or has another model, as from every function that does
    /// something together. A trainer that gave one is to be dropped, and its process started again.
    pub fn parallel(
        model: Model,
        reference: Option<Model>,
        settings: TrainerSettings,
        group: Arc<dyn Collectives>,
    ) -> Result<Self> {
        Self::build(model, reference, settings, Some(group).filter(|group| group.world_size() > 1))
    }

    fn build(
        mut model: Model,
        reference: Option<Model>,
        settings: TrainerSettings,
        group: Option<Arc<dyn Collectives>>,
    ) -> Result<Self> {
        settings.check()?;
        let objective = settings.objective()?;
        check_options(&model, &settings)?;
        match &reference {
            None if objective.needs_ref_logprobs() => {
                return Err(Error::NoReference { coefficient: settings.kl.coefficient });
            }
            Some(reference) if reference.config().vocab_size != model.config().vocab_size => {
                let (reference, policy) = (reference.config().vocab_size, model.config().vocab_size);
                return Err(Error::ReferenceVocabulary { reference, policy });
            }
            _ => {}
        }
        // in this order, since the optimiser of a bf16 model copies the weights
        let parallel = group.map(|group| DataParallel::new(&mut model, group, settings.parallel)).transpose()?;
        let optimizer = match parallel.as_ref().filter(|parallel| parallel.shares_optimizer()) {
            Some(parallel) => {
                AdamW::of_part(&model, settings.optimizer, parallel.shard(), parallel.shares_gradients())?
            }
            None => AdamW::new(&model, settings.optimizer)?,
        };
        Ok(Self {
            model,
            reference,
            settings,
            objective,
            optimizer,
            train_steps: 0,
            skipped_train_steps: 0,
            parallel,
            has_gradients: false,
        })
    }

    /// The settings in force.
    pub fn settings(&self) -> &TrainerSettings {
        &self.settings
    }

    /// The model that is trained. With `[parallel] shard = "parameters"` it gives no parameters, and all ranks call what runs it
    /// together.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// What a micro-batch has to fit: the model, and the reference if there is one.
    pub fn limits(&self) -> ModelLimits {
        let config = self.model.config();
        let count = |n: i64| usize::try_from(n).unwrap_or(0);
        let reference_positions = self.reference.as_ref().map_or(i64::MAX, |r| r.config().positions_max);
        ModelLimits {
            vocab_size: count(config.vocab_size),
            positions_max: count(config.positions_max.min(reference_positions)),
            router: config.experts.as_ref().map(|experts| RouterShape {
                layers: config.n_layers,
                expert_layers: experts.layers.iter().filter(|has| **has).count(),
                top_k: count(experts.top_k),
                n_experts: count(experts.n_experts),
            }),
        }
    }

    /// What a micro-batch has to have for the loss.
    pub fn needs(&self) -> Needs {
        self.objective.needs()
    }

    /// Whether [`TrainStep::micro_batch`] has to be given old log-probs: those that [`Trainer::logprobs`] gave for the same
    /// micro-batch before the first of the `train_steps_per_policy` steps.
    pub fn needs_old_logprobs(&self) -> bool {
        self.settings.step.train_steps_per_policy > 1 && self.objective.reads_old_logprobs()
    }

    /// Train steps taken so far, skipped ones too: the schedule's position.
    pub fn train_steps(&self) -> u64 {
        self.train_steps
    }

    /// Of those, the skipped ones.
    pub fn skipped_train_steps(&self) -> u64 {
        self.skipped_train_steps
    }

    /// Log-probs of the trained tokens under the weights as they are, `[N]` f32 on the CPU, without gradient: old log-probs
    /// for a later step. Bit-equal to those of a step under the same weights. With `[parallel] shard = "parameters"` all ranks
    /// call it together, each for as many micro-batches.
    ///
    /// # Errors
    ///
    /// [`Error::TokenRange`] and the like for a micro-batch that was read for another model, [`Error::Torch`] for want of
    /// memory.
    pub fn logprobs(&self, batch: &MicroBatch) -> Result<Tensor> {
        match Pass::of(batch, self.model.options().device)? {
            Some(pass) => {
                let logprobs = pass.logprobs(&self.model, self.settings.model.score_options(false))?;
                Ok(logprobs.f_to_device(Device::Cpu)?)
            }
            None => {
                self.model.walk_forward()?;
                no_logprobs()
            }
        }
    }

    /// Begins a train step. What an earlier one left that was never finished is forgotten.
    pub fn begin_step(&mut self) -> TrainStep<'_> {
        TrainStep::begin(self, None)
    }

    /// As [`Trainer::begin_step`], of so many micro-batches on every rank: gradients are then sent to the other ranks while the
    /// backward pass of the last one still runs, not after it. [`TrainStep::finish`] refuses another number.
    pub fn begin_step_of(&mut self, n_micro_batches: u64) -> TrainStep<'_> {
        TrainStep::begin(self, Some(n_micro_batches))
    }

    /// The rank and the number of ranks.
    pub fn ranks(&self) -> (usize, usize) {
        self.parallel.as_ref().map_or((0, 1), |parallel| (parallel.group().rank(), parallel.group().world_size()))
    }

    /// The learning rate of the next step.
    pub fn learning_rate(&self) -> f64 {
        self.settings.optimizer.learning_rate * self.settings.schedule.share(self.train_steps)
    }

    /// Drops what backward passes left.
    pub(crate) fn forget_gradients(&mut self) -> Result<()> {
        if self.has_gradients {
            self.optimizer.forget_gradients(&self.model)?;
            self.has_gradients = false;
        }
        Ok(())
    }
}

/// A model that was loaded otherwise than the settings say would make a checkpoint that says what is not so.
fn check_options(model: &Model, settings: &TrainerSettings) -> Result<()> {
    let (found, wanted) = (model.options(), settings.model.options(true)?);
    let misfit = |setting, value: String| {
        Err(Error::Setting {
            setting,
            value,
            problem: "the model was loaded otherwise; load it with ModelSettings::options",
        })
    };
    if found.kind != wanted.kind {
        return misfit("kind", settings.model.kind.as_str().to_owned());
    }
    if found.device != wanted.device {
        return misfit("device", settings.model.device.to_string());
    }
    if !found.trainable {
        return misfit("trainable", "true".to_owned());
    }
    Ok(())
}
