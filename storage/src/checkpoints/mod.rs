//! Checkpoints of training runs: files under `<store>/checkpoints/<train_run>/<checkpoint_id>/`, and a row of
//! `checkpoints` that makes them visible. The row is committed when all files are durable, so a checkpoint is there whole
//! or not at all.
//!
//! ```text
//!   new_files(lake, run, id) ──write──▶ files ──publish(row)──▶ row ──▶ list · latest · find · files · retire
//! ```
//!
//! A training run is one line: each checkpoint goes on from the one before. Of two rows that go on from the same one, the
//! first committed counts, here and in every view; whoever committed the other is told that another process trains the
//! same run.

mod chain;
mod retire;
mod rows;

use dressage_schemas::Table;
use dressage_schemas::tables::checkpoints::{self, CheckpointRow};

pub use retire::{RemoveReport, RetireReport, remove, retire};
pub(crate) use rows::{checkpoint_rows, in_force};

use crate::error::{Error, Result};
use crate::lake::{Lake, now_micros};
use crate::maintain::rm_run::{delete, quoted};
use crate::objects::{ObjectFolder, check_name, check_part};
use crate::writer::commit::append_rows;

const T: Table = Table::Checkpoints;

/// The folder of all checkpoints in a store.
pub const FOLDER: &str = "checkpoints";

/// Where the files of a checkpoint lie, below the root of the store.
///
/// # Errors
/// `Invalid` unless both names are 1 to 128 ASCII letters, digits, `-`, `_` and `.`, and begin with no `.`.
pub fn location(train_run: &str, checkpoint_id: &str) -> Result<String> {
    check_part("train_run", train_run)?;
    check_part("checkpoint_id", checkpoint_id)?;
    Ok(format!("{FOLDER}/{train_run}/{checkpoint_id}"))
}

/// Where to write the files of a new checkpoint.
///
/// # Errors
/// `Invalid` as [`location`].
pub fn new_files(lake: &Lake, train_run: &str, checkpoint_id: &str) -> Result<ObjectFolder> {
    ObjectFolder::in_store(lake, &location(train_run, checkpoint_id)?)
}

/// The files of a checkpoint; [`ObjectFolder::verify`] with the row's `files` compares them with what was written.
///
/// # Errors
/// `Invalid` where the row's location cannot be read.
pub async fn files(lake: &Lake, row: &CheckpointRow) -> Result<ObjectFolder> {
    if is_elsewhere(&row.location) {
        ObjectFolder::open(&row.location, lake.settings()).await
    } else {
        ObjectFolder::in_store(lake, &row.location)
    }
}

/// Whether a location is a place of its own and not a path in the store.
pub(crate) fn is_elsewhere(location: &str) -> bool {
    location.contains("://") || location.starts_with('/')
}

/// Makes a checkpoint visible. Its files must have been written: their sizes are looked at, and the row is committed when
/// all are there. Gives the row as stored; publishing the same id again gives the row that is there, so a call whose answer
/// was lost may be repeated.
///
/// Sets `n_bytes`; `location` and `created_at` where they are empty and 0.
///
/// # Errors
/// `Conflict` where `after_checkpoint_id` is not the newest checkpoint of the run: another process trains it; nothing of
/// this row stays. `Corrupt` naming a file that is missing or of another size. `Invalid` for names that are no path parts.
pub async fn publish(lake: &Lake, row: CheckpointRow) -> Result<CheckpointRow> {
    let row = completed(row)?;
    if let Some(there) = stored(lake, &row.checkpoint_id).await? {
        return published_before(lake, there, &row).await;
    }
    let before = rows::read(lake, Some(&row.train_run)).await?;
    chain::check(&before, &row)?;
    files(lake, &row).await?.verify_sizes(&row.files).await?;
    let batch = checkpoints::batch(std::slice::from_ref(&row)).map_err(|e| Error::shape(T, &e))?;
    append_rows(lake, T, &[batch]).await?;
    let now = rows::read(lake, Some(&row.train_run)).await?;
    let Err(late) = chain::check_committed(&now, &row.checkpoint_id) else { return Ok(row) };
    // no reader sees it; left there, it would be a leftover for `check --repair`, which is no reason for another error
    let _ = delete(lake, T, &format!("checkpoint_id = {}", quoted(&row.checkpoint_id))).await;
    Err(late)
}

