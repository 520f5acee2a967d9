//! From trees to steps: rows of one response folded, prompts walked together along the links.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use dressage_schemas::words::{boundary, flag};
use serde_json::{Map, Value, json};

use super::row::{Response, Row, RowKind, input_tokens};
use super::tree::{Tree, Trees};
use crate::importer::RecordError;
use crate::importers::fields::int;
use crate::lineage::{ModelCall, SessionBuilder};
use crate::message_form::{Message, anthropic_assistant};

/// The steps of one trajectory and what else its rows say.
#[derive(Default)]
pub(super) struct Assembled {
    pub(super) builder: SessionBuilder,
    pub(super) message_rows: i64,
    pub(super) model: Option<String>,
    pub(super) flags: Vec<&'static str>,
    pub(super) client_messages: Vec<Value>,
}

/// One response: all its rows.
struct Group {
    rows: Vec<usize>,
    reply: Arc<Message>,
    /// What lies between the response that it follows and itself.
    before: Before,
}

/// The way from a row up to the response that it follows.
#[derive(Default, Clone)]
struct Before {
    base: Option<usize>,
    /// Rows of user and tools, in order.
    said: Vec<usize>,
    is_compacted: bool,
    is_inexact: bool,
    is_dangling: bool,
}

pub(super) fn assemble(trees: &Trees, members: &[Tree]) -> Result<Assembled, RecordError> {
    let nodes: Vec<usize> = trees.nodes_of(members).collect();
    let mut out = Assembled::default();
    let mut walk = Walk::new(trees, &nodes);
    walk.find_ways();
    let main = walk.main_path(&nodes);
    for &node in &nodes {
        let Some(row) = trees.row(node) else { continue };
        out.message_rows += i64::from(row.is_message());
        for flag in &row.flags {
            if !out.flags.contains(flag) {
                out.flags.push(flag);
            }
        }
        if let RowKind::Client(blocks) = &row.kind {
            out.client_messages.push(json!({"uuid": row.uuid, "content": blocks}));
        }
    }
    out.model = walk.most_used_model();

    let mut step_of: Vec<Option<usize>> = vec![None; walk.groups.len()];
    let mut answered: BTreeSet<usize> = BTreeSet::new();
    for group in walk.order() {
        let Some(this) = walk.groups.get(group) else { continue };
        answered.extend(&this.before.said);
        let call = walk.call(group, &main);
        let base = this.before.base.and_then(|base| step_of.get(base).copied().flatten());
        let new = walk.messages(&this.before.said);
        let step = out.builder.attached_call(base, &new, || walk.whole(&this.before), call)?;
        if let Some(slot) = step_of.get_mut(group) {
            *slot = Some(step);
        }
    }
    // what was said and never answered: abandoned drafts first, then the end of the conversation
    let mut ends: Vec<(usize, Before)> = Vec::new();
    for &node in nodes.iter().rev() {
        if answered.contains(&node) || !matches!(trees.row(node).map(|row| &row.kind), Some(RowKind::User { .. })) {
            continue;
        }
        let way = walk.way_of(node);
        if way.said.iter().any(|node| !answered.contains(node)) {
            answered.extend(&way.said);
            ends.push((node, way));
        }
    }
    ends.sort_by_key(|(node, _)| (main.contains(*node, walk.way_group(*node)), *node));
    for (node, way) in ends {
        let row = trees.row(node);
        let mut call = ModelCall {
            untrainable: true,
            created_at: row.and_then(|row| row.timestamp),
            lineage_id: row.filter(|row| row.is_sidechain).and_then(|row| row.agent_id.clone()),
            cause: walk.cause(&way, node),
            ..ModelCall::default()
        };
        if main.is_abandoned(trees, node, walk.way_group(node)) {
            call.flags.push(flag::ABANDONED);
        }
        let base = way.base.and_then(|base| step_of.get(base).copied().flatten());
        out.builder.attached_call(base, &walk.messages(&way.said), || walk.whole(&way), call)?;
    }
    Ok(out)
}

struct Walk<'a> {
    trees: &'a Trees,
    groups: Vec<Group>,
    group_of: HashMap<usize, usize>,
    /// Rows with nothing but tool results, by the response that they follow.
    results: BTreeMap<usize, Vec<usize>>,
    /// The first response's first row of each tree.
    first_of_root: HashMap<usize, usize>,
    /// Whether some response is not a sub-agent's.
    has_main: bool,
}

