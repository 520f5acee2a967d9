//! Micro-batches out of stored steps: what they hold, that nothing but the plan decides it, and what is refused.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arrow::array::{Array, AsArray, RecordBatch, UInt64Array};
use arrow::datatypes::{Float32Type, Float64Type, Int8Type, Int32Type, Int64Type};
use dressage_codec::{Dtype, Mode, RoutedView, encode};
use dressage_schemas::spans::{MaskSpans, VersionSpans};
use dressage_schemas::tables::{batches, plans, steps, trajectories};
use dressage_schemas::{ErrorKind, Table};
use dressage_segmenter::plan::{PlanRequest, PlanSettings, Planner, Scope, Trained};
use dressage_segmenter::{BatchColumn, Error, Ledger, MicroBatch, StoredPlan, StreamOptions, Verdict};
use dressage_storage::{Lake, ROW_ADDRESS, ScanOptions, StoreSettings, WriteGroup, WriterSettings};
use futures::TryStreamExt;
use proptest::prelude::*;

use crate::fixture::{NEW_YEAR, chain, floats, ids, step, trajectory};

const PLAN_ID: &str = "0123456789abcdef0123456789abcdef";

/// A store of its own in memory.
async fn lake() -> Lake {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("memory://stream-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    Lake::init(StoreSettings::at(name)).await.unwrap()
}

async fn write(lake: &Lake, owners: &[trajectories::TrajectoryRow], rows: &[steps::StepRow]) {
    let mut writer = lake.writer(WriterSettings::default());
    let group = WriteGroup {
        steps: vec![steps::batch(rows).unwrap()],
        trajectories: Some(trajectories::batch(owners).unwrap()),
        ..WriteGroup::default()
    };
    writer.append(group).await.unwrap();
    writer.close().await.unwrap();
}

/// Where each step is: (trajectory key, step index) to row address.
async fn addresses(lake: &Lake) -> HashMap<(i64, i32), u64> {
    let snapshot = lake.snapshot(None).await.unwrap();
    let options = ScanOptions::columns(["trajectory_key", "step_index"]).with_row_address();
    let found: Vec<RecordBatch> = snapshot.scan(Table::Steps, options).await.unwrap().try_collect().await.unwrap();
    let mut all = HashMap::new();
    for batch in &found {
        let key = batch["trajectory_key"].as_primitive::<Int64Type>();
        let index = batch["step_index"].as_primitive::<Int32Type>();
        let address: &UInt64Array = batch[ROW_ADDRESS].as_primitive();
        (0..batch.num_rows()).for_each(|row| {
            all.insert((key.value(row), index.value(row)), address.value(row));
        });
    }
    all
}

/// Stores a plan over the newest versions.
async fn store_plan(lake: &Lake, rows: &[batches::BatchRow], world_size: i32, settings: &str) {
    let snapshot = lake.snapshot(None).await.unwrap();
    let versions: BTreeMap<&str, u64> = [Table::Steps, Table::Trajectories]
        .into_iter()
        .map(|table| (table.name(), snapshot.versions()[&table]))
        .collect();
    let plan = plans::PlanRow {
        plan_id: PLAN_ID.to_owned(),
        versions: serde_json::to_string(&versions).unwrap(),
        settings: settings.to_owned(),
        sql: "{}".to_owned(),
        summary: "{}".to_owned(),
        world_size,
        n_train_steps: rows.iter().map(|r| r.train_step + 1).max().unwrap_or(0),
        n_samples: rows.len() as i64,
        n_tokens: rows.iter().map(|r| r.n_tokens).sum(),
        ..plans::PlanRow::default()
    };
    dressage_storage::plans::append(lake, plan, &[batches::batch(rows).unwrap()]).await.unwrap();
}

fn placed(
    owner: &trajectories::TrajectoryRow,
    segment: i32,
    n_tokens: i64,
    mask_sum: i64,
    rows: Vec<u64>,
) -> batches::BatchRow {
    batches::BatchRow {
        plan_id: PLAN_ID.to_owned(),
        trajectory_key: owner.trajectory_key,
        write_id: owner.write_id,
        segment_index: segment,
        n_tokens,
        mask_sum,
        advantage: 0.5,
        loss_weight: 0.25,
        step_rows: rows,
        ..batches::BatchRow::default()
    }
}

async fn streamed(lake: &Lake, options: StreamOptions) -> Result<Vec<MicroBatch>, Error> {
    let plan = StoredPlan::open(lake, "0123").await?;
    let mut stream = plan.stream(options).await?;
    let mut all = Vec::new();
    while let Some(next) = stream.next().await? {
        all.push(next);
    }
    Ok(all)
}

fn list<T: arrow::datatypes::ArrowPrimitiveType>(batch: &RecordBatch, name: &str, row: usize) -> Vec<T::Native> {
    batch[name].as_list::<i32>().value(row).as_primitive::<T>().values().to_vec()
}

fn texts(batch: &RecordBatch, name: &str, row: usize) -> Vec<String> {
    batch[name].as_list::<i32>().value(row).as_string::<i32>().iter().map(|t| t.unwrap_or("?").to_owned()).collect()
}

fn ints(batch: &RecordBatch, name: &str) -> Vec<i32> {
    batch[name].as_primitive::<Int32Type>().values().to_vec()
}

#[tokio::test]
async fn a_sample_is_the_tokens_of_its_steps_end_to_end() {
    let lake = lake().await;
    let owner = trajectory("r", "t", 1);
    let mut last = step(&owner, 1, 1, 2);
    last.finish_reason = Some("length".to_owned());
    let mut old = step(&owner, 2, 2, 1);
    (old.boundary, old.version_spans, old.weight_version, old.logprobs) = (true, None, None, None);
    write(&lake, std::slice::from_ref(&owner), &[step(&owner, 0, 3, 2), last, old]).await;
    let at = addresses(&lake).await;
    let rows = |steps: &[i32]| steps.iter().map(|s| at[&(owner.trajectory_key, *s)]).collect::<Vec<_>>();
    let second = batches::BatchRow { position: 1, ..placed(&owner, 1, 3, 1, rows(&[2])) };
    store_plan(&lake, &[placed(&owner, 0, 8, 4, rows(&[0, 1])), second], 1, "{}").await;
    let all = streamed(&lake, StreamOptions::of_rank(0, 1)).await.unwrap();
    assert_eq!(all.len(), 1);
    let batch = &all[0].batch;
    assert_eq!(batch["trajectory_id"].as_string::<i32>().value(0), "t");
    assert_eq!(ints(batch, "n_tokens"), [8, 3]);
    assert_eq!(ints(batch, "response_start"), [3, 2]);
    assert_eq!(list::<Int32Type>(batch, "token_ids", 0), [0, 1, 2, 3, 4, 100, 101, 102]);
    assert_eq!(list::<Int32Type>(batch, "position_ids", 0), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(list::<Int8Type>(batch, "loss_mask", 0), [0, 0, 0, 1, 1, 0, 1, 1]);
    assert_eq!(list::<Float32Type>(batch, "logprobs", 0), [0.0, 0.0, 0.0, -0.5, -0.5, 0.0, -0.5, -0.5]);
    assert_eq!(texts(batch, "weight_versions", 0), ["-1", "7", "-1", "7"]);
    assert_eq!(list::<Int32Type>(batch, "weight_version_lengths", 0), [3, 2, 1, 2]);
    assert_eq!(list::<Int32Type>(batch, "token_ids", 1), [200, 201, 202]);
    assert!(batch["logprobs"].is_null(1) && batch["weight_versions"].is_null(1), "the source had none");
    let truncated = batch["truncated"].as_boolean();
    assert_eq!([truncated.value(0), truncated.value(1)], [true, false]);
    assert_eq!(batch["advantage"].as_primitive::<Float64Type>().value(0), 0.5);
    assert_eq!((all[0].n_tokens, all[0].mask_sum), (11, 5));
    let documented = blake3::hash(&hashed_bytes(batch)).to_hex().to_string();
    assert_eq!(all[0].content_hash.unwrap().to_string(), documented, "the hash is what the format says");
    assert!(batch.column_by_name("routed_experts").is_none(), "nobody asked for them");
}

#[tokio::test]
async fn the_cap_cuts_the_tail_and_version_masking_comes_after_it() {
    let lake = lake().await;
    let owner = trajectory("r", "t", 1);
    let mut first = step(&owner, 0, 1, 4);
    first.mask_nonlast_version = true;
    first.version_spans = Some(VersionSpans(vec![("-1".into(), 1), ("7".into(), 2), ("8".into(), 2)]));
    let mut second = step(&owner, 1, 0, 2);
    second.version_spans = Some(VersionSpans(vec![("9".into(), 2)]));
    write(&lake, std::slice::from_ref(&owner), &[first, second]).await;
    let at = addresses(&lake).await;
    let rows = vec![at[&(owner.trajectory_key, 0)], at[&(owner.trajectory_key, 1)]];
    // of the first four tokens the last version is 8
    store_plan(&lake, &[placed(&owner, 0, 4, 1, rows)], 1, r#"{"variables":{"max_segment_tokens":"4"}}"#).await;
    let all = streamed(&lake, StreamOptions::of_rank(0, 1)).await.unwrap();
    let batch = &all[0].batch;
    assert_eq!(list::<Int32Type>(batch, "token_ids", 0), [0, 1, 2, 3]);
    assert_eq!(list::<Int8Type>(batch, "loss_mask", 0), [0, 0, 0, 1]);
    assert_eq!(ints(batch, "response_start"), [1], "of the mask before version masking");
    assert_eq!(texts(batch, "weight_versions", 0), ["-1", "7", "8"]);
    assert_eq!(list::<Int32Type>(batch, "weight_version_lengths", 0), [1, 2, 1]);
}

/// Router choices of `rows` tokens, two layers, top-2, that count up from `from`.
fn routes(from: u8, rows: usize) -> Vec<u8> {
    let plain: Vec<u8> = (0..rows * 4).map(|i| (from + i as u8) % 64).collect();
    encode(&RoutedView::new(&plain, Dtype::Uint8, rows, 2, 2).unwrap(), Mode::Ranked, Some(64)).unwrap()
}

#[tokio::test]
async fn router_choices_have_a_row_for_every_token_but_the_last() {
    let lake = lake().await;
    let owner = trajectory("r", "t", 1);
    let mut first = step(&owner, 0, 2, 1);
    first.routed_experts = Some(routes(0, 2));
    let mut second = step(&owner, 1, 1, 2);
    second.routed_experts = Some(routes(8, 3));
    let mut without = step(&owner, 2, 1, 1);
    without.boundary = true;
    write(&lake, std::slice::from_ref(&owner), &[first, second, without]).await;
    let at = addresses(&lake).await;
    let row = |index| at[&(owner.trajectory_key, index)];
    let whole = placed(&owner, 0, 6, 3, vec![row(0), row(1)]);
    let bare = batches::BatchRow { position: 1, ..placed(&owner, 1, 2, 1, vec![row(2)]) };
    store_plan(&lake, &[whole, bare], 1, "{}").await;
    let options = StreamOptions { with_experts: true, ..StreamOptions::of_rank(0, 1) };
    let all = streamed(&lake, options).await.unwrap();
    let batch = &all[0].batch;
    let experts = batch["routed_experts"].as_binary::<i64>();
    assert_eq!(experts.value(0), (0..20).collect::<Vec<u8>>(), "5 rows of 6 tokens");
    assert!(experts.is_null(1));
    assert_eq!(batch["routed_experts_dtype"].as_string::<i32>().value(0), "uint8");
    assert_eq!(batch["routed_experts_layers"].as_primitive::<Int32Type>().value(0), 2);
    assert!(all[0].experts_hash.is_some());
    let plain = streamed(&lake, StreamOptions::of_rank(0, 1)).await.unwrap();
    assert_eq!(plain[0].content_hash, all[0].content_hash, "router choices have a hash of their own");
    assert_eq!(plain[0].experts_hash, None);
}

#[tokio::test]
async fn the_cap_cuts_router_choices_too() {
    let lake = lake().await;
    let owner = trajectory("r", "t", 1);
    let mut first = step(&owner, 0, 2, 1);
    first.routed_experts = Some(routes(0, 2));
    let mut second = step(&owner, 1, 1, 2);
    second.routed_experts = Some(routes(8, 3));
    write(&lake, std::slice::from_ref(&owner), &[first, second]).await;
    let at = addresses(&lake).await;
    let rows = (0..2).map(|i| at[&(owner.trajectory_key, i)]).collect();
    store_plan(&lake, &[placed(&owner, 0, 4, 1, rows)], 1, r#"{"variables":{"max_segment_tokens":"4"}}"#).await;
    let options = StreamOptions { with_experts: true, ..StreamOptions::of_rank(0, 1) };
    let all = streamed(&lake, options).await.unwrap();
    assert_eq!(all[0].batch["routed_experts"].as_binary::<i64>().value(0), (0..12).collect::<Vec<u8>>());
}

/// The bytes that `docs/format.md` says are hashed, put together value by value.
fn hashed_bytes(batch: &RecordBatch) -> Vec<u8> {
    fn text(out: &mut Vec<u8>, value: &str) {
        out.extend((value.len() as u64).to_le_bytes());
        out.extend(value.as_bytes());
    }
    let mut out = b"dressage micro-batch 1\n".to_vec();
    out.extend((batch.num_rows() as u64).to_le_bytes());
    let mut column = |name: &str, value: &dyn Fn(&mut Vec<u8>, usize)| {
        text(&mut out, name);
        (0..batch.num_rows()).for_each(|row| value(&mut out, row));
    };
    let null = |name: &str, row| batch[name].is_null(row);
    column("trajectory_id", &|out, row| text(out, batch["trajectory_id"].as_string::<i32>().value(row)));
    for name in ["segment_index", "n_tokens", "response_start"] {
        column(name, &|out, row| out.extend(i64::from(ints(batch, name)[row]).to_le_bytes()));
    }
    fn items<const N: usize>(out: &mut Vec<u8>, items: Vec<[u8; N]>) {
        out.extend((items.len() as u64).to_le_bytes());
        out.extend(items.concat());
    }
    column("token_ids", &|out, row| {
        items(out, list::<Int32Type>(batch, "token_ids", row).into_iter().map(i32::to_le_bytes).collect());
    });
    column("loss_mask", &|out, row| {
        items(out, list::<Int8Type>(batch, "loss_mask", row).into_iter().map(i8::to_le_bytes).collect());
    });
    column("logprobs", &|out, row| match null("logprobs", row) {
        true => out.extend(u64::MAX.to_le_bytes()),
        false => items(out, list::<Float32Type>(batch, "logprobs", row).into_iter().map(f32::to_le_bytes).collect()),
    });
    column("weight_versions", &|out, row| match null("weight_versions", row) {
        true => out.extend(u64::MAX.to_le_bytes()),
        false => {
            let names = texts(batch, "weight_versions", row);
            out.extend((names.len() as u64).to_le_bytes());
            names.iter().for_each(|name| text(out, name));
        }
    });
    column("weight_version_lengths", &|out, row| match null("weight_version_lengths", row) {
        true => out.extend(u64::MAX.to_le_bytes()),
        false => items(
            out,
            list::<Int32Type>(batch, "weight_version_lengths", row).into_iter().map(i32::to_le_bytes).collect(),
        ),
    });
    for name in ["advantage", "loss_weight"] {
        column(name, &|out, row| out.extend(batch[name].as_primitive::<Float64Type>().value(row).to_le_bytes()));
    }
    column("truncated", &|out, row| out.push(u8::from(batch["truncated"].as_boolean().value(row))));
    out
}

/// A store of many samples of different lengths, dealt out to two ranks over three train steps; some micro-batches of
/// rank 1 are empty.
async fn dealt() -> (Lake, Vec<batches::BatchRow>) {
    let lake = lake().await;
    let owners: Vec<_> = (0..24).map(|i| trajectory("r", &format!("t{i:02}"), 100 + i)).collect();
    for part in owners.chunks(9) {
        let rows: Vec<_> = part
            .iter()
            .flat_map(|o| {
                let n = (o.write_id - 99) as usize;
                [step(o, 0, n, 2 * n), step(o, 1, 1, n)]
            })
            .collect();
        write(&lake, part, &rows).await;
    }
    let at = addresses(&lake).await;
    let mut rows: Vec<batches::BatchRow> = owners
        .iter()
        .enumerate()
        // not the order in which they are stored
        .map(|(i, _)| &owners[(i * 7) % 24])
        .enumerate()
        .map(|(i, owner)| {
            let n = owner.write_id - 99;
            let steps = (0..2).map(|s| at[&(owner.trajectory_key, s)]).collect();
            let rank = i32::from(i % 5 == 0);
            batches::BatchRow {
                train_step: (i / 8) as i32,
                dp_rank: rank,
                micro_batch: if rank == 1 { 0 } else { (i % 8 / 3) as i32 },
                position: i as i32,
                advantage: i as f64,
                ..placed(owner, 0, 4 * n + 1, 3 * n, steps)
            }
        })
        .collect();
    rows.sort_by_key(|r| (r.train_step, r.dp_rank, r.micro_batch, r.position));
    store_plan(&lake, &rows, 2, "{}").await;
    (lake, rows)
}

fn said(all: &[MicroBatch]) -> Vec<String> {
    let line = |m: &MicroBatch| {
        format!("{}/{}/{} {}", m.train_step, m.dp_rank, m.micro_batch, m.content_hash.map(|h| h.to_string()).unwrap())
    };
    all.iter().map(line).collect()
}

#[tokio::test]
async fn streaming_in_parts_is_streaming_whole_whatever_the_budget() {
    let (lake, _) = dealt().await;
    for rank in 0..2 {
        let whole = said(&streamed(&lake, StreamOptions::of_rank(rank, 2)).await.unwrap());
        for prefetch_bytes in [1, 20_000, 1 << 20] {
            let mut parts = Vec::new();
            for from in 0..3 {
                let options = StreamOptions {
                    train_steps: Some(from..from + 1),
                    prefetch_bytes,
                    ..StreamOptions::of_rank(rank, 2)
                };
                parts.extend(said(&streamed(&lake, options).await.unwrap()));
            }
            assert_eq!(parts, whole, "rank {rank}, budget {prefetch_bytes}");
        }
    }
}

#[tokio::test]
async fn the_ranks_together_have_every_sample_of_the_plan_once() {
    let (lake, rows) = dealt().await;
    let mut found = Vec::new();
    let mut counts = Vec::new();
    for rank in 0..2 {
        let plan = StoredPlan::open(&lake, PLAN_ID).await.unwrap();
        let mut stream = plan.stream(StreamOptions::of_rank(rank, 2)).await.unwrap();
        counts.push(stream.micro_batch_counts().to_vec());
        let mut empty = 0;
        while let Some(next) = stream.next().await.unwrap() {
            empty += usize::from(next.batch.num_rows() == 0);
            let ids = next.batch["trajectory_id"].as_string::<i32>();
            found.extend(ids.iter().map(|id| id.unwrap().to_owned()));
        }
        assert_eq!(empty > 0, rank == 1, "a rank with less to do has batches of no rows");
    }
    assert_eq!(counts[0], counts[1], "the same number of micro-batches on every rank");
    found.sort();
    found.dedup();
    assert_eq!(found.len(), rows.len());
}

#[tokio::test]
async fn chosen_columns_are_the_same_and_payload_that_nobody_asked_for_is_not_read() {
    let (lake, _) = dealt().await;
    let whole = streamed(&lake, StreamOptions::of_rank(0, 2)).await.unwrap();
    let columns = vec![BatchColumn::LossMask, BatchColumn::NTokens];
    let some = streamed(&lake, StreamOptions { columns: Some(columns), ..StreamOptions::of_rank(0, 2) }).await.unwrap();
    assert_eq!(some[0].batch.num_columns(), 2);
    assert_eq!(some[0].content_hash, None, "a hash is of all columns");
    for (one, all) in some.iter().zip(&whole) {
        assert_eq!(one.batch["loss_mask"].as_ref(), all.batch["loss_mask"].as_ref());
    }
}

#[tokio::test]
async fn what_the_plan_does_not_fit_is_refused() {
    let (lake, rows) = dealt().await;
    let error = streamed(&lake, StreamOptions::of_rank(0, 4)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("world size of 2, not 4"), "{error}");
    assert_eq!(streamed(&lake, StreamOptions::of_rank(2, 2)).await.unwrap_err().kind(), ErrorKind::Invalid);
    let beyond = StreamOptions { train_steps: Some(2..4), ..StreamOptions::of_rank(0, 2) };
    let error = streamed(&lake, beyond).await.unwrap_err();
    assert!(error.to_string().contains("3 train steps"), "{error}");
    assert_eq!(StoredPlan::open(&lake, "ff").await.unwrap_err().kind(), ErrorKind::NotFound);
    let _ = rows;
}

#[tokio::test]
async fn steps_that_do_not_make_the_planned_sample_are_corrupt_and_named() {
    let lake = lake().await;
    let (owner, other) = (trajectory("r", "mine", 1), trajectory("r", "other", 2));
    write(&lake, &[owner.clone(), other.clone()], &[step(&owner, 0, 3, 2), step(&other, 0, 3, 2)]).await;
    let at = addresses(&lake).await;
    store_plan(&lake, &[placed(&owner, 4, 6, 2, vec![at[&(owner.trajectory_key, 0)]])], 1, "{}").await;
    let error = streamed(&lake, StreamOptions::of_rank(0, 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let text = error.to_string();
    assert!(text.contains("segment 4 of trajectory mine") && text.contains("6 tokens"), "{text}");

    let lake = self::lake().await;
    write(&lake, &[owner.clone(), other.clone()], &[step(&owner, 0, 3, 2), step(&other, 0, 3, 2)]).await;
    let at = addresses(&lake).await;
    store_plan(&lake, &[placed(&owner, 0, 5, 2, vec![at[&(other.trajectory_key, 0)]])], 1, "{}").await;
    let error = streamed(&lake, StreamOptions::of_rank(0, 1)).await.unwrap_err();
    assert!(error.to_string().contains("belongs to the trajectory with key"), "{}", chain(&error));
}

#[tokio::test]
async fn a_step_without_token_ids_says_that_it_cannot_be_trained_on() {
    let lake = lake().await;
    let owner = trajectory("r", "chat", 1);
    let mut only = step(&owner, 0, 3, 2);
    (only.token_ids, only.logprobs) = (None, None);
    write(&lake, std::slice::from_ref(&owner), &[only]).await;
    let at = addresses(&lake).await;
    store_plan(&lake, &[placed(&owner, 0, 5, 2, vec![at[&(owner.trajectory_key, 0)]])], 1, "{}").await;
    let error = streamed(&lake, StreamOptions::of_rank(0, 1)).await.unwrap_err();
    assert!(error.to_string().contains("no token ids"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_that_is_not_stored_yet_streams_as_it_does_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    let (_, snapshot, session) = crate::stored::stored(folder.path()).await;
    let request =
        PlanRequest { scope: Scope::AllRuns, trained: Trained::nothing(), settings: PlanSettings::new(1, 1_000, 2) };
    let source = Arc::new(snapshot.clone());
    let planner = Planner::new(&session, source, snapshot.versions(), request).await.unwrap();
    let plan = planner.plan().await.unwrap();
    let made = StoredPlan::made(&plan, &snapshot).unwrap();
    dressage_storage::plans::append(snapshot.lake(), plan.row.clone(), &plan.batches).await.unwrap();
    let stored = StoredPlan::open(snapshot.lake(), planner.plan_id()).await.unwrap();
    assert!(stored.n_train_steps() > 1);
    for train_steps in [None, Some(1..2)] {
        let mut samples = 0;
        for rank in 0..2 {
            let options = StreamOptions { train_steps: train_steps.clone(), ..StreamOptions::of_rank(rank, 2) };
            let mut streams = [made.stream(options.clone()).await.unwrap(), stored.stream(options).await.unwrap()];
            assert_eq!(streams[0].samples(), streams[1].samples());
            assert_eq!(streams[0].micro_batch_counts(), streams[1].micro_batch_counts());
            while let Some(one) = streams[0].next().await.unwrap() {
                let other = streams[1].next().await.unwrap().unwrap();
                assert_eq!((one.content_hash, one.batch), (other.content_hash, other.batch));
            }
            assert!(streams[1].next().await.unwrap().is_none());
            samples += streams[0].samples().len();
        }
        assert!(samples > 0);
    }
}

#[tokio::test]
async fn a_hash_is_recorded_once_and_another_one_is_corrupt() {
    let (lake, _) = dealt().await;
    let plan = StoredPlan::open(&lake, PLAN_ID).await.unwrap();
    let mut ledger = Ledger::of(&plan, Some(0), None).await.unwrap();
    let all = streamed(&lake, StreamOptions::of_rank(0, 2)).await.unwrap();
    for micro_batch in &all {
        assert_eq!(ledger.check(micro_batch, NEW_YEAR).unwrap(), Verdict::New);
        assert_eq!(ledger.check(micro_batch, NEW_YEAR).unwrap(), Verdict::Same);
    }
    let rows = ledger.take_new();
    assert_eq!(rows.len(), all.len());
    dressage_storage::plans::append_streamed(&lake, &rows).await.unwrap();
    let plan = StoredPlan::open(&lake, PLAN_ID).await.unwrap();
    let mut ledger = Ledger::of(&plan, None, Some(0..1)).await.unwrap();
    assert_eq!(ledger.check(&all[0], NEW_YEAR).unwrap(), Verdict::Same);
    let other = MicroBatch { batch: all[0].batch.clone(), content_hash: all[1].content_hash, ..all[0].clone() };
    let error = ledger.check(&other, NEW_YEAR).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("train step 0, rank 0, micro-batch 0"), "{error}");
}

#[tokio::test]
async fn a_stream_that_is_dropped_early_leaves_the_next_one_whole() {
    let (lake, _) = dealt().await;
    let plan = StoredPlan::open(&lake, PLAN_ID).await.unwrap();
    let mut first = plan.stream(StreamOptions::of_rank(0, 2)).await.unwrap();
    let one = first.next().await.unwrap().unwrap();
    drop(first);
    let whole = streamed(&lake, StreamOptions::of_rank(0, 2)).await.unwrap();
    assert_eq!(said(&[one]), said(&whole[..1]));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// However a rollout was cut into steps, its sample is the same.
    #[test]
    fn cutting_into_steps_changes_no_token(
        mask in proptest::collection::vec(any::<bool>(), 1..40),
        cuts in proptest::collection::vec(1_usize..40, 0..4),
    ) {
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let lake = lake().await;
            let owner = trajectory("r", "t", 1);
            let mut ends: Vec<usize> = cuts.iter().copied().filter(|c| *c < mask.len()).collect();
            ends.push(mask.len());
            ends.sort_unstable();
            ends.dedup();
            let mut from = 0;
            let mut rows = Vec::new();
            for (i, end) in ends.iter().enumerate() {
                let part = &mask[from..*end];
                let trained = part.iter().filter(|m| **m).count();
                let mut row = step(&owner, i as i32, part.len() - trained, trained);
                row.mask_spans = MaskSpans::from_mask(part.iter().copied());
                row.version_spans = None;
                row.token_ids = Some(ids(&(from as i32..*end as i32).collect::<Vec<_>>()));
                row.logprobs = Some(floats(&(from..*end).map(|t| -(t as f32)).collect::<Vec<_>>()));
                rows.push(row);
                from = *end;
            }
            write(&lake, std::slice::from_ref(&owner), &rows).await;
            let at = addresses(&lake).await;
            let places = (0..rows.len() as i32).map(|i| at[&(owner.trajectory_key, i)]).collect();
            let trained = mask.iter().filter(|m| **m).count() as i64;
            store_plan(&lake, &[placed(&owner, 0, mask.len() as i64, trained, places)], 1, "{}").await;
            let all = streamed(&lake, StreamOptions::of_rank(0, 1)).await.unwrap();
            let batch = &all[0].batch;
            let n = mask.len() as i32;
            assert_eq!(list::<Int32Type>(batch, "token_ids", 0), (0..n).collect::<Vec<_>>());
            assert_eq!(list::<Float32Type>(batch, "logprobs", 0), (0..n).map(|t| -(t as f32)).collect::<Vec<_>>());
            assert_eq!(list::<Int8Type>(batch, "loss_mask", 0), mask.iter().map(|m| i8::from(*m)).collect::<Vec<_>>());
        });
    }
}
