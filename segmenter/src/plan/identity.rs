//! What a plan is a function of, and its id: BLAKE3 over exactly that.

use std::collections::BTreeMap;

use dressage_schemas::Table;
use serde::Serialize;

use super::settings::PlanSettings;
use super::weights::LossWeights;
use crate::error::{Error, Result};
use crate::session::Session;

/// Raised whenever the planner itself would make another plan of the same input.
const PLANNER_VERSION: u32 = 1;

/// Tables that the planner must not count as its input: planning and training write them.
const DERIVED: [Table; 7] = [
    Table::Snapshots,
    Table::Batches,
    Table::Plans,
    Table::Streamed,
    Table::TrainMetrics,
    Table::TrainerLogprobs,
    Table::Checkpoints,
];

/// Everything that decides what a plan is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Identity {
    planner_version: u32,
    pub(super) run_id: Option<String>,
    pub(super) after_plan_id: Option<String>,
    /// Table name to pinned version, of the tables that ingest writes.
    pub(super) versions: BTreeMap<String, u64>,
    /// Variables of the session.
    pub(super) variables: BTreeMap<String, String>,
    pub(super) plan: PlanSettings,
    pub(super) loss_aggregation: String,
    /// Name of a view or file to the text in force.
    pub(super) sql: BTreeMap<String, String>,
}

impl Identity {
    /// The id: 32 hex digits.
    pub(super) fn plan_id(&self) -> Result<String> {
        let text = json(self)?;
        Ok(short_hash(text.as_bytes()))
    }

    /// The settings as a plan's row has them.
    pub(super) fn settings_json(&self) -> Result<String> {
        #[derive(Serialize)]
        struct Settings<'a> {
            variables: &'a BTreeMap<String, String>,
            loss_aggregation: &'a str,
            #[serde(flatten)]
            plan: &'a PlanSettings,
        }
        json(&Settings { variables: &self.variables, loss_aggregation: &self.loss_aggregation, plan: &self.plan })
    }
}

/// Versions of the tables that a plan's samples come from.
pub(super) fn source_versions(versions: &BTreeMap<Table, u64>) -> BTreeMap<String, u64> {
    let sources = versions.iter().filter(|(table, _)| !DERIVED.contains(table));
    sources.map(|(table, version)| (table.name().to_owned(), *version)).collect()
}

/// The identity of a plan over a session as it is set now.
pub(super) async fn identity(
    session: &Session,
    versions: &BTreeMap<Table, u64>,
    run_id: Option<String>,
    after_plan_id: Option<String>,
    plan: PlanSettings,
    aggregation: (String, LossWeights),
) -> Result<Identity> {
    let (loss_aggregation, weights) = aggregation;
    let texts = session.catalog().texts_behind(&["samples", "drops", "steps"]).await;
    let mut sql = texts.map_err(|e| session.limits().classify(e))?;
    sql.insert(format!("loss_weights/{}", weights.name), weights.sql.to_owned());
    let mut variables = session.settings_in_force();
    // how text is decoded has no part in a plan, and where a file lies neither: what it says is in `sql`
    variables.remove("tokenizer");
    for name in ["estimator", "filter"] {
        if let Some(file) = variables.get_mut(name).filter(|value| value.ends_with(".sql")) {
            "file".clone_into(file);
        }
    }
    Ok(Identity {
        planner_version: PLANNER_VERSION,
        run_id,
        after_plan_id,
        versions: source_versions(versions),
        variables,
        plan,
        loss_aggregation,
        sql,
    })
}

/// The first 32 hex digits of BLAKE3.
pub(super) fn short_hash(bytes: &[u8]) -> String {
    let mut hex = blake3::hash(bytes).to_hex().to_string();
    hex.truncate(32);
    hex
}

/// JSON with keys in one order, so that equal values are equal texts.
pub(super) fn json<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value)
        .map_err(|e| Error::ViewShape { column: "plan".to_owned(), problem: format!("cannot be written as JSON: {e}") })
}
