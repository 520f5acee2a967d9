//! Contents: each is what its hash says, each that is named is there, and those that nothing names.

use std::collections::HashSet;

use arrow::array::{Array, LargeBinaryArray, LargeStringArray, RecordBatch, StringArray};
use dressage_schemas::Table;
use dressage_schemas::message::{Content, ContentKind};

use super::ledger::Ledger;
use super::{Severity, for_each_batch};
use crate::error::Result;
use crate::physical::{row_addresses, typed};
use crate::scan::ScanOptions;
use crate::snapshot::Snapshot;

const T: Table = Table::Contents;

/// How a message body names an inlined file that was stored apart.
const REFERENCE: &str = "\"$content\":";

/// Reads all contents. Without `payload` only their hashes, and then nothing can be said about what nothing names:
/// messages name files in their bodies.
pub(super) async fn check(snapshot: &Snapshot, payload: bool, ledger: &mut Ledger) -> Result<()> {
    let mut stored: HashSet<u128> = HashSet::new();
    let mut old: HashSet<u128> = HashSet::new();
    let options = if payload { ScanOptions::default() } else { ScanOptions::columns(["content_hash"]) };
    for_each_batch(snapshot, T, &options.with_row_address(), ledger, |batch, ledger| {
        let hashes: &StringArray = typed(T, batch, "content_hash")?;
        let addresses = row_addresses(T, batch)?;
        for row in 0..batch.num_rows() {
            let Ok(bits) = u128::from_str_radix(hashes.value(row), 16) else {
                let name = || format!("{:?}", hashes.value(row));
                ledger.note(Severity::Damage, "content_hash", T, name, "not a content hash");
                continue;
            };
            stored.insert(bits);
            if ledger.ages.is_old(T, addresses.value(row)) {
                old.insert(bits);
            }
        }
        if payload { verify(batch, ledger) } else { Ok(()) }
    })
    .await?;
    let missing: Vec<u128> = ledger.referenced.difference(&stored).copied().collect();
    for bits in missing {
        let what = "a step names a message that is not stored; ingest its source again under a new run";
        ledger.note(Severity::Damage, "missing_content", T, || format!("{bits:032x}"), what);
    }
    if payload {
        let unused: Vec<u128> = old.difference(&ledger.referenced).copied().collect();
        for bits in &unused {
            let what = "no step names it; `--repair` removes it";
            ledger.note(Severity::Leftover, "orphan", T, || format!("{bits:032x}"), what);
        }
        ledger.orphan_contents = unused;
    }
    Ok(())
}

fn verify(batch: &RecordBatch, ledger: &mut Ledger) -> Result<()> {
    let hash: &StringArray = typed(T, batch, "content_hash")?;
    let kind: &StringArray = typed(T, batch, "kind")?;
    let role: &StringArray = typed(T, batch, "role")?;
    let text: &LargeStringArray = typed(T, batch, "text")?;
    let reasoning: &LargeStringArray = typed(T, batch, "reasoning")?;
    let tool_calls: &LargeStringArray = typed(T, batch, "tool_calls")?;
    let tool_call_id: &StringArray = typed(T, batch, "tool_call_id")?;
    let body: &LargeStringArray = typed(T, batch, "body")?;
    let data: &LargeBinaryArray = typed(T, batch, "data")?;
    let large = |column: &LargeStringArray, row| column.is_valid(row).then(|| column.value(row).to_owned());
    let small = |column: &StringArray, row| column.is_valid(row).then(|| column.value(row).to_owned());
    for row in 0..batch.num_rows() {
        let content = Content {
            kind: match kind.value(row) {
                "tools" => ContentKind::Tools,
                "data" => ContentKind::Data,
                _ => ContentKind::Message,
            },
            role: small(role, row),
            text: large(text, row),
            reasoning: large(reasoning, row),
            tool_calls: large(tool_calls, row),
            tool_call_id: small(tool_call_id, row),
            body: large(body, row),
            data: data.is_valid(row).then(|| data.value(row).to_vec()),
        };
        let bytes = content.canonical_bytes();
        ledger.bytes_verified += bytes.len() as u64;
        let now = blake3::hash(&bytes).to_hex();
        if now.get(..32) != Some(hash.value(row)) {
            let what = "a stored message is not what its hash says; ingest its source again under a new run";
            ledger.note(Severity::Damage, "content_checksum", T, || hash.value(row).to_owned(), what);
        }
        if body.is_valid(row) {
            ledger.referenced.extend(references(body.value(row)));
        }
    }
    Ok(())
}

/// The hashes that a message body names. Anything that looks like a reference counts as one: keeping a file too many
/// is better than losing one.
fn references(body: &str) -> Vec<u128> {
    let mut out = Vec::new();
    let mut rest = body;
    while let Some(at) = rest.find(REFERENCE) {
        rest = &rest[at + REFERENCE.len()..];
        let value = rest.trim_start().strip_prefix('"').and_then(|v| v.get(..32));
        out.extend(value.and_then(|hash| u128::from_str_radix(hash, 16).ok()));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_in_bodies_are_found() {
        let body = r#"{"a":[{"$content":"000000000000000000000000000000ff"},{"$content": "0000000000000000000000000000000a"}],"$content":"short"}"#;
        assert_eq!(references(body), [0xff, 0xa]);
    }
}