impl<'a> Walk<'a> {
    fn new(trees: &'a Trees, nodes: &[usize]) -> Self {
        let mut walk = Self {
            trees,
            groups: Vec::new(),
            group_of: HashMap::new(),
            results: BTreeMap::new(),
            first_of_root: HashMap::new(),
            has_main: false,
        };
        let mut by_id: HashMap<(&str, bool, Option<&str>), usize> = HashMap::new();
        for &node in nodes {
            let Some(Row { kind: RowKind::Assistant(response), is_sidechain, agent_id, .. }) = trees.row(node) else {
                continue;
            };
            let fresh = walk.groups.len();
            let group = match response.message_id.as_deref() {
                Some(id) => *by_id.entry((id, *is_sidechain, agent_id.as_deref())).or_insert(fresh),
                None => fresh,
            };
            if group == fresh {
                let reply = Arc::new(Message::plain("assistant", ""));
                walk.groups.push(Group { rows: Vec::new(), reply, before: Before::default() });
            }
            if let Some(group) = walk.groups.get_mut(group) {
                group.rows.push(node);
            }
            walk.group_of.insert(node, group);
            walk.first_of_root.entry(trees.root(node)).or_insert(node);
            walk.has_main |= !*is_sidechain;
        }
        for index in 0..walk.groups.len() {
            let blocks = fold(walk.responses(index).map(|response| response.blocks.as_slice()));
            if let Some(group) = walk.groups.get_mut(index) {
                group.reply = Arc::new(anthropic_assistant(blocks));
            }
        }
        let mut bases = HashMap::new();
        for &node in nodes {
            if let Some(Row { kind: RowKind::User { only_results: true, .. }, .. }) = trees.row(node)
                && let Some(group) = walk.base_of(node, &mut bases)
            {
                walk.results.entry(group).or_default().push(node);
            }
        }
        walk
    }

    /// The response above a row, remembering it for all rows on the way: long runs of rows are walked once.
    fn base_of(&self, from: usize, bases: &mut HashMap<usize, Option<usize>>) -> Option<usize> {
        let mut passed = Vec::new();
        let mut at = Some(from);
        let mut base = None;
        while let Some(node) = at {
            if let Some(known) = bases.get(&node) {
                base = *known;
                break;
            }
            passed.push(node);
            match self.trees.row(node).map(|row| &row.kind) {
                Some(RowKind::Assistant(_)) => {
                    base = self.group_of.get(&node).copied();
                    break;
                }
                Some(RowKind::Compaction { .. }) | None => break,
                Some(_) => at = self.trees.parent(node),
            }
        }
        bases.extend(passed.into_iter().map(|node| (node, base)));
        base
    }

