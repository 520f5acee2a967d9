//! `--tokenizer`: ids for steps that have text only. They are not what the policy sampled, and say so.

use std::sync::Arc;

use dressage_schemas::message::Content;
use dressage_schemas::spans::MaskSpans;
use dressage_schemas::words::flag;
use dressage_tokenizer::Tokenizer;

use crate::rollout::Rollout;

/// Gives ids to the steps of a rollout that has none at all. A rollout with ids on some steps is left alone: made-up
/// ids among sampled ones would pass for one sequence.
pub(crate) fn fill(rollout: &mut Rollout, tokenizer: &Tokenizer) {
    if rollout.steps.iter().any(|step| step.token_ids.is_some()) {
        return;
    }
    for step in &mut rollout.steps {
        let (context, reply) = step.messages.split_at(step.n_context_messages.min(step.messages.len()));
        if step.messages.is_empty() {
            continue;
        }
        let (Some(mut ids), Some(output)) = (encode(context, tokenizer), encode(reply, tokenizer)) else { continue };
        let n_context = ids.len();
        ids.extend_from_slice(&output);
        step.mask = MaskSpans::context_then_output(n_context, output.len());
        step.n_output_tokens = output.len();
        step.token_ids = Some(ids.into());
        step.trainable = false;
        step.flag(flag::RETOKENISED);
    }
}

/// The text of some messages as ids: what each says, without a chat template, which logs do not have.
fn encode(messages: &[Arc<Content>], tokenizer: &Tokenizer) -> Option<Vec<i32>> {
    let mut ids = Vec::new();
    for message in messages {
        for text in [&message.reasoning, &message.text, &message.tool_calls].into_iter().flatten() {
            ids.extend(tokenizer.encode(text).ok()?);
        }
    }
    Some(ids)
}
