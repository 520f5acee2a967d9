//! Numbering of weight versions: the persisted ordinal of first observation, so that their order does not depend on
//! when they are ingested again.

use std::collections::{BTreeMap, HashSet};

use arrow::array::{Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use dressage_schemas::Table;
use dressage_schemas::tables::weight_versions::{WeightVersionRow, batch};
use futures::TryStreamExt;

use crate::error::{Error, Result};
use crate::lake::{Lake, now_micros};
use crate::physical::typed;
use crate::scan::{self, ScanOptions};

const T: Table = Table::WeightVersions;

/// Drops versions that the store knows and numbers the rest, in the order they come, after the highest ordinal of
/// their run. Two writers that number at the same time may give two versions the same ordinal; readers order by
/// (ordinal, first_seen_at, weight_version).
pub(super) async fn number(lake: &Lake, batches: &[RecordBatch]) -> Result<Vec<RecordBatch>> {
    let dataset = lake.latest(T).await?;
    let mut known: HashSet<(String, String)> = HashSet::new();
    let mut next: BTreeMap<String, i64> = BTreeMap::new();
    // one row a version of the policy: small for the whole life of a store
    let mut stored = scan::scan(T, &dataset, ScanOptions::default(), lake.settings().read_ahead_bytes_max).await?;
    while let Some(found) = stored.try_next().await? {
        let (run, version, ordinal, _) = columns(&found)?;
        for row in 0..found.num_rows() {
            let after = next.entry(run.value(row).to_owned()).or_default();
            *after = (*after).max(ordinal.value(row) + 1);
            known.insert((run.value(row).to_owned(), version.value(row).to_owned()));
        }
    }
    let mut fresh = Vec::new();
    let now = now_micros();
    for given in batches {
        let (run, version, _, seen) = columns(given)?;
        for row in 0..given.num_rows() {
            let identity = (run.value(row).to_owned(), version.value(row).to_owned());
            if known.contains(&identity) {
                continue;
            }
            known.insert(identity.clone());
            let ordinal = next.entry(identity.0.clone()).or_default();
            fresh.push(WeightVersionRow {
                run_id: identity.0,
                weight_version: identity.1,
                ordinal: *ordinal,
                first_seen_at: if seen.is_valid(row) && seen.value(row) > 0 { seen.value(row) } else { now },
            });
            *ordinal += 1;
        }
    }
    if fresh.is_empty() {
        return Ok(Vec::new());
    }
    Ok(vec![batch(&fresh).map_err(|e| Error::shape(T, &e))?])
}

type Columns<'a> = (&'a StringArray, &'a StringArray, &'a Int64Array, &'a TimestampMicrosecondArray);

fn columns(batch: &RecordBatch) -> Result<Columns<'_>> {
    Ok((
        typed(T, batch, "run_id")?,
        typed(T, batch, "weight_version")?,
        typed(T, batch, "ordinal")?,
        typed(T, batch, "first_seen_at")?,
    ))
}
