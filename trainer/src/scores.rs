//! Log-probs and entropies of a row's tokens, with no more of the row's logits in memory than the options allow.
//!
//! ```text
//!   hidden ─┬─▶ chunk of rows ─▶ logits ─▶ log-probs of the vocabulary ─▶ log-prob, entropy ─▶ next chunk
//!           │                               └── forgotten, or kept while there is room
//!   gradient of the loss ─▶ chunk ─▶ kept, or again ─▶ the logits' gradient, in place ─▶ hidden's, output matrix's
//! ```
//!
//! The gradient of a log-prob is known in closed form, so the way back needs no graph: with p the probabilities, it is
//! `g · (1 at the token − p)`; that of the entropy H is `−g · p · (log p + H)`.

use std::collections::VecDeque;

use tch::{Device, Kind, Tensor, no_grad};

use crate::error::{Error, Result};
use crate::native::set_gradient;

/// How log-probs are computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoreOptions {
    /// Logits of one chunk, in f32. About twice as much is in use; larger chunks keep a matrix product busy. Below
    /// 32 MiB glibc's allocator does not give a chunk's memory back at once, and the peak is higher, not lower.
    pub chunk_bytes_max: u64,
    /// Log-probs of the whole vocabulary that may be kept for the way back, in f32; what does not fit is computed again
    /// there, which makes the work of the output matrix a third more.
    pub kept_bytes_max: u64,
    /// Whether entropies are wanted, too.
    pub entropy: bool,
    /// What logits are divided by: that of the sampler, if its log-probs are to be met.
    pub temperature: f64,
}

impl Default for ScoreOptions {
    fn default() -> Self {
        Self { chunk_bytes_max: 128 << 20, kept_bytes_max: 512 << 20, entropy: false, temperature: 1.0 }
    }
}

impl ScoreOptions {
    pub(crate) fn check(&self) -> Result<()> {
        if self.temperature.is_finite() && self.temperature > 0.0 {
            return Ok(());
        }
        Err(Error::Setting { setting: "temperature", value: self.temperature.to_string(), problem: "must be above 0" })
    }

    /// Rows of a chunk: at least one.
    fn chunk_rows(&self, vocab_size: i64) -> i64 {
        rows_of(self.chunk_bytes_max, vocab_size).max(1)
    }

    /// Rows whose log-probs may be kept.
    fn kept_rows(&self, vocab_size: i64) -> i64 {
        rows_of(self.kept_bytes_max, vocab_size)
    }
}

fn rows_of(bytes: u64, vocab_size: i64) -> i64 {
    let row_bytes = vocab_size.unsigned_abs().saturating_mul(4).max(1);
    i64::try_from(bytes / row_bytes).unwrap_or(i64::MAX)
}

/// Which tokens are scored: `N` of a row's `T`.
#[derive(Debug)]
pub(crate) struct ScoredTokens {
    /// Where the tokens stand in the row, `[N]`.
    places: Tensor,
    /// Rows of `hidden` that predict them, `[N]`.
    rows: Tensor,
    /// The tokens, `[N]`.
    targets: Tensor,
    n_scored: i64,
    n_tokens: i64,
}

impl ScoredTokens {
    pub(crate) fn of(token_ids: &[i64], has_logprob: &[bool], wanted: Option<&[bool]>, device: Device) -> Result<Self> {
        let n_tokens = token_ids.len();
        if let Some(wanted) = wanted.filter(|w| w.len() != n_tokens) {
            let found = wanted.len();
            return Err(Error::LengthMismatch { what: "wanted tokens of a row", expected: n_tokens, found });
        }
        let is_scored = |place: &usize| has_logprob[*place] && wanted.is_none_or(|w| w[*place]);
        let places: Vec<usize> = (0..n_tokens).filter(is_scored).collect();
        let tensor = |values: Vec<i64>| Ok::<_, Error>(Tensor::f_from_slice(&values)?.f_to_device(device)?);
        Ok(Self {
            // the first token of a row has no log-prob, so there is a row before each place
            rows: tensor(places.iter().map(|p| *p as i64 - 1).collect())?,
            targets: tensor(places.iter().map(|p| token_ids[*p]).collect())?,
            n_scored: places.len() as i64,
            places: tensor(places.into_iter().map(|p| p as i64).collect())?,
            n_tokens: n_tokens as i64,
        })
    }