    fn responses(&self, group: usize) -> impl Iterator<Item = &'a Response> {
        let trees = self.trees;
        let rows = self.groups.get(group).map_or(&[][..], |group| group.rows.as_slice());
        rows.iter().filter_map(move |&node| match trees.row(node).map(|row| &row.kind) {
            Some(RowKind::Assistant(response)) => Some(&**response),
            _ => None,
        })
    }

    /// Every group's way to its base, with the inexactness that it inherits.
    fn find_ways(&mut self) {
        for index in 0..self.groups.len() {
            let first = self.groups.get(index).and_then(|group| group.rows.first().copied());
            let way = first.map(|node| self.way_before(node, index)).unwrap_or_default();
            if let Some(group) = self.groups.get_mut(index) {
                group.before = way;
            }
        }
        for index in self.order() {
            let inherited = self
                .groups
                .get(index)
                .and_then(|group| self.groups.get(group.before.base?))
                .is_some_and(|base| base.before.is_inexact);
            if let Some(group) = self.groups.get_mut(index) {
                group.before.is_inexact |= inherited;
            }
        }
    }

    /// Climbs from a row (itself included, if it is the user's) to the response above it.
    fn climb(&self, from: usize) -> Before {
        let mut way = Before::default();
        let mut at = Some(from);
        while let Some(node) = at {
            let Some(row) = self.trees.row(node) else { break };
            way.is_dangling |= row.flags.contains(&flag::DANGLING_PARENT);
            match &row.kind {
                RowKind::User { .. } => way.said.push(node),
                RowKind::Assistant(_) => {
                    way.base = self.group_of.get(&node).copied();
                    break;
                }
                RowKind::Compaction { keeps_rows } => {
                    way.is_compacted = true;
                    way.is_inexact |= keeps_rows;
                    break;
                }
                RowKind::Microcompaction => way.is_inexact = true,
                _ => {}
            }
            at = self.trees.parent(node);
        }
        way.said.reverse();
        way
    }

    /// The way of a response's first row: starts at its parent, and passes by rows of the same response.
    fn way_before(&self, first: usize, group: usize) -> Before {
        let mut at = self.trees.parent(first);
        while let Some(node) = at.filter(|node| self.group_of.get(node) == Some(&group)) {
            at = self.trees.parent(node);
        }
        let mut way = at.map(|node| self.climb(node)).unwrap_or_default();
        way.is_dangling |= self.trees.row(first).is_some_and(|row| row.flags.contains(&flag::DANGLING_PARENT));
        if way.base == Some(group) {
            way.base = None;
        }
        self.add_parallel_results(&mut way, first);
        way
    }

    /// The way of a row of the user's that nobody answered, itself included.
    fn way_of(&self, node: usize) -> Before {
        let mut way = self.climb(node);
        self.add_parallel_results(&mut way, usize::MAX);
        way
    }

    /// Results of parallel calls hang beside each other on their own calls' rows; only one of them is on the path.
    fn add_parallel_results(&self, way: &mut Before, until: usize) {
        let Some(results) = way.base.and_then(|base| self.results.get(&base)) else { return };
        let mut answered: BTreeSet<String> = way.said.iter().flat_map(|&node| self.call_ids(node)).collect();
        for &node in results {
            let ids = self.call_ids(node);
            let is_new = !way.said.contains(&node) && ids.iter().all(|id| !answered.contains(id));
            if node < until && is_new {
                answered.extend(ids);
                way.said.push(node);
            }
        }
        way.said.sort_unstable();
    }

    fn call_ids(&self, node: usize) -> Vec<String> {
        match self.trees.row(node).map(|row| &row.kind) {
            Some(RowKind::User { messages, .. }) => {
                messages.iter().filter_map(|message| message.content.tool_call_id.clone()).collect()
            }
            _ => Vec::new(),
        }
    }

    fn messages(&self, said: &[usize]) -> Vec<Arc<Message>> {
        said.iter()
            .flat_map(|&node| match self.trees.row(node).map(|row| &row.kind) {
                Some(RowKind::User { messages, .. }) => messages.as_slice(),
                _ => &[],
            })
            .cloned()
            .collect()
    }

    /// The whole prompt at the end of a way: all responses above it, with what was said between them.
    fn whole(&self, way: &Before) -> Vec<Arc<Message>> {
        let mut chain: Vec<&Group> = Vec::new();
        let mut at = way.base;
        // bases lead up the tree, but a folded response spans several rows of it: guard against going round
        while let Some(group) = at.and_then(|at| self.groups.get(at)) {
            if chain.len() > self.groups.len() {
                break;
            }
            chain.push(group);
            at = group.before.base;
        }
        let mut prompt = Vec::new();
        for group in chain.into_iter().rev() {
            prompt.extend(self.messages(&group.before.said));
            prompt.push(Arc::clone(&group.reply));
        }
        prompt.extend(self.messages(&way.said));
        prompt
    }

    /// Groups in order of recording, each after the one that it follows.
    fn order(&self) -> Vec<usize> {
        let mut order = Vec::with_capacity(self.groups.len());
        let mut seen = vec![false; self.groups.len()];
        for start in 0..self.groups.len() {
            let mut pending = Vec::new();
            let mut at = Some(start);
            while let Some(group) = at.filter(|&group| seen.get(group) == Some(&false)) {
                if let Some(seen) = seen.get_mut(group) {
                    *seen = true;
                }
                pending.push(group);
                at = self.groups.get(group).and_then(|group| group.before.base);
            }
            order.extend(pending.into_iter().rev());
        }
        order
    }

    /// Why a segment starts at a row, if one does.
    fn cause(&self, way: &Before, node: usize) -> Option<&'static str> {
        let is_sidechain = |node: usize| self.trees.row(node).is_some_and(|row| row.is_sidechain);
        if way.is_compacted {
            Some(boundary::COMPACTION)
        } else if is_sidechain(node) {
            // in a file of its own a sub-agent is a trajectory of its own
            self.has_main.then_some(boundary::SUBAGENT)
        } else {
            // another way on from an earlier row of the same tree: the user went back to it
            let first = self.first_of_root.get(&self.trees.root(node));
            (way.base.is_some() || first.is_some_and(|&first| first < node)).then_some(boundary::REWIND)
        }
    }

    fn way_group(&self, node: usize) -> Option<usize> {
        self.climb(node).base
    }

    /// The rows and responses from the newest message of the session up to its root.
    fn main_path(&self, nodes: &[usize]) -> MainPath {
        let is_leaf = |&&node: &&usize| self.trees.row(node).is_some_and(|row| row.is_message() && !row.is_sidechain);
        let mut path = MainPath::default();
        let mut at = nodes.iter().rev().find(is_leaf).copied();
        path.root = at.map(|node| self.trees.root(node));
        while let Some(node) = at {
            path.nodes.insert(node);
            path.groups.extend(self.group_of.get(&node));
            at = self.trees.parent(node);
        }
        path
    }

    fn call(&self, group: usize, main: &MainPath) -> ModelCall {
        let Some(this) = self.groups.get(group) else { return ModelCall::default() };
        let first = this.rows.first().and_then(|&node| self.trees.row(node));
        let responses: Vec<&Response> = self.responses(group).collect();
        // rows repeat the usage as it grows: the last word counts
        let most = responses.iter().max_by_key(|response| int(&response.usage, "output_tokens"));
        let usage = most.map(|response| &response.usage);
        let mut call = ModelCall {
            reply: Some(Message::clone(&this.reply)),
            model: responses.iter().find_map(|response| response.model.clone()),
            finish_reason: responses.iter().rev().find_map(|response| response.stop_reason.clone()),
            usage_input_tokens: usage.and_then(input_tokens),
            usage_output_tokens: usage.and_then(|usage| int(usage, "output_tokens")),
            created_at: first.and_then(|row| row.timestamp),
            lineage_id: first.filter(|row| row.is_sidechain).and_then(|row| row.agent_id.clone()),
            extra: about(&responses),
            cause: this.rows.first().and_then(|&node| self.cause(&this.before, node)),
            ..ModelCall::default()
        };
        if this.before.is_inexact {
            call.flags.push(flag::PROMPT_INEXACT);
        }
        if this.before.is_dangling {
            call.flags.push(flag::DANGLING_PARENT);
        }
        if this.rows.first().is_some_and(|&node| main.is_abandoned(self.trees, node, Some(group))) {
            call.flags.push(flag::ABANDONED);
            call.untrainable = true;
        }
        call
    }

    fn most_used_model(&self) -> Option<String> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for group in 0..self.groups.len() {
            if let Some(model) = self.responses(group).find_map(|response| response.model.as_deref()) {
                *counts.entry(model).or_default() += 1;
            }
        }
        counts.into_iter().max_by_key(|(_, count)| *count).map(|(model, _)| model.to_owned())
    }
}

