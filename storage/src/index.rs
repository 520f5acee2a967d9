//! Look-up indexes: B-trees over the ids that people and joins look rows up by.
//!
//! An index covers the fragments that were there when it was built; newer ones are scanned. So that a commit stays
//! cheap, indexes are not kept up on every commit but when a writer closes after many rows, and by `compact`.

use dressage_schemas::Table;
use lance::Dataset;
use lance::index::DatasetIndexExt;
use lance_index::IndexType;
use lance_index::optimize::OptimizeOptions;
use lance_index::scalar::ScalarIndexParams;

use crate::error::{Error, Result};
use crate::lake::Lake;

/// The indexed columns.
pub(crate) const INDEXED: [(Table, &str); 4] = [
    (Table::Trajectories, "trajectory_id"),
    (Table::Trajectories, "trajectory_key"),
    (Table::Steps, "trajectory_key"),
    (Table::Contents, "content_hash"),
];

/// Name of an index: the column's, so that it is found again.
fn index_name(column: &str) -> String {
    format!("{column}_btree")
}

/// Brings the indexes of all tables up to date that have at least `rows_min` rows without one.
pub(crate) async fn refresh_if_stale(lake: &Lake, rows_min: usize) -> Result<()> {
    for (table, column) in INDEXED {
        let dataset = lake.latest(table).await?;
        if unindexed_rows(&dataset, table, column).await? >= rows_min.max(1) {
            refresh(lake, table, column).await?;
        }
    }
    Ok(())
}

/// Rows in fragments that the index of a column does not cover.
pub(crate) async fn unindexed_rows(dataset: &Dataset, table: Table, column: &str) -> Result<usize> {
    let indices = dataset.load_indices().await.map_err(|e| Error::table("read the indexes of", table, e))?;
    let name = index_name(column);
    let mut rows = 0;
    for fragment in dataset.iter_fragments() {
        let id = u32::try_from(fragment.id).unwrap_or(u32::MAX);
        let covered = indices
            .iter()
            .filter(|i| i.name == name)
            .any(|i| i.fragment_bitmap.as_ref().is_some_and(|covered| covered.contains(id)));
        if !covered {
            rows += fragment.num_rows().unwrap_or(0);
        }
    }
    Ok(rows)
}

/// Builds or extends one index.
pub(crate) async fn refresh(lake: &Lake, table: Table, column: &str) -> Result<()> {
    let fail = |e| Error::table("index", table, e);
    let mut dataset = lake.latest(table).await?.as_ref().clone();
    let name = index_name(column);
    let exists = dataset.load_indices().await.map_err(fail)?.iter().any(|i| i.name == name);
    let done = if exists {
        let options = OptimizeOptions::merge(1).index_names(vec![name]);
        dataset.optimize_indices(&options).await
    } else {
        let params = ScalarIndexParams::default();
        dataset.create_index(&[column], IndexType::BTree, Some(name), &params, true).await.map(|_| ())
    };
    match done.map_err(fail) {
        Ok(()) => {
            lake.remember(table, &std::sync::Arc::new(dataset));
            Ok(())
        }
        // another process indexed or compacted at the same time: it will be done at the next opportunity
        Err(e) if e.kind() == dressage_schemas::ErrorKind::Conflict => Ok(()),
        Err(e) => Err(e),
    }
}
