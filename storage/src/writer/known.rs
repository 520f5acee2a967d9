//! What the store has already: trajectories by key, contents by hash. Both are asked for with everything that comes
//! in, so a compact set of keys answers for what is new.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::array::{Array, BooleanArray, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::compute::filter_record_batch;
use dressage_schemas::Table;
use futures::TryStreamExt;
use lance::Dataset;

use super::LakeWriter;
use super::seen::Seen;
use crate::error::{Error, Result};
use crate::lake::Lake;
use crate::physical::typed;
use crate::scan::{self, ScanOptions};

/// Keys in one predicate.
const KEYS_PER_QUERY: usize = 512;

/// The effective row of a trajectory, as far as one must know it to decide whether another copy is newer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownTrajectory {
    /// Its key.
    pub trajectory_key: i64,
    /// Its text id: compare it, two ids may have one key.
    pub trajectory_id: String,
    /// Its run.
    pub run_id: String,
    /// Revision of the effective row.
    pub revision: i32,
    /// How much of the interaction that row holds.
    pub extent: i64,
    /// Hash over what it says.
    pub content_hash: String,
    /// The attempt that wrote it.
    pub write_id: i64,
}

impl KnownTrajectory {
    fn rank(&self) -> (i32, i64, i64) {
        (self.revision, self.extent, self.write_id)
    }
}

/// A trajectory that this writer committed, and what another writer had committed under its key meanwhile: neither
/// knew of the other one when it decided. Of two writers only the one that committed last meets the other one's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetTrajectory {
    /// What this writer wrote.
    pub ours: KnownTrajectory,
    /// What was there.
    pub theirs: KnownTrajectory,
}

impl MetTrajectory {
    /// Whether ours is the one that readers see.
    pub fn ours_is_effective(&self) -> bool {
        self.ours.rank() > self.theirs.rank()
    }
}

/// A set of keys of one table, or the knowledge that it would be too large.
enum Keys<K> {
    Unread,
    Complete(Seen<K>),
    TooMany,
}

/// What one writer knows about the store.
pub(super) struct KnownRows {
    rows_max: usize,
    trajectories: Keys<i64>,
    contents: Keys<u128>,
    /// Hashes that this writer took in since its last commit; needed where the set above is too large.
    pending_contents: Seen<u128>,
    /// Trajectories taken in since the last commit began.
    pending: HashMap<i64, KnownTrajectory>,
    /// What the commit that is under way holds: hashes and trajectories.
    committing: (Seen<u128>, HashMap<i64, KnownTrajectory>),
    /// Fragments of `trajectories` that were there when this writer first asked what is known, and those it has seen
    /// since; none before it asks.
    looked_at: Option<HashSet<u64>>,
    met: Vec<MetTrajectory>,
}

impl KnownRows {
    pub(super) fn new(rows_max: usize) -> Self {
        Self {
            rows_max,
            trajectories: Keys::Unread,
            contents: Keys::Unread,
            pending_contents: Seen::new(),
            pending: HashMap::new(),
            committing: (Seen::new(), HashMap::new()),
            looked_at: None,
            met: Vec::new(),
        }
    }

    /// What is pending becomes what is being committed.
    pub(super) fn commit_begun(&mut self) {
        self.committing =
            (std::mem::replace(&mut self.pending_contents, Seen::new()), std::mem::take(&mut self.pending));
    }

    /// After a commit: what it held is stored. Other writers' rows are looked at too.
    pub(super) async fn committed(&mut self, lake: &Lake, trajectories: Option<&Arc<Dataset>>) -> Result<()> {
        let (_, committed) = std::mem::replace(&mut self.committing, (Seen::new(), HashMap::new()));
        if let Some(dataset) = trajectories {
            self.meet(lake, dataset, &committed).await?;
        }
        if !matches!(self.trajectories, Keys::Unread) {
            self.refresh_trajectories(lake).await?;
        }
        if !matches!(self.contents, Keys::Unread) {
            self.refresh_contents(lake).await?;
        }
        Ok(())
    }

