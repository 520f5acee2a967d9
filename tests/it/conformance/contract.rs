//! The contract, one function a clause. Each gets a place of its own and may assume nothing about it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{Int32Type, Int64Type};
use dressage_schemas::{ErrorKind, Table};
use dressage_storage::maintain::check::{CheckOptions, check};
use dressage_storage::maintain::compact::{CompactOptions, compact};
use dressage_storage::maintain::{snapshots, versions};
use dressage_storage::{AsOf, Lake, ScanOptions, Snapshot, StoreSettings, WriterSettings};
use futures::TryStreamExt;

use super::rows::{group, key, token_bytes};

/// Calls again while the store does not answer, as `ErrorKind::Unavailable` asks of every caller. Writers are not
/// called this way: what they have taken they must get through by themselves.
async fn patiently<T>(what: impl AsyncFn() -> dressage_storage::Result<T>) -> Result<T> {
    const TRIES: usize = 12;
    for _ in 1..TRIES {
        match what().await {
            Err(error) if error.kind() == ErrorKind::Unavailable => tokio::time::sleep(Duration::from_millis(20)).await,
            other => return Ok(other?),
        }
    }
    Ok(what().await?)
}

async fn init(settings: &StoreSettings) -> Result<Lake> {
    patiently(async || Lake::init(settings.clone()).await).await
}

async fn rows(snapshot: &Snapshot, table: Table, columns: &[&str]) -> Result<Vec<RecordBatch>> {
    let options = ScanOptions::columns(columns.iter().copied());
    Ok(snapshot.scan(table, options).await?.try_collect().await?)
}

/// `(trajectory_key, write_id)` of every step, with its index; sorted.
async fn step_rows(snapshot: &Snapshot) -> Result<Vec<(i64, i64, i32)>> {
    let mut out = Vec::new();
    for batch in rows(snapshot, Table::Steps, &["trajectory_key", "write_id", "step_index"]).await? {
        let (keys, writes) = (batch.column(0).as_primitive::<Int64Type>(), batch.column(1).as_primitive::<Int64Type>());
        let indices = batch.column(2).as_primitive::<Int32Type>();
        out.extend((0..batch.num_rows()).map(|row| (keys.value(row), writes.value(row), indices.value(row))));
    }
    out.sort_unstable();
    Ok(out)
}

/// Steps of each visible trajectory, by key; an error where a trajectory is visible twice or half.
async fn visible(snapshot: &Snapshot) -> Result<BTreeMap<i64, usize>> {
    let superseded = snapshot.superseded().await?;
    let options = ScanOptions::columns(["trajectory_key", "write_id", "n_steps"]).with_row_address();
    let batches: Vec<_> = snapshot.scan(Table::Trajectories, options).await?.try_collect().await?;
    let steps = step_rows(snapshot).await?;
    ensure!(steps.windows(2).all(|pair| pair[0] != pair[1]), "a step is stored twice under one write id");
    let mut seen = BTreeMap::new();
    for batch in batches {
        let column = |name: &str| batch.column_by_name(name).with_context(|| format!("no column {name}"));
        let addresses = column(dressage_storage::ROW_ADDRESS)?.as_primitive::<arrow::datatypes::UInt64Type>().clone();
        let keys = column("trajectory_key")?.as_primitive::<Int64Type>().clone();
        let writes = column("write_id")?.as_primitive::<Int64Type>().clone();
        let counts = column("n_steps")?.as_primitive::<Int32Type>().clone();
        for row in (0..batch.num_rows()).filter(|row| !superseded.contains(addresses.value(*row))) {
            let (key, write_id) = (keys.value(row), writes.value(row));
            let own = steps.iter().filter(|step| (step.0, step.1) == (key, write_id)).count();
            ensure!(own == counts.value(row) as usize, "trajectory {key:x} has {own} steps of {}", counts.value(row));
            ensure!(seen.insert(key, own).is_none(), "trajectory {key:x} is visible twice");
        }
    }
    Ok(seen)
}

async fn write(lake: &Lake, ids: &[&str], n_steps: usize) -> Result<()> {
    let mut writer = lake.writer(WriterSettings::default());
    for id in ids {
        let group = group(&mut writer, id, n_steps, 0)?;
        writer.append(group).await?;
    }
    writer.close().await?;
    Ok(())
}

/// A store is made once; opening finds it and making it again changes nothing. Where none is, that is what is said.
pub(super) async fn a_store_is_made_once_and_found_again(settings: StoreSettings) -> Result<()> {
    let missing = patiently(async || match Lake::open(settings.clone()).await {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
        Ok(_) => Ok(false),
    });
    ensure!(missing.await?, "a store was found where none is");
    let made = init(&settings).await?;
    write(&made, &["a"], 2).await?;
    let again = init(&settings).await?;
    ensure!(again.record() == made.record(), "making a store again made another one");
    let opened = Lake::open(settings).await?;
    ensure!(visible(&opened.snapshot(None).await?).await? == BTreeMap::from([(key("a"), 2)]), "rows are gone");
    Ok(())
}