    /// Values of the scored tokens, `[N]`, at their places in the row, `[T]`; 0 elsewhere.
    fn spread(&self, values: &Tensor) -> Result<Tensor> {
        let row = Tensor::f_zeros([self.n_tokens], (values.f_kind()?, values.device()))?;
        Ok(row.f_index_copy(0, &self.places, values)?)
    }
}

/// Log-probs and entropies of a row's tokens: the leaves that a loss is built on.
///
/// After `loss.f_backward()` their gradients are on them, and [`crate::Trace::backward`] takes it from there.
#[derive(Debug)]
pub struct TokenScores {
    /// `[T]` in f32: log-prob of each token given those before it in its segment; 0 where it has none or was not
    /// wanted.
    pub logprobs: Tensor,
    /// `[T]` in f32: entropy of the distribution that the token was drawn from; 0 likewise.
    pub entropy: Option<Tensor>,
    tokens: ScoredTokens,
    /// Log-probs of the whole vocabulary, `[n, vocab]` for each of the first chunks.
    kept: VecDeque<Tensor>,
    /// Entropies, `[N]`.
    entropies: Option<Tensor>,
    options: ScoreOptions,
}

impl TokenScores {
    pub(crate) fn compute(
        hidden: &Tensor,
        head: &Tensor,
        tokens: ScoredTokens,
        with_gradient: bool,
        options: ScoreOptions,
    ) -> Result<Self> {
        options.check()?;
        let kept_rows = if with_gradient { options.kept_rows(head.size()[0]) } else { 0 };
        let found = no_grad(|| forward(hidden, head, &tokens, kept_rows, options))?;
        let leaf = |values: &Tensor| Ok::<_, Error>(tokens.spread(values)?.f_set_requires_grad(with_gradient)?);
        Ok(Self {
            logprobs: leaf(&found.logprobs)?,
            entropy: found.entropies.as_ref().map(leaf).transpose()?,
            tokens,
            kept: found.kept,
            entropies: found.entropies,
            options,
        })
    }

    /// Adds to the gradient of `head`, and gives that of `hidden`, `[T, hidden]`.
    pub(crate) fn backward(mut self, hidden: &Tensor, head: &Tensor) -> Result<Tensor> {
        no_grad(|| {
            let by_logprob = self.gradient_of(Some(&self.logprobs))?;
            let by_entropy = match self.entropy.as_ref().map(|e| e.f_grad()).transpose()? {
                Some(gradient) if gradient.defined() => Some(self.gradient_of(self.entropy.as_ref())?),
                _ => None,
            };
            let mut hidden_gradient = hidden.f_zeros_like()?;
            let mut head_gradient = MatrixGradient::of(head)?;
            let mut output = Output::of(head, self.options);
            for chunk in Chunk::all(&self.tokens, self.options.chunk_rows(head.size()[0]))? {
                let rows = hidden.f_index_select(0, &chunk.rows)?;
                let mut all = match self.kept.pop_front() {
                    Some(kept) => kept,
                    None => output.logprobs(&rows)?,
                };
                let gradient = column(&chunk.part(&by_logprob)?)?;
                let mut by_logits = match (&by_entropy, &self.entropies) {
                    (Some(by_entropy), Some(entropies)) => {
                        let factor = all
                            .f_add(&column(&chunk.part(entropies)?)?)?
                            .f_mul_(&column(&chunk.part(by_entropy)?)?)?
                            .f_add_(&gradient)?;
                        all.f_exp_()?.f_mul_(&factor)?.f_neg_()?
                    }
                    _ => all.f_exp_()?.f_mul_(&gradient.f_neg()?)?,
                };
                let _ = by_logits.f_scatter_add_(1, &column(&chunk.targets)?, &gradient)?;
                if self.options.temperature != 1.0 {
                    let _ = by_logits.f_div_scalar_(self.options.temperature)?;
                }
                let by_logits = by_logits.f_to_kind(head.f_kind()?)?;
                let _ = hidden_gradient.f_index_copy_(0, &chunk.rows, &by_logits.f_mm(head)?)?;
                head_gradient.add(&by_logits, &rows)?;
            }
            head_gradient.finish(head)?;
            Ok(hidden_gradient)
        })
    }

