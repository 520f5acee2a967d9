//! What becomes of a trajectory that arrives: new, updated, unchanged, or in conflict with another one of its name.
//!
//! ```text
//!   known to the store?  not known ───────────────────────────────────────▶ new: revision 0
//!                        same content hash ───────────────────────────────▶ unchanged
//!                        a copy that says more ───────────────────────────▶ updated: next revision
//!                        a copy that says less ───────────────────────────▶ unchanged
//!                        says the same: holds more, or never seen before ─▶ updated: next revision
//!                                       holds less, or seen before ───────▶ unchanged
//!                        says other things ───────────────────────────────▶ id_conflict: quarantine
//! ```

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use arrow::array::{Array, StringArray};
use dressage_schemas::Table;
use dressage_schemas::ids::TrajectoryKey;
use dressage_schemas::tables::trajectories::TrajectoryRow;
use dressage_storage::{KnownTrajectory, Lake, LakeWriter, ScanOptions, Snapshot};
use futures::TryStreamExt;

use super::copies::{Copy, Kinship, Said, kinship};
use super::group::Group;
use super::stored::{self, Attempt, Head};
use crate::error::{Error, Result};
use crate::prepare::Prepared;

/// Tokens of stored copies that are read at once to be compared; a longer copy is read alone.
const COMPARED_TOKENS_MAX: i64 = 4 << 20;
/// Messages of stored copies whose hashes are held at once.
const COMPARED_MESSAGES_MAX: i64 = 256 << 10;
/// Stored copies that are read at once.
const COMPARED_COPIES_MAX: usize = 512;

/// What becomes of a trajectory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// It is stored under this revision.
    Store(i32),
    /// The store has it, written by this attempt.
    Unchanged(i64),
    /// Another trajectory has its name; the reason says which.
    Conflict(String),
}

/// How the copies that arrived stand to those in the store: by their place among the arrived.
#[derive(Default)]
pub(crate) struct Compared {
    kinships: HashMap<usize, Kinship>,
    heads: HashMap<Attempt, Head>,
    /// Of the store when they were compared; opened when first needed.
    snapshot: Option<Snapshot>,
}

impl Compared {
    async fn snapshot(&mut self, lake: &Lake) -> Result<&Snapshot> {
        Ok(match &mut self.snapshot {
            Some(snapshot) => snapshot,
            none => none.insert(lake.snapshot(None).await.map_err(Error::Storage)?),
        })
    }
}

/// What decisions need to remember within one ingest.
#[derive(Default)]
pub(crate) struct Decider {
    /// Content hashes of all revisions of the trajectories that this ingest updated: the writer knows only the last.
    revisions: HashMap<i64, Vec<String>>,
}

fn is_other(prepared: &Prepared, known: &HashMap<i64, KnownTrajectory>) -> Option<Attempt> {
    let row = &prepared.trajectory;
    let stored = known.get(&row.trajectory_key)?;
    (stored.content_hash != row.content_hash).then_some((stored.trajectory_key, stored.write_id))
}

/// Compares the copies that are not the same as what the store has. Reads nothing where there are none.
pub(crate) async fn compare<'p>(
    lake: &Lake,
    writer: &mut LakeWriter,
    arrived: impl Iterator<Item = &'p Prepared> + Clone,
    known: &HashMap<i64, KnownTrajectory>,
) -> Result<Compared> {
    let mut pairs: HashMap<Attempt, Vec<(usize, &Prepared)>> = HashMap::new();
    for (index, prepared) in arrived.enumerate() {
        if let Some(attempt) = is_other(prepared, known) {
            pairs.entry(attempt).or_default().push((index, prepared));
        }
    }
    if pairs.is_empty() {
        return Ok(Compared::default());
    }
    if pairs.keys().any(|(key, _)| writer.is_pending(*key)) {
        // what cannot be read cannot be compared
        writer.commit().await.map_err(Error::Storage)?;
    }
    let snapshot = lake.snapshot(None).await.map_err(Error::Storage)?;
    let heads = stored::heads(&snapshot, &pairs.keys().copied().collect()).await?;
    let mut kinships = HashMap::new();
    let mut attempts: Vec<Attempt> = pairs.keys().copied().collect();
    attempts.sort_unstable();
    let (mut chunk, mut tokens, mut messages) = (HashSet::new(), 0, 0);
    let mut chunks = Vec::new();
    for attempt in attempts {
        let head = heads.get(&attempt).cloned().unwrap_or_default();
        let full = tokens + head.n_tokens > COMPARED_TOKENS_MAX
            || messages + head.n_messages > COMPARED_MESSAGES_MAX
            || chunk.len() >= COMPARED_COPIES_MAX;
        if full && !chunk.is_empty() {
            chunks.push(std::mem::take(&mut chunk));
            (tokens, messages) = (0, 0);
        }
        tokens += head.n_tokens;
        messages += head.n_messages;
        chunk.insert(attempt);
    }
    chunks.push(chunk);
    let mut strangers = HashSet::new();
    for chunk in chunks {
        for (attempt, said) in stored::said(&snapshot, &chunk).await? {
            let there = Copy { said, contents: &[] };
            for (index, prepared) in pairs.get(&attempt).into_iter().flatten() {
                let found = kinship(&snapshot, &copy_of(prepared), &there).await?;
                if found == Kinship::Stranger {
                    strangers.insert(attempt);
                }
                kinships.insert(*index, found);
            }
        }
    }
    // what was read from the very same bytes is the same, though another release reads them differently
    for (attempt, record_hashes) in stored::record_hashes(&snapshot, &strangers).await? {
        for (index, prepared) in pairs.get(&attempt).into_iter().flatten() {
            let own = &prepared.provenance.record_hash;
            if !own.is_empty() && record_hashes.contains(own) && kinships.get(index) == Some(&Kinship::Stranger) {
                kinships.insert(*index, Kinship::Same);
            }
        }
    }
    Ok(Compared { kinships, heads, snapshot: Some(snapshot) })
}

