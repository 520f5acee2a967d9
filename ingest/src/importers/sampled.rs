//! Token ids of one call under the names that trainers and servers give them in flat rows.

use std::sync::Arc;

use dressage_schemas::spans::MaskSpans;
use dressage_schemas::words::flag;
use serde_json::{Map, Value};

use super::fields::{int, logprob_list, logprobs, token_ids};
use crate::importer::RecordError;
use crate::lineage::{CallOutput, ModelCall, SessionBuilder};
use crate::message_form::Message;
use crate::rule;

const PROMPT_KEYS: [&str; 3] = ["prompt_token_ids", "prompt_ids", "input_ids"];
const OUTPUT_KEYS: [&str; 5] = ["token_ids", "response_ids", "completion_ids", "output_ids", "response_token_ids"];
const LOGPROB_KEYS: [&str; 5] =
    ["logprobs", "response_logprobs", "completion_logprobs", "rollout_log_probs", "token_logprobs"];
const MASK_KEYS: [&str; 3] = ["loss_mask", "response_mask", "completion_mask"];

/// What a row says about the tokens of its one call.
#[derive(Debug, Default)]
pub(super) struct Sampled {
    prompt: Vec<i32>,
    output: Vec<i32>,
    logprobs: Option<Vec<f32>>,
    /// Of the output, or of prompt and output together.
    mask: Option<Vec<bool>>,
    flags: Vec<&'static str>,
}

impl Sampled {
    /// Whether the row has token ids, by names that only token dumps use.
    pub(super) fn is_in(row: &Map<String, Value>) -> bool {
        let listed = |key: &&str| row.get(*key).is_some_and(Value::is_array);
        OUTPUT_KEYS.iter().any(listed)
            || PROMPT_KEYS.iter().any(listed)
            || (listed(&"tokens") && row.contains_key("response_length"))
            || row.get("choices").and_then(Value::as_array).is_some_and(|choices| {
                choices.iter().any(|choice| choice.get("token_ids").is_some() || choice.get("message").is_some())
            })
    }

    /// Takes the token fields out of a row; none where it has no ids.
    ///
    /// # Errors
    /// Lists that are no ids, numbers or 0 and 1; lengths that do not fit, with both of them.
    pub(super) fn take(row: &mut Map<String, Value>) -> Result<Option<Self>, RecordError> {
        let mut sampled = Self::default();
        let has_text = row.get("text").is_some_and(Value::is_string);
        if let Some(length) = int(row, "response_length")
            && let Some(mut tokens) = token_ids(row, "tokens")?
        {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            let Some(start) = tokens.len().checked_sub(length) else {
                return Err(RecordError::refused(
                    rule::TOKEN_COUNT_MISMATCH,
                    format!("response_length is {length} and there are {} tokens", tokens.len()),
                ));
            };
            sampled.output = tokens.split_off(start);
            sampled.prompt = tokens;
            row.remove("tokens");
            row.remove("response_length");
        } else {
            let mut found = false;
            for (keys, ids) in [(&PROMPT_KEYS[..], &mut sampled.prompt), (&OUTPUT_KEYS[..], &mut sampled.output)] {
                for key in keys {
                    if let Some(list) = token_ids(row, key)? {
                        *ids = list;
                        row.remove(*key);
                        found = true;
                        break;
                    }
                }
            }
            if !found {
                return Ok(None);
            }
        }
        for key in LOGPROB_KEYS {
            if row.get(key).is_some_and(Value::is_array) {
                sampled.logprobs = logprobs(row, key)?;
                row.remove(key);
                break;
            }
        }
        sampled.take_engine(row)?;
        for key in MASK_KEYS {
            if let Some(Value::Array(list)) = row.remove(key) {
                sampled.mask = Some(mask(&list, key)?);
                break;
            }
        }
        sampled.check(has_text)?;
        Ok(Some(sampled))
    }