    /// Looks for rows of other writers under the keys that were just committed, in the version that holds them.
    async fn meet(
        &mut self,
        lake: &Lake,
        dataset: &Arc<Dataset>,
        committed: &HashMap<i64, KnownTrajectory>,
    ) -> Result<()> {
        let Some(looked_at) = &mut self.looked_at else { return Ok(()) };
        let mut unread = Vec::new();
        let mut rows = 0;
        for fragment in dataset.iter_fragments().filter(|f| !looked_at.contains(&f.id)) {
            unread.push(fragment.id);
            rows += fragment.num_rows().unwrap_or(0);
        }
        *looked_at = dataset.iter_fragments().map(|f| f.id).collect();
        // the common case: nobody else wrote
        if rows <= committed.len() {
            return Ok(());
        }
        let read_ahead = lake.settings().read_ahead_bytes_max;
        let mut options = ScanOptions::columns(["trajectory_key"]);
        options.fragments = Some(unread);
        let mut counts: HashMap<i64, u32> = HashMap::new();
        let mut stream = scan::scan(Table::Trajectories, dataset, options, read_ahead).await?;
        while let Some(batch) = stream.try_next().await? {
            let keys: &Int64Array = typed(Table::Trajectories, &batch, "trajectory_key")?;
            for key in keys.values().iter().filter(|k| committed.contains_key(k)) {
                *counts.entry(*key).or_default() += 1;
            }
        }
        let shared: Vec<i64> = counts.into_iter().filter(|(_, n)| *n > 1).map(|(key, _)| key).collect();
        for keys in shared.chunks(KEYS_PER_QUERY) {
            for theirs in stored_rows(lake, dataset, keys).await? {
                let Some(ours) = committed.get(&theirs.trajectory_key) else { continue };
                // what was known has a lower revision than what was written for it
                if theirs.write_id != ours.write_id && theirs.revision >= ours.revision {
                    self.met.push(MetTrajectory { ours: ours.clone(), theirs });
                }
            }
        }
        Ok(())
    }

    pub(super) fn note_pending(&mut self, batch: &RecordBatch) -> Result<()> {
        for row in rows_of(batch)? {
            let better = self.pending.get(&row.trajectory_key).is_none_or(|known| known.rank() < row.rank());
            if better {
                self.pending.insert(row.trajectory_key, row);
            }
        }
        Ok(())
    }

    async fn refresh_trajectories(&mut self, lake: &Lake) -> Result<()> {
        let column = "trajectory_key";
        refresh(lake, Table::Trajectories, column, self.rows_max, &mut self.trajectories, |batch| {
            let keys: &Int64Array = typed(Table::Trajectories, batch, column)?;
            Ok(keys.values().to_vec())
        })
        .await
    }

    async fn refresh_contents(&mut self, lake: &Lake) -> Result<()> {
        let column = "content_hash";
        refresh(lake, Table::Contents, column, self.rows_max, &mut self.contents, |batch| {
            let hashes: &StringArray = typed(Table::Contents, batch, column)?;
            (0..hashes.len()).map(|r| hash_bits(hashes.value(r))).collect()
        })
        .await
    }

    /// Which of these hashes are stored, or taken in by this writer.
    pub(super) async fn stored_contents(&mut self, lake: &Lake, hashes: &[&str]) -> Result<Vec<bool>> {
        if matches!(self.contents, Keys::Unread) {
            self.refresh_contents(lake).await?;
        }
        let mut bits = Vec::with_capacity(hashes.len());
        for hash in hashes {
            bits.push(hash_bits(hash)?);
        }
        let taken_in = |bits: &u128| self.pending_contents.contains(bits) || self.committing.0.contains(bits);
        let mut stored: Vec<bool> = bits.iter().map(taken_in).collect();
        if let Keys::Complete(seen) = &self.contents {
            for (known, key) in stored.iter_mut().zip(&bits) {
                *known |= seen.contains(key);
            }
            return Ok(stored);
        }
        let open: Vec<usize> = (0..hashes.len()).filter(|i| !stored[*i]).collect();
        for chunk in open.chunks(KEYS_PER_QUERY) {
            let list: Vec<String> = chunk.iter().map(|i| format!("'{}'", hashes[*i])).collect();
            let filter = format!("content_hash IN ({})", list.join(","));
            let mut found = Seen::new();
            let dataset = lake.latest(Table::Contents).await?;
            let options = ScanOptions::columns(["content_hash"]).filter(filter);
            let mut rows = scan::scan(Table::Contents, &dataset, options, lake.settings().read_ahead_bytes_max).await?;
            while let Some(batch) = rows.try_next().await? {
                let column: &StringArray = typed(Table::Contents, &batch, "content_hash")?;
                for row in 0..column.len() {
                    found.insert(hash_bits(column.value(row))?);
                }
            }
            for i in chunk {
                stored[*i] = found.contains(&bits[*i]);
            }
        }
        Ok(stored)
    }

