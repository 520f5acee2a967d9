//! Whether two copies under one name are copies of one interaction. A copy may take another one's place, or be left
//! out for it, only where everything that the other one's steps say is in it; two interactions that share a name by
//! accident must not hide each other.
//!
//! ```text
//!   what a copy says: the hashes of its messages, and its sampled tokens
//!   stored ⊆ arriving and arriving ⊆ stored ▶ Same         only one of them ▶ Longer, Older
//!   neither, or nothing to compare (one has only tokens, one only messages) ▶ Stranger       one says nothing ▶ Silent
//! ```
//!
//! A reply may have grown meanwhile: a recorder that writes an answer block by block gives copies whose last message
//! is the beginning of a longer one. So a message counts as said where one in the same place begins with it.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use dressage_schemas::tables::contents::ContentRow;
use dressage_schemas::tables::steps::StepRow;
use dressage_schemas::words::flag;
use dressage_storage::Snapshot;
use serde_json::Value;

use super::stored;
use crate::error::Result;

/// Messages of one copy that may have grown in the other one: one a lineage in truth.
const GROWN_MAX: usize = 32;

/// How a copy that arrived stands to the one that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kinship {
    /// Both say the same.
    Same,
    /// The one that arrived says everything that the other one says, and more.
    Longer,
    /// The other way round.
    Older,
    /// Each says something that the other one does not.
    Stranger,
    /// One of them says nothing: an interaction that was only named, or that ended before it began.
    Silent,
}

/// What the steps of one copy say.
#[derive(Debug, Default)]
pub(crate) struct Said<'a> {
    pub(crate) steps: Vec<SaidStep<'a>>,
}

/// What one step says.
#[derive(Debug, Default)]
pub(crate) struct SaidStep<'a> {
    pub(crate) step_index: i32,
    /// Whether it is a whole segment.
    pub(crate) given: bool,
    /// Hashes of its messages.
    pub(crate) messages: Cow<'a, [String]>,
    /// Its tokens, where the policy sampled them.
    pub(crate) token_ids: Option<Cow<'a, [u8]>>,
}

impl<'a> Said<'a> {
    /// Of rows that are in memory.
    pub(crate) fn of(steps: &'a [StepRow]) -> Self {
        let step = |row: &'a StepRow| SaidStep {
            step_index: row.step_index,
            given: row.segment_index.is_some(),
            messages: Cow::Borrowed(row.messages.as_slice()),
            token_ids: row.token_ids.as_deref().filter(|_| is_sampled(row.flags.iter())).map(Cow::Borrowed),
        };
        Self { steps: steps.iter().map(step).collect() }
    }

    fn messages(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().flat_map(|s| s.messages.iter().map(String::as_str))
    }

    fn tokens(&self) -> impl Iterator<Item = &[u8]> {
        self.steps.iter().filter_map(|s| s.token_ids.as_deref())
    }

    /// Whether its steps are whole segments.
    fn is_given(&self) -> bool {
        self.steps.iter().any(|s| s.given)
    }

    /// Whether it says anything.
    fn is_empty(&self) -> bool {
        self.messages().next().is_none() && self.tokens().next().is_none()
    }
}

/// Whether a step with these flags has the tokens that the policy sampled: those that a tokenizer made of the text
/// later are another way to write the messages, and depend on which tokenizer it was.
pub(crate) fn is_sampled<S: AsRef<str>>(mut flags: impl Iterator<Item = S>) -> bool {
    !flags.any(|f| f.as_ref() == flag::RETOKENISED)
}

/// One copy with the contents at hand.
pub(crate) struct Copy<'a> {
    pub(crate) said: Said<'a>,
    pub(crate) contents: &'a [ContentRow],
}

/// Compares two copies of one name. Contents that are not at hand are read from the store.
pub(crate) async fn kinship(snapshot: &Snapshot, arriving: &Copy<'_>, stored: &Copy<'_>) -> Result<Kinship> {
    if arriving.said.is_empty() || stored.said.is_empty() {
        return Ok(Kinship::Silent);
    }
    let forth = is_part_of(snapshot, stored, arriving).await?;
    let back = is_part_of(snapshot, arriving, stored).await?;
    Ok(match (forth, back) {
        (true, true) => Kinship::Same,
        (true, false) => Kinship::Longer,
        (false, true) => Kinship::Older,
        (false, false) => Kinship::Stranger,
    })
}

