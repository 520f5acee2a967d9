//! What goes in comes out, and nothing else is read on the way.

use std::time::Duration;

use arrow::array::{Int64Array, RecordBatch, StringArray};
use arrow::compute::{concat_batches, lexsort_to_indices, take_record_batch};
use dressage_schemas::Table;
use dressage_schemas::message::Content;
use dressage_schemas::tables::{contents, steps, trajectories};
use futures::TryStreamExt;

use super::load::{self, Shape};
use super::{Outcome, below, fresh, holds, same};
use crate::physical::{row_addresses, typed};
use crate::{ErrorKind, Lake, ScanOptions, Snapshot, StoreSettings, WriteGroup, WriterSettings};

type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Everything a scan gives, as one batch.
pub(super) async fn all_rows(snapshot: &Snapshot, table: Table, options: ScanOptions) -> Fallible<RecordBatch> {
    let batches: Vec<RecordBatch> = snapshot.scan(table, options).await?.try_collect().await?;
    let schema = batches.first().map_or_else(|| table.schema(), |b| b.schema());
    Ok(concat_batches(&schema, &batches)?)
}

/// The rows in the order of some columns.
pub(super) fn sorted(batch: &RecordBatch, by: &[&str]) -> Fallible<RecordBatch> {
    let mut columns = Vec::new();
    for name in by {
        let values = batch.column_by_name(name).ok_or_else(|| super::Broken(format!("no column {name}")))?.clone();
        columns.push(arrow::compute::SortColumn { values, options: None });
    }
    let order = lexsort_to_indices(&columns, None)?;
    Ok(take_record_batch(batch, &order)?)
}

pub(super) async fn a_store_is_made_once_and_found_again(settings: &StoreSettings) -> Outcome {
    let place = below(settings, "once");
    let missing = Lake::open(place.clone()).await;
    holds("opening what is not there is NotFound", missing.is_err_and(|e| e.kind() == ErrorKind::NotFound))?;
    let made = Lake::init(place.clone()).await?;
    let again = Lake::init(place.clone()).await?;
    let opened = Lake::open(place).await?;
    same("store id after a second init", &again.record().store_id, &made.record().store_id)?;
    same("store id after open", &opened.record().store_id, &made.record().store_id)?;
    holds("conditional writes were raced", made.record().conditional_writes.is_sound())?;
    let snapshot = opened.snapshot(None).await?;
    for table in Table::ALL {
        same("rows of a new table", &snapshot.row_count(table), &0)?;
    }
    Ok(())
}

pub(super) async fn rows_come_back_as_written(settings: &StoreSettings) -> Outcome {
    let lake = fresh(settings, "round").await?;
    let mut writer = lake.writer(WriterSettings::default());
    let mut written = load::append(&mut writer, "r", 0..20, Shape::default()).await?;
    writer.commit().await?;
    // text-only steps, and one value above the size that is kept inline
    written.extend(load::append(&mut writer, "r", 20..22, Shape { steps: 2, tokens: 30_000, routed: true }).await?);
    written.extend(load::append(&mut writer, "r", 22..24, Shape { steps: 1, tokens: 0, routed: false }).await?);
    writer.close().await?;
    let snapshot = Lake::open(below(settings, "round")).await?.snapshot(None).await?;

    let wanted = trajectories::batch(&written.iter().map(|r| r.trajectory.clone()).collect::<Vec<_>>())?;
    let found = all_rows(&snapshot, Table::Trajectories, ScanOptions::default()).await?;
    compare("trajectories", &found, &wanted, &["trajectory_key"])?;

    let wanted = steps::batch(&written.iter().flat_map(|r| r.steps.clone()).collect::<Vec<_>>())?;
    let found = all_rows(&snapshot, Table::Steps, ScanOptions::default()).await?;
    compare("steps", &found, &wanted, &["trajectory_key", "step_index"])?;

    let mut once: Vec<_> = written.iter().flat_map(|r| r.contents.clone()).collect();
    once.sort_by(|a, b| a.content_hash.cmp(&b.content_hash));
    once.dedup_by(|a, b| a.content_hash == b.content_hash);
    let found = all_rows(&snapshot, Table::Contents, ScanOptions::default()).await?;
    compare("contents", &found, &contents::batch(&once)?, &["content_hash"])?;

    let key = written.first().map_or(0, |r| r.trajectory.trajectory_key);
    let filter = format!("trajectory_key = {key} AND step_index >= 1");
    let found = all_rows(&snapshot, Table::Steps, ScanOptions::columns(["step_index"]).filter(filter)).await?;
    same("rows that a predicate lets through", &found.num_rows(), &2)?;
    let empty = all_rows(&snapshot, Table::Steps, ScanOptions::columns(Vec::<String>::new())).await?;
    same("row count of a scan without columns", &empty.num_rows(), &snapshot.row_count(Table::Steps))?;
    let limited = ScanOptions { limit: Some(7), ..ScanOptions::columns(["step_index"]) };
    same("rows under a limit", &all_rows(&snapshot, Table::Steps, limited).await?.num_rows(), &7)
}