    /// The rows of a contents batch that are not stored yet, each hash once. They count as taken in from now on.
    pub(super) async fn drop_stored_contents(&mut self, lake: &Lake, batch: RecordBatch) -> Result<RecordBatch> {
        let hashes: &StringArray = typed(Table::Contents, &batch, "content_hash")?;
        let texts: Vec<&str> = (0..hashes.len()).map(|r| hashes.value(r)).collect();
        let stored = self.stored_contents(lake, &texts).await?;
        let mut keep = Vec::with_capacity(texts.len());
        for (text, known) in texts.iter().zip(stored) {
            keep.push(!known && self.pending_contents.insert(hash_bits(text)?));
        }
        if keep.iter().all(|k| *k) {
            return Ok(batch);
        }
        filter_record_batch(&batch, &BooleanArray::from(keep)).map_err(|e| Error::shape(Table::Contents, &e))
    }
}

/// Reads the keys of fragments that were not read yet.
async fn refresh<K: Copy + Ord + std::hash::Hash>(
    lake: &Lake,
    table: Table,
    column: &str,
    rows_max: usize,
    keys: &mut Keys<K>,
    read: impl Fn(&RecordBatch) -> Result<Vec<K>>,
) -> Result<()> {
    let dataset = lake.latest(table).await?;
    let rows: usize = dataset.iter_fragments().filter_map(lance_table::format::Fragment::num_rows).sum();
    if rows > rows_max {
        *keys = Keys::TooMany;
        return Ok(());
    }
    if !matches!(keys, Keys::Complete(_)) {
        *keys = Keys::Complete(Seen::new());
    }
    let Keys::Complete(seen) = keys else { return Ok(()) };
    let unread = seen.unread(dataset.iter_fragments().map(|f| f.id));
    if unread.is_empty() {
        return Ok(());
    }
    let mut options = ScanOptions::columns([column]);
    options.fragments = Some(unread);
    let mut fresh = Vec::new();
    let mut stream = scan::scan(table, &dataset, options, lake.settings().read_ahead_bytes_max).await?;
    while let Some(batch) = stream.try_next().await? {
        fresh.extend(read(&batch)?);
    }
    seen.extend(fresh);
    Ok(())
}

impl LakeWriter {
    /// The effective row of each of these trajectories that is stored, or taken in by this writer. In no particular
    /// order; keys that are not known are left out.
    ///
    /// # Errors
    /// Where the store cannot be read.
    pub async fn known_trajectories(&mut self, keys: &[i64]) -> Result<Vec<KnownTrajectory>> {
        if self.known.looked_at.is_none() {
            let dataset = self.lake.latest(Table::Trajectories).await?;
            self.known.looked_at = Some(dataset.iter_fragments().map(|f| f.id).collect());
        }
        if matches!(self.known.trajectories, Keys::Unread) {
            self.known.refresh_trajectories(&self.lake).await?;
        }
        let mut found: HashMap<i64, KnownTrajectory> = HashMap::new();
        let asked: Vec<i64> = match &self.known.trajectories {
            Keys::Complete(seen) => keys.iter().copied().filter(|k| seen.contains(k)).collect(),
            Keys::Unread | Keys::TooMany => keys.to_vec(),
        };
        for chunk in asked.chunks(KEYS_PER_QUERY) {
            let dataset = self.lake.latest(Table::Trajectories).await?;
            for row in stored_rows(&self.lake, &dataset, chunk).await? {
                keep_best(&mut found, row);
            }
        }
        for key in keys {
            for taken_in in [&self.known.pending, &self.known.committing.1] {
                if let Some(row) = taken_in.get(key) {
                    keep_best(&mut found, row.clone());
                }
            }
        }
        Ok(found.into_values().collect())
    }

