//! The line of checkpoints of a training run: which is the newest, and whether a row goes on from it.

use std::collections::HashSet;

use dressage_schemas::tables::checkpoints::CheckpointRow;

use super::rows::in_force;
use crate::error::{Error, Result};

/// The newest of the checkpoints of a run that count: the one that none goes on from. Older ones may have been removed, so
/// what the first one went on from need not be there.
pub(super) fn newest(counting: &[CheckpointRow]) -> Option<&CheckpointRow> {
    let followed: HashSet<&str> = counting.iter().filter_map(|row| row.after_checkpoint_id.as_deref()).collect();
    counting.iter().rev().find(|row| !followed.contains(row.checkpoint_id.as_str()))
}

/// Whether `row` may follow these rows of its run, which are in the order of their commits.
pub(super) fn check(rows: &[CheckpointRow], row: &CheckpointRow) -> Result<()> {
    let counting = in_force(rows.to_vec());
    let newest = newest(&counting).map(|row| row.checkpoint_id.as_str());
    if newest == row.after_checkpoint_id.as_deref() {
        return Ok(());
    }
    Err(moved(&counting, row))
}

/// The error of a row that does not go on from the newest of those that count.
pub(super) fn moved(counting: &[CheckpointRow], row: &CheckpointRow) -> Error {
    let shown = |id: Option<&str>| id.unwrap_or("none").to_owned();
    Error::TrainRunMoved {
        train_run: row.train_run.clone(),
        newest: shown(newest(counting).map(|row| row.checkpoint_id.as_str())),
        expected: shown(row.after_checkpoint_id.as_deref()),
    }
}

/// Whether a row that was just committed went on from the newest one of its run, by all rows of the run as they are now.
pub(super) fn check_committed(rows: &[CheckpointRow], checkpoint_id: &str) -> Result<()> {
    let Some(at) = rows.iter().position(|row| row.checkpoint_id == checkpoint_id) else {
        return Err(Error::CheckpointMissing { checkpoint: checkpoint_id.to_owned() });
    };
    let (Some(row), Some(earlier)) = (rows.get(at), rows.get(..at)) else { return Ok(()) };
    // looked at before the commit, the run was as empty as now
    if earlier.is_empty() { Ok(()) } else { check(earlier, row) }
}

#[cfg(test)]
mod tests {
    use dressage_schemas::ErrorKind;

    use super::*;

    fn row(id: &str, after: Option<&str>) -> CheckpointRow {
        CheckpointRow {
            checkpoint_id: id.to_owned(),
            train_run: "r".to_owned(),
            after_checkpoint_id: after.map(str::to_owned),
            ..CheckpointRow::default()
        }
    }

    fn conflicts(checked: Result<()>) -> bool {
        checked
            .is_err_and(|e| e.kind() == ErrorKind::Conflict && e.to_string().contains("another process trains run r"))
    }

    #[test]
    fn a_row_follows_the_newest_one_or_conflicts() {
        let line = [row("a", None), row("b", Some("a"))];
        assert_eq!(newest(&line).map(|r| r.checkpoint_id.as_str()), Some("b"));
        assert!(check(&line, &row("c", Some("b"))).is_ok());
        assert!(check(&[], &row("a", None)).is_ok());
        for after in [None, Some("a"), Some("x")] {
            assert!(conflicts(check(&line, &row("c", after))), "{after:?}");
        }
        assert!(conflicts(check(&[], &row("c", Some("a")))));
    }

    #[test]
    fn of_two_rows_with_one_predecessor_the_first_counts() {
        let rows = [row("a", None), row("b", Some("a")), row("x", Some("a")), row("c", Some("b"))];
        assert!(check_committed(&rows, "b").is_ok());
        assert!(conflicts(check_committed(&rows, "x")));
        assert!(check_committed(&rows, "c").is_ok());
        assert_eq!(newest(&in_force(rows.to_vec())).map(|r| r.checkpoint_id.as_str()), Some("c"));
    }

    #[test]
    fn a_row_that_was_overtaken_conflicts_also_when_what_overtook_it_was_removed() {
        // x went on from a; b did too, was first, and has been removed since
        let rows = [row("c", Some("b")), row("x", Some("a"))];
        assert!(conflicts(check_committed(&rows, "x")));
        assert!(check_committed(&rows, "c").is_ok());
    }
}
