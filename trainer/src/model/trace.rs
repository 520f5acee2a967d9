//! One pass over a row, forward and back: what the way back needs is kept, or made again a layer at a time.
//!
//! ```text
//!   tokens ─▶ embedding ─▶ layer ─▶ … ─▶ layer ─▶ norm ─▶ hidden ┊ log-probs, entropy ┊ loss
//!                ▲            ▲             ▲         ▲          ┊                    ┊
//!                └─ backward ─┴── with recompute: ────┘ ◀─────── ┊ ◀── in chunks ──── ┊ ◀─ the caller's
//!                             one layer's graph at a time        ┊                    ┊
//! ```
//!
//! The graph is cut at `hidden` (and, with recomputation, between layers): each piece is run backward by itself with
//! the gradient that the piece after it left on the cut.

use tch::{Tensor, no_grad};

use super::{Model, RowContext};
use crate::error::{Error, Result};
use crate::native::backward;
use crate::rope::Angles;
use crate::routing::{LayerRouting, RoutedExperts, layer_routings, recorded_of};
use crate::row::PackedRow;
use crate::scores::{ScoreOptions, ScoredTokens, TokenScores};

/// How a row is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForwardOptions {
    /// Whether there will be a backward.
    pub gradients: bool,
    /// Keep only the input of each layer and run the layer again on the way back: a third more work, and of all
    /// layers' activations only one's at a time in memory.
    pub recompute: bool,
}

impl Default for ForwardOptions {
    fn default() -> Self {
        Self { gradients: true, recompute: false }
    }
}

/// A pass over one row.
#[derive(Debug)]
pub struct Trace<'m> {
    model: &'m Model,
    row: RowContext,
    token_ids: Vec<i64>,
    has_logprob: Vec<bool>,
    /// After the last norm, `[T, hidden]`, cut off from what made it.
    hidden: Tensor,
    /// Experts of each layer that has some, `[T, top_k]`.
    chosen: Vec<Tensor>,
    tape: Tape,
}

/// What is kept for the way back.
#[derive(Debug)]
enum Tape {
    /// Nothing: there is none.
    Nothing,
    /// One graph, from the embedding to `hidden`.
    Whole { output: Tensor },
    /// Graphs of the embedding and of the last norm, and each layer's input.
    Layers { embedded: Tensor, inputs: Vec<Tensor>, last: Tensor, output: Tensor },
}

impl Model {
    /// Runs a row through the model up to its last norm.
    ///
    /// # Errors
    ///
    /// What [`PackedRow::check`] says, [`Error::Setting`] for gradients of a model that is not trainable,
    /// [`Error::Torch`] for want of memory.
    pub fn forward(&self, row: &PackedRow, options: ForwardOptions) -> Result<Trace<'_>> {
        row.check(&self.config)?;
        if options.gradients && !self.options.trainable {
            return Err(Error::Setting {
                setting: "gradients",
                value: "true".to_owned(),
                problem: "this model was loaded without: it is not trainable",
            });
        }
        let context = RowContext {
            angles: Angles::of(&self.config, &row.positions(), self.options.kind, self.options.device)?,
            lengths: row.lengths().iter().map(|n| *n as i64).collect(),
        };
        let routings = layer_routings(row, &self.config, self.options.device)?;
        let tokens = Tensor::f_from_slice(row.token_ids())?.f_to_device(self.options.device)?;
        let embed = || Ok::<_, Error>(Tensor::f_embedding(&self.embedding, &tokens, -1, false, false)?);
        let mut chosen = Vec::new();
        let (hidden, tape) = match (options.gradients, options.recompute) {
            (false, _) => no_grad(|| {
                let last = self.run_layers(embed()?, &context, &routings, &mut chosen, |_| Ok(()))?;
                Ok::<_, Error>((self.final_norm.forward(&last)?, Tape::Nothing))
            })?,
            (true, false) => {
                let last = self.run_layers(embed()?, &context, &routings, &mut chosen, |_| Ok(()))?;
                let output = self.final_norm.forward(&last)?;
                (cut(&output)?, Tape::Whole { output })
            }
            (true, true) => {
                let embedded = embed()?;
                let mut inputs = Vec::with_capacity(self.layers.len());
                let last = no_grad(|| {
                    self.run_layers(embedded.f_detach()?, &context, &routings, &mut chosen, |input| {
                        inputs.push(input.shallow_clone());
                        Ok(())
                    })
                })?;
                let last = cut(&last)?;
                let output = self.final_norm.forward(&last)?;
                (cut(&output)?, Tape::Layers { embedded, inputs, last, output })
            }
        };
        let (token_ids, has_logprob) = (row.token_ids().to_vec(), row.has_logprob());
        Ok(Trace { model: self, row: context, token_ids, has_logprob, hidden, chosen, tape })
    }

    fn run_layers(
        &self,
        mut x: Tensor,
        row: &RowContext,
        routings: &[LayerRouting],
        chosen: &mut Vec<Tensor>,
        mut before: impl FnMut(&Tensor) -> Result<()>,
    ) -> Result<Tensor> {
        let mut routings = routings.iter();
        for layer in &self.layers {
            before(&x)?;
            let routing = if layer.has_experts() { routings.next() } else { None };
            let (output, experts) = layer.forward(&x, row, routing.unwrap_or(&LayerRouting::Free))?;
            chosen.extend(experts);
            x = output;
        }
        Ok(x)
    }
}