    /// SGLang's `meta_info`: log-probs with their ids, and how many prompt tokens the engine really saw.
    fn take_engine(&mut self, row: &Map<String, Value>) -> Result<(), RecordError> {
        let Some(Value::Object(info)) = row.get("meta_info") else { return Ok(()) };
        if let Some(Value::Array(entries)) = info.get("output_token_logprobs")
            && self.logprobs.is_none()
        {
            let first = |entry: &Value| entry.get(0).cloned().unwrap_or_default();
            let values: Vec<Value> = entries.iter().map(first).collect();
            self.logprobs = Some(logprob_list(&values, "output_token_logprobs")?);
        }
        let seen = int(info, "prompt_tokens").and_then(|seen| usize::try_from(seen).ok());
        if seen.is_some_and(|seen| !self.prompt.is_empty() && seen != self.prompt.len()) {
            // an image's placeholder stands for many tokens in the engine
            self.flags.push(flag::PROMPT_INEXACT);
        }
        Ok(())
    }

    fn check(&mut self, has_text: bool) -> Result<(), RecordError> {
        let n_output = self.output.len();
        if let Some(given) = &self.logprobs
            && given.len() != n_output
        {
            if has_text && given.len().abs_diff(n_output) > 1 {
                // ids were made again from the text, and the log-probs are those of the sampled ones
                self.flags.extend([flag::LOGPROBS_DROPPED, flag::RETOKENISED]);
                self.logprobs = None;
            } else {
                return Err(RecordError::refused(
                    rule::LOGPROBS_LENGTH_MISMATCH,
                    format!("{n_output} output token ids and {} log-probs", given.len()),
                ));
            }
        }
        match self.mask.as_ref().map(Vec::len) {
            Some(length) if length != n_output && length != self.prompt.len() + n_output => Err(RecordError::refused(
                rule::MASK_LENGTH_MISMATCH,
                format!("{n_output} output token ids and a mask of {length}"),
            )),
            // a mask of the output that is too long may happen to be as long as prompt and output together
            Some(length) if length != n_output && self.trains_on_prompt() => Err(RecordError::refused(
                rule::MASK_LENGTH_MISMATCH,
                format!("{n_output} output token ids and a mask of {length} that trains on the prompt's"),
            )),
            _ => Ok(()),
        }
    }

    fn trains_on_prompt(&self) -> bool {
        self.mask.iter().flatten().take(self.prompt.len()).any(|trained| *trained)
    }

    /// Adds the call with its tokens.
    pub(super) fn call(
        self,
        session: &mut SessionBuilder,
        prompt: &[Arc<Message>],
        call: ModelCall,
    ) -> Result<usize, RecordError> {
        let n_output = self.output.len();
        let has_prompt = !self.prompt.is_empty();
        let inexact = self.flags.contains(&flag::PROMPT_INEXACT) || self.flags.contains(&flag::RETOKENISED);
        let mut flags = call.flags.clone();
        flags.extend(&self.flags);
        // a mask over whole sequences says which of their tokens the policy produced
        let whole = self.mask.as_ref().filter(|mask| !has_prompt && mask.first() == Some(&false)).cloned();
        let (prompt_ids, output, logprobs, mask) = match whole {
            Some(mask) => {
                let start = mask.iter().position(|trained| *trained).unwrap_or(n_output);
                let mut prompt_ids = self.output;
                let output = prompt_ids.split_off(start);
                let logprobs = self.logprobs.map(|mut given| given.split_off(start.min(given.len())));
                (prompt_ids, output, logprobs, Some(mask.into_iter().skip(start).collect::<Vec<_>>()))
            }
            None => {
                let mask = self.mask.map(|mask| mask.into_iter().rev().take(n_output).rev().collect::<Vec<_>>());
                (self.prompt, self.output, self.logprobs, mask)
            }
        };
        let call = ModelCall {
            prompt_ids,
            output: Some(CallOutput { ids: output, logprobs, experts: None }),
            untrainable: call.untrainable || inexact,
            flags,
            mask: mask.map(MaskSpans::from_mask),
            ..call
        };
        session.call(prompt, call)
    }
}

fn mask(list: &[Value], key: &str) -> Result<Vec<bool>, RecordError> {
    let truth = |(at, value): (usize, &Value)| match value {
        Value::Bool(truth) => Ok(*truth),
        Value::Number(number) if number.as_f64() == Some(0.0) => Ok(false),
        Value::Number(number) if number.as_f64() == Some(1.0) => Ok(true),
        other => Err(RecordError::refused(rule::MASK_VALUE, format!("entry {at} of {key} is {other}, not 0 or 1"))),
    };
    list.iter().enumerate().map(truth).collect()
}
