//! Model events of a sample: each is a call with its whole prompt.

use std::collections::HashMap;
use std::sync::Arc;

use dressage_schemas::message::Content;
use dressage_schemas::words::{boundary, flag};
use serde_json::{Map, Value};

use super::references::{References, stored};
use crate::importer::RecordError;
use crate::importers::fields::{int, rest, text};
use crate::importers::timestamp::micros;
use crate::lineage::{ModelCall, SessionBuilder};
use crate::message_form::{Message, chat_message, tools_content};

/// The calls found so far.
#[derive(Default)]
pub(super) struct Calls {
    pub(super) builder: SessionBuilder,
    pub(super) first_at: Option<i64>,
    pub(super) last_finish: Option<String>,
    /// The latest call's conversation: prompt and reply.
    conversation: Vec<Arc<Message>>,
    tools: Option<Arc<Content>>,
    spans: HashMap<String, Span>,
    is_compacted: bool,
}

/// A part of the sample's run.
struct Span {
    parent: Option<String>,
    is_agent: bool,
    name: Option<String>,
}

impl Calls {
    pub(super) fn read(&mut self, events: Vec<Value>, references: &References) -> Result<(), RecordError> {
        for event in events {
            let Value::Object(event) = event else { continue };
            match text(&event, "event").as_deref() {
                Some("model") => self.model(event, references)?,
                // the history is another one from here on, even where the next prompt looks like the last
                Some("compaction") => self.is_compacted = true,
                Some("span_begin") => self.span(&event),
                _ => {}
            }
        }
        Ok(())
    }

    fn span(&mut self, event: &Map<String, Value>) {
        if let Some(id) = text(event, "id") {
            let span = Span {
                parent: text(event, "parent_id"),
                is_agent: text(event, "type").as_deref() == Some("agent"),
                name: text(event, "name"),
            };
            self.spans.insert(id, span);
        }
    }

    /// The agents around a span, the innermost first.
    fn agents(&self, span: Option<String>) -> Vec<(&str, Option<&str>)> {
        let mut agents = Vec::new();
        let mut at = span;
        for _ in 0..=self.spans.len() {
            let Some((id, span)) = at.as_deref().and_then(|id| self.spans.get_key_value(id)) else { break };
            if span.is_agent {
                agents.push((id.as_str(), span.name.as_deref()));
            }
            at = span.parent.clone();
        }
        agents
    }

    fn model(&mut self, mut event: Map<String, Value>, references: &References) -> Result<(), RecordError> {
        let prompt = stored(references.input(&mut event));
        let output = match event.remove("output") {
            Some(output) => references.resolve(output),
            None => Value::Null,
        };
        if prompt.is_empty() && output.pointer("/choices/0/message").is_none() {
            // logs stripped of content keep the event alone
            return Ok(());
        }
        let at = micros(event.get("timestamp"));
        self.first_at = self.first_at.or(at);
        let choice = output.pointer("/choices/0");
        let reply = choice.and_then(|choice| choice.get("message")).cloned().map(chat_message);
        let usage = output.get("usage").and_then(Value::as_object);
        // prompt tokens read from or written to a cache are counted apart
        let input_keys = ["input_tokens", "input_tokens_cache_read", "input_tokens_cache_write"];
        let input: Vec<i64> = usage.iter().flat_map(|usage| input_keys.iter().filter_map(|k| int(usage, k))).collect();
        let agents = self.agents(text(&event, "span_id"));
        let agent = agents.first().map(|(id, name)| (*name).unwrap_or(id).to_owned());
        let is_nested = agents.len() > 1;

        let mut call = ModelCall {
            tools: tools_content(event.get("tools")),
            finish_reason: choice.and_then(|choice| choice.get("stop_reason")?.as_str()).map(finish_reason),
            model: text(&event, "model"),
            usage_input_tokens: (!input.is_empty()).then(|| input.iter().sum()),
            usage_output_tokens: usage.and_then(|usage| int(usage, "output_tokens")),
            created_at: at,
            lineage_id: agent.filter(|_| is_nested),
            untrainable: reply.is_none(),
            cause: is_nested.then_some(boundary::SUBAGENT),
            ..ModelCall::default()
        };
        if self.is_compacted {
            call.cause = Some(boundary::COMPACTION);
            call.starts_anew = true;
            self.is_compacted = false;
        }
        if choice.and_then(|choice| choice.get("logprobs")).is_some_and(|logprobs| !logprobs.is_null()) {
            // they belong to tokens whose ids the log does not have
            call.flags.push(flag::LOGPROBS_DROPPED);
        }
        // `call` repeats the request and response as they went over the wire
        let known = ["event", "model", "timestamp", "tools", "input_refs", "call", "working_start", "span_id"];
        call.extra = rest(event, &known);
        call.extra.retain(|_, value| !value.as_object().is_some_and(Map::is_empty));
        if let Some(error) = output.get("error").filter(|error| !error.is_null()) {
            call.extra.insert("error".to_owned(), error.clone());
        }
        self.last_finish = call.finish_reason.clone().or(self.last_finish.take());
        self.tools.clone_from(&call.tools);
        self.conversation.clone_from(&prompt);
        self.conversation.extend(reply.clone().map(Arc::new));
        call.reply = reply;
        self.builder.call(&prompt, call)?;
        Ok(())
    }

    /// The sample's messages may go on after the last call (a tool's last result).
    pub(super) fn end(&mut self, messages: &[Arc<Message>]) -> Result<(), RecordError> {
        let goes_on = messages.len() > self.conversation.len()
            && messages.iter().zip(&self.conversation).all(|(a, b)| a.key == b.key);
        if goes_on && !self.conversation.is_empty() {
            let tools = self.tools.clone();
            self.builder.call(messages, ModelCall { tools, untrainable: true, ..ModelCall::default() })?;
        }
        Ok(())
    }
}

/// Inspect's word for a limit on the output's length is `max_tokens`; the store's is `length`.
fn finish_reason(word: &str) -> String {
    if word == "max_tokens" { "length" } else { word }.to_owned()
}
