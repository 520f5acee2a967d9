//! Our own format: one JSON object a line, a whole trajectory with its segments, or an event of one
//! (`docs/dressage-format.md`).
//!
//! A source that begins with a whole trajectory is read line by line on many threads; one that begins with an event
//! (`"kind"`) is a stream in which the events of a trajectory follow each other, those of others between them.

mod event;
mod fields;
pub(crate) mod line;
pub(crate) mod segment;
pub(crate) mod whole;

use crate::importer::{Confidence, Importer, Reader, Sniff, SourceInfo};

/// The importer.
pub(crate) struct Dressage;

/// The importer of event streams: the same format, whose records belong together.
pub(crate) struct DressageEvents;

/// The name of the format.
pub(crate) const NAME: &str = "dressage";

/// What a byte of text takes: the text, token arrays, rows and the encoded payload.
const MEMORY_FACTOR: u64 = 3;

fn is_event(sniff: &Sniff<'_>) -> bool {
    let kind = sniff.records.first().and_then(|r| r.get("kind")).and_then(|k| k.as_str());
    sniff.is_json() && sniff.has_all(&["kind", "trajectory_id"]) && kind.is_some_and(event::is_kind)
}

impl Importer for Dressage {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sniff(&self, sniff: &Sniff<'_>) -> Confidence {
        // a long first line may be cut by the sniffing; its first keys are enough
        let whole =
            sniff.has("trajectory_id") && (sniff.has("segments") || !sniff.complete && sniff.has("instance_id"));
        if sniff.is_json() && whole && !is_event(sniff) { Confidence::Certain } else { Confidence::No }
    }

    fn reader(&self, _source: &SourceInfo) -> Reader {
        Reader::Records(Box::new(whole::WholeLines))
    }

    fn memory_factor(&self) -> u64 {
        MEMORY_FACTOR
    }
}

impl Importer for DressageEvents {
    fn name(&self) -> &'static str {
        "dressage-events"
    }

    fn sniff(&self, sniff: &Sniff<'_>) -> Confidence {
        if is_event(sniff) { Confidence::Certain } else { Confidence::No }
    }

    fn reader(&self, _source: &SourceInfo) -> Reader {
        Reader::Session(Box::<event::EventStream>::default())
    }

    fn memory_factor(&self) -> u64 {
        MEMORY_FACTOR
    }
}
