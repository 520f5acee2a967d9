//! Which tool call a tool result answers, where the source does not say or says it twice.

use std::collections::VecDeque;

use dressage_schemas::words::flag;

use crate::message_form::Message;

/// A call that waits for its result: the step that made it (none in a replayed history), and its id.
#[derive(Debug, Clone)]
struct Open {
    step: Option<usize>,
    id: Option<String>,
}

/// Pairs calls and results along one conversation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pairing {
    open: VecDeque<Open>,
}

/// A call that had no result when its conversation was last looked at.
#[derive(Debug, Clone)]
pub(crate) struct Unanswered {
    /// The step that made it.
    pub(crate) step: usize,
    /// Its id.
    pub(crate) id: Option<String>,
    /// Whether its own lineage went on without the result; else the result may be in a rewritten history.
    pub(crate) is_final: bool,
}

impl Pairing {
    /// A reply, of a step or of a replayed history: calls that are still open were never answered. Returns a flag for
    /// this reply.
    pub(crate) fn reply(
        &mut self,
        step: Option<usize>,
        reply: &Message,
        unanswered: &mut Vec<Unanswered>,
    ) -> Option<&'static str> {
        self.give_up(true, unanswered);
        let ids = reply.call_ids();
        let named: Vec<&String> = ids.iter().flatten().collect();
        let is_duplicate = named.iter().enumerate().any(|(i, id)| named.iter().take(i).any(|earlier| earlier == id));
        self.open.extend(ids.into_iter().map(|id| Open { step, id }));
        is_duplicate.then_some(flag::TOOL_CALL_ID_DUPLICATE)
    }

    /// A context message that answers a call: gives the id of the oldest open call where it has none.
    pub(crate) fn result(&mut self, message: &Message) -> Option<String> {
        match message.content.tool_call_id.as_deref().filter(|id| !id.is_empty()) {
            Some(id) => {
                // by order inside the step: the first open one of that id
                if let Some(index) = self.open.iter().position(|open| open.id.as_deref() == Some(id)) {
                    self.open.remove(index);
                }
                None
            }
            None => self.open.pop_front().and_then(|open| open.id),
        }
    }

    /// The conversation goes on (or ends) without answers.
    pub(crate) fn give_up(&mut self, is_final: bool, unanswered: &mut Vec<Unanswered>) {
        let open = self.open.drain(..);
        unanswered.extend(open.filter_map(|open| Some(Unanswered { step: open.step?, id: open.id, is_final })));
    }
}
