//! AdamW over a model's parameters, with state that can be saved.
//!
//! Under bf16 the weights that are updated are f32 copies (masters), and gradients of several micro-batches are summed
//! up in f32: a bf16 weight does not move by less than a 256th of itself, and most updates are smaller.
//!
//! With several ranks each may have its part only ([`Shard`]): of the state, and of the sums of gradients too. What differs
//! then is in `parts.rs`.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use tch::{Kind, Tensor, no_grad};

use crate::error::{Error, Result};
use crate::model::{Model, Parameter};
use crate::native::{AdamwStep, fused_adamw, global_norm, scale, set_gradient};
use crate::parallel::Shard;
use crate::settings::AdamWSettings;

/// What a step did.
#[derive(Debug, Clone, PartialEq)]
pub enum StepOutcome {
    /// The weights were updated.
    Updated {
        /// 2-norm of all gradients, before clipping.
        grad_norm: f64,
    },
    /// A gradient is infinite or no number; nothing was changed.
    NotFinite {
        /// The first parameter with such a gradient.
        parameter: String,
    },
}

/// A tensor of the optimiser's state, by name.
pub type NamedState = (String, Tensor);

/// What is kept for one parameter.
#[derive(Debug)]
pub(super) struct Slot {
    /// The parameter itself, or its f32 copy; with parts, this rank's numbers of it, `[n]`.
    pub(super) weight: Tensor,
    /// Whether `weight` is a copy.
    pub(super) is_copy: bool,
    /// Gradients summed up in f32; none for f32 parameters, whose own gradient is that sum. Of this rank's numbers only where
    /// gradients are shared out.
    pub(super) sum: Option<Tensor>,
    /// Shaped like `weight`, as is `second`.
    pub(super) first: Tensor,
    pub(super) second: Tensor,
    /// Updates so far: an f32 scalar, as the kernel wants it.
    pub(super) steps: Tensor,
}

/// AdamW with decoupled decay.
#[derive(Debug)]
pub struct AdamW {
    pub(super) settings: AdamWSettings,
    pub(super) slots: Vec<Slot>,
    pub(super) shard: Shard,
    /// Whether sums of gradients are of this rank's part.
    pub(super) shares_gradients: bool,
}

impl AdamW {
    /// An optimiser that has seen nothing yet.
    ///
    /// # Errors
    ///
    /// [`Error::Settings`] for settings that make no sense, [`Error::Torch`] for want of memory: 8 bytes a parameter,
    /// 16 under bf16.
    pub fn new(model: &Model, settings: AdamWSettings) -> Result<Self> {
        Self::of_part(model, settings, Shard::whole(), false)
    }

    /// An optimiser of one rank's part, and of its part of the sums of gradients if those are shared out.
    pub(crate) fn of_part(
        model: &Model,
        settings: AdamWSettings,
        shard: Shard,
        shares_gradients: bool,
    ) -> Result<Self> {
        settings.check()?;
        let slot = |at| no_grad(|| Slot::of(model, at, shard, shares_gradients));
        let slots = (0..model.all_parameters().len()).map(slot).collect::<Result<_>>()?;
        Ok(Self { settings, slots, shard, shares_gradients })
    }

    /// How weights are updated.
    pub fn settings(&self) -> &AdamWSettings {
        &self.settings
    }

    /// Takes over what a micro-batch's backward left on the parameters. To be called after each backward; does
    /// nothing for f32 models, whose gradients sum up by themselves.
    ///
    /// # Errors
    ///
    /// [`Error::Torch`] for want of memory.
    pub fn accumulate(&mut self, model: &Model) -> Result<()> {
        if self.shares_gradients {
            return Ok(());
        }
        no_grad(|| self.slots.iter_mut().zip(model.all_parameters()).try_for_each(|(slot, p)| slot.accumulate(p)))
    }

    /// Clips, updates every parameter that has a gradient, and forgets the gradients. `learning_rate` is this step's
    /// ([`AdamWSettings::learning_rate`] times [`crate::Schedule::share`]).
    ///
    /// A gradient that is not finite stops the step before anything is changed, and the gradients stay.
    ///
    /// # Errors
    ///
    /// [`Error::Torch`] for want of memory.
    pub fn step(&mut self, model: &Model, learning_rate: f64) -> Result<StepOutcome> {
        self.accumulate(model)?;
        let gradients = self.gradients(model)?;
        let all: Vec<Tensor> = gradients.iter().flatten().map(Tensor::shallow_clone).collect();
        if all.is_empty() {
            return Ok(StepOutcome::Updated { grad_norm: 0.0 });
        }
        let grad_norm = global_norm(&all)?.f_double_value(&[])?;
        if !grad_norm.is_finite() {
            // each may be finite, and the sum of their squares not
            let parameter = first_not_finite(model, &gradients)?.unwrap_or_else(|| "all together".to_owned());
            return Ok(StepOutcome::NotFinite { parameter });
        }
        if let Some(factor) = self.clip_factor(grad_norm) {
            scale_by(&all, factor)?;
        }
        for decays in [true, false] {
            self.update(model, &gradients, decays, learning_rate)?;
        }
        self.forget_gradients(model)?;
        Ok(StepOutcome::Updated { grad_norm })
    }

