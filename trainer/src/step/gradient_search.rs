//! Which segment, and which of its tokens, makes the gradient of the parameters infinite or NaN. Runs segments again, so it
//! is for a step that is lost anyway.
//!
//! Each segment is run alone with the gradients that the loss left on its tokens. In the first one whose backward gives no
//! number, the shortest run of trained tokens that still does is found by halving: about log2 of their number passes. Its
//! last token is the one that is named.

use tch::{Tensor, no_grad};

use super::not_finite::NotFiniteReport;
use super::pass::Pass;
use crate::error::Result;
use crate::loss::Quantity;
use crate::micro_batch::{MicroBatch, TokenPlace};
use crate::model::{ForwardOptions, Model};
use crate::native::set_gradient;
use crate::row::PackedRow;
use crate::scores::ScoreOptions;

/// What the loss left on the trained tokens, `[N]` each.
#[derive(Debug)]
pub(super) struct TokenGradients {
    pub(super) logprobs: Tensor,
    pub(super) entropy: Option<Tensor>,
}

/// How the micro-batch was run.
#[derive(Debug)]
pub(super) struct GradientSearch<'a> {
    pub(super) model: &'a Model,
    pub(super) batch: &'a MicroBatch,
    pub(super) pass: &'a Pass,
    pub(super) gradients: &'a TokenGradients,
    pub(super) forward: ForwardOptions,
    pub(super) scores: ScoreOptions,
}

/// One segment of the micro-batch.
struct Alone {
    row: PackedRow,
    wanted: Vec<bool>,
    /// Places of its trained tokens within it.
    rows: Tensor,
    /// Its first trained token among the N.
    first: i64,
}

impl GradientSearch<'_> {
    /// What the norm is about; `parameter` is the first one with such a gradient, where that is known already.
    pub(super) fn report(&self, norm: f64, parameter: Option<String>) -> Result<NotFiniteReport> {
        // the search runs segments again, over the gradients that are looked at here
        let parameter = match parameter {
            Some(parameter) => Some(parameter),
            None => self.parameter()?,
        };
        // the other ranks would have to run each segment, too
        let at = if self.model.shares_weights() { None } else { self.token()?.map(Box::new) };
        let (place, quantity) = (self.batch.place(), Quantity::Gradient);
        Ok(NotFiniteReport { place, at, quantity, value: norm, parameter })
    }

    /// The first parameter whose gradient is no number, as the micro-batch's backward left it.
    fn parameter(&self) -> Result<Option<String>> {
        for parameter in self.model.all_parameters() {
            let Some(gradient) = parameter.gradient()? else { continue };
            if gradient.f_isfinite()?.f_all()?.f_int64_value(&[])? == 0 {
                return Ok(Some(parameter.name().to_owned()));
            }
        }
        Ok(None)
    }

    /// The token; none if each segment by itself has a gradient. The model's gradients are forgotten.
    fn token(&self) -> Result<Option<TokenPlace>> {
        let (mut first, mut start) = (0, 0);
        for (index, segment) in self.batch.segments().iter().enumerate() {
            let n_trained = segment.n_trained as i64;
            if n_trained > 0 {
                let alone = Alone {
                    row: self.pass.row.segment_alone(index)?,
                    wanted: self.pass.wanted[start..start + segment.n_tokens].to_vec(),
                    rows: self.pass.rows.f_narrow(0, first, n_trained)?.f_sub_scalar(start as i64)?,
                    first,
                };
                if !self.is_finite(&alone, n_trained)? {
                    let n_first = self.shortest(&alone, n_trained)?;
                    let token = usize::try_from(first + n_first - 1).unwrap_or(0);
                    return Ok(self.batch.trained_place(token));
                }
            }
            first += n_trained;
            start += segment.n_tokens;
        }
        Ok(None)
    }

    /// The fewest first tokens whose gradients give no number. All of them do, none of them does not.
    fn shortest(&self, alone: &Alone, n_trained: i64) -> Result<i64> {
        let (mut finite, mut not_finite) = (0, n_trained);
        while not_finite - finite > 1 {
            let middle = finite + (not_finite - finite) / 2;
            if self.is_finite(alone, middle)? { finite = middle } else { not_finite = middle }
        }
        Ok(not_finite)
    }

    /// Whether the segment's backward gives numbers, with the gradients of its first `n_first` trained tokens and 0 on the
    /// others.
    fn is_finite(&self, alone: &Alone, n_first: i64) -> Result<bool> {
        self.model.clear_gradients()?;
        let trace = self.model.forward(&alone.row, self.forward)?;
        let scores = trace.scores(Some(&alone.wanted), self.scores)?;
        let places = alone.rows.f_narrow(0, 0, n_first)?;
        let put = |leaf: &Tensor, gradients: &Tensor| {
            let own = gradients.f_narrow(0, alone.first, n_first)?;
            let spread = no_grad(|| leaf.f_zeros_like()?.f_index_copy(0, &places, &own))?;
            set_gradient(leaf, Some(&spread))
        };
        put(&scores.logprobs, &self.gradients.logprobs)?;
        if let (Some(leaf), Some(gradients)) = (&scores.entropy, &self.gradients.entropy) {
            put(leaf, gradients)?;
        }
        trace.backward(scores)?;
        let norm = self.model.gradient_norm()?;
        self.model.clear_gradients()?;
        Ok(norm.is_none_or(f64::is_finite))
    }
}
