//! Sampling from a model, for tests and demonstrations: a whole pass over every sequence for each new token, no cache of keys
//! and values, no streaming. Serving is an inference engine's work; this is for loops that have to be closed without one.
//!
//! Takes prompts, gives new tokens with their log-probs under the same temperature, as [`Trainer::logprobs`] gives them.
//! Repeats itself: the draws depend on the seed, on which prompt and on which token, not on what else is sampled, and libtorch's
//! own random generator is left alone.
//!
//! [`Trainer::logprobs`]: crate::Trainer::logprobs

mod draws;

use tch::{Device, Kind, Tensor, no_grad};

use crate::error::Result;
use crate::model::{ForwardOptions, Model};
use crate::row::{PackedRow, Segment};
use crate::scores::ScoreOptions;
use draws::draw;

/// How tokens are sampled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleOptions {
    /// New tokens of a prompt at most; a sequence also ends at the model's last position.
    pub new_tokens_max: usize,
    /// What logits are divided by: above 0.
    pub temperature: f64,
    /// A token after which a sequence is over. It is part of what is sampled.
    pub end_token: Option<i32>,
    /// What the draws repeat.
    pub seed: u64,
}

impl Default for SampleOptions {
    fn default() -> Self {
        Self { new_tokens_max: 32, temperature: 1.0, end_token: None, seed: 0 }
    }
}

/// What was sampled for one prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// The new tokens.
    pub token_ids: Vec<i32>,
    /// The log-prob of each.
    pub logprobs: Vec<f32>,
    /// Whether the end token came, and not the limit.
    pub ended: bool,
}

/// A sequence that is being sampled.
struct Sequence {
    token_ids: Vec<i32>,
    n_prompt: usize,
    ended: bool,
}

impl Model {
    /// Samples for all prompts together, as one packed row a token.
    ///
    /// # Errors
    ///
    /// [`EmptyRow`](crate::Error::EmptyRow) for a prompt without tokens, [`TokenRange`](crate::Error::TokenRange) and [`SegmentTooLong`](crate::Error::SegmentTooLong) for one that the
    /// model cannot see, [`Setting`](crate::Error::Setting) for a temperature that is not above 0, [`Torch`](crate::Error::Torch) for want of memory.
    pub fn sample(&self, prompts: &[Vec<i32>], options: SampleOptions) -> Result<Vec<Sampled>> {
        let scores = ScoreOptions { temperature: options.temperature, ..ScoreOptions::default() };
        scores.check()?;
        let sequence = |prompt: &Vec<i32>| Sequence { token_ids: prompt.clone(), n_prompt: prompt.len(), ended: false };
        let mut sequences: Vec<Sequence> = prompts.iter().map(sequence).collect();
        for at in 0..options.new_tokens_max {
            let goes_on = |s: &Sequence| !s.ended && (s.token_ids.len() as i64) < self.config().positions_max;
            let open: Vec<usize> = (0..sequences.len()).filter(|s| goes_on(&sequences[*s])).collect();
            if open.is_empty() {
                break;
            }
            let probabilities = self.next_probabilities(&sequences, &open, options.temperature)?;
            let draws: Vec<f64> = open.iter().map(|sequence| draw(options.seed, *sequence, at)).collect();
            for (sequence, token) in open.into_iter().zip(chosen(&probabilities, &draws)?) {
                sequences[sequence].token_ids.push(token);
                sequences[sequence].ended = options.end_token == Some(token);
            }
        }
        self.scored(sequences, scores)
    }

    /// `[S, vocab]` float64: of the token after each of some sequences.
    fn next_probabilities(&self, sequences: &[Sequence], open: &[usize], temperature: f64) -> Result<Tensor> {
        let row = packed(open.iter().map(|sequence| &sequences[*sequence]))?;
        let ends: Vec<i64> = row
            .lengths()
            .iter()
            .scan(0, |end, n| {
                *end += *n as i64;
                Some(*end - 1)
            })
            .collect();
        let trace = self.forward(&row, ForwardOptions { gradients: false, recompute: false })?;
        no_grad(|| {
            let ends = Tensor::f_from_slice(&ends)?.f_to_device(self.options().device)?;
            let logits = trace.hidden().f_index_select(0, &ends)?.f_linear::<&Tensor>(self.head(), None)?;
            Ok(logits.f_to_kind(Kind::Double)?.f_div_scalar(temperature)?.f_softmax(-1, Kind::Double)?)
        })
    }

    /// The log-probs of what was sampled, by one pass over the finished sequences: those of the passes before differ from it
    /// in the last digits, since matrices of other heights are multiplied in another order.
    fn scored(&self, sequences: Vec<Sequence>, options: ScoreOptions) -> Result<Vec<Sampled>> {
        if sequences.is_empty() {
            return Ok(Vec::new());
        }
        let row = packed(sequences.iter())?;
        let trace = self.forward(&row, ForwardOptions { gradients: false, recompute: false })?;
        let wanted = |s: &Sequence| (0..s.token_ids.len()).map(|at| at >= s.n_prompt).collect::<Vec<_>>();
        let wanted: Vec<bool> = sequences.iter().flat_map(wanted).collect();
        let scores = trace.scores(Some(&wanted), options)?;
        let logprobs = Vec::<f32>::try_from(scores.logprobs.f_to_device(Device::Cpu)?)?;
        let mut rest = logprobs.as_slice();
        let mut sampled = Vec::with_capacity(sequences.len());
        for mut sequence in sequences {
            let (own, after) = rest.split_at(sequence.token_ids.len());
            rest = after;
            sampled.push(Sampled {
                logprobs: own[sequence.n_prompt..].to_vec(),
                token_ids: sequence.token_ids.split_off(sequence.n_prompt),
                ended: sequence.ended,
            });
        }
        Ok(sampled)
    }
}

fn packed<'a>(sequences: impl Iterator<Item = &'a Sequence>) -> Result<PackedRow> {
    PackedRow::new(sequences.map(|sequence| Segment::of(sequence.token_ids.clone())).collect())
}

/// The token of each row in whose share of the sum a draw falls. A token of probability 0 has no share.
fn chosen(probabilities: &Tensor, draws: &[f64]) -> Result<Vec<i32>> {
    let sums = probabilities.f_cumsum(-1, Kind::Double)?;
    let last = sums.size()[1] - 1;
    let draws = Tensor::f_from_slice(draws)?.f_to_device(sums.device())?.f_unsqueeze(1)?;
    let draws = draws.f_mul(&sums.f_narrow(1, last, 1)?)?;
    let tokens = draws.f_searchsorted::<&Tensor>(&sums, false, true, "right", None)?.f_clamp_max(last as f64)?;
    Ok(Vec::<i32>::try_from(tokens.f_squeeze_dim(1)?.f_to_kind(Kind::Int)?.f_to_device(Device::Cpu)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn a_draw_falls_into_the_share_of_its_token() {
        let probabilities = Tensor::from_slice2(&[[0.0, 0.25, 0.0, 0.75], [1.0, 0.0, 0.0, 0.0]]);
        let of = |first: f64| chosen(&probabilities, &[first, first]).expect("tokens");
        assert_eq!(of(0.0), [1, 0]);
        assert_eq!(of(0.2499), [1, 0]);
        assert_eq!(of(0.25), [3, 0]);
        assert_eq!(of(1.0 - f64::EPSILON), [3, 0]);
    }

    #[test]
    fn an_empty_prompt_is_refused() {
        assert!(matches!(
            packed([Sequence { token_ids: vec![], n_prompt: 0, ended: false }].iter()),
            Err(Error::EmptyRow)
        ));
    }
}