fn copy_of(prepared: &Prepared) -> Copy<'_> {
    Copy { said: Said::of(&prepared.steps), contents: &prepared.contents }
}

impl Decider {
    /// Decides about the trajectory at `index` of those that were compared. `known` and `group` have what was decided
    /// before it.
    pub(crate) async fn decide(
        &mut self,
        lake: &Lake,
        (index, prepared): (usize, &Prepared),
        known: Option<&KnownTrajectory>,
        compared: &mut Compared,
        group: &Group,
    ) -> Result<Decision> {
        let row = &prepared.trajectory;
        let Some(stored) = known else { return Ok(Decision::Store(0)) };
        if stored.trajectory_id != row.trajectory_id || stored.run_id != row.run_id {
            return Err(Error::KeyCollision {
                key: TrajectoryKey(row.trajectory_key),
                first: format!("{} of run {}", stored.trajectory_id, stored.run_id),
                second: format!("{} of run {}", row.trajectory_id, row.run_id),
            });
        }
        if stored.content_hash == row.content_hash {
            return Ok(Decision::Unchanged(stored.write_id));
        }
        let in_group = group.copy(row.trajectory_key);
        let (kinship, head) = match in_group {
            Some((there, copy)) => {
                let snapshot = compared.snapshot(lake).await?;
                (kinship(snapshot, &copy_of(prepared), &copy).await?, head_of(there))
            }
            None => {
                let found = compared.kinships.get(&index).copied().unwrap_or(Kinship::Stranger);
                let head = compared.heads.get(&(stored.trajectory_key, stored.write_id)).cloned();
                (found, head.unwrap_or_default())
            }
        };
        let alike = head.format == row.format && head.instance_id == row.instance_id;
        let next = stored.revision.saturating_add(1);
        match kinship {
            Kinship::Longer => self.update(lake, stored, row, next).await,
            Kinship::Older => Ok(Decision::Unchanged(stored.write_id)),
            // copies of other formats count other things
            Kinship::Same | Kinship::Silent if alike && row.extent != stored.extent => {
                if row.extent < stored.extent {
                    Ok(Decision::Unchanged(stored.write_id))
                } else {
                    self.update(lake, stored, row, next).await
                }
            }
            Kinship::Silent if !alike => Ok(conflicting(row, &head)),
            Kinship::Stranger => Ok(conflicting(row, &head)),
            Kinship::Same | Kinship::Silent => {
                // two copies of one length must not overtake each other for ever
                if self.revisions(lake, stored).await?.contains(&row.content_hash) {
                    Ok(Decision::Unchanged(stored.write_id))
                } else {
                    self.update(lake, stored, row, next).await
                }
            }
        }
    }

    async fn update(
        &mut self,
        lake: &Lake,
        stored: &KnownTrajectory,
        row: &TrajectoryRow,
        revision: i32,
    ) -> Result<Decision> {
        self.revisions(lake, stored).await?.push(row.content_hash.clone());
        Ok(Decision::Store(revision))
    }

    /// The content hashes of all revisions of a trajectory.
    async fn revisions(&mut self, lake: &Lake, stored: &KnownTrajectory) -> Result<&mut Vec<String>> {
        Ok(match self.revisions.entry(stored.trajectory_key) {
            Entry::Occupied(known) => known.into_mut(),
            // the effective revision is the only one
            Entry::Vacant(unknown) if stored.revision == 0 => unknown.insert(vec![stored.content_hash.clone()]),
            Entry::Vacant(unknown) => unknown.insert(stored_hashes(lake, stored.trajectory_key).await?),
        })
    }
}

pub(crate) fn head_of(row: &TrajectoryRow) -> Head {
    Head {
        format: row.format.clone(),
        instance_id: row.instance_id.clone(),
        source: row.source.clone(),
        n_tokens: row.n_tokens,
        n_messages: i64::from(row.n_messages),
    }
}

fn conflicting(row: &TrajectoryRow, kept: &Head) -> Decision {
    Decision::Conflict(conflict(&row.trajectory_id, &row.run_id, &head_of(row), kept))
}

/// Why a trajectory cannot be stored beside the one that has its name, and what to do about it.
pub(crate) fn conflict(trajectory_id: &str, run_id: &str, left_out: &Head, kept: &Head) -> String {
    let one = |head: &Head| format!("{} (format {}, instance {})", head.source, head.format, head.instance_id);
    format!(
        "two trajectories are called {trajectory_id} in run {run_id}, and neither goes on from the other: the one from \
         {} is stored, this one from {} is not; to have both, ingest this source with --run and another name",
        one(kept),
        one(left_out)
    )
}

/// Content hashes of all stored revisions of a trajectory.
async fn stored_hashes(lake: &Lake, trajectory_key: i64) -> Result<Vec<String>> {
    let snapshot = lake.snapshot(None).await.map_err(Error::Storage)?;
    let filter = format!("trajectory_key = {trajectory_key}");
    let options = ScanOptions::columns(["content_hash"]).filter(filter);
    let mut rows = snapshot.scan(Table::Trajectories, options).await.map_err(Error::Storage)?;
    let mut found = Vec::new();
    while let Some(batch) = rows.try_next().await.map_err(Error::Storage)? {
        if let Some(hashes) = batch.column(0).as_any().downcast_ref::<StringArray>() {
            found.extend(hashes.iter().flatten().map(str::to_owned));
        }
    }
    Ok(found)
}
