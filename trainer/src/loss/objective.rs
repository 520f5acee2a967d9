//! The whole loss: settings that go together, and the sum over a micro-batch.

use tch::{Kind, TchError, Tensor};

use super::error::LossError;
use super::input::LossInput;
use super::per_token::PerToken;
use super::stats::{Collector, LossStats};
use super::{correction, kl, policy};
use crate::micro_batch::Needs;
use crate::settings::{CorrectionSettings, KlSettings, LossSettings, OldLogprobs, Policy, SettingsError};

/// A loss, as settings describe it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Objective {
    loss: LossSettings,
    correction: CorrectionSettings,
    kl: KlSettings,
}

/// The loss of a micro-batch.
#[derive(Debug)]
pub struct LossOutput {
    /// float64 of no dimension, with gradient: the micro-batch's part of the train step's loss. To be summed, never averaged.
    pub loss: Tensor,
    /// `[N]` float64: the loss of each token without its segment's weight, without gradient; 0 where a token does not count.
    pub token_loss: Tensor,
    /// What to report.
    pub stats: LossStats,
}

/// The gradient of the micro-batch's loss.
#[derive(Debug)]
pub struct Gradients {
    /// `[N]`, of the type of `trainer_logprobs`.
    pub trainer_logprobs: Tensor,
    /// `[N]`, of the type of `entropy`; none where entropy has no coefficient.
    pub entropy: Option<Tensor>,
}

/// What was given, as formulas take it: float64, 0 where a token does not count.
struct Given {
    tokens: PerToken,
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    weights: Tensor,
}

impl Objective {
    /// The loss of these settings.
    ///
    /// # Errors
    /// [`SettingsError`] where they do not go together.
    pub fn new(loss: LossSettings, correction: CorrectionSettings, kl: KlSettings) -> Result<Self, SettingsError> {
        if correction.is_on() && loss.policy == Policy::CrossEntropy {
            return Err(SettingsError::CorrectsSupervised { kind: correction.kind() });
        }
        if correction.is_on() && loss.policy.has_ratio() && loss.old_logprobs == OldLogprobs::Rollout {
            return Err(SettingsError::CorrectedTwice { kind: correction.kind() });
        }
        Ok(Self { loss, correction, kl })
    }

    /// Whether a micro-batch has to have the rollout's log-probs.
    pub fn needs(&self) -> Needs {
        Needs { logprobs: self.correction.is_on() || self.ratio_is_over_rollout() }
    }

    /// Whether `old_logprobs` matter. They need a forward pass of their own only where weights were updated since they
    /// were current: see [`LossInput::old_logprobs`].
    pub fn reads_old_logprobs(&self) -> bool {
        self.correction.is_on() || (self.loss.policy.has_ratio() && !self.ratio_is_over_rollout())
    }

    /// Whether a reference has to be run.
    pub fn needs_ref_logprobs(&self) -> bool {
        self.kl.coefficient > 0.0
    }

    /// Whether entropies have to be given, with their gradient.
    pub fn needs_entropy(&self) -> bool {
        self.loss.entropy_coefficient > 0.0
    }

    fn ratio_is_over_rollout(&self) -> bool {
        self.loss.policy.has_ratio() && self.loss.old_logprobs == OldLogprobs::Rollout
    }

    /// The loss of a micro-batch, with a graph back to `trainer_logprobs` and `entropy`. Reference and rollout are
    /// reported on wherever they are given, also without a coefficient. Does not wait for the device, and does not look
    /// for NaN: see [`check_trained`](super::check_trained).
    ///
    /// # Errors
    /// [`LossError`] where something needed was not given or is of another length.
    pub fn evaluate(&self, input: &LossInput<'_>) -> Result<LossOutput, LossError> {
        let given = self.given(input)?;
        let Given { tokens, logprobs, old, advantages, weights } = &given;
        let mut stats = Collector::new(tokens);

        let policy = policy::loss(self.loss.policy, tokens, logprobs, old, advantages)?;
        if let Some(report) = &policy.ratio {
            stats.ratio(report, logprobs, old)?;
        }
        let policy = self.corrected(&given, input, policy.loss, &mut stats)?;
        let kl = self.kl(&given, input, &mut stats)?;
        let entropy = self.entropy(&given, input, &mut stats)?;

        let mut token_loss = policy.shallow_clone();
        for term in [&kl, &entropy].into_iter().flatten() {
            token_loss = token_loss.f_add(term)?;
        }
        let weighed = |term: &Tensor| term.f_mul(weights);
        let whole = weighed(&token_loss)?;
        let part = |term: &Option<Tensor>| term.as_ref().map(weighed).transpose();
        stats.losses(&whole, &weighed(&policy)?, part(&kl)?.as_ref(), part(&entropy)?.as_ref())?;
        stats.advantages(input.advantages)?;
        if let Some(rollout) = input.logprobs {
            stats.mismatch(&self.own(&given)?, rollout)?;
        }
        Ok(LossOutput {
            loss: whole.f_sum(Kind::Double)?,
            token_loss: tokens.numbers(&token_loss.f_detach()?)?,
            stats: stats.finish()?,
        })
    }

