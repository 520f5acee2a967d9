//! One version of every table, pinned: what a reader sees, whatever is written or compacted meanwhile.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError};

use arrow::array::{Array, Int32Array, Int64Array, RecordBatch, StringArray};
use dressage_schemas::Table;
use futures::TryStreamExt;
use futures::future::try_join_all;
use lance::Dataset;

use crate::error::{Error, Result};
use crate::lake::{IoStats, Lake};
use crate::physical::{row_addresses, typed};
use crate::row_set::RowSet;
use crate::scan::{self, BatchStream, ScanOptions};

/// Which moment to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AsOf {
    /// A row of `snapshots`, by id.
    Snapshot(i64),
    /// A row of `snapshots`, by tag; the newest one that has it.
    Tag(String),
    /// The newest versions that were committed at or before this time, microseconds since 1970.
    Time(i64),
}

impl fmt::Display for AsOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Snapshot(id) => write!(f, "with id {id}"),
            Self::Tag(tag) => write!(f, "tagged {tag:?}"),
            Self::Time(micros) => match chrono::DateTime::from_timestamp_micros(*micros) {
                Some(time) => write!(f, "at or before {}", time.to_rfc3339()),
                None => write!(f, "at or before {micros} µs"),
            },
        }
    }
}

/// One part of a table that can be read on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FragmentInfo {
    /// Upper 32 bits of the addresses of its rows.
    pub id: u64,
    /// Live rows.
    pub row_count: usize,
}

/// One version of every table. Cheap to clone.
#[derive(Clone)]
pub struct Snapshot {
    lake: Lake,
    tables: Arc<BTreeMap<Table, Arc<Dataset>>>,
    versions: Arc<BTreeMap<Table, u64>>,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("uri", &self.lake.uri()).field("versions", &self.versions).finish()
    }
}

impl Lake {
    /// Pins one version of every table.
    ///
    /// Without `as_of`, `trajectories` is looked at first: it is committed last, so everything that its rows name
    /// is in the versions of the other tables that are looked at afterwards.
    ///
    /// # Errors
    /// `NotFound` where no snapshot matches or its versions were collected.
    pub async fn snapshot(&self, as_of: Option<AsOf>) -> Result<Snapshot> {
        match as_of {
            None => {
                let first = self.latest(Table::Trajectories).await?;
                let others = Table::ALL.into_iter().filter(|t| *t != Table::Trajectories);
                let others = try_join_all(others.map(|t| async move { Ok((t, self.latest(t).await?)) }));
                let mut tables: BTreeMap<Table, Arc<Dataset>> = others.await?.into_iter().collect();
                tables.insert(Table::Trajectories, first);
                Ok(Snapshot::of(self.clone(), tables))
            }
            Some(AsOf::Time(micros)) => {
                let versions =
                    try_join_all(Table::ALL.map(|t| async move { Ok((t, self.version_at(t, micros).await?)) })).await?;
                self.snapshot_of(versions.into_iter().collect()).await
            }
            Some(named) => {
                let versions = crate::maintain::snapshots::find(self, &named).await?;
                self.snapshot_of(versions).await
            }
        }
    }

    /// Pins given versions; a table that is not named is pinned at its newest.
    ///
    /// # Errors
    /// `NotFound` where one of them is gone.
    pub async fn snapshot_of(&self, versions: BTreeMap<Table, u64>) -> Result<Snapshot> {
        let tables = try_join_all(Table::ALL.map(|table| {
            let version = versions.get(&table).copied();
            async move {
                let dataset = match version {
                    Some(version) => self.at(table, version).await?,
                    None => self.latest(table).await?,
                };
                Ok::<_, Error>((table, dataset))
            }
        }))
        .await?;
        Ok(Snapshot::of(self.clone(), tables.into_iter().collect()))
    }

