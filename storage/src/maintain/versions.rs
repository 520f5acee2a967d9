//! Versions of tables: which there are, which a snapshot names, and collecting the rest.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use dressage_schemas::Table;
use lance::dataset::cleanup::{CleanupPolicyBuilder, RemovalStats};
use serde::Serialize;

use super::snapshots;
use crate::error::{Error, Result};
use crate::lake::{Lake, now_micros};

/// One version of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VersionInfo {
    /// The table.
    pub table: String,
    /// Its version.
    pub version: u64,
    /// When it was committed, microseconds since 1970.
    pub committed_at: i64,
    /// Ids of the snapshots that name it.
    pub snapshots: Vec<i64>,
    /// Tags of those snapshots.
    pub tags: Vec<String>,
}

/// All versions of all tables, or of one, oldest first.
///
/// # Errors
/// Where the store cannot be read.
pub async fn versions(lake: &Lake, only: Option<Table>) -> Result<Vec<VersionInfo>> {
    let named = snapshots::list(lake).await?;
    let mut out = Vec::new();
    for table in Table::ALL.into_iter().filter(|t| only.is_none_or(|o| o == *t)) {
        let mut by_version: HashMap<u64, (Vec<i64>, Vec<String>)> = HashMap::new();
        for snapshot in &named {
            if let Some(version) = snapshot.versions.get(table.name()) {
                let entry = by_version.entry(*version).or_default();
                entry.0.push(snapshot.snapshot_id);
                entry.1.extend(snapshot.tag.clone());
            }
        }
        let dataset = lake.latest(table).await?;
        let mut found = dataset.versions().await.map_err(|e| Error::table("list versions of", table, e))?;
        found.sort_by_key(|v| v.version);
        out.extend(found.into_iter().map(|v| {
            let (snapshots, tags) = by_version.remove(&v.version).unwrap_or_default();
            VersionInfo {
                table: table.name().to_owned(),
                version: v.version,
                committed_at: v.timestamp.timestamp_micros(),
                snapshots,
                tags,
            }
        }));
    }
    Ok(out)
}

/// Which versions to keep.
#[derive(Debug, Clone, Default)]
pub struct GcOptions {
    /// Keep the newest so many of each table.
    pub keep_versions: Option<u64>,
    /// Keep everything younger than this.
    pub older_than: Option<Duration>,
    /// Only say what would go.
    pub dry_run: bool,
}

/// What was collected, or would be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct GcReport {
    /// Whether nothing was removed yet.
    pub dry_run: bool,
    /// Versions removed, by table.
    pub versions_removed: BTreeMap<String, Vec<u64>>,
    /// Versions kept only because a tagged snapshot names them, by table.
    pub versions_tagged: BTreeMap<String, Vec<u64>>,
    /// Files removed.
    pub files_removed: u64,
    /// Bytes freed.
    pub bytes_removed: u64,
    /// Files that could not be removed; the next run tries again.
    pub files_failed: u64,
}

/// Collects old versions, and files that only they name. Versions that a tagged snapshot names stay, and so does the
/// newest of each table. A reader that pinned an untagged older version loses it.
///
/// # Errors
/// `Invalid` where neither bound is given; whatever the store answers.
pub async fn gc(lake: &Lake, options: &GcOptions) -> Result<GcReport> {
    if options.keep_versions.is_none() && options.older_than.is_none() {
        return Err(Error::Unbounded { verb: "gc", missing: "--keep-versions or --older-than" });
    }
    let mut tagged: BTreeMap<Table, BTreeSet<u64>> = BTreeMap::new();
    for snapshot in snapshots::list(lake).await?.into_iter().filter(|s| s.tag.is_some()) {
        for (table, version) in snapshot.table_versions() {
            tagged.entry(table).or_default().insert(version);
        }
    }
    let mut report = GcReport { dry_run: options.dry_run, ..GcReport::default() };
    for table in Table::ALL {
        let kept = tagged.remove(&table).unwrap_or_default();
        gc_table(lake, table, options, &kept, &mut report).await?;
    }
    Ok(report)
}

async fn gc_table(
    lake: &Lake,
    table: Table,
    options: &GcOptions,
    tagged: &BTreeSet<u64>,
    report: &mut GcReport,
) -> Result<()> {
    let dataset = lake.latest(table).await?;
    let mut all = dataset.versions().await.map_err(|e| Error::table("list versions of", table, e))?;
    all.sort_by_key(|v| std::cmp::Reverse(v.version));
    let keep_newest = usize::try_from(options.keep_versions.unwrap_or(1).max(1)).unwrap_or(usize::MAX);
    let cutoff = options.older_than.map(|age| now_micros() - i64::try_from(age.as_micros()).unwrap_or(i64::MAX));
    let old = all
        .iter()
        .skip(keep_newest)
        .filter(|v| cutoff.is_none_or(|cutoff| v.timestamp.timestamp_micros() < cutoff))
        .map(|v| v.version);
    let (kept, removed): (Vec<u64>, Vec<u64>) = old.partition(|v| tagged.contains(v));
    if !kept.is_empty() {
        report.versions_tagged.insert(table.name().to_owned(), kept);
    }
    if removed.is_empty() {
        return Ok(());
    }
    let fail = |e| Error::table("collect old versions of", table, e);
    let policy = CleanupPolicyBuilder::default().error_if_tagged_old_versions(false);
    let policy = policy.versions(removed.clone()).map_err(fail)?.build();
    let operation = dataset.cleanup(policy);
    let stats = if options.dry_run {
        operation.explain().await.map_err(fail)?.stats
    } else {
        operation.execute().await.map_err(fail)?
    };
    report.add(table, removed, &stats);
    Ok(())
}

impl GcReport {
    fn add(&mut self, table: Table, removed: Vec<u64>, stats: &RemovalStats) {
        self.versions_removed.insert(table.name().to_owned(), removed);
        self.files_removed += stats.data_files_removed
            + stats.transaction_files_removed
            + stats.index_files_removed
            + stats.deletion_files_removed
            + stats.old_versions;
        self.bytes_removed += stats.bytes_removed;
        self.files_failed += stats.failed_deletes;
    }
}
