//! Is a store sound? Checksums, lengths, references both ways, leftovers of interrupted writes; and removing what
//! nothing can ever refer to.
//!
//! One pass over each table of one snapshot. Memory is some tens of bytes for each trajectory and each distinct
//! message, never the payload.

mod checkpoints;
mod contents;
mod ledger;
mod plans;
mod repair;
mod steps;
mod trajectories;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use arrow::array::RecordBatch;
use dressage_schemas::{ErrorKind, Table};
use futures::{FutureExt, TryStreamExt};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::lake::{Lake, now_micros};
use crate::scan::ScanOptions;
use crate::snapshot::Snapshot;
use ledger::{Ages, Ledger};

/// How thoroughly to look, and whether to repair.
#[derive(Debug, Clone)]
pub struct CheckOptions {
    /// Remove leftovers that are older than `grace`; nothing where rows cannot be read, since those may refer to them. Best while no writer is running: a writer that finds a message
    /// stored does not store it again, and would miss one that is removed as unreferenced in that moment.
    pub repair: bool,
    /// Read payload and verify its checksums; without, only scalar columns are read.
    pub payload: bool,
    /// Rows younger than this may belong to a write that is still going on: they are never leftovers.
    pub grace: Duration,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self { repair: false, payload: true, grace: Duration::from_secs(3_600) }
    }
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Nothing is wrong; space or attention may be saved.
    Note,
    /// Rows that nothing refers to; `--repair` removes them.
    Leftover,
    /// Something is missing that should be there.
    Warning,
    /// Stored data is not what was written.
    Damage,
}

/// One rule that rows break.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Short name of the rule.
    pub rule: &'static str,
    /// The table.
    pub table: String,
    /// How bad it is.
    pub severity: Severity,
    /// How many rows.
    pub count: u64,
    /// Some of them.
    pub examples: Vec<String>,
    /// What it means and what to do.
    pub what_to_do: &'static str,
}

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// Versions that were looked at.
    pub versions: BTreeMap<String, u64>,
    /// Rows looked at, by table.
    pub rows_checked: BTreeMap<String, u64>,
    /// Bytes of payload whose checksum was verified.
    pub bytes_verified: u64,
    /// What is not as it should be, worst first.
    pub problems: Vec<Problem>,
    /// Rows that `--repair` removed, by table.
    pub rows_removed: BTreeMap<String, u64>,
    /// Files that no version names and that `--repair` removed.
    pub files_removed: u64,
}

impl CheckReport {
    /// Whether every stored byte is what was written and nothing is missing.
    pub fn is_sound(&self) -> bool {
        self.problems.iter().all(|p| p.severity < Severity::Warning)
    }

    /// Whether stored data is damaged.
    pub fn is_damaged(&self) -> bool {
        self.problems.iter().any(|p| p.severity == Severity::Damage)
    }
}

/// Looks at everything in the newest version of every table.
///
/// # Errors
/// Where a table cannot be read at all. What is read and found wrong is in the report, not an error.
pub async fn check(lake: &Lake, options: &CheckOptions) -> Result<CheckReport> {
    let snapshot = lake.snapshot(None).await?;
    let grace = i64::try_from(options.grace.as_micros()).unwrap_or(i64::MAX);
    let written_before = now_micros().saturating_sub(grace);
    let mut ledger = Ledger::new(Ages::read(lake, &snapshot, written_before).await?);
    trajectories::check(&snapshot, &mut ledger).await?;
    steps::check(&snapshot, options.payload, &mut ledger).await?;
    trajectories::check_rewards_and_log(&snapshot, &mut ledger).await?;
    contents::check(&snapshot, options.payload, &mut ledger).await?;
    plans::check(&snapshot, written_before, &mut ledger).await?;
    checkpoints::check(&snapshot, options.payload, written_before, &mut ledger).await?;
    check_rest(&snapshot, options.payload, &mut ledger).await?;
    if !ledger.unreadable {
        note_repeated(&snapshot, &mut ledger).await?;
    }
    let mut report = CheckReport {
        versions: snapshot.versions().iter().map(|(t, v)| (t.name().to_owned(), *v)).collect(),
        ..CheckReport::default()
    };
    // what could not be read may be what refers to the rest
    if options.repair && !ledger.unreadable {
        repair::run(lake, &snapshot, &ledger, &mut report).await?;
    } else {
        repair::note_unnamed_files(lake, &mut ledger).await?;
    }
    report.rows_checked = std::mem::take(&mut ledger.rows_checked);
    report.bytes_verified = ledger.bytes_verified;
    report.problems = ledger.into_problems();
    Ok(report)
}

