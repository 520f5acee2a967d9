//! Where a call belongs: which earlier call it extends, and whether a segment starts with it.

use std::collections::{BTreeMap, HashMap};

use dressage_schemas::words::{Route, boundary};
use xxhash_rust::xxh3::Xxh3;

use crate::message_form::MessageKey;

/// One model call as the finder sees it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Call<'a> {
    /// The whole prompt.
    pub prompt: &'a [MessageKey],
    /// What the model answered: one message, or none.
    pub reply: &'a [MessageKey],
    /// Identifies the tool schemas; none for no tools.
    pub tools: Option<u128>,
    /// The harness's turn: a rewritten history within one turn is a rewrite, in another a mismatch.
    pub turn: Option<&'a str>,
    /// Token ids, where the prompt's are known.
    pub tokens: Option<CallTokens<'a>>,
    /// Why the source says that the history is another one here (compaction, a rewind, a sub-agent); used only where
    /// a segment starts.
    pub cause: Option<&'static str>,
    /// Whether the source says that the call goes on with nothing before it, though its prompt looks like it.
    pub starts_anew: bool,
}

/// Token ids of a call: all of the prompt, and the output.
#[derive(Debug, Clone, Copy)]
pub struct CallTokens<'a> {
    /// The whole prompt. Not empty.
    pub prompt: &'a [i32],
    /// What the model produced.
    pub output: &'a [i32],
}

/// Where a call was put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Number of its lineage, in order of creation.
    pub lineage: usize,
    /// How it was attached.
    pub route: Route,
    /// The call that it extends or branches from, by order of placing.
    pub base: Option<usize>,
    /// Why a segment starts here; empty where none does.
    pub reasons: Vec<&'static str>,
    /// How many messages of the prompt the segment's earlier steps hold already.
    pub known_messages: usize,
    /// How many token ids of the prompt the segment's earlier steps hold already.
    pub known_tokens: usize,
}

/// What is remembered of a placed call: hashes of the conversation including the reply, never the conversation.
#[derive(Debug, Clone, Copy)]
struct Placed {
    lineage: usize,
    messages: Chain,
    tokens: Option<Chain>,
    tools: Option<u128>,
    turn: Option<u64>,
}

/// A prefix: its length and the hash of everything in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Chain {
    len: usize,
    hash: u128,
}

/// Places calls in the order in which they were recorded. Memory grows with the number of calls, not with what they
/// say.
#[derive(Debug, Clone, Default)]
pub struct Finder {
    placed: Vec<Placed>,
    /// Latest call of each lineage.
    latest: Vec<usize>,
    by_messages: HashMap<Chain, Vec<usize>>,
    by_tokens: HashMap<Chain, Vec<usize>>,
    /// Lengths (in tokens) of recorded conversations, with how many have it: where prompts are worth hashing.
    token_lengths: BTreeMap<usize, usize>,
}

impl Finder {
    /// Places the next call by what it says.
    pub fn place(&mut self, call: &Call<'_>) -> Placement {
        let chains = message_chains(call.prompt);
        let by_tokens = call.tokens.and_then(|tokens| self.longest_token_prefix(tokens.prompt));
        let by_messages = self.longest_message_prefix(&chains);
        let (by_tokens, by_messages) = if call.starts_anew { (None, None) } else { (by_tokens, by_messages) };

        let is_latest = |step: usize| self.is_latest(step);
        let (base, tokens_extend) = match (by_tokens, by_messages) {
            (Some(step), _) if is_latest(step) => (Some(step), true),
            // ids were lost or re-rendered on the way, but the conversation goes on
            (_, Some(step)) if call.tokens.is_some() && is_latest(step) => (Some(step), false),
            (Some(step), _) => (Some(step), true),
            (None, Some(step)) => (Some(step), call.tokens.is_none()),
            (None, None) => (None, false),
        };
        let turn = call.turn.map(|turn| xxhash_rust::xxh3::xxh3_64(turn.as_bytes()));
        let rewrite = self.placed.last().and_then(|previous| {
            let goes_on = if call.prompt.is_empty() {
                false
            } else {
                chains.get(previous.messages.len) == Some(&previous.messages)
            };
            (!goes_on).then(|| match (call.prompt.is_empty(), previous.turn == turn) {
                (true, _) => boundary::TOKEN_PREFIX_MISMATCH,
                (false, true) => boundary::HISTORY_REWRITE,
                (false, false) => boundary::MESSAGE_PREFIX_MISMATCH,
            })
        });
        let tools_changed = base.is_some_and(|step| self.placed.get(step).is_some_and(|b| b.tools != call.tools));
        let mut placement = self.route(base);
        if placement.route == Route::Append {
            if tools_changed {
                placement.reasons.push(boundary::TOOLS_CHANGED);
            }
            if call.tokens.is_some() && !tokens_extend {
                placement.reasons.push(boundary::TOKEN_PREFIX_MISMATCH);
            }
            if !placement.reasons.is_empty() {
                placement.reasons.extend(call.cause);
            }
        } else {
            placement.reasons.push(boundary::INITIAL);
            // a branch names what it goes on from: in a new turn there is nothing to explain
            let rewrite =
                rewrite.filter(|&word| placement.route == Route::Create || word != boundary::MESSAGE_PREFIX_MISMATCH);
            placement.reasons.extend(call.cause.or(rewrite));
            if tools_changed {
                placement.reasons.push(boundary::TOOLS_CHANGED);
            }
        }
        if placement.reasons.is_empty()
            && let Some(base) = base.and_then(|step| self.placed.get(step))
        {
            placement.known_messages = base.messages.len.min(call.prompt.len());
            placement.known_tokens = match call.tokens {
                Some(_) => base.tokens.map_or(0, |chain| chain.len),
                None => 0,
            };
        }
        let messages = extend_chain(chains.last().copied().unwrap_or(EMPTY), call.reply);
        let tokens = call.tokens.map(|tokens| chain_of_tokens(tokens.prompt, tokens.output));
        self.remember(&placement, Placed { lineage: placement.lineage, messages, tokens, tools: call.tools, turn });
        placement
    }

