//! What earlier plans have: a plan that goes on after another takes nothing twice.

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use dressage_storage::{Lake, plans};
use futures::TryStreamExt;

use crate::error::{Error, Result};
use crate::lake::SourceError;
use crate::plan_id::find_plan;

/// Trajectories, by key.
#[derive(Debug, Clone, Default)]
pub struct Trained {
    keys: Vec<i64>,
    after_plan_id: Option<String>,
}

impl Trained {
    /// None at all: the plan begins anew.
    pub fn nothing() -> Self {
        Self::default()
    }

    /// What a plan has, and the plans that it goes on from. `plan` is an id or its beginning.
    ///
    /// # Errors
    /// `NotFound` where there is no such plan; what the store says.
    pub async fn by_plan(lake: &Lake, plan: &str) -> Result<Self> {
        let failed = |e: dressage_storage::Error| Error::Store { source: SourceError::new(e.kind(), e) };
        let mut trained = Self::default();
        let mut next = Some(plan.to_owned());
        // ends: a plan's id is a hash over that of the one before it
        while let Some(id) = next {
            let plan = find_plan(lake, &id).await?;
            let columns = Some(vec!["trajectory_key".to_owned()]);
            let mut rows = plans::scan_batches(lake, &plan, columns, None).await.map_err(failed)?;
            while let Some(batch) = rows.try_next().await.map_err(failed)? {
                trained.keys.extend(keys(&batch));
            }
            trained.after_plan_id.get_or_insert(plan.plan_id);
            next = plan.after_plan_id;
        }
        trained.keys.sort_unstable();
        trained.keys.dedup();
        Ok(trained)
    }

    /// The plan to go on from.
    pub fn after_plan_id(&self) -> Option<&str> {
        self.after_plan_id.as_deref()
    }

    pub(super) fn contains(&self, trajectory_key: i64) -> bool {
        self.keys.binary_search(&trajectory_key).is_ok()
    }
}

fn keys(batch: &RecordBatch) -> Vec<i64> {
    let column = batch.column_by_name("trajectory_key").and_then(|c| c.as_primitive_opt::<Int64Type>());
    column.map(|c| c.values().to_vec()).unwrap_or_default()
}