fn compare(what: &str, found: &RecordBatch, wanted: &RecordBatch, by: &[&str]) -> Outcome {
    let (found, wanted) = (sorted(found, by)?, sorted(wanted, by)?);
    same(&format!("rows of {what}"), &found.num_rows(), &wanted.num_rows())?;
    for (column, field) in wanted.columns().iter().zip(wanted.schema().fields()) {
        let Some(other) = found.column_by_name(field.name()) else {
            return holds(format!("{what} has column {}", field.name()), false);
        };
        same(&format!("{what}.{}", field.name()), &other.to_data(), &column.to_data())?;
    }
    Ok(())
}

pub(super) async fn nothing_is_visible_before_its_commit(settings: &StoreSettings) -> Outcome {
    let lake = fresh(settings, "visible").await?;
    let mut writer = lake.writer(WriterSettings::default());
    load::append(&mut writer, "r", 0..3, Shape::default()).await?;
    let before = lake.snapshot(None).await?;
    for table in Table::ALL {
        same(&format!("rows of {table} before the commit"), &before.row_count(table), &0)?;
    }
    let receipt = writer.commit().await?;
    let after = lake.snapshot(None).await?;
    same("trajectories after the commit", &after.row_count(Table::Trajectories), &3)?;
    same("steps after the commit", &after.row_count(Table::Steps), &9)?;
    same("steps in the receipt", &receipt.rows.get("steps").copied(), &Some(9))?;
    holds("the receipt counts bytes", receipt.bytes_stored > 0)?;
    // an abandoned group leaves nothing
    load::append(&mut writer, "r", 3..4, Shape::default()).await?;
    drop(writer);
    let later = lake.snapshot(None).await?;
    same("trajectories after an abandoned group", &later.row_count(Table::Trajectories), &3)?;
    same("steps after an abandoned group", &later.row_count(Table::Steps), &9)
}

pub(super) async fn rows_are_taken_by_address(settings: &StoreSettings) -> Outcome {
    let lake = fresh(settings, "take").await?;
    let mut writer = lake.writer(WriterSettings::default());
    for round in 0..3 {
        load::append(&mut writer, "r", round * 5..round * 5 + 5, Shape { steps: 2, ..Shape::default() }).await?;
        writer.commit().await?;
    }
    let snapshot = lake.snapshot(None).await?;
    let columns = ["trajectory_key", "step_index", "token_ids", "routed_experts"];
    let all = all_rows(&snapshot, Table::Steps, ScanOptions::columns(columns).with_row_address()).await?;
    let addresses = row_addresses(Table::Steps, &all)?.clone();
    // out of order and with a repeat
    let picks: Vec<u32> = vec![29, 3, 17, 3, 0];
    let asked: Vec<u64> = picks.iter().map(|p| addresses.value(*p as usize)).collect();
    let names: Vec<String> = columns.iter().map(|c| (*c).to_owned()).collect();
    let taken = snapshot.take(Table::Steps, &asked, &names).await?;
    let wanted = take_record_batch(&all, &arrow::array::UInt32Array::from(picks))?;
    for name in columns {
        let pair = (taken.column_by_name(name).map(|c| c.to_data()), wanted.column_by_name(name).map(|c| c.to_data()));
        same(&format!("taken {name}"), &pair.0, &pair.1)?;
    }
    let missing = snapshot.take(Table::Steps, &[u64::MAX - 5], &names).await;
    holds("an address that is not there is an error", missing.is_err())
}

