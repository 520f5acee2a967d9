//! Turns model calls with whole prompts into steps that hold only what each call appended.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use dressage_schemas::ids::ContentHash;
use dressage_schemas::message::Content;
use dressage_schemas::spans::{MaskSpans, VersionSpans};
use dressage_schemas::words::{CONTEXT_VERSION, Route, flag};
use serde_json::{Map, Value};
use xxhash_rust::xxh3::xxh3_128;

use super::experts::CallExperts;
use super::finder::{Call, CallTokens, Finder, Placement};
use super::pairing::{Pairing, Unanswered};
use crate::importer::RecordError;
use crate::message_form::{Message, MessageKey};
use crate::rollout::{RolloutStep, content_hash};
use crate::rule;

/// What a model call was and said, apart from its prompt's messages.
#[derive(Debug, Default)]
pub struct ModelCall {
    /// The answer; none where the call was never answered.
    pub reply: Option<Message>,
    /// The tool schemas.
    pub tools: Option<Arc<Content>>,
    /// The whole prompt's token ids, where the source has them.
    pub prompt_ids: Vec<i32>,
    /// What the model produced, as token ids; none where the source has no ids.
    pub output: Option<CallOutput>,
    /// Which output tokens receive gradient, where the source says so; none for all of them.
    pub mask: Option<MaskSpans>,
    /// The harness's turn.
    pub turn_id: Option<String>,
    /// The source's name of the chain.
    pub lineage_id: Option<String>,
    /// As the engine gave it.
    pub finish_reason: Option<String>,
    /// The model, where it may differ from the trajectory's.
    pub model: Option<String>,
    /// The weights that answered.
    pub weight_version: Option<String>,
    /// Prompt tokens as the provider counted them.
    pub usage_input_tokens: Option<i64>,
    /// Output tokens as the provider counted them.
    pub usage_output_tokens: Option<i64>,
    /// When the call was made, microseconds.
    pub created_at: Option<i64>,
    /// Not to be trained on, whatever the tokens say.
    pub untrainable: bool,
    /// Words of [`flag`].
    pub flags: Vec<&'static str>,
    /// Keys that we have no column for.
    pub extra: Map<String, Value>,
    /// Why the source says that the history is another one here; see [`Call::cause`].
    pub cause: Option<&'static str>,
    /// Whether the source says that nothing before is gone on with, whatever the messages say.
    pub starts_anew: bool,
}

/// Sampled tokens.
#[derive(Debug, Default)]
pub struct CallOutput {
    /// Their ids.
    pub ids: Vec<i32>,
    /// One a token where known; NaN stands for null, NaN and infinities of the source.
    pub logprobs: Option<Vec<f32>>,
    /// Router choices over prompt and output.
    pub experts: Option<CallExperts>,
}

/// Collects the calls of one trajectory in order of recording.
#[derive(Debug, Default)]
pub struct SessionBuilder {
    finder: Finder,
    pairings: BTreeMap<usize, Pairing>,
    unanswered: Vec<Unanswered>,
    /// The last step whose context had a result of this call id.
    last_result: HashMap<String, usize>,
    steps: Vec<RolloutStep>,
    data: Vec<Content>,
    known_data: HashSet<ContentHash>,
}

impl SessionBuilder {
    /// Adds a call with its whole prompt; gives its index among the steps.
    ///
    /// # Errors
    /// [`RecordError::Refused`] where token ids, log-probs and router choices do not fit each other.
    pub fn call(&mut self, prompt: &[Arc<Message>], call: ModelCall) -> Result<usize, RecordError> {
        let keys: Vec<MessageKey> = prompt.iter().map(|message| message.key).collect();
        let reply = reply_keys(&call);
        let tokens = call.output.as_ref().filter(|_| !call.prompt_ids.is_empty());
        let placement = self.finder.place(&Call {
            prompt: &keys,
            reply: &reply,
            tools: call.tools.as_ref().map(|tools| xxh3_128(tools.body.as_deref().unwrap_or_default().as_bytes())),
            turn: call.turn_id.as_deref(),
            tokens: tokens.map(|output| CallTokens { prompt: &call.prompt_ids, output: &output.ids }),
            cause: call.cause,
            starts_anew: call.starts_anew,
        });
        let context = prompt.get(placement.known_messages..).unwrap_or_default();
        self.push(&placement, context, call)
    }