    /// The loss and its gradient with respect to what the model gave, for models whose backward pass starts from there
    /// (log-probs computed in chunks). The graph behind the inputs is neither used nor freed.
    ///
    /// # Errors
    /// As [`Self::evaluate`].
    pub fn evaluate_with_gradients(&self, input: &LossInput<'_>) -> Result<(LossOutput, Gradients), LossError> {
        let leaf = |tensor: &Tensor| tensor.f_detach()?.f_set_requires_grad(true);
        let logprobs = leaf(input.trainer_logprobs)?;
        let entropy = match input.entropy {
            Some(entropy) if self.needs_entropy() => Some(leaf(entropy)?),
            _ => None,
        };
        let input = LossInput { trainer_logprobs: &logprobs, entropy: entropy.as_ref().or(input.entropy), ..*input };
        let output = tch::with_grad(|| self.evaluate(&input))?;
        let mut leaves = vec![logprobs.shallow_clone()];
        leaves.extend(entropy.as_ref().map(Tensor::shallow_clone));
        let mut gradients = Tensor::f_run_backward(&[&output.loss], &leaves, false, false)?.into_iter();
        let of_logprobs = match gradients.next() {
            Some(gradient) => gradient,
            None => logprobs.f_zeros_like()?,
        };
        let output = LossOutput { loss: output.loss.f_detach()?, ..output };
        Ok((output, Gradients { trainer_logprobs: of_logprobs, entropy: gradients.next() }))
    }

    fn given(&self, input: &LossInput<'_>) -> Result<Given, LossError> {
        let tokens = PerToken::of(input)?;
        let logprobs = tokens.numbers(input.trainer_logprobs)?;
        let old = if self.ratio_is_over_rollout() {
            tokens.numbers(input.logprobs.ok_or(LossError::Missing { what: "the rollout's logprobs" })?)?
        } else {
            match input.old_logprobs {
                Some(old) => tokens.numbers(old)?,
                None => logprobs.shallow_clone(),
            }
        };
        let advantages = tokens.spread(input.advantages)?;
        let weights = tokens.numbers(&tokens.spread(input.loss_weights)?)?;
        Ok(Given { old: old.f_detach()?, tokens, logprobs, advantages, weights })
    }

    /// The trainer's own log-probs, as the rollout's are compared with: not what the ratio is over, where that is the rollout.
    fn own(&self, given: &Given) -> Result<Tensor, TchError> {
        if self.ratio_is_over_rollout() { given.logprobs.f_detach() } else { Ok(given.old.shallow_clone()) }
    }

    fn corrected(
        &self,
        given: &Given,
        input: &LossInput<'_>,
        loss: Tensor,
        stats: &mut Collector<'_>,
    ) -> Result<Tensor, LossError> {
        if !self.correction.is_on() {
            return Ok(loss);
        }
        let rollout = input.logprobs.ok_or(LossError::Missing { what: "the rollout's logprobs" })?;
        let rollout = given.tokens.numbers(rollout)?;
        match correction::weights(self.correction.correction, &given.tokens, &given.old, &rollout)? {
            Some(weights) => {
                stats.correction(&weights)?;
                Ok(loss.f_mul(&weights.weight)?)
            }
            None => Ok(loss),
        }
    }

    /// The term of the reference, `[N]`; none where it has no coefficient.
    fn kl(&self, given: &Given, input: &LossInput<'_>, stats: &mut Collector<'_>) -> Result<Option<Tensor>, LossError> {
        let Some(reference) = input.ref_logprobs else {
            return if self.needs_ref_logprobs() {
                Err(LossError::Missing { what: "the reference's logprobs" })
            } else {
                Ok(None)
            };
        };
        let reference = given.tokens.numbers(&reference.f_detach()?)?;
        let kl = kl::estimate(self.kl.estimator, &given.logprobs, &reference)?;
        stats.kl(&kl)?;
        term(&kl, self.kl.coefficient)
    }

    /// The term of the entropy, `[N]`; none where it has no coefficient.
    fn entropy(
        &self,
        given: &Given,
        input: &LossInput<'_>,
        stats: &mut Collector<'_>,
    ) -> Result<Option<Tensor>, LossError> {
        let Some(entropy) = input.entropy else {
            return if self.needs_entropy() { Err(LossError::Missing { what: "entropies" }) } else { Ok(None) };
        };
        let entropy = given.tokens.numbers(entropy)?;
        stats.entropy(&entropy)?;
        term(&entropy, -self.loss.entropy_coefficient)
    }
}

fn term(values: &Tensor, coefficient: f64) -> Result<Option<Tensor>, LossError> {
    let scaled = |values: &Tensor| -> Result<Tensor, TchError> { values.f_mul_scalar(coefficient) };
    Ok(if coefficient == 0.0 { None } else { Some(scaled(values)?) })
}