pub(super) async fn a_scan_reads_no_payload_unasked(settings: &StoreSettings) -> Outcome {
    let lake = fresh(settings, "projection").await?;
    let mut writer = lake.writer(WriterSettings::default());
    load::append(&mut writer, "r", 0..12, Shape { steps: 2, tokens: 20_000, routed: true }).await?;
    writer.close().await?;
    // a fresh store, so that nothing is cached
    let snapshot = Lake::open(below(settings, "projection")).await?.snapshot(None).await?;
    let before = snapshot.io_stats().await?.read_bytes;
    let scalars = ["trajectory_key", "write_id", "step_index", "n_context_tokens", "mask_spans"];
    let rows = all_rows(&snapshot, Table::Steps, ScanOptions::columns(scalars)).await?;
    same("steps", &rows.num_rows(), &24)?;
    let scalar_bytes = snapshot.io_stats().await?.read_bytes - before;
    let before = snapshot.io_stats().await?.read_bytes;
    let tokens = all_rows(&snapshot, Table::Steps, ScanOptions::columns(["token_ids"])).await?;
    same("steps", &tokens.num_rows(), &24)?;
    let token_bytes = snapshot.io_stats().await?.read_bytes - before;
    // 24 steps of 20,000 tokens: 1.9 MB of ids, as much of log-probs, 5.7 MB of routes
    holds(format!("scalar columns take {scalar_bytes} bytes to read"), scalar_bytes < 200_000)?;
    holds(format!("token ids take {token_bytes} bytes to read"), (400_000..4_000_000).contains(&token_bytes))
}

pub(super) async fn a_slice_of_routed_experts_reads_a_part(settings: &StoreSettings) -> Outcome {
    let lake = fresh(settings, "slice").await?;
    let mut writer = lake.writer(WriterSettings::default());
    let shape = Shape { steps: 1, tokens: 40_001, routed: true };
    let written = load::append(&mut writer, "r", 0..2, shape).await?;
    load::append(&mut writer, "r", 2..3, Shape { routed: false, ..shape }).await?;
    writer.close().await?;
    let snapshot = Lake::open(below(settings, "slice")).await?.snapshot(None).await?;
    let options = ScanOptions::columns(["trajectory_key"]).with_row_address();
    let found = all_rows(&snapshot, Table::Steps, options).await?;
    let keys: &Int64Array = typed(Table::Steps, &found, "trajectory_key")?;
    for (row, key) in keys.values().iter().enumerate() {
        let address = row_addresses(Table::Steps, &found)?.value(row);
        let before = snapshot.io_stats().await?.read_bytes;
        let opened = snapshot.routed_experts(address).await?;
        let source = written.iter().find(|r| r.trajectory.trajectory_key == *key);
        let container = source.and_then(|r| r.steps.first()).and_then(|s| s.routed_experts.as_ref());
        let (Some(opened), Some(container)) = (opened, container) else {
            holds("a step without routes gives none", container.is_none())?;
            continue;
        };
        same("rows", &opened.layout().rows, &40_000)?;
        let slice = opened.slice(20_000..20_100, 1..2).await?;
        let wanted = dressage_codec::decode_slice(container, 20_000..20_100, 1..2)?;
        same("the slice", &slice.bytes, &wanted.bytes)?;
        let read = snapshot.io_stats().await?.read_bytes - before;
        let all = opened.stored_bytes();
        holds(format!("{read} of {all} bytes were read for a slice of 100 rows"), read < all / 2)?;
    }
    // whole, in any order, an address twice
    let rows: Vec<usize> = (0..found.num_rows()).rev().chain([0]).collect();
    let addresses = row_addresses(Table::Steps, &found)?;
    let wanted: Vec<u64> = rows.iter().map(|row| addresses.value(*row)).collect();
    let routes = snapshot.take_routes(&wanted).await?;
    same("values", &routes.len(), &rows.len())?;
    for (row, routes) in rows.iter().zip(routes) {
        let source = written.iter().find(|r| r.trajectory.trajectory_key == keys.value(*row));
        let container = source.and_then(|r| r.steps.first()).and_then(|s| s.routed_experts.as_ref());
        same("decoded routes", &routes, &container.map(|bytes| dressage_codec::decode_all(bytes)).transpose()?)?;
    }
    Ok(())
}

