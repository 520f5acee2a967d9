//! Limits end a query and are named.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::AsArray;
use arrow::datatypes::{Float64Type, Int64Type};
use dressage_schemas::tables::trajectories;
use dressage_schemas::{ErrorKind, Table};
use dressage_segmenter::{Error, MemoryLake, SessionSettings};

use crate::fixture::{chain, lake, session_with, trajectory};

/// `n` trajectories in groups of eight.
fn many(n: i64) -> Arc<MemoryLake> {
    let mut lake = MemoryLake::new();
    for chunk in 0..n / 10_000 {
        let rows: Vec<_> = (chunk * 10_000..(chunk + 1) * 10_000)
            .map(|i| {
                let mut row = trajectory("run", &format!("trajectory-{i:012}"), i);
                row.group_id = format!("group-{:09}", i / 8);
                row.recorded_reward = Some((i % 7) as f64);
                row
            })
            .collect();
        lake = lake.with(Table::Trajectories, trajectories::batch(&rows).unwrap());
    }
    Arc::new(lake)
}

#[tokio::test]
async fn a_query_without_end_reaches_the_time_limit() {
    let session = session_with(&lake(), SessionSettings { time_limit_ms: Some(300), ..Default::default() });
    // two ranges: of three, the join would hold the product of two, and the memory limit might come first
    let sql = "SELECT sum(a.value * b.value) FROM range(1, 100000) a, range(1, 100000000) b";
    let started = Instant::now();
    let error = match session.sql(sql).await {
        Ok(query) => query.collect().await.unwrap_err(),
        Err(error) => error,
    };
    assert!(matches!(error, Error::TimeLimit { limit_ms: 300 }), "{}", chain(&error));
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(error.to_string().contains("time_limit") && error.to_string().contains("300"));
    assert!(started.elapsed() < Duration::from_secs(10), "took {:?}", started.elapsed());
}

#[tokio::test]
async fn a_query_that_cannot_spill_reaches_the_memory_limit() {
    let session = session_with(&many(100_000), SessionSettings { memory_limit_bytes: 2 << 20, ..Default::default() });
    // all values of one group must be held to be ordered
    let error =
        session.sql("SELECT array_agg(trajectory_id) FROM trajectories").await.unwrap().collect().await.unwrap_err();
    assert!(matches!(error, Error::MemoryLimit { limit_bytes: 2_097_152, .. }), "{}", chain(&error));
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(error.to_string().contains("memory_limit"), "{error}");
}

#[tokio::test]
async fn a_sort_that_spills_too_much_reaches_the_spill_limit() {
    let settings = SessionSettings { memory_limit_bytes: 6 << 20, spill_limit_bytes: 1 << 20, ..Default::default() };
    let session = session_with(&many(100_000), settings);
    let query =
        session.sql("SELECT trajectory_id, group_id, source, model FROM trajectories ORDER BY reward, trajectory_id");
    let error = query.await.unwrap().collect().await.unwrap_err();
    assert!(matches!(error, Error::SpillLimit { limit_bytes: 1_048_576, .. }), "{}", chain(&error));
}

#[tokio::test]
async fn group_statistics_and_the_join_back_run_in_a_small_pool() {
    // DRESSAGE_TEST_ROWS=1000000 runs it at the size that benchmarks use, which takes a while without optimisation
    let rows = std::env::var("DRESSAGE_TEST_ROWS").map_or(100_000, |n| n.parse().unwrap());
    let settings = SessionSettings { memory_limit_bytes: (rows as u64 / 16_384).max(16) << 20, ..Default::default() };
    let session = session_with(&many(rows), settings);
    let sql = "SELECT count(*), round(sum(advantage), 6) FROM (
                 SELECT t.trajectory_key, (t.reward - g.m) / g.s AS advantage
                 FROM trajectories t
                 JOIN (SELECT group_id, avg(reward) AS m, stddev_pop(reward) AS s FROM trajectories GROUP BY group_id) g
                   ON g.group_id = t.group_id)";
    let batches = session.sql(sql).await.unwrap().collect().await.unwrap_or_else(|e| panic!("{}", chain(&e)));
    assert_eq!(batches.iter().map(|b| b.num_rows()).sum::<usize>(), 1);
}

/// The hash join holds one side of text ids and cannot; the second try sorts both sides, and spills.
#[tokio::test]
async fn a_join_too_large_to_hold_is_run_again_with_joins_that_spill() {
    let session = session_with(&many(200_000), SessionSettings { memory_limit_bytes: 10 << 20, ..Default::default() });
    let sql = "SELECT count(*), sum(a.reward + b.reward) FROM trajectories a JOIN trajectories b ON a.trajectory_id = b.trajectory_id \
               WHERE a.source = b.source";
    let plan = crate::fixture::shown(&session, &format!("EXPLAIN {sql}")).await;
    assert!(plan.contains("HashJoinExec"), "{plan}");
    let mut query = session.sql(sql).await.unwrap();
    drop(session);
    let batch = query.next_batch().await.unwrap_or_else(|e| panic!("{}", chain(&e))).unwrap();
    assert!(query.retried(), "the join fitted: the test shows nothing");
    assert_eq!(batch.column(0).as_primitive::<Int64Type>().value(0), 200_000);
    let expected: f64 = (0..200_000).map(|i| 2.0 * f64::from(i % 7)).sum();
    assert_eq!(batch.column(1).as_primitive::<Float64Type>().value(0), expected);
}

#[tokio::test]
async fn a_refused_setting_is_named() {
    let source: Arc<dyn dressage_segmenter::LakeSource> = lake();
    let settings = SessionSettings { memory_limit_bytes: 10, ..Default::default() };
    let error = dressage_segmenter::Session::over(source, settings).unwrap_err();
    assert!(error.to_string().contains("memory_limit_bytes"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Invalid);
}