    /// What a loss left on a leaf, at the scored tokens, `[N]`; zeros if it does not depend on it.
    fn gradient_of(&self, leaf: Option<&Tensor>) -> Result<Tensor> {
        let gradient = leaf.map(|l| l.f_grad()).transpose()?.filter(Tensor::defined);
        match gradient {
            Some(gradient) => Ok(gradient.f_index_select(0, &self.tokens.places)?),
            None => Ok(Tensor::f_zeros([self.tokens.n_scored], (Kind::Float, self.tokens.places.device()))?),
        }
    }
}

/// What the way there finds out of the scored tokens, `[N]` each.
struct Found {
    logprobs: Tensor,
    entropies: Option<Tensor>,
    kept: VecDeque<Tensor>,
}

fn forward(
    hidden: &Tensor,
    head: &Tensor,
    tokens: &ScoredTokens,
    kept_rows: i64,
    options: ScoreOptions,
) -> Result<Found> {
    let empty = || Tensor::f_zeros([0], (Kind::Float, hidden.device()));
    let (mut logprobs, mut entropies, mut kept) = (vec![empty()?], vec![empty()?], VecDeque::new());
    let mut output = Output::of(head, options);
    for chunk in Chunk::all(tokens, options.chunk_rows(head.size()[0]))? {
        let all = output.logprobs(&hidden.f_index_select(0, &chunk.rows)?)?;
        logprobs.push(all.f_gather(1, &column(&chunk.targets)?, false)?.f_squeeze_dim(1)?);
        if options.entropy {
            entropies.push(all.f_exp()?.f_mul_(&all)?.f_sum_dim_intlist([-1i64].as_slice(), false, None)?.f_neg()?);
        }
        if chunk.start + chunk.n <= kept_rows {
            kept.push_back(output.keep(all));
        }
    }
    let entropies = if options.entropy { Some(Tensor::f_cat(&entropies, 0)?) } else { None };
    Ok(Found { logprobs: Tensor::f_cat(&logprobs, 0)?, entropies, kept })
}

/// The output matrix and the memory that chunks of logits take in turn: memory that is given back and asked for again
/// is cleared by the kernel each time, and that takes as long as a pass over it.
struct Output<'a> {
    head: &'a Tensor,
    temperature: f64,
    /// `[n, vocab]` in f32 each, of the largest chunk so far.
    logits: Option<Tensor>,
    logprobs: Option<Tensor>,
}

impl<'a> Output<'a> {
    fn of(head: &'a Tensor, options: ScoreOptions) -> Self {
        Self { head, temperature: options.temperature, logits: None, logprobs: None }
    }

    /// `[n, hidden]` to log-probs `[n, vocab]` in f32, which the next chunk overwrites.
    fn logprobs(&mut self, rows: &Tensor) -> Result<Tensor> {
        let size = [rows.size()[0], self.head.size()[0]];
        let mut logits = room(&mut self.logits, size, rows.device())?;
        if rows.f_kind()? == Kind::Float {
            let _ = rows.f_mm_out(&logits, &self.head.f_transpose(0, 1)?)?;
        } else {
            logits.f_copy_(&rows.f_linear::<&Tensor>(self.head, None)?)?;
        }
        if self.temperature != 1.0 {
            let _ = logits.f_div_scalar_(self.temperature)?;
        }
        let logprobs = room(&mut self.logprobs, size, rows.device())?;
        Ok(logits.f_internal_log_softmax_out(&logprobs, -1, false)?)
    }