/// Whether everything that `part` says is in `whole`.
async fn is_part_of(snapshot: &Snapshot, part: &Copy<'_>, whole: &Copy<'_>) -> Result<bool> {
    let have_messages = part.said.messages().next().is_some() && whole.said.messages().next().is_some();
    let have_tokens = part.said.tokens().next().is_some() && whole.said.tokens().next().is_some();
    let alike = part.said.is_given() == whole.said.is_given();
    // segments repeat what their branches share, so between segments and steps the messages tell it better
    if have_tokens && (alike || !have_messages) {
        let there = if alike { in_order(&part.said, &whole.said) } else { in_one_piece(&part.said, &whole.said) };
        if !there {
            return Ok(false);
        }
    }
    if have_messages {
        let Some(grown) = maybe_grown(&part.said, &whole.said) else { return Ok(false) };
        return Ok(grown.is_empty() || all_grew(snapshot, &grown, part, whole).await?);
    }
    Ok(have_tokens)
}

/// Whether each step's tokens begin a step of `whole`, in the same order. Steps of `whole` may lie in between: a copy
/// that was written later may have those of a parallel chain there.
fn in_order(part: &Said<'_>, whole: &Said<'_>) -> bool {
    let mut rest = whole.tokens();
    part.tokens().all(|tokens| rest.any(|candidate| candidate.starts_with(tokens)))
}

/// Whether all tokens of `part`, one step after the other, begin those of `whole`.
fn in_one_piece(part: &Said<'_>, whole: &Said<'_>) -> bool {
    let mut whole = whole.tokens().flatten();
    part.tokens().flatten().all(|byte| whole.next() == Some(byte))
}

/// A message of the part that is not in the whole, and messages of the whole in the same place.
type Grown<'a> = Vec<(&'a str, Vec<&'a str>)>;

/// The messages of `part` that `whole` does not have, each with what it may have become; none where one of them
/// cannot have become anything.
fn maybe_grown<'a>(part: &'a Said<'_>, whole: &'a Said<'_>) -> Option<Grown<'a>> {
    let has: HashSet<&str> = whole.messages().collect();
    let said: HashSet<&str> = part.messages().collect();
    let mut after: HashMap<&str, Vec<&str>> = HashMap::new();
    for (before, message) in with_previous(whole).filter(|(_, m)| !said.contains(m)) {
        after.entry(before).or_default().push(message);
    }
    let mut grown: Grown<'_> = Vec::new();
    for (before, message) in with_previous(part).filter(|(_, m)| !has.contains(m)) {
        let candidates = after.get(before)?;
        if grown.len() + candidates.len() > GROWN_MAX {
            return None;
        }
        grown.push((message, candidates.clone()));
    }
    Some(grown)
}

/// Each message with the one before it.
fn with_previous<'a>(said: &'a Said<'_>) -> impl Iterator<Item = (&'a str, &'a str)> {
    std::iter::once("").chain(said.messages()).zip(said.messages())
}

async fn all_grew(snapshot: &Snapshot, grown: &Grown<'_>, part: &Copy<'_>, whole: &Copy<'_>) -> Result<bool> {
    let wanted: HashSet<&str> = grown.iter().flat_map(|(m, others)| others.iter().copied().chain([*m])).collect();
    let at_hand = part.contents.iter().chain(whole.contents).filter(|row| wanted.contains(row.content_hash.as_str()));
    let mut contents: HashMap<String, ContentRow> = at_hand.map(|r| (r.content_hash.clone(), r.clone())).collect();
    let missing: Vec<&str> = wanted.into_iter().filter(|hash| !contents.contains_key(*hash)).collect();
    contents.extend(stored::messages(snapshot, &missing).await?.into_iter().map(|r| (r.content_hash.clone(), r)));
    Ok(grown.iter().all(|(message, candidates)| {
        let became = |candidate: &&str| match (contents.get(*message), contents.get(*candidate)) {
            (Some(short), Some(long)) => begins(short, long),
            _ => false,
        };
        candidates.iter().any(became)
    }))
}

