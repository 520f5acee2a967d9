//! Where readers put what they find: prepares it on the reader's thread and sends it on.

use std::sync::Arc;

use super::flow::{End, Job, Outcome, Shared};
use crate::budget::{Budget, Permit};
use crate::error::Error;
use crate::importer::{Record, RecordError, Rejected, Sink, Verdict};
use crate::prepare::Preparer;
use crate::rollout::{Provenance, Rollout, hex16};

/// The sink of one piece of work.
pub(crate) struct PipeSink<'a> {
    shared: &'a Shared,
    preparer: &'a mut Preparer,
    seq: u64,
    job: Arc<Job>,
    permit: Arc<Permit>,
    /// Of a reader that holds a whole source: what it gives out waits here, besides what it holds.
    outlet: Option<Arc<Budget>>,
}

/// What one whole source may have given out and not yet seen written. A piece waits only for its own, so that a later
/// one whose turn has not come cannot hold up the earlier one that everybody waits for.
const OUTLET_BYTES: u64 = 16 << 20;

impl<'a> PipeSink<'a> {
    pub(crate) fn new(
        shared: &'a Shared,
        preparer: &'a mut Preparer,
        seq: u64,
        job: Arc<Job>,
        permit: Arc<Permit>,
    ) -> Self {
        Self { shared, preparer, seq, job, permit, outlet: None }
    }

    /// For a piece of work that is a whole source.
    pub(crate) fn with_outlet(self) -> Self {
        Self { outlet: Some(Budget::new(OUTLET_BYTES)), ..self }
    }

    /// The same sink while one record is read: what comes of it was read there.
    pub(crate) fn at<'s>(&'s mut self, record: &'s Record<'s>) -> AtRecord<'s, 'a> {
        AtRecord { sink: self, record }
    }

    fn take(&mut self, rollout: Rollout, raw: &[u8]) -> Result<(), RecordError> {
        match self.preparer.prepare(rollout, &self.job.info.name, self.job.format) {
            Ok(prepared) => {
                let permit = match &self.outlet {
                    Some(outlet) => Arc::new(outlet.acquire(prepared.bytes).map_err(|_| RecordError::Stopped)?),
                    None => Arc::clone(&self.permit),
                };
                self.send(Outcome::Prepared { prepared: Box::new(prepared), permit })
            }
            Err(mut rejected) => {
                rejected.raw = raw.to_vec();
                self.reject(rejected)
            }
        }
    }

    fn send(&self, outcome: Outcome) -> Result<(), RecordError> {
        self.shared.deliver(self.seq, outcome).map_err(|end| match end {
            End::Stopped => RecordError::Stopped,
            End::Failed(error) => RecordError::Failed(error),
        })
    }
}

impl Sink for PipeSink<'_> {
    fn rollout(&mut self, rollout: Rollout) -> Result<(), RecordError> {
        self.take(rollout, &[])
    }

    fn verdict(&mut self, verdict: Verdict) -> Result<(), RecordError> {
        self.send(Outcome::Verdict { verdict: Box::new(verdict), job: Arc::clone(&self.job) })
    }

    fn reject(&mut self, mut rejected: Rejected) -> Result<(), RecordError> {
        let limit = usize::try_from(self.shared.settings.quarantine_bytes_max).unwrap_or(usize::MAX);
        rejected.raw.truncate(limit);
        if self.shared.settings.strict {
            return Err(RecordError::Failed(Box::new(strict(&self.job.info.name, &rejected))));
        }
        let permit = Some(Arc::clone(&self.permit));
        self.send(Outcome::Rejected { rejected: Box::new(rejected), job: Arc::clone(&self.job), permit })
    }
}

/// The error of `--strict` for a rejection.
pub(crate) fn strict(source_name: &str, rejected: &Rejected) -> Error {
    let line = rejected.line.map(|line| format!(" line {line},")).unwrap_or_default();
    let of = rejected.trajectory_id.as_ref().map(|id| format!(", trajectory {id}")).unwrap_or_default();
    Error::Strict {
        source_name: source_name.to_owned(),
        place: format!(":{line} byte {}{of}", rejected.byte_offset),
        rule: rejected.rule.to_string(),
        reason: rejected.reason.clone(),
    }
}

/// A [`PipeSink`] during one record.
pub(crate) struct AtRecord<'s, 'a> {
    sink: &'s mut PipeSink<'a>,
    record: &'s Record<'s>,
}

impl Sink for AtRecord<'_, '_> {
    fn rollout(&mut self, mut rollout: Rollout) -> Result<(), RecordError> {
        if rollout.provenance.record_hash.is_empty() {
            rollout.provenance = Provenance {
                byte_offset: self.record.byte_offset,
                byte_length: self.record.bytes.len() as u64,
                record_hash: hex16(&blake3::hash(self.record.bytes)),
                line: self.record.line,
            };
        }
        self.sink.take(rollout, self.record.bytes)
    }

    fn verdict(&mut self, verdict: Verdict) -> Result<(), RecordError> {
        self.sink.verdict(verdict)
    }

    fn reject(&mut self, rejected: Rejected) -> Result<(), RecordError> {
        self.sink.reject(rejected)
    }
}
