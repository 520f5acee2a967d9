//! Links between rows, mended where they are broken, and the trees that they make.

use std::collections::{BTreeMap, HashMap, HashSet};

use dressage_schemas::words::flag;

use super::row::{Row, RowKind};

/// All rows of a file with their parents.
pub(super) struct Trees {
    rows: Vec<Row>,
    parents: Vec<Option<usize>>,
    roots: Vec<usize>,
}

/// One tree of a session, by its root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Tree {
    pub(super) root: usize,
}

/// The trees that make one trajectory.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: String,
    pub(super) parent: Option<String>,
    pub(super) trees: Vec<Tree>,
}

impl Trees {
    pub(super) fn build(mut rows: Vec<Row>) -> Self {
        let mut by_uuid: HashMap<String, usize> = HashMap::new();
        for (index, row) in rows.iter().enumerate() {
            if let Some(uuid) = &row.uuid {
                // a resumed session repeats rows: the first one stands for all
                by_uuid.entry(uuid.clone()).or_insert(index);
            }
        }
        let linked = rows.iter().filter(|row| row.is_message() && row.parent.is_some()).count();
        let messages = rows.iter().filter(|row| row.is_message()).count();
        let has_links = linked * 2 >= messages;

        // the last message before each row, of the same session and sub-agent
        let mut previous: HashMap<(Option<String>, bool, Option<String>), usize> = HashMap::new();
        let mut parents: Vec<Option<usize>> = Vec::with_capacity(rows.len());
        for (index, row) in rows.iter_mut().enumerate() {
            let chain = (row.session.clone(), row.is_sidechain, row.agent_id.clone());
            let before = previous.get(&chain).copied();
            let found = row.parent.as_ref().and_then(|uuid| by_uuid.get(uuid).copied()).filter(|&p| p != index);
            let parent = match (&row.parent, found) {
                (_, Some(parent)) => Some(parent),
                (Some(_), None) => {
                    // a link to a row that was never written: the order of the file stands for it
                    row.flags.push(flag::DANGLING_PARENT);
                    before
                }
                // an answer to nothing answers what came before; in files without links so does everything
                (None, None) if matches!(row.kind, RowKind::Assistant(_)) || !has_links => before,
                (None, None) => None,
            };
            parents.push(parent);
            if row.is_message() {
                previous.insert(chain, index);
            }
        }
        for (index, row) in rows.iter_mut().enumerate() {
            let is_repeated = row.uuid.as_ref().is_some_and(|uuid| by_uuid.get(uuid) != Some(&index));
            if is_repeated {
                row.kind = RowKind::Other;
            }
        }
        break_cycles(&mut parents);
        let mut roots: Vec<Option<usize>> = vec![None; rows.len()];
        for index in 0..rows.len() {
            let mut path = Vec::new();
            let mut at = index;
            let root = loop {
                if let Some(root) = roots[at] {
                    break root;
                }
                path.push(at);
                match parents[at] {
                    Some(parent) => at = parent,
                    None => break at,
                }
            };
            for node in path {
                roots[node] = Some(root);
            }
        }
        let roots = roots.into_iter().enumerate().map(|(index, root)| root.unwrap_or(index)).collect();
        Self { rows, parents, roots }
    }

    /// Trajectories in order of their first row. A tree belongs to the session of its last message: a fork begins with
    /// rows of the session that it was forked from.
    pub(super) fn sessions(&self) -> Vec<Session> {
        let mut last: BTreeMap<usize, usize> = BTreeMap::new();
        for (index, row) in self.rows.iter().enumerate() {
            if row.is_message() {
                last.insert(self.roots[index], index);
            }
        }
        let mut sessions: Vec<Session> = Vec::new();
        let mut add = |id: String, parent: Option<String>, tree: Tree| match sessions.iter_mut().find(|s| s.id == id) {
            Some(session) => session.trees.push(tree),
            None => sessions.push(Session { id, parent, trees: vec![tree] }),
        };
        let name = |row: &Row| row.session.clone().unwrap_or_else(|| "session".to_owned());
        let main: HashSet<String> =
            last.values().map(|&at| &self.rows[at]).filter(|row| !row.is_sidechain).map(name).collect();
        for (&root, &at) in &last {
            let row = &self.rows[at];
            let session = name(row);
            let tree = Tree { root };
            if !row.is_sidechain || main.contains(&session) {
                // seen in the session's own file, a sub-agent is a lineage of it
                add(session, None, tree);
                continue;
            }
            let agent = row.agent_id.clone().or_else(|| self.rows[root].uuid.clone()).unwrap_or_default();
            if session == agent || session == format!("agent-{agent}") {
                add(session, None, tree);
            } else {
                add(format!("{session}/agent-{agent}"), Some(session), tree);
            }
        }
        sessions
    }

    /// The rows of some trees, in order of the file.
    pub(super) fn nodes_of<'a>(&'a self, trees: &'a [Tree]) -> impl Iterator<Item = usize> + 'a {
        // trees are found in order of their roots
        (0..self.rows.len())
            .filter(move |&node| trees.binary_search_by_key(&self.roots[node], |tree| tree.root).is_ok())
    }

    pub(super) fn row(&self, node: usize) -> Option<&Row> {
        self.rows.get(node)
    }

    pub(super) fn parent(&self, node: usize) -> Option<usize> {
        self.parents.get(node).copied().flatten()
    }

    pub(super) fn root(&self, node: usize) -> usize {
        self.roots.get(node).copied().unwrap_or(node)
    }
}

/// Cuts a link of every cycle, so that each walk to the root ends.
fn break_cycles(parents: &mut [Option<usize>]) {
    // 0: not seen, 1: on the path that is being walked, 2: leads to a root
    let mut state = vec![0_u8; parents.len()];
    for start in 0..parents.len() {
        let mut path = Vec::new();
        let mut at = start;
        while state[at] == 0 {
            state[at] = 1;
            path.push(at);
            match parents[at] {
                Some(parent) if state[parent] == 1 => parents[at] = None,
                Some(parent) => at = parent,
                None => {}
            }
        }
        for node in path {
            state[node] = 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_walk_to_the_root_ends() {
        let mut parents = vec![Some(1), Some(2), Some(0), Some(2), Some(4), None, Some(5)];
        break_cycles(&mut parents);
        for start in 0..parents.len() {
            let (mut at, mut length) = (start, 0);
            while let Some(parent) = parents[at] {
                at = parent;
                length += 1;
                assert!(length <= parents.len());
            }
        }
        assert_eq!(parents[6], Some(5));
    }
}