/// The same values as the beginning of a graph of their own.
fn cut(x: &Tensor) -> Result<Tensor> {
    Ok(x.f_detach()?.f_set_requires_grad(true)?)
}

/// The gradient that backward left on a cut.
fn gradient_at(cut: &Tensor) -> Result<Tensor> {
    let gradient = cut.f_grad()?;
    if gradient.defined() { Ok(gradient) } else { Ok(cut.f_zeros_like()?) }
}

impl Trace<'_> {
    /// What the model makes of the row before its output matrix, `[T, hidden]`.
    pub fn hidden(&self) -> &Tensor {
        &self.hidden
    }

    /// The experts that were chosen, one entry a segment, as [`crate::Segment::routed_experts`] takes them; empty for
    /// a model without experts.
    ///
    /// # Errors
    ///
    /// [`Error::Torch`] if they cannot be copied from the device.
    pub fn routed_experts(&self, row: &PackedRow) -> Result<Vec<RoutedExperts>> {
        recorded_of(row, &self.chosen)
    }

    /// Log-probs (and entropies) of the row's tokens; `wanted` `[T]` leaves out those that nothing depends on (the
    /// loss mask), none wants all. The first token of a segment has none.
    ///
    /// # Errors
    ///
    /// [`Error::LengthMismatch`] if `wanted` is not as long as the row, [`Error::Setting`] for options that make no
    /// sense, [`Error::Torch`] for want of memory.
    pub fn scores(&self, wanted: Option<&[bool]>, options: ScoreOptions) -> Result<TokenScores> {
        let tokens = ScoredTokens::of(&self.token_ids, &self.has_logprob, wanted, self.hidden.device())?;
        let with_gradient = !matches!(self.tape, Tape::Nothing);
        TokenScores::compute(&self.hidden, self.model.head(), tokens, with_gradient, options)
    }

    /// Goes all the way back: from the gradients that a loss left on `scores` to those of the model's parameters,
    /// which are added to what is there.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] if the pass was without gradients, [`Error::Torch`] for want of memory.
    pub fn backward(self, scores: TokenScores) -> Result<()> {
        let hidden_gradient = scores.backward(&self.hidden, self.model.head())?;
        self.backward_from_hidden(hidden_gradient)
    }

    /// Goes back from a gradient of [`Trace::hidden`].
    ///
    /// # Errors
    ///
    /// As [`Trace::backward`].
    pub fn backward_from_hidden(self, gradient: Tensor) -> Result<()> {
        match self.tape {
            Tape::Nothing => Err(Error::Setting {
                setting: "gradients",
                value: "false".to_owned(),
                problem: "this pass was run without: there is no way back",
            }),
            Tape::Whole { output } => backward(&[output], &[gradient]),
            Tape::Layers { embedded, mut inputs, last, output } => {
                backward(&[output], &[gradient])?;
                let mut gradient = gradient_at(&last)?;
                drop(last);
                let mut chosen = self.chosen;
                for layer in self.model.layers.iter().rev() {
                    let Some(input) = inputs.pop() else { break };
                    let input = cut(&input)?;
                    // a router that rounds differently the second time must not choose differently
                    let routing = match layer.has_experts().then(|| chosen.pop()).flatten() {
                        Some(ids) => LayerRouting::Fixed { ids },
                        None => LayerRouting::Free,
                    };
                    let (output, _) = layer.forward(&input, &self.row, &routing)?;
                    backward(&[output], &[gradient])?;
                    gradient = gradient_at(&input)?;
                }
                backward(&[embedded], &[gradient])
            }
        }
    }
}