    /// Whether rows of this trajectory were taken in that are not committed yet, or are being committed.
    pub fn is_pending(&self, trajectory_key: i64) -> bool {
        self.known.pending.contains_key(&trajectory_key) || self.known.committing.1.contains_key(&trajectory_key)
    }

    /// The trajectories that other writers committed at the same time as this one, since this was last asked.
    pub fn take_met(&mut self) -> Vec<MetTrajectory> {
        std::mem::take(&mut self.known.met)
    }

    /// Which of these content hashes are stored, or taken in by this writer: rows for them need not be sent. (Sent
    /// all the same, they are dropped.)
    ///
    /// # Errors
    /// `Invalid` for something that is not a content hash.
    pub async fn stored_contents_filter(&mut self, hashes: &[&str]) -> Result<Vec<bool>> {
        self.known.stored_contents(&self.lake, hashes).await
    }
}

fn keep_best(found: &mut HashMap<i64, KnownTrajectory>, row: KnownTrajectory) {
    let better = found.get(&row.trajectory_key).is_none_or(|known| known.rank() < row.rank());
    if better {
        found.insert(row.trajectory_key, row);
    }
}

async fn stored_rows(lake: &Lake, dataset: &Arc<Dataset>, keys: &[i64]) -> Result<Vec<KnownTrajectory>> {
    const COLUMNS: [&str; 7] =
        ["trajectory_key", "trajectory_id", "run_id", "revision", "extent", "content_hash", "write_id"];
    let list: Vec<String> = keys.iter().map(i64::to_string).collect();
    let filter = format!("trajectory_key IN ({})", list.join(","));
    let options = ScanOptions::columns(COLUMNS).filter(filter);
    let mut stream = scan::scan(Table::Trajectories, dataset, options, lake.settings().read_ahead_bytes_max).await?;
    let mut rows = Vec::new();
    while let Some(batch) = stream.try_next().await? {
        rows.extend(rows_of(&batch)?);
    }
    Ok(rows)
}

fn rows_of(batch: &RecordBatch) -> Result<Vec<KnownTrajectory>> {
    const T: Table = Table::Trajectories;
    let key: &Int64Array = typed(T, batch, "trajectory_key")?;
    let id: &StringArray = typed(T, batch, "trajectory_id")?;
    let run: &StringArray = typed(T, batch, "run_id")?;
    let revision: &Int32Array = typed(T, batch, "revision")?;
    let extent: &Int64Array = typed(T, batch, "extent")?;
    let hash: &StringArray = typed(T, batch, "content_hash")?;
    let write_id: &Int64Array = typed(T, batch, "write_id")?;
    let row = |r: usize| KnownTrajectory {
        trajectory_key: key.value(r),
        trajectory_id: id.value(r).to_owned(),
        run_id: run.value(r).to_owned(),
        revision: revision.value(r),
        extent: extent.value(r),
        content_hash: hash.value(r).to_owned(),
        write_id: write_id.value(r),
    };
    Ok((0..batch.num_rows()).map(row).collect())
}

/// A content hash as a number.
fn hash_bits(hash: &str) -> Result<u128> {
    let ok = hash.len() == 32 && hash.bytes().all(|b| b.is_ascii_hexdigit());
    let bits = if ok { u128::from_str_radix(hash, 16).ok() } else { None };
    bits.ok_or_else(|| Error::BatchShape {
        table: Table::Contents,
        detail: format!("content hash {hash:?} is not 32 hex digits"),
    })
}