/// Reads the tables that nothing else refers to, so that what cannot be read in them is found, too.
async fn check_rest(snapshot: &Snapshot, payload: bool, ledger: &mut Ledger) -> Result<()> {
    for table in [Table::TrainMetrics, Table::TrainerLogprobs] {
        let columns = crate::physical::all_columns(table);
        let read = columns.into_iter().filter(|c| payload || !crate::physical::is_payload(table, c));
        for_each_batch(snapshot, table, &ScanOptions::columns(read), ledger, |_, _| Ok(())).await?;
    }
    Ok(())
}

/// Takes every batch of a table to `look`, fragment by fragment: one that cannot be read is a problem of its own, and
/// the rest is looked at all the same. What may pass by itself (an outage) is an error of the check. Damage may also make
/// the decoder of the table format panic: that is a problem of the same kind.
async fn for_each_batch(
    snapshot: &Snapshot,
    table: Table,
    options: &ScanOptions,
    ledger: &mut Ledger,
    mut look: impl FnMut(&RecordBatch, &mut Ledger) -> Result<()>,
) -> Result<()> {
    for fragment in snapshot.fragments(table) {
        let options = ScanOptions { fragments: Some(vec![fragment.id]), ..options.clone() };
        let mut rows = snapshot.scan(table, options).await?;
        loop {
            let next = AssertUnwindSafe(rows.try_next()).catch_unwind().await;
            match next.unwrap_or_else(|_| Err(Error::Damaged { table, detail: "its decoder panicked".to_owned() })) {
                Ok(Some(batch)) => {
                    ledger.count_rows(table, batch.num_rows());
                    look(&batch, ledger)?;
                }
                Ok(None) => break,
                Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Exhausted) => {
                    return Err(error);
                }
                Err(error) => {
                    let what = "files are lost or damaged; restore them, or ingest their sources again under a new run";
                    let state = if error.kind() == ErrorKind::NotFound { "is missing" } else { "cannot be decoded" };
                    let name = || format!("{} {state}", files_of(snapshot, table, fragment.id));
                    ledger.note(Severity::Damage, "unreadable", table, name, what);
                    ledger.unreadable = true;
                    break;
                }
            }
        }
    }
    Ok(())
}

/// The data files of a fragment, below the root of the store.
fn files_of(snapshot: &Snapshot, table: Table, fragment: u64) -> String {
    let Ok(dataset) = snapshot.dataset(table) else { return table.to_string() };
    let files = dataset.iter_fragments().filter(|f| f.id == fragment).flat_map(|f| &f.files);
    files.map(|file| format!("{table}.lance/data/{}", file.path)).collect::<Vec<_>>().join(" or ")
}

/// Rows that say again what another row says.
async fn note_repeated(snapshot: &Snapshot, ledger: &mut Ledger) -> Result<()> {
    for table in [Table::Contents, Table::Quarantine, Table::WeightVersions] {
        let rows = snapshot.duplicates(table).await?;
        ledger.note_many(
            Severity::Note,
            "repeated_row",
            table,
            rows.len() as u64,
            "two writers stored the same thing at the same time; readers see it once; `--repair` removes the copies",
        );
    }
    let old = snapshot.superseded().await?;
    ledger.note_many(
        Severity::Note,
        "superseded_row",
        Table::Trajectories,
        old.len() as u64,
        "a longer copy of the trajectory came later; readers see that one",
    );
    Ok(())
}