pub(super) async fn contents_are_stored_once(settings: &StoreSettings) -> Outcome {
    let lake = fresh(settings, "contents").await?;
    // the second writer may keep no key in memory and must ask the store
    for (round, known_rows_max) in [(0, 1_000_000), (1, 0)] {
        let mut writer = lake.writer(WriterSettings { known_rows_max, ..WriterSettings::default() });
        load::append(&mut writer, &format!("r{round}"), 0..4, Shape::default()).await?;
        writer.commit().await?;
        let written = load::append(&mut writer, &format!("r{round}"), 4..6, Shape::default()).await?;
        writer.commit().await?;
        let hashes: Vec<&str> = written.iter().flat_map(|r| &r.contents).map(|c| c.content_hash.as_str()).collect();
        let stored = writer.stored_contents_filter(&hashes).await?;
        holds("what was written is stored", stored.iter().all(|s| *s))?;
        let other = writer.stored_contents_filter(&["00000000000000000000000000000001"]).await?;
        same("what was not written", &other, &vec![false])?;
        let known = writer.known_trajectories(&[written.first().map_or(0, |r| r.trajectory.trajectory_key), 5]).await?;
        same("known trajectories", &known.len(), &1)?;
    }
    let snapshot = lake.snapshot(None).await?;
    let found = all_rows(&snapshot, Table::Contents, ScanOptions::columns(["content_hash", "text"])).await?;
    let hashes: &StringArray = typed(Table::Contents, &found, "content_hash")?;
    let mut once: Vec<&str> = hashes.iter().flatten().collect();
    once.sort_unstable();
    once.dedup();
    same("distinct contents", &once.len(), &found.num_rows())?;
    // one system prompt, and three replies of each of six trajectories; ids repeat over the runs, so do the replies
    same("contents", &found.num_rows(), &19)
}

pub(super) async fn weight_versions_are_numbered_once(settings: &StoreSettings) -> Outcome {
    let lake = fresh(settings, "versions").await?;
    let mut writer = lake.writer(WriterSettings::default());
    load::append(&mut writer, "r", 2..3, Shape::default()).await?;
    writer.commit().await?;
    load::append(&mut writer, "r", 0..6, Shape::default()).await?;
    writer.commit().await?;
    let snapshot = lake.snapshot(None).await?;
    let found = all_rows(&snapshot, Table::WeightVersions, ScanOptions::default()).await?;
    let found = sorted(&found, &["ordinal"])?;
    let names: &StringArray = typed(Table::WeightVersions, &found, "weight_version")?;
    let ordinals: &Int64Array = typed(Table::WeightVersions, &found, "ordinal")?;
    same("versions in order", &names.iter().flatten().collect::<Vec<_>>(), &vec!["v2", "v0", "v1"])?;
    same("ordinals", &ordinals.values().to_vec(), &vec![0, 1, 2])
}

pub(super) async fn values_larger_than_the_read_ahead_are_read(settings: &StoreSettings) -> Outcome {
    let place = StoreSettings { read_ahead_bytes_max: 256 << 10, ..below(settings, "large") };
    let lake = Lake::init(place.clone()).await?;
    let mut writer = lake.writer(WriterSettings::default());
    // routes of about a megabyte, and messages of two that do not compress
    let shape = Shape { steps: 1, tokens: 100_000, routed: true };
    let steps = load::append(&mut writer, "r", 0..3, shape).await?;
    let mut random = load::Random(7);
    let mut text = || (0..250_000).map(|_| format!("{:08x}", random.next() as u32)).collect::<String>();
    let rows: Vec<_> = (0..6).map(|_| load::content(&Content::plain("user", &text()))).collect();
    writer.append(WriteGroup { contents: Some(contents::batch(&rows)?), ..WriteGroup::default() }).await?;
    writer.close().await?;
    let snapshot = Lake::open(place).await?.snapshot(None).await?;
    let read = tokio::time::timeout(Duration::from_secs(300), async {
        let texts = all_rows(&snapshot, Table::Contents, ScanOptions::columns(["n_bytes", "text"])).await?;
        let routes = all_rows(&snapshot, Table::Steps, ScanOptions::columns(["routed_experts"])).await?;
        Fallible::Ok((texts.num_rows(), routes.num_rows()))
    });
    let (texts, routes) = read.await??;
    same("steps read", &routes, &steps.len())?;
    // the messages of the steps, too: the system prompt and one reply each
    same("messages read", &texts, &(rows.len() + 1 + steps.len()))
}