    /// Adds a call that a link says to follow step `base` with `new` messages in between; `whole` gives its whole
    /// prompt, and is asked only where a segment starts.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn attached_call(
        &mut self,
        base: Option<usize>,
        new: &[Arc<Message>],
        whole: impl FnOnce() -> Vec<Arc<Message>>,
        call: ModelCall,
    ) -> Result<usize, RecordError> {
        let keys: Vec<MessageKey> = new.iter().map(|message| message.key).collect();
        let placement = self.finder.attach(base, &keys, &reply_keys(&call), call.cause);
        if placement.route == Route::Append {
            self.push(&placement, new, call)
        } else {
            self.push(&placement, &whole(), call)
        }
    }

    /// Number of steps so far.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether there is no step yet.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The steps, and the files that their messages had inlined.
    pub fn finish(mut self) -> (Vec<RolloutStep>, Vec<Content>) {
        for pairing in self.pairings.values_mut() {
            pairing.give_up(false, &mut self.unanswered);
        }
        for call in self.unanswered {
            // a rewritten history repeats the call and may have its result
            let later = call.id.as_ref().and_then(|id| self.last_result.get(id)).is_some_and(|&at| at > call.step);
            if (call.is_final || !later)
                && let Some(step) = self.steps.get_mut(call.step)
            {
                step.flag(flag::TOOL_CALL_UNANSWERED);
            }
        }
        (self.steps, self.data)
    }

    fn push(&mut self, placement: &Placement, context: &[Arc<Message>], call: ModelCall) -> Result<usize, RecordError> {
        let index = self.steps.len();
        let mut step = RolloutStep {
            turn_id: call.turn_id,
            lineage_id: call.lineage_id,
            lineage_index: to_i32(placement.lineage),
            route: placement.route,
            base_step: placement.base.map(to_i32),
            boundary: !placement.reasons.is_empty(),
            boundary_reasons: placement.reasons.iter().map(|&reason| reason.to_owned()).collect(),
            finish_reason: call.finish_reason,
            model: call.model,
            weight_version: call.weight_version,
            n_context_messages: context.len(),
            tools: call.tools,
            trainable: !call.untrainable,
            usage_input_tokens: call.usage_input_tokens,
            usage_output_tokens: call.usage_output_tokens,
            created_at: call.created_at,
            extra: call.extra,
            ..RolloutStep::default()
        };
        for flag in call.flags {
            step.flag(flag);
        }
        self.add_messages(&mut step, placement, index, context, call.reply);
        if let Some(output) = call.output {
            add_tokens(&mut step, placement, call.prompt_ids, output, call.mask.as_ref())?;
        }
        self.steps.push(step);
        Ok(index)
    }

    fn add_messages(
        &mut self,
        step: &mut RolloutStep,
        placement: &Placement,
        index: usize,
        context: &[Arc<Message>],
        reply: Option<Message>,
    ) {
        let pairing = self.pairings.entry(placement.lineage).or_default();
        if step.boundary {
            // the whole prompt follows, with its own calls and answers
            pairing.give_up(false, &mut self.unanswered);
        }
        for message in context {
            let mut content = Arc::clone(&message.content);
            match content.role.as_deref() {
                Some("tool") => {
                    if let Some(id) = pairing.result(message) {
                        Arc::make_mut(&mut content).tool_call_id = Some(id);
                        step.flag(flag::TOOL_CALL_ID_INFERRED);
                    }
                    if let Some(id) = &content.tool_call_id {
                        self.last_result.insert(id.clone(), index);
                    }
                }
                Some("assistant") => {
                    pairing.reply(None, message, &mut self.unanswered);
                }
                _ => {}
            }
            step.messages.push(content);
            keep_data(&mut self.data, &mut self.known_data, &message.data);
        }
        if let Some(reply) = reply {
            if let Some(flag) = pairing.reply(Some(index), &reply, &mut self.unanswered) {
                step.flag(flag);
            }
            for flag in &reply.flags {
                step.flag(flag);
            }
            keep_data(&mut self.data, &mut self.known_data, &reply.data);
            step.messages.push(reply.content);
        }
    }
}

fn reply_keys(call: &ModelCall) -> Vec<MessageKey> {
    call.reply.iter().map(|reply| reply.key).collect()
}

fn keep_data(data: &mut Vec<Content>, known: &mut HashSet<ContentHash>, more: &[Content]) {
    for content in more {
        if known.insert(content_hash(content)) {
            data.push(content.clone());
        }
    }
}

/// Ids, mask, log-probs, versions and router choices of what the call appended.
fn add_tokens(
    step: &mut RolloutStep,
    placement: &Placement,
    prompt: Vec<i32>,
    output: CallOutput,
    mask: Option<&MaskSpans>,
) -> Result<(), RecordError> {
    let (n_prompt, n_output) = (prompt.len(), output.ids.len());
    if n_prompt + n_output == 0 {
        return Ok(());
    }
    if n_prompt == 0 {
        // what the model saw is unknown, so its tokens cannot be trained on
        step.flag(flag::PROMPT_IDS_MISSING);
        step.trainable = false;
    }
    let known = placement.known_tokens.min(n_prompt);
    let n_context = n_prompt - known;
    let mut ids = prompt;
    ids.drain(..known);
    ids.extend(output.ids);
    step.token_ids = Some(ids.into());
    step.n_output_tokens = n_output;
    step.mask = match mask {
        None => MaskSpans::context_then_output(n_context, n_output),
        Some(given) if given.n_tokens() == n_output => {
            MaskSpans::from_mask(std::iter::repeat_n(false, n_context).chain(given.iter()))
        }
        Some(given) => {
            return Err(RecordError::refused(
                rule::MASK_LENGTH_MISMATCH,
                format!("{n_output} output token ids and a mask of {}", given.n_tokens()),
            ));
        }
    };

    if let Some(given) = output.logprobs {
        if given.len() != n_output {
            return Err(RecordError::refused(
                rule::LOGPROBS_LENGTH_MISMATCH,
                format!("{n_output} output token ids and {} log-probs", given.len()),
            ));
        }
        let mut logprobs = vec![0.0_f32; n_context];
        logprobs.extend(given.into_iter().map(|p| if p.is_finite() { p } else { f32::NAN }));
        step.logprobs = Some(logprobs.into());
    }
    if let Some(version) = &step.weight_version {
        let mut versions = VersionSpans::default();
        versions.push(CONTEXT_VERSION, n_context);
        versions.push(version, n_output);
        step.versions = Some(versions);
    }
    if let Some(experts) = output.experts {
        step.routed_experts = Some(experts.appended(known, n_prompt + n_output)?);
    }
    Ok(())
}

fn to_i32(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests;
