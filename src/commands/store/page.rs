//! The pages that `dressage store` prints.

use std::time::{Duration, SystemTime};

use dressage_storage::checkpoints::RemoveReport;
use dressage_storage::maintain::snapshots::NamedSnapshot;
use dressage_storage::maintain::{
    CheckReport, CompactReport, GcReport, MigrateReport, RmPlanReport, RmRunReport, Severity, StoreInfo, VersionInfo,
};

use crate::output::{bytes_text, counted, grouped, table};

pub(super) fn info(info: &StoreInfo) -> String {
    let shared = if info.shared_writing { "many writers may share it" } else { "one writer only" };
    let mut text = format!(
        "{}\n  id {}, schema version {}, made {} by {}; {shared}\n  {} in all\n\n",
        info.uri,
        info.store_id,
        info.schema_version,
        time(info.created_at),
        info.created_by,
        bytes_text(info.bytes_stored)
    );
    text.push_str(&table(
        &["table", "version", "rows", "deleted", "fragments", "live", "stored"],
        &[1, 2, 3, 4, 5, 6],
        info.tables.iter().map(|t| {
            vec![
                t.table.clone(),
                t.version.to_string(),
                grouped(t.rows),
                grouped(t.rows_deleted),
                grouped(t.fragments),
                bytes_text(t.bytes_live),
                bytes_text(t.bytes_stored),
            ]
        }),
    ));
    text
}

pub(super) fn versions(versions: &[VersionInfo]) -> String {
    table(
        &["table", "version", "committed", "snapshots", "tags"],
        &[1],
        versions.iter().map(|v| {
            let snapshots: Vec<String> = v.snapshots.iter().map(i64::to_string).collect();
            vec![v.table.clone(), v.version.to_string(), time(v.committed_at), snapshots.join(", "), v.tags.join(", ")]
        }),
    )
}

pub(super) fn snapshots(snapshots: &[NamedSnapshot]) -> String {
    table(
        &["snapshot", "taken", "tag", "versions"],
        &[0],
        snapshots.iter().map(|s| {
            let versions: Vec<String> = s.versions.iter().map(|(table, v)| format!("{table} {v}")).collect();
            vec![s.snapshot_id.to_string(), time(s.created_at), s.tag.clone().unwrap_or_default(), versions.join(", ")]
        }),
    )
}

pub(super) fn check(report: &CheckReport) -> String {
    let mut text = String::new();
    for problem in &report.problems {
        let severity = match problem.severity {
            Severity::Note => "note",
            Severity::Leftover => "leftover",
            Severity::Warning => "warning",
            Severity::Damage => "DAMAGE",
        };
        text.push_str(&format!(
            "{severity}: {} in {}: {}\n    {}\n",
            problem.rule,
            problem.table,
            counted(problem.count, "row"),
            problem.what_to_do
        ));
        if !problem.examples.is_empty() {
            text.push_str(&format!("    such as {}\n", problem.examples.join(", ")));
        }
    }
    let removed: u64 = report.rows_removed.values().sum();
    if removed + report.files_removed > 0 {
        text.push_str(&format!("removed {} and {}\n", counted(removed, "row"), counted(report.files_removed, "file")));
    }
    let rows: u64 = report.rows_checked.values().sum();
    let verdict = if report.is_damaged() {
        "stored data is damaged"
    } else if report.is_sound() {
        "sound"
    } else {
        "not sound"
    };
    text.push_str(&format!(
        "{} and {} of payload checked: {verdict}\n",
        counted(rows, "row"),
        bytes_text(report.bytes_verified)
    ));
    text
}

pub(super) fn migrate(report: &MigrateReport) -> String {
    if report.changes.is_empty() {
        return format!("schema version {} is current", report.to);
    }
    format!("schema version {} to {}:\n  {}", report.from, report.to, report.changes.join("\n  "))
}

pub(super) fn compact(report: &CompactReport) -> String {
    if report.tables.is_empty() {
        return "nothing to join".to_owned();
    }
    table(
        &["table", "version", "fragments before", "after"],
        &[1, 2, 3],
        report.tables.iter().map(|t| {
            vec![t.table.clone(), t.version.to_string(), grouped(t.fragments_removed), grouped(t.fragments_added)]
        }),
    )
}

pub(super) fn gc(report: &GcReport) -> String {
    let verb = if report.dry_run { "would be removed" } else { "removed" };
    let mut text = String::new();
    for (table, versions) in &report.versions_removed {
        text.push_str(&format!("{table}: {} {verb}\n", counted(versions.len() as u64, "version")));
    }
    for (table, versions) in &report.versions_tagged {
        text.push_str(&format!("{table}: {} kept for a tag\n", counted(versions.len() as u64, "version")));
    }
    text.push_str(&format!("{}, {} {verb}\n", counted(report.files_removed, "file"), bytes_text(report.bytes_removed)));
    if report.files_failed > 0 {
        text.push_str(&format!(
            "{} could not be removed; the next run tries again\n",
            counted(report.files_failed, "file")
        ));
    }
    text
}

pub(super) fn rm_run(report: &RmRunReport) -> String {
    let verb = if report.dry_run { "would be removed" } else { "removed" };
    let mut text = format!("run {}:\n", report.run_id);
    for (table, rows) in &report.rows {
        text.push_str(&format!("  {table}: {} {verb}\n", counted(*rows, "row")));
    }
    text
}

pub(super) fn rm_plan(report: &RmPlanReport) -> String {
    let verb = if report.dry_run { "would be removed" } else { "removed" };
    let mut text = format!("plan {}:\n", report.plan_id);
    for (table, rows) in &report.rows {
        text.push_str(&format!("  {table}: {} {verb}\n", counted(*rows, "row")));
    }
    for reason in needed(report) {
        text.push_str(&format!("  it is needed: {reason}\n"));
    }
    text
}

pub(super) fn rm_checkpoint(report: &RemoveReport) -> String {
    let id = &report.checkpoint_id;
    let mut text = match report.dry_run {
        true => format!("checkpoint {id} would be removed, with its files\n"),
        false => format!(
            "checkpoint {id} removed: {}, {}\n",
            counted(report.removed.files_removed, "file"),
            bytes_text(report.removed.bytes_removed)
        ),
    };
    if let Some(before) = &report.goes_on_from {
        text.push_str(&format!("training run {} then goes on from {before}\n", report.train_run));
    }
    text
}

/// Who needs a plan.
pub(super) fn needed(report: &RmPlanReport) -> Vec<String> {
    let later = report.later_plans.iter().map(|plan| format!("plan {plan} goes on after it"));
    let in_use = report.in_use_at.map(|at| format!("something of it was streamed at {}", time(at)));
    later.chain(in_use).collect()
}

/// Microseconds since 1970 as a date and time, UTC.
fn time(micros: i64) -> String {
    match u64::try_from(micros).map(Duration::from_micros) {
        Ok(since) => humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + since).to_string(),
        Err(_) => "before 1970".to_owned(),
    }
}