/// What is read is what was written, payload included, for one row as for many.
pub(super) async fn what_is_read_is_what_was_written(settings: StoreSettings) -> Result<()> {
    let lake = init(&settings).await?;
    let ids: Vec<String> = (0..20).map(|number| format!("t{number}")).collect();
    write(&lake, &ids.iter().map(String::as_str).collect::<Vec<_>>(), 3).await?;
    let snapshot = lake.snapshot(None).await?;
    let columns = ["trajectory_key", "step_index", "token_ids", "logprobs"];
    let options = ScanOptions::columns(columns).with_row_address();
    let batches: Vec<_> = snapshot.scan(Table::Steps, options).await?.try_collect().await?;
    let mut addresses = Vec::new();
    for batch in &batches {
        same_tokens(batch)?;
        let column = batch.column_by_name(dressage_storage::ROW_ADDRESS).context("no addresses")?;
        addresses.extend_from_slice(column.as_primitive::<arrow::datatypes::UInt64Type>().values());
    }
    ensure!(addresses.len() == 60, "{} steps, not 60", addresses.len());
    let wanted: Vec<u64> = addresses.iter().rev().step_by(7).copied().collect();
    let taken = snapshot.take(Table::Steps, &wanted, &columns.map(str::to_owned)).await?;
    ensure!(taken.num_rows() == wanted.len(), "{} rows taken of {}", taken.num_rows(), wanted.len());
    same_tokens(&taken)
}

fn same_tokens(batch: &RecordBatch) -> Result<()> {
    let column = |name: &str| batch.column_by_name(name).with_context(|| format!("no column {name}"));
    let keys = column("trajectory_key")?.as_primitive::<Int64Type>();
    let indices = column("step_index")?.as_primitive::<Int32Type>();
    let tokens = column("token_ids")?.as_binary::<i64>();
    for row in 0..batch.num_rows() {
        let expected = token_bytes(keys.value(row), indices.value(row) as usize);
        ensure!(tokens.value(row) == expected, "step {} of {:x} has other tokens", indices.value(row), keys.value(row));
    }
    Ok(())
}

/// Nothing is visible before its commit, and a writer that goes away without one leaves nothing behind it.
pub(super) async fn nothing_is_visible_before_its_commit(settings: StoreSettings) -> Result<()> {
    let lake = init(&settings).await?;
    let mut writer = lake.writer(WriterSettings::default());
    let first = group(&mut writer, "abandoned", 2, 0)?;
    writer.append(first).await?;
    ensure!(visible(&lake.snapshot(None).await?).await?.is_empty(), "visible before the commit");
    drop(writer);
    write(&lake, &["kept"], 2).await?;
    ensure!(visible(&lake.snapshot(None).await?).await? == BTreeMap::from([(key("kept"), 2)]), "not just the kept one");
    Ok(())
}

/// A pinned reader sees the same rows whatever is written, replaced and compacted after it began.
pub(super) async fn a_pinned_reader_is_untouched(settings: StoreSettings) -> Result<()> {
    let lake = init(&settings).await?;
    for id in ["a", "b", "c", "d"] {
        write(&lake, &[id], 2).await?;
    }
    let pinned = lake.snapshot(None).await?;
    let before = (visible(&pinned).await?, step_rows(&pinned).await?);
    let mut writer = lake.writer(WriterSettings::default());
    let longer = group(&mut writer, "a", 5, 1)?;
    writer.append(longer).await?;
    writer.close().await?;
    patiently(async || compact(&lake, &CompactOptions::default()).await).await?;
    ensure!((visible(&pinned).await?, step_rows(&pinned).await?) == before, "a pinned reader sees something else");
    let now = lake.snapshot(None).await?;
    ensure!(now.fragments(Table::Steps).len() < 5, "compaction joined nothing");
    let expected = BTreeMap::from([(key("a"), 5), (key("b"), 2), (key("c"), 2), (key("d"), 2)]);
    ensure!(visible(&now).await? == expected, "the newest copy is not the one in force");
    for batch in rows(&now, Table::Steps, &["trajectory_key", "step_index", "token_ids"]).await? {
        same_tokens(&batch)?;
    }
    Ok(())
}

