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

use super::shared_out::Held;
use super::units::HEAD_UNIT;
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
    /// Weights that the output matrix and the last norm need, where ranks share them out.
    held: Vec<Held<'m>>,
}

/// What is kept for the way back.
#[derive(Debug)]
enum Tape {
    /// Nothing: there is none.
    Nothing,
    /// One graph, from the embedding to `hidden`.
    Whole { output: Tensor },
    /// Graphs of the embedding and of the last norm, and what is kept of each layer.
    Layers { embedded: Tensor, kept: Vec<Kept>, last: Tensor, output: Tensor },
}

/// What is kept of a layer that is run backward by itself.
#[derive(Debug)]
struct Kept {
    input: Tensor,
    /// What its graph made of the input, which is a cut then; none if it is run again.
    output: Option<Tensor>,
}

impl Model {
    /// Runs a row through the model up to its last norm.
    ///
    /// # Errors
    ///
    /// What [`PackedRow::check`] says, [`Error::Setting`] for gradients of a model that is not trainable,
    /// [`Error::Torch`] for want of memory.
    pub fn forward(&self, row: &PackedRow, options: ForwardOptions) -> Result<Trace<'_>> {
        self.run(row, options, false)
    }

    /// As [`Model::forward`], with a graph a layer, so that [`Trace::backward_in_pieces`] is done with one after the other. The
    /// numbers are the same.
    pub(crate) fn forward_in_pieces(&self, row: &PackedRow, options: ForwardOptions) -> Result<Trace<'_>> {
        self.run(row, options, true)
    }

    fn run(&self, row: &PackedRow, options: ForwardOptions, in_pieces: bool) -> Result<Trace<'_>> {
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
        let mut held = Vec::new();
        let held_for_embedding = self.hold(self.embedding_unit())?;
        let embedded = if options.gradients { embed()? } else { no_grad(embed)? };
        if self.config.tied_embeddings {
            held.extend(held_for_embedding);
        } else {
            drop(held_for_embedding);
        }
        let mut chosen = Vec::new();
        let (hidden, tape) = match (options.gradients, options.recompute) {
            (false, _) => no_grad(|| {
                let last = self.run_layers(embedded, &context, &routings, &mut chosen, |_| Ok(()))?;
                held.extend(self.hold(HEAD_UNIT)?);
                Ok::<_, Error>((self.final_norm.forward(&last)?, Tape::Nothing))
            })?,
            (true, false) if in_pieces || self.shares_weights() => {
                let mut kept = Vec::with_capacity(self.layers.len());
                let last = self.run_apart(embedded.f_detach()?, &context, &routings, &mut chosen, &mut kept)?;
                held.extend(self.hold(HEAD_UNIT)?);
                let last = cut(&last)?;
                let output = self.final_norm.forward(&last)?;
                (cut(&output)?, Tape::Layers { embedded, kept, last, output })
            }
            (true, false) => {
                let last = self.run_layers(embedded, &context, &routings, &mut chosen, |_| Ok(()))?;
                let output = self.final_norm.forward(&last)?;
                (cut(&output)?, Tape::Whole { output })
            }
            (true, true) => {
                let mut kept = Vec::with_capacity(self.layers.len());
                let last = no_grad(|| {
                    self.run_layers(embedded.f_detach()?, &context, &routings, &mut chosen, |input| {
                        kept.push(Kept { input: input.shallow_clone(), output: None });
                        Ok(())
                    })
                })?;
                held.extend(self.hold(HEAD_UNIT)?);
                let last = cut(&last)?;
                let output = self.final_norm.forward(&last)?;
                (cut(&output)?, Tape::Layers { embedded, kept, last, output })
            }
        };
        let (token_ids, has_logprob) = (row.token_ids().to_vec(), row.has_logprob());
        Ok(Trace { model: self, row: context, token_ids, has_logprob, hidden, chosen, tape, held })
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
        for (at, layer) in self.layers.iter().enumerate() {
            before(&x)?;
            let _held = self.hold(self.unit_of_layer(at))?;
            let routing = if layer.has_experts() { routings.next() } else { None };
            let (output, experts) = layer.forward(&x, row, routing.unwrap_or(&LayerRouting::Free))?;
            chosen.extend(experts);
            x = output;
        }
        Ok(x)
    }
}

impl Model {
    /// Runs layers, each with a graph of its own.
    fn run_apart(
        &self,
        mut x: Tensor,
        row: &RowContext,
        routings: &[LayerRouting],
        chosen: &mut Vec<Tensor>,
        kept: &mut Vec<Kept>,
    ) -> Result<Tensor> {
        let mut routings = routings.iter();
        for (at, layer) in self.layers.iter().enumerate() {
            let input = cut(&x)?;
            let _held = self.hold(self.unit_of_layer(at))?;
            let routing = if layer.has_experts() { routings.next() } else { None };
            let (output, experts) = layer.forward(&input, row, routing.unwrap_or(&LayerRouting::Free))?;
            chosen.extend(experts);
            x = output.f_detach()?;
            kept.push(Kept { input, output: Some(output) });
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
        self.go_back(gradient, &mut |_| Ok(()))
    }

    /// As [`Trace::backward`]; `done` is told each unit of [`Model::units`] whose parameters have their gradient, in order. For
    /// a pass that is not in pieces all are done at the end.
    pub(crate) fn backward_in_pieces(
        self,
        scores: TokenScores,
        done: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<()> {
        let hidden_gradient = scores.backward(&self.hidden, self.model.head())?;
        self.go_back(hidden_gradient, done)
    }

    fn go_back(self, gradient: Tensor, done: &mut dyn FnMut(usize) -> Result<()>) -> Result<()> {
        let n_layers = self.model.layers.len();
        let mut held = self.held;
        match self.tape {
            Tape::Nothing => Err(Error::Setting {
                setting: "gradients",
                value: "false".to_owned(),
                problem: "this pass was run without: there is no way back",
            }),
            Tape::Whole { output } => {
                backward(&[output], &[gradient])?;
                (0..n_layers + 2).try_for_each(done)
            }
            Tape::Layers { embedded, mut kept, last, output } => {
                backward(&[output], &[gradient])?;
                let mut gradient = gradient_at(&last)?;
                drop(last);
                held.retain(|held| held.unit() != HEAD_UNIT);
                done(HEAD_UNIT)?;
                let mut chosen = self.chosen;
                for (unit, layer) in (1..).zip(self.model.layers.iter().rev()) {
                    let Some(Kept { input, output }) = kept.pop() else { break };
                    let held = self.model.hold(unit)?;
                    // a router that rounds differently the second time must not choose differently
                    let fixed = layer.has_experts().then(|| chosen.pop()).flatten();
                    let (input, output) = match output {
                        Some(output) => (input, output),
                        None => {
                            let input = cut(&input)?;
                            let routing = fixed.map_or(LayerRouting::Free, |ids| LayerRouting::Fixed { ids });
                            let (output, _) = layer.forward(&input, &self.row, &routing)?;
                            (input, output)
                        }
                    };
                    backward(&[output], &[gradient])?;
                    gradient = gradient_at(&input)?;
                    drop(held);
                    done(unit)?;
                }
                backward(&[embedded], &[gradient])?;
                drop(held);
                done(n_layers + 1)
            }
        }
    }
}
