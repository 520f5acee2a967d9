//! What reaches the store: columns, filters, limits, and keys that a join found.

use std::collections::BTreeSet;
use std::sync::Arc;

use dressage_schemas::Table;
use dressage_segmenter::{MemoryLake, Session, SessionSettings};

use crate::fixture::{lake, rows, session_with, shown};

/// Keeps nothing in memory, so that every scan reaches the lake.
fn session(lake: &Arc<MemoryLake>) -> Session {
    session_with(lake, SessionSettings { resident_bytes_max: 0, ..SessionSettings::default() })
}

#[tokio::test]
async fn payload_is_read_only_when_asked_for() {
    let lake = lake();
    let session = session(&lake);
    rows(&session, "SELECT * FROM segments").await;
    rows(&session, "SELECT trajectory_id, n_trained_tokens FROM steps").await;
    rows(&session, "SELECT count(*) FROM messages").await;
    let read = |table| -> BTreeSet<String> {
        lake.requests().iter().filter(|r| r.table == table).flat_map(|r| r.columns.clone()).collect()
    };
    for payload in ["token_ids", "logprobs", "routed_experts", "messages_text"] {
        assert!(!read(Table::Steps).contains(payload), "{payload} was read");
    }
    assert!(!read(Table::Contents).contains("text"), "message text was read");
    rows(&session, "SELECT token_ids FROM steps LIMIT 1").await;
    assert!(read(Table::Steps).contains("token_ids") && !read(Table::Steps).contains("logprobs"));
}

#[tokio::test]
async fn a_filter_on_a_trajectory_becomes_a_key_look_up_in_steps() {
    for (sql, wanted) in [
        ("SELECT step_index FROM steps WHERE trajectory_id = 't2'", "1"),
        ("SELECT segment_index FROM segments WHERE trajectory_id = 't2'", "1"),
        ("SELECT segment_index FROM steps WHERE trajectory_id = 't2' AND run_id = 'run-a'", "1"),
    ] {
        let lake = lake();
        let session = session(&lake);
        let found = rows(&session, sql).await;
        assert_eq!(found.len().to_string(), wanted, "{sql}: {found:?}");
        let requests = lake.requests();
        let trajectories: Vec<_> = requests.iter().filter(|r| r.table == Table::Trajectories).collect();
        assert!(
            trajectories.iter().all(|r| r.filter.as_deref().is_some_and(|f| f.contains("trajectory_id = 't2'"))),
            "{sql}: {trajectories:?}"
        );
        let steps: Vec<_> = requests.iter().filter(|r| r.table == Table::Steps && r.limit != Some(1)).collect();
        assert!(
            !steps.is_empty()
                && steps.iter().all(|r| r.filter.as_deref().is_some_and(|f| f.contains("trajectory_key IN ("))),
            "{sql}: {steps:?}"
        );
    }
}

/// The engine derives from a declared key that a column computed in front of it is one: these two would be the same group.
#[tokio::test]
async fn groups_of_a_computed_column_stay_apart() {
    let session = session(&lake());
    let sql = "WITH x AS (SELECT reward * 2 AS twice, group_id, trajectory_key FROM trajectories) \
               SELECT group_id, count(trajectory_key) FROM x GROUP BY group_id, twice ORDER BY 2";
    let expected = ["group-1|1", "group-1|1", "group-1|1", "group-1|1"];
    assert_eq!(rows(&session, sql).await, expected);
}

#[tokio::test]
async fn nothing_is_scanned_for_a_trajectory_that_is_not_there() {
    let lake = lake();
    let session = session(&lake);
    assert_eq!(rows(&session, "SELECT count(*) FROM steps WHERE trajectory_id = 'nobody'").await, ["0"]);
    let scans: Vec<_> = lake.requests().into_iter().filter(|r| r.table == Table::Steps && r.limit != Some(1)).collect();
    assert!(scans.is_empty(), "{scans:?}");
}

#[tokio::test]
async fn limits_reach_the_scan_unless_rows_are_hidden() {
    let lake = lake();
    let session = session(&lake);
    rows(&session, "SELECT step_index FROM stored.steps LIMIT 2").await;
    let request = lake.requests().into_iter().next_back().unwrap();
    assert_eq!((request.table, request.limit), (Table::Steps, Some(2)));
    assert_eq!(rows(&session, "SELECT trajectory_id FROM trajectories LIMIT 3").await.len(), 3);
    let request = lake.requests().into_iter().next_back().unwrap();
    assert_eq!((request.table, request.limit, request.row_address), (Table::Trajectories, None, true));
}

#[tokio::test]
async fn plans_stay_as_they_are() {
    let session = session(&lake());
    for (name, sql) in [
        ("count", "SELECT count(*) FROM trajectories"),
        ("filter", "SELECT trajectory_id FROM trajectories WHERE status = 'completed' AND reward > 0.5"),
        ("group", "SELECT group_id, avg(reward) FROM trajectories GROUP BY group_id"),
        ("point", "SELECT n_tokens FROM segments WHERE trajectory_id = 't1'"),
        ("messages", "SELECT text FROM messages WHERE trajectory_id = 't1'"),
    ] {
        let plan = shown(&session, &format!("EXPLAIN FORMAT indent {sql}")).await;
        insta::assert_snapshot!(format!("plan_{name}"), plan);
    }
}
