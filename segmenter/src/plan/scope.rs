//! Which runs a plan is over, and who of them has no samples.

use super::report::Dropped;
use crate::columns::Columns;
use crate::error::{Error, Result};
use crate::session::Session;

/// Which runs of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// The only one there is; an error if there are several.
    OnlyRun,
    /// One run.
    Run(String),
    /// All of them. Groups and prompts of different runs are never mixed.
    AllRuns,
}

/// Runs that an error names.
const RUNS_NAMED_MAX: usize = 20;

/// The run; none for all.
pub(super) async fn settle(session: &Session, scope: &Scope) -> Result<Option<String>> {
    if *scope == Scope::AllRuns {
        return Ok(None);
    }
    session.set("run", None)?;
    let mut runs: Vec<String> = Vec::new();
    let mut rows = session.sql("SELECT DISTINCT run_id FROM trajectories").await?;
    while let Some(batch) = rows.next_batch().await? {
        let columns = Columns::of(&batch);
        for row in 0..batch.num_rows() {
            runs.push(columns.needed_text("run_id", row)?);
        }
    }
    runs.sort();
    let listed = || {
        let mut names = runs.iter().take(RUNS_NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
        if runs.len() > RUNS_NAMED_MAX {
            names.push_str(", …");
        }
        names
    };
    match (scope, runs.as_slice()) {
        (Scope::Run(run), runs) if runs.contains(run) => Ok(Some(run.clone())),
        (Scope::Run(run), _) => Err(Error::RunMissing { run: run.clone(), runs: listed() }),
        (_, [only]) => Ok(Some(only.clone())),
        (_, []) => Err(Error::NothingToPlan { reason: "the store has no trajectories".to_owned() }),
        _ => Err(Error::RunNeeded { runs: listed() }),
    }
}

/// Who is left out, in whole or in part, by reason, most first.
pub(super) async fn dropped(session: &Session) -> Result<Vec<Dropped>> {
    let mut dropped = Vec::new();
    let mut rows = session.sql(include_str!("../../sql/drops_by_reason.sql")).await?;
    while let Some(batch) = rows.next_batch().await? {
        let columns = Columns::of(&batch);
        for row in 0..batch.num_rows() {
            let count = |name| columns.needed_int(name, row).map(i64::unsigned_abs);
            dropped.push(Dropped {
                reason: columns.needed_text("reason", row)?,
                has_samples: columns.truth("has_samples", row)?,
                n_trajectories: count("n_trajectories")?,
                n_groups: count("n_groups")?,
                n_lost_tokens: count("n_lost_tokens")?,
            });
        }
    }
    Ok(dropped)
}