/// The row that is there, if it counts. What it went on from may have been removed since.
async fn published_before(lake: &Lake, there: CheckpointRow, asked: &CheckpointRow) -> Result<CheckpointRow> {
    if there.train_run != asked.train_run {
        let expected = "an id of its own: another training run has a checkpoint of that name";
        return Err(Error::Setting { setting: "checkpoint_id", value: asked.checkpoint_id.clone(), expected });
    }
    let counting = in_force(rows::read(lake, Some(&there.train_run)).await?);
    if counting.iter().any(|row| row.checkpoint_id == there.checkpoint_id) {
        return Ok(there);
    }
    Err(chain::moved(&counting, &there))
}

/// The row with what follows from the rest filled in, and its names checked.
fn completed(row: CheckpointRow) -> Result<CheckpointRow> {
    let own = location(&row.train_run, &row.checkpoint_id)?;
    let location = if row.location.is_empty() { own.clone() } else { row.location };
    if location != own && !is_elsewhere(&location) {
        let expected = "checkpoints/<train_run>/<checkpoint_id>, or a URL or absolute path outside of the store";
        return Err(Error::Setting { setting: "location", value: location, expected });
    }
    let mut names: Vec<&str> = Vec::with_capacity(row.files.len());
    for file in &row.files {
        check_name("file", &file.path)?;
        names.push(&file.path);
    }
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        let value = twice[0].to_owned();
        return Err(Error::Setting { setting: "file", value, expected: "named once in its checkpoint" });
    }
    let n_bytes = row.files.iter().map(|file| file.bytes).sum();
    let created_at = if row.created_at == 0 { now_micros() } else { row.created_at };
    Ok(CheckpointRow { location, n_bytes, created_at, ..row })
}

/// The row of that id, whether it counts or not.
async fn stored(lake: &Lake, checkpoint_id: &str) -> Result<Option<CheckpointRow>> {
    let rows = rows::scan(lake, Some(format!("checkpoint_id = {}", quoted(checkpoint_id)))).await?;
    Ok(rows.into_iter().next())
}

/// The checkpoints that count, of one training run or of all, in the order in which they were committed.
///
/// # Errors
/// Where the store cannot be read.
pub async fn list(lake: &Lake, train_run: Option<&str>) -> Result<Vec<CheckpointRow>> {
    Ok(in_force(rows::read(lake, train_run).await?))
}

/// The newest checkpoint of a training run; none where it has none.
///
/// # Errors
/// Where the store cannot be read.
pub async fn latest(lake: &Lake, train_run: &str) -> Result<Option<CheckpointRow>> {
    Ok(chain::newest(&in_force(rows::read(lake, Some(train_run)).await?)).cloned())
}

/// The checkpoint whose id is, or begins with, `prefix`.
///
/// # Errors
/// `NotFound` where there is none, `Invalid` where there are several.
pub async fn find(lake: &Lake, prefix: &str) -> Result<CheckpointRow> {
    let mut found = list(lake, None).await?;
    if let Some(exact) = found.iter().position(|row| row.checkpoint_id == prefix) {
        return Ok(found.swap_remove(exact));
    }
    found.retain(|row| row.checkpoint_id.starts_with(prefix));
    match (found.len(), found.pop()) {
        (1, Some(row)) => Ok(row),
        (0, _) | (_, None) => Err(Error::CheckpointMissing { checkpoint: prefix.to_owned() }),
        (count, Some(_)) => Err(Error::CheckpointAmbiguous { checkpoint: prefix.to_owned(), count }),
    }
}
