//! Removing one plan: its row first, so that no reader ever sees it without its batches; then what it pins.

use std::collections::BTreeMap;

use dressage_schemas::Table;
use serde::Serialize;

use super::rm_run::{count, delete, quoted};
use crate::error::Result;
use crate::lake::{Lake, now_micros};
use crate::plans;

/// A plan that was streamed from within this time may be in use.
const IN_USE_MICROS: i64 = 3_600_000_000;

/// What was removed, or would be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RmPlanReport {
    /// Whether nothing was removed.
    pub dry_run: bool,
    /// The plan.
    pub plan_id: String,
    /// Rows by table.
    pub rows: BTreeMap<String, u64>,
    /// Plans that go on after it; without it they cannot say what was trained before.
    pub later_plans: Vec<String>,
    /// When one of its micro-batches was last streamed for the first time, where that is within the last hour:
    /// microseconds since 1970. Somebody may be training on it.
    pub in_use_at: Option<i64>,
}

impl RmPlanReport {
    /// Whether somebody needs it.
    pub fn is_needed(&self) -> bool {
        !self.later_plans.is_empty() || self.in_use_at.is_some()
    }
}

/// Looks at what removing the plan whose id begins with `plan` would take away, and who needs it. Removes it unless
/// `dry_run`, and then only where nobody needs it or `force` is set; [`RmPlanReport::dry_run`] says whether it did.
/// The snapshot that it pins goes with it, so that `gc` may collect its versions; trajectories stay.
///
/// # Errors
/// `NotFound` where no plan begins so, `Invalid` where several do; whatever the store answers.
pub async fn rm_plan(lake: &Lake, plan: &str, force: bool, dry_run: bool) -> Result<RmPlanReport> {
    let all = plans::list(lake).await?;
    let plan_id = plans::find(lake, plan).await?.plan_id;
    let later = all.iter().filter(|other| other.after_plan_id.as_deref() == Some(&plan_id));
    let later_plans: Vec<String> = later.map(|other| other.plan_id.clone()).collect();
    let streamed_at = plans::list_streamed(lake, &plan_id).await?.into_iter().map(|row| row.streamed_at).max();
    let mut report = RmPlanReport {
        plan_id: plan_id.clone(),
        later_plans,
        in_use_at: streamed_at.filter(|at| now_micros().saturating_sub(*at) < IN_USE_MICROS),
        ..RmPlanReport::default()
    };
    report.dry_run = dry_run || (report.is_needed() && !force);
    let own = format!("plan_id = {}", quoted(&plan_id));
    let tag = format!("tag = {}", quoted(&plans::snapshot_tag(&plan_id)));
    for (table, filter) in
        [(Table::Plans, &own), (Table::Batches, &own), (Table::Streamed, &own), (Table::Snapshots, &tag)]
    {
        let rows = count(lake, table, filter).await?;
        report.rows.insert(table.name().to_owned(), rows);
        if !report.dry_run && rows > 0 {
            delete(lake, table, filter).await?;
        }
    }
    Ok(report)
}