    /// The newest version of a table that was committed at or before a time. Commit times rise with versions as far
    /// as the writers' clocks agree.
    async fn version_at(&self, table: Table, micros: i64) -> Result<u64> {
        let newest = self.latest(table).await?;
        let refs = newest.version_refs().await.map_err(|e| Error::table("list versions of", table, e))?;
        let mut versions: Vec<u64> = refs.iter().map(|r| r.version).collect();
        versions.sort_unstable();
        let mut found = None;
        let (mut low, mut high) = (0, versions.len());
        while low < high {
            let middle = low + (high - low) / 2;
            let Some(&version) = versions.get(middle) else { break };
            let committed = self.at(table, version).await?.version().timestamp.timestamp_micros();
            if committed <= micros {
                found = Some(version);
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        if found.is_none() && Table::ADDED_LATER.contains(&table) {
            // the store is older than the table, which was empty at the time
            found = versions.first().copied();
        }
        found.ok_or_else(|| Error::SnapshotMissing { as_of: AsOf::Time(micros).to_string() })
    }
}

impl Snapshot {
    fn of(lake: Lake, tables: BTreeMap<Table, Arc<Dataset>>) -> Self {
        let versions = tables.iter().map(|(t, d)| (*t, d.version_id())).collect();
        Self { lake, tables: Arc::new(tables), versions: Arc::new(versions) }
    }

    /// The store it was taken of.
    pub fn lake(&self) -> &Lake {
        &self.lake
    }

    /// The pinned version of every table.
    pub fn versions(&self) -> &BTreeMap<Table, u64> {
        &self.versions
    }

    pub(crate) fn dataset(&self, table: Table) -> Result<&Arc<Dataset>> {
        // every constructor pins all tables
        self.tables.get(&table).ok_or(Error::VersionMissing { table, version: 0 })
    }

    /// Rows of a table; from the manifest, no data is read.
    pub fn row_count(&self, table: Table) -> usize {
        self.fragments(table).iter().map(|f| f.row_count).sum()
    }

    /// The parts of a table, for reading them apart.
    pub fn fragments(&self, table: Table) -> Vec<FragmentInfo> {
        let Some(dataset) = self.tables.get(&table) else { return Vec::new() };
        dataset.iter_fragments().map(|f| FragmentInfo { id: f.id, row_count: f.num_rows().unwrap_or(0) }).collect()
    }

    /// Reads a table. Columns that are not asked for are not read from the store.
    ///
    /// # Errors
    /// `Invalid` for an unknown column or a predicate that cannot be read; later, in the stream, whatever the store
    /// answers.
    pub async fn scan(&self, table: Table, options: ScanOptions) -> Result<BatchStream> {
        let read_ahead = self.lake.settings().read_ahead_bytes_max;
        scan::scan(table, self.dataset(table)?, options, read_ahead).await
    }

    /// Reads rows by address, in the order given.
    ///
    /// # Errors
    /// `NotFound` where an address is not in this version.
    pub async fn take(&self, table: Table, row_addresses: &[u64], columns: &[String]) -> Result<RecordBatch> {
        scan::take(table, self.dataset(table)?, row_addresses, columns).await
    }

    /// The routed experts of steps whole, as the codec's containers; none where a step has none. The addresses must
    /// ascend and not repeat.
    ///
    /// # Errors
    /// `NotFound` where an address is not in this version.
    pub async fn take_routed_experts(&self, row_addresses: &[u64]) -> Result<Vec<Option<bytes::Bytes>>> {
        scan::take_blobs(self.dataset(Table::Steps)?, row_addresses).await
    }

    /// Bytes and requests to the store so far, over the whole lake.
    ///
    /// # Errors
    /// Where the store cannot be opened.
    pub async fn io_stats(&self) -> Result<IoStats> {
        self.lake.io_stats().await
    }

    /// Rows of `trajectories` that are not the effective ones: a row with a higher revision replaces them, or one of
    /// the same revision with a larger (extent, write_id).
    ///
    /// # Errors
    /// Where the table cannot be read.
    pub async fn superseded(&self) -> Result<RowSet> {
        self.replaced_rows(Table::Trajectories).await
    }

    /// Rows of `contents`, `quarantine` or `weight_versions` that say again what an earlier row says: two writers
    /// may store the same message at the same time. Rows of `checkpoints` that go on from where an earlier row does: two
    /// processes may train one run. Empty for other tables; for `trajectories` see [`superseded`](Self::superseded).
    ///
    /// # Errors
    /// Where the table cannot be read.
    pub async fn duplicates(&self, table: Table) -> Result<RowSet> {
        match table {
            Table::Contents | Table::Quarantine | Table::WeightVersions | Table::Checkpoints => {
                self.replaced_rows(table).await
            }
            _ => Ok(RowSet::default()),
        }
    }

    async fn replaced_rows(&self, table: Table) -> Result<RowSet> {
        let version = self.dataset(table)?.version_id();
        let cache = &self.lake.inner.superseded;
        if let Some((at, rows)) = cache.lock().unwrap_or_else(PoisonError::into_inner).get(&table)
            && *at == version
        {
            return Ok(rows.clone());
        }
        let rows = find_replaced(self, table).await?;
        cache.lock().unwrap_or_else(PoisonError::into_inner).insert(table, (version, rows.clone()));
        Ok(rows)
    }
}

/// What identifies a row of a table, as 64 bits; equal identities of different rows are settled in a second pass.
fn identity_columns(table: Table) -> &'static [&'static str] {
    match table {
        Table::Trajectories => &["trajectory_key"],
        Table::Contents => &["content_hash"],
        Table::Quarantine => &["quarantine_key"],
        Table::WeightVersions => &["run_id", "weight_version"],
        Table::Checkpoints => &["train_run", "after_checkpoint_id"],
        Table::Steps
        | Table::Rewards
        | Table::IngestLog
        | Table::Snapshots
        | Table::Batches
        | Table::Plans
        | Table::Streamed
        | Table::TrainMetrics
        | Table::TrainerLogprobs => &[],
    }
}

/// Identities of the rows of a batch.
fn identities(table: Table, batch: &RecordBatch) -> Result<Vec<u64>> {
    match table {
        Table::Trajectories => Ok(as_bits(typed(table, batch, "trajectory_key")?)),
        Table::Quarantine => Ok(as_bits(typed(table, batch, "quarantine_key")?)),
        Table::Contents => {
            let hashes: &StringArray = typed(table, batch, "content_hash")?;
            Ok((0..batch.num_rows()).map(|r| xxhash_rust::xxh3::xxh3_64(hashes.value(r).as_bytes())).collect())
        }
        _ => {
            let [of, named] = if table == Table::Checkpoints {
                ["train_run", "after_checkpoint_id"]
            } else {
                ["run_id", "weight_version"]
            };
            let of: &StringArray = typed(table, batch, of)?;
            let named: &StringArray = typed(table, batch, named)?;
            // no id is empty, so a null, which a first checkpoint has, is told from all of them
            let both = |r| format!("{}\u{0}{}", of.value(r), if named.is_valid(r) { named.value(r) } else { "" });
            Ok((0..batch.num_rows()).map(|r| xxhash_rust::xxh3::xxh3_64(both(r).as_bytes())).collect())
        }
    }
}

fn as_bits(keys: &Int64Array) -> Vec<u64> {
    keys.values().iter().map(|k| *k as u64).collect()
}

/// A row in the contest for being the effective one of its identity.
struct Contender {
    identity: u64,
    rank: (i32, i64, i64),
    address: u64,
}

/// Two passes, so that memory is eight bytes a row and not a map: the first finds identities that come twice, the
/// second ranks only those.
async fn find_replaced(snapshot: &Snapshot, table: Table) -> Result<RowSet> {
    let columns = identity_columns(table);
    let mut seen: Vec<u64> = Vec::with_capacity(snapshot.row_count(table));
    let mut stream = snapshot.scan(table, ScanOptions::columns(columns.iter().copied())).await?;
    while let Some(batch) = stream.try_next().await? {
        seen.extend(identities(table, &batch)?);
    }
    seen.sort_unstable();
    let mut repeated: Vec<u64> = seen.windows(2).filter(|w| w[0] == w[1]).map(|w| w[0]).collect();
    drop(seen);
    repeated.dedup();
    if repeated.is_empty() {
        return Ok(RowSet::default());
    }
    let ranked = table == Table::Trajectories;
    let mut wanted: Vec<&str> = columns.to_vec();
    if ranked {
        wanted.extend(["revision", "extent", "write_id"]);
    }
    let mut contenders: Vec<Contender> = Vec::new();
    let mut stream = snapshot.scan(table, ScanOptions::columns(wanted).with_row_address()).await?;
    while let Some(batch) = stream.try_next().await? {
        let ids = identities(table, &batch)?;
        let addresses = row_addresses(table, &batch)?;
        for (row, identity) in ids.into_iter().enumerate() {
            if repeated.binary_search(&identity).is_ok() {
                let rank = if ranked { rank_of(&batch, row)? } else { (0, 0, 0) };
                contenders.push(Contender { identity, rank, address: addresses.value(row) });
            }
        }
    }
    Ok(losers(contenders))
}

fn rank_of(batch: &RecordBatch, row: usize) -> Result<(i32, i64, i64)> {
    const T: Table = Table::Trajectories;
    let revision: &Int32Array = typed(T, batch, "revision")?;
    let extent: &Int64Array = typed(T, batch, "extent")?;
    let write_id: &Int64Array = typed(T, batch, "write_id")?;
    Ok((revision.value(row), extent.value(row), write_id.value(row)))
}

/// All but the highest rank of each identity; of equal ranks the first row stays.
fn losers(mut contenders: Vec<Contender>) -> RowSet {
    contenders.sort_unstable_by_key(|c| (c.identity, std::cmp::Reverse(c.rank), c.address));
    let mut out = Vec::new();
    let mut last = None;
    for c in contenders {
        if last == Some(c.identity) {
            out.push(c.address);
        }
        last = Some(c.identity);
    }
    RowSet::from_unsorted(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_revision_wins_then_extent_then_write_id() {
        let row = |identity, rank, address| Contender { identity, rank, address };
        let set = losers(vec![
            row(1, (0, 9, 9), 10),
            row(1, (1, 0, 0), 11),
            row(2, (0, 5, 1), 20),
            row(2, (0, 5, 2), 21),
            row(2, (0, 4, 9), 22),
            row(3, (0, 0, 0), 30),
            row(3, (0, 0, 0), 31),
        ]);
        assert_eq!(set.as_slice(), [10, 20, 22, 31]);
    }
}