    /// What gradients of this norm are multiplied with; none if they stay.
    pub(super) fn clip_factor(&self, grad_norm: f64) -> Option<f64> {
        let max = self.settings.grad_norm_max.filter(|max| grad_norm > *max)?;
        // the small number is PyTorch's, so that both clip alike
        Some((max / (grad_norm + 1e-6)).min(1.0))
    }

    /// Forgets the gradients, those summed up here and those on the parameters: after a step that was stopped.
    ///
    /// # Errors
    ///
    /// [`Error::Torch`] if libtorch refuses.
    pub fn forget_gradients(&mut self, model: &Model) -> Result<()> {
        for slot in &mut self.slots {
            if let Some(sum) = &mut slot.sum {
                let _ = sum.f_zero_()?;
            }
        }
        model.clear_gradients()
    }

    /// The f32 weights, in the order of the parameters: what a checkpoint of a bf16 model has to keep. Where ranks have parts,
    /// this rank's, `[n]` each.
    pub fn weights(&self) -> Vec<Tensor> {
        self.slots.iter().map(|s| s.weight.shallow_clone()).collect()
    }

    /// Everything that a later run needs to go on as if it were this one, besides the weights of an f32 model: for
    /// each parameter its moments (`first.NAME`, `second.NAME`), its count of updates (`steps.NAME`) and, under bf16,
    /// the f32 weights (`weight.NAME`). The tensors share their storage with the optimiser. Where ranks have parts, all but the
    /// counts are this rank's, `[n]`.
    pub fn state(&self, model: &Model) -> Vec<NamedState> {
        let mut state = Vec::new();
        for (slot, parameter) in self.slots.iter().zip(model.all_parameters()) {
            let mut push = |what: &str, tensor: &Tensor| {
                state.push((format!("{what}.{}", parameter.name()), tensor.shallow_clone()));
            };
            push("first", &slot.first);
            push("second", &slot.second);
            push("steps", &slot.steps);
            if slot.is_copy {
                push("weight", &slot.weight);
            }
        }
        state
    }

    /// Takes over what [`AdamW::state`] gave, by name. Under bf16 the model's weights are set from the f32 ones.
    ///
    /// # Errors
    ///
    /// [`Error::OptimizerState`] for a tensor that is missing, left over or of another shape; nothing is changed then.
    pub fn restore(&mut self, model: &Model, state: &[NamedState]) -> Result<()> {
        let shapes: Vec<_> = state.iter().map(|(name, tensor)| (name.as_str(), tensor.size())).collect();
        self.check_state(model, &shapes, self.shard)?;
        let given: HashMap<&str, &Tensor> = state.iter().map(|(n, t)| (n.as_str(), t)).collect();
        self.take_state(model, |name, _| Ok(given[name].shallow_clone()))
    }

    /// Whether tensors of these names and shapes are the state of an optimiser of `model`, of the part of the rank `of`.
    pub(crate) fn check_state(&self, model: &Model, shapes: &[(&str, Vec<i64>)], of: Shard) -> Result<()> {
        let misfit = |problem: String| Error::OptimizerState { problem };
        let own = self.state_shapes(model, of);
        let given: HashMap<&str, &Vec<i64>> = shapes.iter().map(|(n, s)| (*n, s)).collect();
        for (name, expected) in &own {
            let found = given.get(name.as_str()).ok_or_else(|| misfit(format!("it has no {name}")))?;
            if expected != *found {
                return Err(misfit(format!("{name} is {found:?}, and here {expected:?}")));
            }
        }
        if shapes.len() != own.len() {
            let known: HashSet<&str> = own.iter().map(|(n, _)| n.as_str()).collect();
            let extra = shapes.iter().find(|(name, _)| !known.contains(name)).map(|(n, _)| *n);
            return Err(misfit(format!("it also has {}", extra.unwrap_or("a tensor twice"))));
        }
        Ok(())
    }

    /// Names and shapes of what [`Self::state`] gives on the rank `of`.
    fn state_shapes(&self, model: &Model, of: Shard) -> Vec<(String, Vec<i64>)> {
        let mut shapes = Vec::new();
        for (slot, parameter) in self.slots.iter().zip(model.all_parameters()) {
            let tensor = parameter.tensor();
            let part = if of.is_whole() { tensor.size() } else { vec![of.len(tensor.numel() as i64)] };
            let mut push = |what: &str, shape| shapes.push((format!("{what}.{}", parameter.name()), shape));
            push("first", part.clone());
            push("second", part.clone());
            push("steps", Vec::new());
            if slot.is_copy {
                push("weight", part);
            }
        }
        shapes
    }