/// What the session in the end consists of; the rest was abandoned by going back.
#[derive(Default)]
struct MainPath {
    root: Option<usize>,
    nodes: BTreeSet<usize>,
    groups: BTreeSet<usize>,
}

impl MainPath {
    fn contains(&self, node: usize, group: Option<usize>) -> bool {
        self.nodes.contains(&node) || group.is_some_and(|group| self.groups.contains(&group))
    }

    /// A branch of the main path's own tree. Other trees (a sub-agent, a session whose first rows are missing) are
    /// not known to be abandoned.
    fn is_abandoned(&self, trees: &Trees, node: usize, group: Option<usize>) -> bool {
        let is_sidechain = trees.row(node).is_some_and(|row| row.is_sidechain);
        let is_on_path = match group {
            Some(group) if trees.row(node).is_some_and(|row| matches!(row.kind, RowKind::Assistant(_))) => {
                self.groups.contains(&group)
            }
            _ => self.nodes.contains(&node),
        };
        !is_sidechain && !is_on_path && self.root == Some(trees.root(node))
    }
}

/// The blocks of a response's rows in order. Rows repeat blocks, and streamed text is written again as it grows.
fn fold<'b>(rows: impl Iterator<Item = &'b [Value]>) -> Vec<Value> {
    let mut blocks: Vec<Value> = Vec::new();
    for block in rows.flatten() {
        let grown = |earlier: &Value| {
            let text = |block: &Value| ["text", "thinking"].iter().find_map(|k| block.get(*k)?.as_str().map(str::len));
            let is_prefix = ["text", "thinking"].iter().any(|key| {
                match (earlier.get(*key).and_then(Value::as_str), block.get(*key).and_then(Value::as_str)) {
                    (Some(before), Some(after)) => !before.is_empty() && after.starts_with(before),
                    _ => false,
                }
            });
            earlier.get("type") == block.get("type") && is_prefix && text(earlier) <= text(block)
        };
        if blocks.contains(block) {
            continue;
        }
        match blocks.iter().position(grown) {
            Some(index) => {
                if let Some(earlier) = blocks.get_mut(index) {
                    *earlier = block.clone();
                }
            }
            None => blocks.push(block.clone()),
        }
    }
    blocks
}

fn about(responses: &[&Response]) -> Map<String, Value> {
    let mut extra = Map::new();
    for (key, value) in [
        ("message_id", responses.iter().find_map(|response| response.message_id.clone())),
        ("request_id", responses.iter().find_map(|response| response.request_id.clone())),
    ] {
        if let Some(value) = value {
            extra.insert(key.to_owned(), Value::from(value));
        }
    }
    let most = responses.iter().max_by_key(|response| int(&response.usage, "output_tokens"));
    if let Some(usage) = most.map(|response| &response.usage).filter(|usage| !usage.is_empty()) {
        extra.insert("usage".to_owned(), Value::Object(usage.clone()));
    }
    extra
}