    /// Places the next call by a link to the call that it follows: its prompt is that call's conversation and
    /// `new_messages` more. Message and token equality are not looked at.
    pub fn attach(
        &mut self,
        base: Option<usize>,
        new_messages: &[MessageKey],
        reply: &[MessageKey],
        cause: Option<&'static str>,
    ) -> Placement {
        let base = base.filter(|&step| step < self.placed.len());
        let mut placement = self.route(base);
        let conversation = base.and_then(|step| self.placed.get(step)).map_or(EMPTY, |b| b.messages);
        if placement.route == Route::Append {
            placement.known_messages = conversation.len;
        } else {
            placement.reasons.push(boundary::INITIAL);
            let mismatch = (!self.placed.is_empty()).then_some(boundary::MESSAGE_PREFIX_MISMATCH);
            placement.reasons.extend(cause.or(mismatch));
        }
        let messages = extend_chain(extend_chain(conversation, new_messages), reply);
        let record = Placed { lineage: placement.lineage, messages, tokens: None, tools: None, turn: None };
        self.remember(&placement, record);
        placement
    }

    /// Number of calls placed.
    pub fn len(&self) -> usize {
        self.placed.len()
    }

    /// Whether no call was placed yet.
    pub fn is_empty(&self) -> bool {
        self.placed.is_empty()
    }

    fn is_latest(&self, step: usize) -> bool {
        self.placed.get(step).is_some_and(|p| self.latest.get(p.lineage) == Some(&step))
    }

    fn route(&self, base: Option<usize>) -> Placement {
        let (route, lineage) = match base.and_then(|step| self.placed.get(step).map(|p| (step, p.lineage))) {
            Some((step, lineage)) if self.is_latest(step) => (Route::Append, lineage),
            Some(_) => (Route::Branch, self.latest.len()),
            None => (Route::Create, self.latest.len()),
        };
        Placement { lineage, route, base, reasons: Vec::new(), known_messages: 0, known_tokens: 0 }
    }

    fn remember(&mut self, placement: &Placement, placed: Placed) {
        let step = self.placed.len();
        match self.latest.get_mut(placement.lineage) {
            Some(latest) => *latest = step,
            None => self.latest.push(step),
        }
        // an empty conversation is a prefix of everything and says nothing
        if placed.messages.len > 0 {
            self.by_messages.entry(placed.messages).or_default().push(step);
        }
        if let Some(tokens) = placed.tokens {
            self.by_tokens.entry(tokens).or_default().push(step);
            *self.token_lengths.entry(tokens.len).or_default() += 1;
        }
        self.placed.push(placed);
    }

    fn longest_message_prefix(&self, chains: &[Chain]) -> Option<usize> {
        chains.iter().rev().find_map(|chain| self.best(self.by_messages.get(chain)?))
    }

    fn longest_token_prefix(&self, prompt: &[i32]) -> Option<usize> {
        let mut hasher = Xxh3::new();
        let mut hashed = 0;
        let mut found = None;
        for &len in self.token_lengths.range(1..=prompt.len()).map(|(len, _)| len) {
            hash_tokens(&mut hasher, prompt.get(hashed..len).unwrap_or_default());
            hashed = len;
            if let Some(steps) = self.by_tokens.get(&Chain { len, hash: hasher.digest128() }) {
                found = self.best(steps).or(found);
            }
        }
        found
    }

    /// Among calls with the same conversation: the latest of its lineage, then the most recently recorded one.
    fn best(&self, steps: &[usize]) -> Option<usize> {
        steps.iter().copied().max_by_key(|&step| (self.is_latest(step), step))
    }
}

const EMPTY: Chain = Chain { len: 0, hash: 0 };

/// The chain of every prefix of the prompt, from the empty one to the whole.
fn message_chains(prompt: &[MessageKey]) -> Vec<Chain> {
    let mut chains = Vec::with_capacity(prompt.len() + 1);
    chains.push(EMPTY);
    let mut last = EMPTY;
    for key in prompt {
        last = extend_chain(last, std::slice::from_ref(key));
        chains.push(last);
    }
    chains
}

fn extend_chain(mut chain: Chain, messages: &[MessageKey]) -> Chain {
    for key in messages {
        let mut bytes = [0_u8; 32];
        bytes[..16].copy_from_slice(&chain.hash.to_le_bytes());
        bytes[16..].copy_from_slice(&key.0.to_le_bytes());
        chain = Chain { len: chain.len + 1, hash: xxhash_rust::xxh3::xxh3_128(&bytes) };
    }
    chain
}

fn chain_of_tokens(prompt: &[i32], output: &[i32]) -> Chain {
    let mut hasher = Xxh3::new();
    hash_tokens(&mut hasher, prompt);
    hash_tokens(&mut hasher, output);
    Chain { len: prompt.len() + output.len(), hash: hasher.digest128() }
}

fn hash_tokens(hasher: &mut Xxh3, ids: &[i32]) {
    // in pieces, so that a prompt of a million ids needs no copy of itself
    let mut bytes = [0_u8; 4 * 256];
    for piece in ids.chunks(256) {
        for (out, id) in bytes.chunks_exact_mut(4).zip(piece) {
            out.copy_from_slice(&id.to_le_bytes());
        }
        hasher.update(bytes.get(..piece.len() * 4).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests;
