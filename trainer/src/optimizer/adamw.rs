//! AdamW over a model's parameters, with state that can be saved.
//!
//! Under bf16 the weights that are updated are f32 copies (masters), and gradients of several micro-batches are summed
//! up in f32: a bf16 weight does not move by less than a 256th of itself, and most updates are smaller.

use std::collections::{HashMap, HashSet};

use tch::{Kind, Tensor, no_grad};

use crate::error::{Error, Result};
use crate::model::{Model, Parameter};
use crate::native::{AdamwStep, fused_adamw, global_norm, scale, set_gradient};
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
struct Slot {
    /// The parameter itself, or its f32 copy.
    weight: Tensor,
    /// Gradients summed up in f32; none for f32 parameters, whose own gradient is that sum.
    sum: Option<Tensor>,
    first: Tensor,
    second: Tensor,
    /// Updates so far: an f32 scalar, as the kernel wants it.
    steps: Tensor,
}

/// AdamW with decoupled decay.
#[derive(Debug)]
pub struct AdamW {
    settings: AdamWSettings,
    slots: Vec<Slot>,
}

impl AdamW {
    /// An optimiser that has seen nothing yet.
    ///
    /// # Errors
    ///
    /// [`Error::Settings`] for settings that make no sense, [`Error::Torch`] for want of memory: 8 bytes a parameter,
    /// 16 under bf16.
    pub fn new(model: &Model, settings: AdamWSettings) -> Result<Self> {
        settings.check()?;
        let slots = model.parameters().iter().map(|p| no_grad(|| Slot::of(p))).collect::<Result<_>>()?;
        Ok(Self { settings, slots })
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
        no_grad(|| {
            for (slot, parameter) in self.slots.iter_mut().zip(model.parameters()) {
                let (Some(sum), Some(gradient)) = (&mut slot.sum, parameter.gradient()?) else { continue };
                let _ = sum.f_add_(&gradient)?;
                set_gradient(parameter.tensor(), None)?;
            }
            Ok(())
        })
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
        if let Some(max) = self.settings.grad_norm_max.filter(|max| grad_norm > *max) {
            // the small number is PyTorch's, so that both clip alike
            let factor = (max / (grad_norm + 1e-6)).min(1.0);
            scale(&all, &Tensor::f_from_slice(&[factor as f32])?.f_squeeze()?.f_to_device(all[0].device())?)?;
        }
        for decays in [true, false] {
            self.update(model, &gradients, decays, learning_rate)?;
        }
        self.forget_gradients(model)?;
        Ok(StepOutcome::Updated { grad_norm })
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

    /// The f32 weights, in the order of the parameters: what a checkpoint of a bf16 model has to keep.
    pub fn weights(&self) -> Vec<Tensor> {
        self.slots.iter().map(|s| s.weight.shallow_clone()).collect()
    }

    /// Everything that a later run needs to go on as if it were this one, besides the weights of an f32 model: for
    /// each parameter its moments (`first.NAME`, `second.NAME`), its count of updates (`steps.NAME`) and, under bf16,
    /// the f32 weights (`weight.NAME`). The tensors share their storage with the optimiser.
    pub fn state(&self, model: &Model) -> Vec<NamedState> {
        let mut state = Vec::new();
        for (slot, parameter) in self.slots.iter().zip(model.parameters()) {
            let mut push = |what: &str, tensor: &Tensor| {
                state.push((format!("{what}.{}", parameter.name()), tensor.shallow_clone()));
            };
            push("first", &slot.first);
            push("second", &slot.second);
            push("steps", &slot.steps);
            if slot.sum.is_some() {
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
        self.check_state(model, &shapes)?;
        let given: HashMap<&str, &Tensor> = state.iter().map(|(n, t)| (n.as_str(), t)).collect();
        self.take_state(model, |name| Ok(given[name].shallow_clone()))
    }

    /// Whether tensors of these names and shapes are the state of an optimiser of `model`.
    pub(crate) fn check_state(&self, model: &Model, shapes: &[(&str, Vec<i64>)]) -> Result<()> {
        let misfit = |problem: String| Error::OptimizerState { problem };
        let own = self.state(model);
        let given: HashMap<&str, &Vec<i64>> = shapes.iter().map(|(n, s)| (*n, s)).collect();
        for (name, tensor) in &own {
            let found = given.get(name.as_str()).ok_or_else(|| misfit(format!("it has no {name}")))?;
            let expected = tensor.size();
            if expected != **found {
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

    /// Copies the state that [`Self::check_state`] looked at, one tensor after the other.
    pub(crate) fn take_state(&mut self, model: &Model, mut read: impl FnMut(&str) -> Result<Tensor>) -> Result<()> {
        no_grad(|| {
            for (name, mut tensor) in self.state(model) {
                tensor.f_copy_(&read(&name)?)?;
            }
            self.publish(model, |_| true)
        })
    }

    /// Copies the f32 weights of some parameters into a bf16 model.
    fn publish(&self, model: &Model, which: impl Fn(&Parameter) -> bool) -> Result<()> {
        for (slot, parameter) in self.slots.iter().zip(model.parameters()) {
            if slot.sum.is_some() && which(parameter) {
                parameter.tensor().shallow_clone().f_copy_(&slot.weight)?;
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
        self.slots.iter().zip(model.parameters()).map(of).collect()
    }

    fn update(&mut self, model: &Model, gradients: &[Option<Tensor>], decays: bool, learning_rate: f64) -> Result<()> {
        let (mut weights, mut used, mut first, mut second, mut steps) = (vec![], vec![], vec![], vec![], vec![]);
        for ((slot, parameter), gradient) in self.slots.iter().zip(model.parameters()).zip(gradients) {
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
    fn of(parameter: &Parameter) -> Result<Self> {
        let tensor = parameter.tensor().f_detach()?;
        let wide = tensor.f_kind()? == Kind::Float;
        let weight = if wide { tensor } else { tensor.f_to_kind(Kind::Float)? };
        Ok(Self {
            sum: if wide { None } else { Some(weight.f_zeros_like()?) },
            first: weight.f_zeros_like()?,
            second: weight.f_zeros_like()?,
            steps: Tensor::f_zeros(Vec::<i64>::new(), (Kind::Float, weight.device()))?,
            weight,
        })
    }
}

/// The first parameter with a gradient that is not finite.
fn first_not_finite(model: &Model, gradients: &[Option<Tensor>]) -> Result<Option<String>> {
    for (parameter, gradient) in model.parameters().iter().zip(gradients) {
        let Some(gradient) = gradient else { continue };
        if gradient.f_isfinite()?.f_all()?.f_int64_value(&[])? == 0 {
            return Ok(Some(parameter.name().to_owned()));
        }
    }
    Ok(None)
}