/// Many writers at once, many commits each: every row once, shared messages once for a reader, one ordinal a version.
pub(super) async fn many_writers_lose_and_double_nothing(settings: StoreSettings) -> Result<()> {
    const WRITERS: usize = 6;
    const COMMITS: usize = 4;
    let lake = init(&settings).await?;
    let tasks: Vec<_> = (0..WRITERS)
        .map(|writer_number| {
            let settings = settings.clone();
            tokio::spawn(async move {
                // A handle of its own, as another process would have.
                let lake = Lake::open(settings).await?;
                let mut writer = lake.writer(WriterSettings::default());
                for commit in 0..COMMITS {
                    for number in 0..2 {
                        let group = group(&mut writer, &format!("w{writer_number}-{commit}-{number}"), 2, 0)?;
                        writer.append(group).await?;
                    }
                    writer.commit().await?;
                }
                writer.close().await?;
                Ok::<_, anyhow::Error>(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    let snapshot = lake.snapshot(None).await?;
    let seen = visible(&snapshot).await?;
    ensure!(seen.len() == WRITERS * COMMITS * 2, "{} trajectories of {}", seen.len(), WRITERS * COMMITS * 2);
    ensure!(seen.values().all(|n_steps| *n_steps == 2), "not every trajectory has its steps");
    for table in [Table::Contents, Table::WeightVersions] {
        let column = if table == Table::Contents { "content_hash" } else { "weight_version" };
        let doubled = snapshot.duplicates(table).await?.len();
        let mut distinct = BTreeSet::new();
        for batch in rows(&snapshot, table, &[column]).await? {
            distinct.extend(batch.column(0).as_string::<i32>().iter().flatten().map(str::to_owned));
        }
        let rows = snapshot.row_count(table);
        ensure!(rows - doubled == distinct.len(), "{table}: {rows} rows, {doubled} repeated, {} names", distinct.len());
    }
    let report = patiently(async || check(&lake, &CheckOptions::default()).await).await?;
    ensure!(report.is_sound(), "{:?}", report.problems);
    Ok(())
}

/// Columns that are not asked for are not read.
pub(super) async fn payload_that_is_not_asked_for_is_not_read(settings: StoreSettings) -> Result<()> {
    let lake = init(&settings).await?;
    let ids: Vec<String> = (0..200).map(|number| format!("t{number}")).collect();
    write(&lake, &ids.iter().map(String::as_str).collect::<Vec<_>>(), 4).await?;
    let read = async |columns: &[&str]| {
        // Opened afresh: what was cached is not what is read.
        let snapshot = Lake::open(settings.clone()).await?.snapshot(None).await?;
        let before = snapshot.io_stats().await?.read_bytes;
        rows(&snapshot, Table::Steps, columns).await?;
        Ok::<_, anyhow::Error>(snapshot.io_stats().await?.read_bytes - before)
    };
    let scalars = read(&["trajectory_key", "step_index", "n_output_tokens"]).await?;
    let payload = read(&["token_ids", "logprobs"]).await?;
    // 800 steps of 64 random ids and 64 random floats: some 350 kB even compressed.
    ensure!(payload > 200_000, "the payload scan read only {payload} bytes: nothing is proved");
    ensure!(scalars * 4 < payload, "a scalar scan read {scalars} bytes, one of payload {payload}");
    Ok(())
}

/// A tagged snapshot survives the collection of old versions and is read again by its name.
pub(super) async fn a_tagged_snapshot_survives_collection(settings: StoreSettings) -> Result<()> {
    let lake = init(&settings).await?;
    write(&lake, &["early"], 2).await?;
    let early = lake.snapshot(None).await?;
    patiently(async || snapshots::create(&early, Some("first")).await).await?;
    for id in ["late-1", "late-2", "late-3"] {
        write(&lake, &[id], 2).await?;
    }
    let options = versions::GcOptions { keep_versions: Some(1), older_than: None, dry_run: true };
    let would = patiently(async || versions::gc(&lake, &options).await).await?;
    ensure!(!would.versions_removed.is_empty(), "nothing to collect: {would:?}");
    ensure!(visible(&lake.snapshot(None).await?).await?.len() == 4, "a dry run removed something");
    let options = versions::GcOptions { dry_run: false, ..options };
    patiently(async || versions::gc(&lake, &options).await).await?;
    let fresh = Lake::open(settings).await?;
    let tagged = fresh.snapshot(Some(AsOf::Tag("first".to_owned()))).await?;
    ensure!(visible(&tagged).await? == BTreeMap::from([(key("early"), 2)]), "the tagged snapshot shows something else");
    ensure!(visible(&fresh.snapshot(None).await?).await?.len() == 4, "the newest version lost rows");
    Ok(())
}

/// Leftovers of an interrupted write are found and removed, and nothing else.
pub(super) async fn leftovers_are_removed_and_nothing_else(settings: StoreSettings) -> Result<()> {
    let lake = init(&settings).await?;
    write(&lake, &["whole"], 2).await?;
    let mut writer = lake.writer(WriterSettings::default());
    let mut half = group(&mut writer, "half", 3, 0)?;
    // As if the process had died between the commit of `steps` and that of `trajectories`.
    half.trajectories = None;
    writer.append(half).await?;
    writer.close().await?;
    ensure!(step_rows(&lake.snapshot(None).await?).await?.len() == 5, "the leftovers are there to be found");
    let options = CheckOptions { repair: true, payload: true, grace: Duration::ZERO };
    let report = patiently(async || check(&lake, &options).await).await?;
    ensure!(!report.is_damaged(), "{:?}", report.problems);
    let after = lake.snapshot(None).await?;
    ensure!(step_rows(&after).await?.len() == 2, "leftovers are still there: {report:?}");
    ensure!(visible(&after).await? == BTreeMap::from([(key("whole"), 2)]), "repair touched what is visible");
    ensure!(
        patiently(async || check(&lake, &CheckOptions::default()).await).await?.is_sound(),
        "not sound after repair"
    );
    Ok(())
}
