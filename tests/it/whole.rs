//! What a reader sees, compared with what was written: every trajectory whole, none twice, and at the end all of them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use dressage_rig::{Dressage, Expected, S3Place, Workload};
use serde_json::Value;

/// The binary under test.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_dressage");

/// The command on a store in a folder.
pub(crate) fn local(store: &Path) -> Dressage {
    Dressage::local(BINARY, store)
}

/// The command on a store in a bucket.
pub(crate) fn on_s3(place: &S3Place) -> Dressage {
    Dressage::on_s3(BINARY, place)
}

/// One row a visible trajectory of a run, with everything of it that other tables hold counted beside what its own
/// row says. Payload is read and summed, so that a step with other tokens shows as well as a missing one.
const VISIBLE: &str = "
    select t.trajectory_id, t.n_segments, t.n_tokens, t.n_trained_tokens, t.n_messages, t.content_hash,
           cast(round(t.reward * 100) as bigint) as reward_hundredths,
           s.n_steps as step_rows, s.n_tokens as step_tokens, s.token_sum,
           m.n_messages as message_rows, r.n_rewards as reward_rows
    from trajectories t
    left join (
        select trajectory_key, count(*) as n_steps, sum(n_context_tokens + n_output_tokens) as n_tokens,
               sum(list_sum(token_ids)) as token_sum
        from steps group by trajectory_key
    ) s on s.trajectory_key = t.trajectory_key
    left join (
        select trajectory_key, count(text) as n_messages from messages group by trajectory_key
    ) m on m.trajectory_key = t.trajectory_key
    left join (
        select trajectory_key, count(*) as n_rewards from rewards group by trajectory_key
    ) r on r.trajectory_key = t.trajectory_key
    where t.run_id = ";

/// What a reader sees of one trajectory.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Seen {
    row: serde_json::Map<String, Value>,
}

impl Seen {
    fn int(&self, column: &str) -> Result<i64> {
        let value = self.row.get(column).with_context(|| format!("no column {column}"))?;
        // Sums may come as decimals or floats; all are whole numbers here.
        value
            .as_i64()
            .or_else(|| value.as_f64().map(|float| float as i64))
            .with_context(|| format!("{column} is {value}"))
    }

    fn is_whole(&self, id: &str, expected: &Expected) -> Result<()> {
        let pairs = [
            ("n_segments", expected.n_segments),
            ("step_rows", expected.n_segments),
            ("n_tokens", expected.n_tokens),
            ("step_tokens", expected.n_tokens),
            ("token_sum", expected.token_sum),
            ("n_trained_tokens", expected.n_trained_tokens),
            ("n_messages", expected.n_messages),
            ("message_rows", expected.n_messages),
            ("reward_rows", 1),
            ("reward_hundredths", expected.reward_hundredths),
        ];
        for (column, number) in pairs {
            let seen = self.int(column).with_context(|| format!("trajectory {id}"))?;
            ensure!(seen == number, "trajectory {id} is not whole: {column} is {seen}, not {number}: {:?}", self.row);
        }
        Ok(())
    }
}

/// The visible trajectories of a run, by id.
///
/// # Errors
/// When the query fails, or an id is there twice.
pub(crate) fn visible(dressage: &Dressage, run: &str) -> Result<BTreeMap<String, Seen>> {
    let mut seen = BTreeMap::new();
    for row in dressage.sql(&format!("{VISIBLE}'{run}'"))? {
        let Value::Object(row) = row else { continue };
        let id = row.get("trajectory_id").and_then(Value::as_str).context("a row without an id")?.to_owned();
        ensure!(seen.insert(id.clone(), Seen { row }).is_none(), "trajectory {id} is visible twice");
    }
    Ok(seen)
}

/// Checks that whatever is visible of a run is whole, and returns it.
///
/// # Errors
/// When something is half there, foreign, or there twice.
pub(crate) fn visible_whole(dressage: &Dressage, run: &str, workload: &Workload) -> Result<BTreeMap<String, Seen>> {
    let seen = visible(dressage, run)?;
    for (id, what) in &seen {
        what.is_whole(id, workload.expected.get(id).with_context(|| format!("{id} is in no file"))?)?;
    }
    Ok(seen)
}

/// Checks that exactly what was written is there.
///
/// # Errors
/// When something is missing, half there, foreign, or there twice.
pub(crate) fn complete(dressage: &Dressage, run: &str, workload: &Workload) -> Result<BTreeMap<String, Seen>> {
    let seen = visible_whole(dressage, run, workload)?;
    let missing: Vec<_> = workload.expected.keys().filter(|id| !seen.contains_key(*id)).collect();
    ensure!(
        missing.is_empty(),
        "{} of {} trajectories are missing: {missing:?}",
        missing.len(),
        workload.expected.len()
    );
    Ok(seen)
}

/// Checks that what a reader has once seen is still there, unchanged.
///
/// # Errors
/// When a trajectory has vanished or changed.
pub(crate) fn nothing_lost(before: &BTreeMap<String, Seen>, after: &BTreeMap<String, Seen>) -> Result<()> {
    for (id, what) in before {
        let now = after.get(id).with_context(|| format!("{id} was visible and has vanished"))?;
        ensure!(now == what, "{id} has changed from {what:?} to {now:?}");
    }
    Ok(())
}

/// A field of an ingest report.
///
/// # Errors
/// When the report lacks it.
pub(crate) fn field(report: &Value, name: &str) -> Result<i64> {
    report.get(name).and_then(Value::as_i64).with_context(|| format!("no {name} in {report}"))
}
