//! Messages, tool schemas and files to rows of `contents`, each hash once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use dressage_schemas::message::Content;
use dressage_schemas::tables::contents::ContentRow;

use crate::rollout::hex16;

/// Collects the contents of one trajectory.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    seen: HashSet<String>,
    /// Hashes of contents that several steps share, by address; each is held, so that its address stays its own.
    shared: HashMap<*const Content, (Arc<Content>, String)>,
    pub(crate) rows: Vec<ContentRow>,
    pub(crate) bytes: u64,
}

impl Contents {
    /// Adds one content; its hash.
    pub(crate) fn add(&mut self, content: impl Into<Arc<Content>>) -> String {
        let content = content.into();
        if let Some((_, content_hash)) = self.shared.get(&Arc::as_ptr(&content)) {
            return content_hash.clone();
        }
        let canonical = content.canonical_bytes();
        let content_hash = hex16(&blake3::hash(&canonical));
        if Arc::strong_count(&content) > 1 {
            self.shared.insert(Arc::as_ptr(&content), (Arc::clone(&content), content_hash.clone()));
        }
        if self.seen.insert(content_hash.clone()) {
            self.bytes += canonical.len() as u64;
            let content = Arc::unwrap_or_clone(content);
            self.rows.push(ContentRow {
                content_hash: content_hash.clone(),
                kind: content.kind.as_str().to_owned(),
                role: content.role,
                text: content.text,
                reasoning: content.reasoning,
                tool_calls: content.tool_calls,
                tool_call_id: content.tool_call_id,
                body: content.body,
                data: content.data,
                n_bytes: i64::try_from(canonical.len()).unwrap_or(i64::MAX),
            });
        }
        content_hash
    }
}
