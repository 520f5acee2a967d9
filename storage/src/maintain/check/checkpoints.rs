//! Checkpoints: whether the files that rows name are what was written, rows that came too late, and files that no row
//! names.

use std::collections::{BTreeMap, HashSet};

use dressage_schemas::tables::checkpoints::CheckpointRow;
use dressage_schemas::{ErrorKind, Table};

use super::ledger::Ledger;
use super::{Severity, for_each_batch};
use crate::checkpoints::{FOLDER, checkpoint_rows, files, in_force, is_elsewhere};
use crate::error::{Error, Result};
use crate::lake::Lake;
use crate::objects::{ObjectEntry, ObjectFolder, size_fault};
use crate::scan::ScanOptions;
use crate::snapshot::Snapshot;

const T: Table = Table::Checkpoints;

const ORPHAN_FILES: &str = "files of a checkpoint that was never published, or was removed; `--repair` removes them";

/// What interrupted or overtaken trainers left, old enough to be removed.
#[derive(Debug, Default)]
pub(super) struct CheckpointLeftovers {
    /// Rows that do not count, by id.
    pub(super) rows: Vec<String>,
    /// Folders of files of which no row is there, below the root of the store.
    pub(super) folders: Vec<String>,
    /// Files that the row of their folder does not name, below the root of the store.
    pub(super) files: Vec<String>,
}

/// Looks at rows and files. With `payload` every byte of the files is read and hashed. `written_before` says how old a
/// leftover must be.
pub(super) async fn check(snapshot: &Snapshot, payload: bool, written_before: i64, ledger: &mut Ledger) -> Result<()> {
    let lake = snapshot.lake();
    let mut rows = Vec::new();
    for_each_batch(snapshot, T, &ScanOptions::default(), ledger, |batch, _| {
        rows.extend(checkpoint_rows(batch)?);
        Ok(())
    })
    .await?;
    let mut found = CheckpointLeftovers::default();
    let counting: HashSet<String> = in_force(rows.clone()).into_iter().map(|row| row.checkpoint_id).collect();
    for row in rows.iter().filter(|row| !counting.contains(&row.checkpoint_id) && row.created_at < written_before) {
        let what = "another process had gone on from the same checkpoint; never visible; `--repair` removes it";
        ledger.note(Severity::Leftover, "orphan", T, || format!("checkpoint {}", row.checkpoint_id), what);
        found.rows.push(row.checkpoint_id.clone());
    }
    let mut stored = by_folder(ObjectFolder::in_store(lake, FOLDER)?.list_all().await?);
    for row in &rows {
        let listed = stored.remove(&row.location);
        let extra = listed.iter().flatten().filter(|entry| !row.files.iter().any(|file| file.path == entry.name));
        for entry in extra.filter(|entry| entry.modified_at < written_before) {
            let name = format!("{}/{}", row.location, entry.name);
            ledger.note(Severity::Leftover, "orphan_files", T, || name.clone(), ORPHAN_FILES);
            found.files.push(name);
        }
        check_files(lake, row, listed, payload, ledger).await?;
    }
    for (location, entries) in stored {
        // one file that is young is enough: the checkpoint may be being written
        if entries.iter().all(|entry| entry.modified_at < written_before) {
            ledger.note(Severity::Leftover, "orphan_files", T, || location.clone(), ORPHAN_FILES);
            found.folders.push(location);
        }
    }
    ledger.checkpoints = found;
    Ok(())
}

/// Files by their checkpoint's folder, which is two levels below that of all checkpoints; what lies higher is nobody's.
fn by_folder(entries: Vec<ObjectEntry>) -> BTreeMap<String, Vec<ObjectEntry>> {
    let mut folders: BTreeMap<String, Vec<ObjectEntry>> = BTreeMap::new();
    for entry in entries {
        let mut parts = entry.name.splitn(3, '/');
        if let (Some(run), Some(id), Some(name)) = (parts.next(), parts.next(), parts.next()) {
            let (location, name) = (format!("{FOLDER}/{run}/{id}"), name.to_owned());
            folders.entry(location).or_default().push(ObjectEntry { name, ..entry });
        }
    }
    folders
}

async fn check_files(
    lake: &Lake,
    row: &CheckpointRow,
    listed: Option<Vec<ObjectEntry>>,
    payload: bool,
    ledger: &mut Ledger,
) -> Result<()> {
    const WHAT: &str =
        "files of a checkpoint are missing or not what was written; restore them, or go on from another one";
    let folder = files(lake, row).await?;
    let listed = if is_elsewhere(&row.location) {
        match folder.list().await {
            Ok(listed) => listed,
            Err(error) => {
                let what = "the place of a checkpoint outside of the store cannot be read";
                let name = || format!("{} of checkpoint {}: {error}", row.location, row.checkpoint_id);
                ledger.note(Severity::Warning, "checkpoint_place", T, name, what);
                return Ok(());
            }
        }
    } else {
        listed.unwrap_or_default()
    };
    for file in &row.files {
        let found = listed.iter().find(|entry| entry.name == file.path).map(|entry| entry.bytes);
        if let Some(detail) = size_fault(file, found) {
            ledger.note(
                Severity::Damage,
                "checkpoint_file",
                T,
                || format!("{}: {detail}", folder.shown(&file.path)),
                WHAT,
            );
            continue;
        }
        if !payload {
            continue;
        }
        match folder.verify_hash(file).await {
            Ok(()) => ledger.bytes_verified += u64::try_from(file.bytes).unwrap_or(0),
            Err(Error::FileDamaged { object, detail }) => {
                ledger.note(Severity::Damage, "checkpoint_file", T, || format!("{object}: {detail}"), WHAT);
            }
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Exhausted) => return Err(error),
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                ledger.note(Severity::Damage, "checkpoint_file", T, || format!("{error}: {cause}"), WHAT);
            }
        }
    }
    Ok(())
}
