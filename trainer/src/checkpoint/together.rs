//! Checkpoints of several ranks: who writes what, and that all of it is written before it counts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::progress::Progress;
use super::save::{Measured, save_old_logprobs};
use super::state::RanksFile;
use crate::collective::{CollectiveError, exchange_text};
use crate::error::Result;
use crate::files::ModelSink;
use crate::parallel::DataParallel;
use crate::step::Trainer;

/// What a rank tells the others of something that all of them do.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Told {
    /// Why it could not.
    error: Option<String>,
    /// Sizes of the files it wrote.
    files: BTreeMap<String, u64>,
    /// Micro-batches with old log-probs.
    old_logprobs: usize,
}

impl Trainer {
    pub(super) fn save_together(
        &self,
        parallel: &DataParallel,
        sink: &mut dyn ModelSink,
        progress: &Progress,
    ) -> Result<()> {
        let group = parallel.group();
        group.enter("a checkpoint");
        let (rank, world_size) = (group.rank(), group.world_size());
        let optimizer_files = if parallel.shares_optimizer() { world_size } else { 1 };
        let mut sink = Measured { sink, bytes: BTreeMap::new() };
        let written = self.save_part(&mut sink, progress, optimizer_files);
        let Measured { sink, bytes } = sink;
        let told = Told { error: None, files: bytes, old_logprobs: progress.old_logprobs.len() };
        let all = exchange(parallel, "the files of a checkpoint", written.map(|()| told))?;
        let ranks =
            RanksFile { world_size, optimizer_files, old_logprobs: all.iter().map(|told| told.old_logprobs).collect() };
        let written = match rank {
            0 => self.save_state(sink, progress, all.into_iter().flat_map(|told| told.files).collect(), Some(ranks)),
            _ => Ok(()),
        };
        together(Some(parallel), "the end of a checkpoint", written)
    }

    /// This rank's files.
    fn save_part(&self, sink: &mut Measured<'_>, progress: &Progress, optimizer_files: usize) -> Result<()> {
        let (rank, world_size) = self.ranks();
        if rank == 0 {
            self.save_weights(sink)?;
        } else {
            self.model.walk_all()?;
        }
        if rank < optimizer_files {
            self.save_optimizer(sink, rank, optimizer_files)?;
        }
        save_old_logprobs(sink, progress, rank, world_size)
    }
}

/// What every rank did, or an error on all of them if one could not: its own on that rank.
pub(super) fn together<T>(parallel: Option<&DataParallel>, phase: &'static str, done: Result<T>) -> Result<T> {
    let Some(parallel) = parallel else { return done };
    let mut value = None;
    let told = done.map(|done| {
        value = Some(done);
        Told::default()
    });
    exchange(parallel, phase, told)?;
    let (rank, world_size) = (parallel.group().rank(), parallel.group().world_size());
    let lost = || CollectiveError::OutOfStep { rank, world_size, problem: "what was done is lost".into() };
    Ok(value.ok_or_else(lost)?)
}

fn exchange(parallel: &DataParallel, phase: &'static str, own: Result<Told>) -> Result<Vec<Told>> {
    let group = parallel.group();
    let told = match &own {
        Ok(told) => serde_json::to_string(told),
        Err(error) => serde_json::to_string(&Told { error: Some(error.to_string()), ..Told::default() }),
    };
    let all = exchange_text(group, &told.unwrap_or_default());
    // this rank's own error says more than that of the exchange
    let (_, all) = (own?, all?);
    let unreadable = || Told { error: Some("what it says cannot be read".to_owned()), ..Told::default() };
    let all: Vec<Told> = all.iter().map(|text| serde_json::from_str(text).unwrap_or_else(|_| unreadable())).collect();
    let reason = |(rank, told): (usize, &Told)| told.error.as_ref().map(|error| format!("rank {rank}: {error}"));
    let reasons: Vec<String> = all.iter().enumerate().filter_map(reason).collect();
    if reasons.is_empty() {
        return Ok(all);
    }
    let (rank, world_size) = (group.rank(), group.world_size());
    Err(CollectiveError::PeerFailed { rank, world_size, phase, reasons: reasons.join("; ").into() }.into())
}