/// Whether a message is the beginning of another one.
fn begins(short: &ContentRow, long: &ContentRow) -> bool {
    let text = |short: &Option<String>, long: &Option<String>| match (short, long) {
        (None, _) => true,
        (Some(short), Some(long)) => long.starts_with(short.as_str()),
        (Some(short), None) => short.is_empty(),
    };
    let calls = |row: &ContentRow| -> Vec<Value> {
        row.tool_calls.as_deref().and_then(|t| serde_json::from_str(t).ok()).unwrap_or_default()
    };
    short.role == long.role
        && short.tool_call_id == long.tool_call_id
        && text(&short.text, &long.text)
        && text(&short.reasoning, &long.reasoning)
        && calls(long).starts_with(&calls(short))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(steps: &[(&[&str], &[u8])]) -> Said<'static> {
        let step = |(index, (messages, tokens)): (usize, &(&[&str], &[u8]))| SaidStep {
            step_index: index as i32,
            given: false,
            messages: messages.iter().map(|m| (*m).to_owned()).collect(),
            token_ids: (!tokens.is_empty()).then(|| Cow::Owned(tokens.to_vec())),
        };
        Said { steps: steps.iter().enumerate().map(step).collect() }
    }

    #[test]
    fn tokens_of_a_shorter_copy_are_found_in_order_even_with_steps_in_between() {
        let long = said(&[(&[], &[1, 2]), (&[], &[9]), (&[], &[3, 4, 5])]);
        assert!(in_order(&said(&[(&[], &[1, 2]), (&[], &[3, 4])]), &long));
        assert!(!in_order(&said(&[(&[], &[3, 4]), (&[], &[1, 2])]), &long));
        assert!(!in_order(&said(&[(&[], &[1, 7])]), &long));
    }

    #[test]
    fn tokens_of_steps_and_of_whole_segments_are_compared_as_one_sequence() {
        let steps = said(&[(&[], &[1, 2]), (&[], &[3])]);
        assert!(in_one_piece(&steps, &said(&[(&[], &[1, 2, 3])])));
        assert!(in_one_piece(&said(&[(&[], &[1, 2, 3])]), &steps));
        assert!(!in_one_piece(&said(&[(&[], &[1, 2, 4])]), &steps));
    }

    #[test]
    fn a_message_that_is_not_there_can_only_have_grown_in_its_place() {
        let long = said(&[(&["a", "b", "c+"], &[]), (&["d"], &[])]);
        assert_eq!(maybe_grown(&said(&[(&["a", "b"], &[])]), &long).map(|g| g.len()), Some(0));
        let short = said(&[(&["a", "b", "c"], &[])]);
        assert_eq!(maybe_grown(&short, &long), Some(vec![("c", vec!["c+"])]));
        assert_eq!(maybe_grown(&said(&[(&["a", "x", "c"], &[])]), &long), None);
    }

    #[test]
    fn a_reply_has_grown_where_every_part_of_it_begins_the_longer_one() {
        let row = |reasoning: Option<&str>, text: Option<&str>, calls: Option<&str>| ContentRow {
            role: Some("assistant".into()),
            reasoning: reasoning.map(str::to_owned),
            text: text.map(str::to_owned),
            tool_calls: calls.map(str::to_owned),
            ..ContentRow::default()
        };
        let whole = row(Some("thinking"), Some("answer"), Some(r#"[{"id":1},{"id":2}]"#));
        for short in [row(Some("think"), None, None), row(Some("thinking"), Some("answer"), Some(r#"[{"id":1}]"#))] {
            assert!(begins(&short, &whole) && !begins(&whole, &short));
        }
        assert!(!begins(&row(None, Some("other"), None), &whole));
        assert!(!begins(&row(None, None, Some(r#"[{"id":2}]"#)), &whole));
    }
}