    /// Leaves these log-probs to the caller: the next chunk gets memory of its own.
    fn keep(&mut self, logprobs: Tensor) -> Tensor {
        self.logprobs = None;
        logprobs
    }
}

/// A matrix of this size in memory that is there, or is made now.
fn room(memory: &mut Option<Tensor>, size: [i64; 2], device: Device) -> Result<Tensor> {
    match memory {
        Some(memory) if memory.size()[0] >= size[0] => Ok(memory.f_narrow(0, 0, size[0])?),
        _ => Ok(memory.insert(Tensor::f_empty(size, (Kind::Float, device))?).shallow_clone()),
    }
}

fn column(values: &Tensor) -> Result<Tensor> {
    Ok(values.f_unsqueeze(1)?)
}

/// A run of scored tokens.
struct Chunk {
    start: i64,
    n: i64,
    rows: Tensor,
    targets: Tensor,
}

impl Chunk {
    fn all(tokens: &ScoredTokens, step: i64) -> Result<Vec<Self>> {
        let mut chunks = Vec::new();
        let mut start = 0;
        while start < tokens.n_scored {
            let n = step.min(tokens.n_scored - start);
            let part = |x: &Tensor| x.f_narrow(0, start, n);
            chunks.push(Self { start, n, rows: part(&tokens.rows)?, targets: part(&tokens.targets)? });
            start += n;
        }
        Ok(chunks)
    }

    /// This chunk's values of an `[N]`.
    fn part(&self, values: &Tensor) -> Result<Tensor> {
        Ok(values.f_narrow(0, self.start, self.n)?)
    }
}

/// The gradient of the output matrix, summed up over chunks.
enum MatrixGradient {
    /// The matrix is not trained.
    Unwanted,
    /// In f32 there is nothing to lose by adding to the gradient itself.
    InPlace(Option<Tensor>),
    /// In bf16 chunks are summed up in f32, and rounded once.
    Wide(Option<Tensor>),
}

impl MatrixGradient {
    fn of(matrix: &Tensor) -> Result<Self> {
        if !matrix.requires_grad() {
            return Ok(Self::Unwanted);
        }
        if matrix.f_kind()? != Kind::Float {
            return Ok(Self::Wide(None));
        }
        Ok(Self::InPlace(Some(matrix.f_grad()?).filter(Tensor::defined)))
    }

    /// Adds `by_logitsᵀ · rows`.
    fn add(&mut self, by_logits: &Tensor, rows: &Tensor) -> Result<()> {
        let by_logits = by_logits.f_transpose(0, 1)?;
        match self {
            Self::Unwanted => {}
            Self::InPlace(Some(sum)) => {
                let _ = sum.f_addmm_(&by_logits, rows)?;
            }
            Self::InPlace(sum @ None) => *sum = Some(by_logits.f_mm(rows)?),
            Self::Wide(Some(sum)) => {
                let _ = sum.f_add_(&by_logits.f_mm(rows)?)?;
            }
            Self::Wide(sum @ None) => *sum = Some(by_logits.f_mm(rows)?.f_to_kind(Kind::Float)?),
        }
        Ok(())
    }

    fn finish(self, matrix: &Tensor) -> Result<()> {
        match self {
            Self::InPlace(Some(sum)) => set_gradient(matrix, Some(&sum)),
            Self::Wide(Some(mut sum)) => {
                let before = matrix.f_grad()?;
                if before.defined() {
                    let _ = sum.f_add_(&before)?;
                }
                set_gradient(matrix, Some(&sum.f_to_kind(matrix.f_kind()?)?))
            }
            Self::Unwanted | Self::InPlace(None) | Self::Wide(None) => Ok(()),
        }
    }
}
