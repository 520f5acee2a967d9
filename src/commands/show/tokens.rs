//! The tokens of a step: ids, mask and log-probabilities side by side, and how they look.

use anyhow::{Context, Result, bail};
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float32Type, Int32Type};
use dressage_tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::output::Paint;

/// What one step appended, token by token. Empty where the step has no tokens.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct StepTokens {
    pub(super) ids: Vec<i32>,
    /// One a token: whether it receives gradient.
    pub(super) mask: Vec<bool>,
    /// One a token where they were recorded; NaN where the source had none.
    pub(super) logprobs: Vec<f32>,
}

/// Rows of `token_ids`, `logprobs` and `mask`.
pub(super) fn of_batches(batches: &[RecordBatch]) -> Result<Vec<StepTokens>> {
    let mut steps = Vec::new();
    for batch in batches {
        let ids = cast(batch.column_by_name("token_ids").context("no token_ids")?, &list_of(DataType::Int32))?;
        let logprobs = cast(batch.column_by_name("logprobs").context("no logprobs")?, &list_of(DataType::Float32))?;
        let mask = cast(batch.column_by_name("mask").context("no mask")?, &list_of(DataType::Int32))?;
        let (ids, logprobs, mask) = (ids.as_list::<i32>(), logprobs.as_list::<i32>(), mask.as_list::<i32>());
        for row in 0..batch.num_rows() {
            let mut step = StepTokens::default();
            if ids.is_valid(row) {
                step.ids = ids.value(row).as_primitive::<Int32Type>().values().to_vec();
                step.mask = mask.value(row).as_primitive::<Int32Type>().values().iter().map(|m| *m != 0).collect();
            }
            if logprobs.is_valid(row) {
                step.logprobs = logprobs.value(row).as_primitive::<Float32Type>().values().to_vec();
            }
            if step.mask.len() != step.ids.len() || !(step.logprobs.is_empty() || step.logprobs.len() == step.ids.len())
            {
                bail!(
                    "a step has {} token ids, {} mask values and {} log-probs; run `dressage store check`",
                    step.ids.len(),
                    step.mask.len(),
                    step.logprobs.len()
                );
            }
            steps.push(step);
        }
    }
    Ok(steps)
}

fn list_of(item: DataType) -> DataType {
    DataType::List(std::sync::Arc::new(arrow::datatypes::Field::new_list_field(item, true)))
}

impl StepTokens {
    /// As text for a terminal: runs of trained tokens green, masked ones dim.
    pub(super) fn render(&self, paint: Paint, tokenizer: Option<&Tokenizer>, with_logprobs: bool) -> String {
        let mut out = String::new();
        for (trained, range) in runs(&self.mask) {
            let text = if with_logprobs && trained {
                self.with_logprobs(range, tokenizer, paint)
            } else {
                let text = text_of(&self.ids[range], tokenizer);
                if trained {
                    painted_lines(&text, |line| paint.green(line))
                } else {
                    painted_lines(&text, |line| paint.dim(line))
                }
            };
            // without colours, brackets tell what is trained
            out.push_str(&if trained && !paint.is_on() { format!("⟦{text}⟧") } else { text });
        }
        out
    }

    fn with_logprobs(&self, range: std::ops::Range<usize>, tokenizer: Option<&Tokenizer>, paint: Paint) -> String {
        let mut out = String::new();
        for index in range {
            out.push_str(&paint.green(&text_of(&self.ids[index..=index], tokenizer)));
            let logprob = match self.logprobs.get(index) {
                Some(p) if p.is_finite() => format!("{p:.3}"),
                _ => "?".to_owned(),
            };
            out.push_str(&paint.dim(&format!("({logprob})")));
        }
        out
    }

    /// As JSON: parallel lists, and the text where there is a tokenizer.
    pub(super) fn into_json(self, tokenizer: Option<&Tokenizer>) -> Value {
        let text = tokenizer.map(|t| t.decode_lossy(&self.ids));
        let mask: Vec<u8> = self.mask.iter().map(|m| u8::from(*m)).collect();
        // NaN has no form in JSON
        let logprobs: Vec<Option<f32>> = self.logprobs.iter().map(|p| p.is_finite().then_some(*p)).collect();
        json!({ "token_ids": self.ids, "loss_mask": mask, "logprobs": logprobs, "text": text })
    }
}

fn text_of(ids: &[i32], tokenizer: Option<&Tokenizer>) -> String {
    match tokenizer {
        Some(tokenizer) => super::page::harmless(&tokenizer.decode_lossy(ids)).into_owned(),
        None => ids.iter().map(|id| format!("{id} ")).collect(),
    }
}

/// Colours line by line, so that a pager or a cut line does not lose them.
fn painted_lines(text: &str, color: impl Fn(&str) -> String) -> String {
    text.split('\n').map(color).collect::<Vec<_>>().join("\n")
}

/// Maximal runs of one mask value.
fn runs(mask: &[bool]) -> Vec<(bool, std::ops::Range<usize>)> {
    let mut runs: Vec<(bool, std::ops::Range<usize>)> = Vec::new();
    for (index, &trained) in mask.iter().enumerate() {
        match runs.last_mut() {
            Some((last, range)) if *last == trained => range.end = index + 1,
            _ => runs.push((trained, index..index + 1)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trained_runs_stand_in_brackets_without_colours() {
        let step = StepTokens { ids: vec![1, 2, 3, 4], mask: vec![false, true, true, false], logprobs: vec![] };
        assert_eq!(step.render(Paint::plain(), None, false), "1 ⟦2 3 ⟧4 ");
    }

    #[test]
    fn log_probs_stand_behind_their_token_and_missing_ones_are_marked() {
        let step = StepTokens { ids: vec![1, 2], mask: vec![true, true], logprobs: vec![-0.5, f32::NAN] };
        assert_eq!(step.render(Paint::plain(), None, true), "⟦1 (-0.500)2 (?)⟧");
        assert_eq!(step.into_json(None)["logprobs"], json!([-0.5, null]));
    }
}