    /// Copies the state that [`Self::check_state`] looked at, one tensor after the other: `read` gives the numbers of a range of
    /// a parameter's, counted through, or a count.
    pub(crate) fn take_state(
        &mut self,
        model: &Model,
        mut read: impl FnMut(&str, Option<Range<i64>>) -> Result<Tensor>,
    ) -> Result<()> {
        no_grad(|| {
            for (slot, parameter) in self.slots.iter_mut().zip(model.all_parameters()) {
                let range = self.shard.range(parameter.tensor().numel() as i64);
                let mut take = |what: &str, to: &mut Tensor, range: Option<Range<i64>>| {
                    let found = read(&format!("{what}.{}", parameter.name()), range)?;
                    to.f_copy_(&found.f_view(to.size().as_slice())?)?;
                    Ok::<_, Error>(())
                };
                take("first", &mut slot.first, Some(range.clone()))?;
                take("second", &mut slot.second, Some(range.clone()))?;
                take("steps", &mut slot.steps, None)?;
                if slot.is_copy {
                    take("weight", &mut slot.weight, Some(range))?;
                }
            }
            self.publish(model, |_| true)
        })
    }

    /// Copies the f32 weights of some parameters into a bf16 model.
    fn publish(&self, model: &Model, which: impl Fn(&Parameter) -> bool) -> Result<()> {
        for (at, (slot, parameter)) in self.slots.iter().zip(model.all_parameters()).enumerate() {
            if slot.is_copy && which(parameter) {
                model.part(at, self.shard)?.f_copy_(&slot.weight)?;
            }
        }
        Ok(())
    }

    /// The gradient of each parameter, where it has one.
    fn gradients(&self, model: &Model) -> Result<Vec<Option<Tensor>>> {
        let of = |(slot, parameter): (&Slot, &Parameter)| match &slot.sum {
            Some(sum) => Ok(Some(sum.shallow_clone())),
            None => parameter.gradient(),
        };
        self.slots.iter().zip(model.all_parameters()).map(of).collect()
    }

    pub(super) fn update(
        &mut self,
        model: &Model,
        gradients: &[Option<Tensor>],
        decays: bool,
        learning_rate: f64,
    ) -> Result<()> {
        let (mut weights, mut used, mut first, mut second, mut steps) = (vec![], vec![], vec![], vec![], vec![]);
        for ((slot, parameter), gradient) in self.slots.iter().zip(model.all_parameters()).zip(gradients) {
            let Some(gradient) = gradient.as_ref().filter(|_| parameter.decays() == decays) else { continue };
            weights.push(slot.weight.shallow_clone());
            used.push(gradient.shallow_clone());
            first.push(slot.first.shallow_clone());
            second.push(slot.second.shallow_clone());
            steps.push(slot.steps.shallow_clone());
        }
        if weights.is_empty() {
            return Ok(());
        }
        let numbers = AdamwStep {
            learning_rate,
            beta1: self.settings.beta1,
            beta2: self.settings.beta2,
            weight_decay: if decays { self.settings.weight_decay } else { 0.0 },
            eps: self.settings.eps,
        };
        fused_adamw(&weights, &used, &first, &second, &steps, numbers)?;
        no_grad(|| self.publish(model, |parameter| parameter.decays() == decays))
    }
}

impl Slot {
    fn of(model: &Model, at: usize, shard: Shard, shares_gradients: bool) -> Result<Self> {
        let whole = model.all_parameters()[at].tensor();
        let wide = whole.f_kind()? == Kind::Float;
        let part = model.part(at, shard)?;
        let weight = if wide { part } else { part.f_to_kind(Kind::Float)? };
        let sum = match (shares_gradients, wide) {
            (true, _) => Some(weight.f_zeros_like()?),
            (false, false) => Some(Tensor::f_zeros(whole.size(), (Kind::Float, whole.device()))?),
            (false, true) => None,
        };
        Ok(Self {
            sum,
            is_copy: !wide,
            first: weight.f_zeros_like()?,
            second: weight.f_zeros_like()?,
            steps: Tensor::f_zeros(Vec::<i64>::new(), (Kind::Float, weight.device()))?,
            weight,
        })
    }

    /// Adds a parameter's gradient to the sum, where there is one, and takes it off the parameter.
    pub(super) fn accumulate(&mut self, parameter: &Parameter) -> Result<()> {
        let (Some(sum), Some(gradient)) = (&mut self.sum, parameter.gradient()?) else { return Ok(()) };
        let _ = sum.f_add_(&gradient)?;
        set_gradient(parameter.tensor(), None)
    }
}

/// Multiplies tensors, of which there are some, in place.
pub(super) fn scale_by(tensors: &[Tensor], factor: f64) -> Result<()> {
    let factor = Tensor::f_from_slice(&[factor as f32])?.f_squeeze()?;
    scale(tensors, &factor.f_to_device(tensors[0].device())?)
}

/// The first parameter with a gradient that is not finite.
fn first_not_finite(model: &Model, gradients: &[Option<Tensor>]) -> Result<Option<String>> {
    for (parameter, gradient) in model.all_parameters().iter().zip(gradients) {
        let Some(gradient) = gradient else { continue };
        if gradient.f_isfinite()?.f_all()?.f_int64_value(&[])? == 0 {
            return Ok(Some(parameter.name().to_owned()));
        }
    }
    Ok(None)
}
