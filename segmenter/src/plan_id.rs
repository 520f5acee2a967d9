//! Finding a plan by the beginning of its id, and saying what there is where it is not found.

use dressage_schemas::tables::plans::PlanRow;
use dressage_storage::{Lake, plans};

use crate::error::{Error, Result};
use crate::nearest::{listed, nearest};

/// Plans that an error names at most.
const PLANS_SHOWN: usize = 5;
/// Digits by which people name a plan.
const DIGITS_SHOWN: usize = 8;

/// The plan whose id begins like this.
///
/// # Errors
/// `NotFound` where there is none, `Invalid` where there are several; what the store says.
pub(crate) async fn find_plan(lake: &Lake, plan: &str) -> Result<PlanRow> {
    let failed = match plans::find(lake, plan).await {
        Ok(found) => return Ok(found),
        Err(error) => error,
    };
    let plan = plan.to_owned();
    match failed {
        dressage_storage::Error::PlanMissing { .. } => {
            let ids = ids(lake).await?;
            Err(Error::PlanMissing { known: known(&plan, &ids), plan })
        }
        dressage_storage::Error::PlanAmbiguous { count, .. } => {
            let ids = ids(lake).await?;
            let alike = ids.iter().map(String::as_str).filter(|id| id.starts_with(&plan));
            Err(Error::PlanAmbiguous { known: listed(alike, PLANS_SHOWN), plan, count })
        }
        other => Err(Error::storage(other)),
    }
}

/// The newest first.
async fn ids(lake: &Lake) -> Result<Vec<String>> {
    let plans = plans::list(lake).await.map_err(Error::storage)?;
    Ok(plans.into_iter().rev().map(|plan| plan.plan_id).collect())
}

fn known(plan: &str, ids: &[String]) -> String {
    if ids.is_empty() {
        return "the store has no plans; `dressage plan` makes one".to_owned();
    }
    let digits = plan.chars().count();
    let begins: Vec<String> = ids.iter().map(|id| id.chars().take(digits).collect()).collect();
    if let Some(near) = nearest(plan, begins.iter().map(String::as_str))
        && let Some(at) = begins.iter().position(|begin| begin == near)
    {
        return format!("did you mean {}?", ids[at]);
    }
    let short: Vec<String> = ids.iter().map(|id| id.chars().take(DIGITS_SHOWN).collect()).collect();
    format!(
        "the newest ones are {}; `dressage sql \"select plan_id, run_id, created_at from plans\"` lists all",
        listed(short.iter().map(String::as_str), PLANS_SHOWN)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_id_names_the_near_one_and_any_other_the_newest() {
        let ids = ["1f2e3d4c00", "aaaa111122"].map(str::to_owned);
        assert_eq!(known("1f2e3d5c", &ids), "did you mean 1f2e3d4c00?");
        assert!(known("7777", &ids).starts_with("the newest ones are 1f2e3d4c, aaaa1111; "));
        assert!(known("7777", &[]).contains("has no plans"));
    }
}
