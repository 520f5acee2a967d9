//! Views, settings and statements over the fixture.

use dressage_schemas::{ErrorKind, Table};
use dressage_segmenter::{Error, Outcome, SessionSettings};

use crate::fixture::{chain, lake, rows, session, session_with};

#[tokio::test]
async fn a_trajectory_is_its_highest_revision_and_counted_from_metadata() {
    let lake = lake();
    let session = session(&lake);
    assert_eq!(rows(&session, "SELECT count(*) FROM trajectories").await, ["4"]);
    assert!(lake.requests().iter().all(|r| r.table != Table::Trajectories), "counted without a scan");
    let sql = "SELECT trajectory_id, reward, revision FROM trajectories ORDER BY run_id, trajectory_id";
    assert_eq!(rows(&session, sql).await, ["t1|1.0|1", "t2|0.0|0", "t3||0", "g1|2.5|0"]);
    assert_eq!(rows(&session, "SELECT count(*) FROM stored.trajectory_revisions").await, ["5"]);
}

#[tokio::test]
async fn steps_of_superseded_and_unfinished_attempts_are_not_seen() {
    let session = session(&lake());
    let sql = "SELECT trajectory_id, count(*), sum(n_tokens) FROM steps GROUP BY 1 ORDER BY 1";
    assert_eq!(rows(&session, sql).await, ["g1|2|6", "t1|4|21", "t2|1|4", "t3|1|3"]);
}

#[tokio::test]
async fn segments_are_runs_between_boundaries_of_one_lineage() {
    let session = session(&lake());
    let sql = "SELECT trajectory_id, segment_index, is_anchor, lineage_index, first_step, last_step, n_steps, n_tokens, \
               n_trained_tokens, truncated, reasons FROM segments ORDER BY trajectory_id, segment_index";
    assert_eq!(
        rows(&session, sql).await,
        [
            "g1|0|false|0|0|0|1|2|1|false|[initial]",
            "g1|1|true|0|1|1|1|4|2|false|[]",
            "t1|0|false|0|0|1|2|9|5|false|[initial]",
            "t1|1|false|0|3|3|1|7|2|false|[compaction]",
            "t1|2|true|1|2|2|1|5|1|false|[initial, subagent]",
            "t2|0|true|0|0|0|1|4|2|true|[initial]",
            "t3|0|true|0|0|0|1|3|1|false|[initial]",
        ]
    );
}

#[tokio::test]
async fn groups_leave_out_the_ungraded_and_the_dead() {
    let session = session(&lake());
    let sql =
        "SELECT run_id, n_trajectories, n_live, n_graded, n_ungraded, reward_mean, reward_std FROM groups ORDER BY 1";
    assert_eq!(rows(&session, sql).await, ["run-a|3|2|2|0|0.5|0.5", "run-b|1|1|1|0|2.5|0.0"]);
}

#[tokio::test]
async fn messages_come_in_the_order_of_the_conversation() {
    let session = session(&lake());
    let sql = "SELECT step_index, segment_index, position, role, text, is_output FROM messages \
               WHERE trajectory_id = 't1' ORDER BY position";
    assert_eq!(
        rows(&session, sql).await,
        [
            "0|0|0|system|be good|false",
            "0|0|1|user|solve it|false",
            "0|0|2|assistant|done|true",
            "1|0|3|tool|42|false",
            "1|0|4|assistant|done|true",
        ]
    );
}

#[tokio::test]
async fn token_functions_work_on_steps() {
    let session = session(&lake());
    let sql = "SELECT token_ids, mask(mask_spans), masked_sum(logprobs, mask_spans), masked_mean(logprobs, mask_spans), \
               list_sum(token_ids), versions(version_spans), real_versions(version_spans) \
               FROM steps WHERE trajectory_id = 't1' AND step_index = 1";
    assert_eq!(rows(&session, sql).await, ["[100, 101, 102, 103]|[0, 1, 1, 1]|-1.5|-0.5|406.0|[-1, 7, 7, 7]|[7]"]);
    let sql = "SELECT json_get(labels, 'suite'), json_number(labels, 'judge.score'), json_get(labels, 'nothing') \
               FROM trajectories WHERE trajectory_id = 't1'";
    assert_eq!(rows(&session, sql).await, ["math|0.75|"]);
}

#[tokio::test]
async fn weight_versions_are_counted_without_gaps_and_once_each() {
    let session = session(&lake());
    let sql = "SELECT weight_version, position, ordinal FROM weight_versions ORDER BY position";
    assert_eq!(rows(&session, sql).await, ["7|0|4", "8|1|9"]);
}

#[tokio::test]
async fn a_run_scopes_every_view() {
    let session = session(&lake());
    session.set("run", Some("run-b")).unwrap();
    for view in ["trajectories", "steps", "segments", "rewards", "groups"] {
        let found = rows(&session, &format!("SELECT DISTINCT run_id FROM {view}")).await;
        assert_eq!(found, ["run-b"], "{view}");
    }
    session.set("run", None).unwrap();
    assert_eq!(rows(&session, "SELECT count(*) FROM trajectories").await, ["4"]);
}

#[tokio::test]
async fn a_session_changes_nothing_but_itself() {
    let session = session(&lake());
    for sql in [
        "DROP VIEW trajectories",
        "CREATE VIEW steps AS SELECT 1",
        "INSERT INTO stored.steps SELECT 1",
        "SELECT 1; SELECT 2",
        "",
    ] {
        let error = session.sql(sql).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{sql}: {error}");
    }
    let sql = "CREATE VIEW good AS SELECT trajectory_id FROM trajectories WHERE reward > setting('cut')::double; \
               SET cut = '0.5'; SELECT count(*) FROM good";
    assert_eq!(rows(&session, sql).await, ["2"]);
    assert_eq!(rows(&session, "SET cut = '2'; SELECT count(*) FROM good").await, ["1"]);
    let mut said = Vec::new();
    session
        .script("DROP VIEW good; SET cut = NULL; SELECT 1", async |outcome| {
            match outcome {
                Outcome::Done(line) => said.push(line),
                Outcome::Rows(query) => said.push(format!("{} batch", query.collect().await?.len())),
            }
            Ok::<_, Error>(())
        })
        .await
        .unwrap();
    assert_eq!(said, ["dropped good", "cut is not set", "1 batch"]);
    let error = session.sql("SELECT * FROM good").await.unwrap_err();
    assert!(chain(&error).contains("good"), "{}", chain(&error));
}

#[tokio::test]
async fn a_row_limit_cuts_and_says_so() {
    let session = session_with(&lake(), SessionSettings { row_limit: Some(2), ..Default::default() });
    let mut query = session.sql("SELECT trajectory_id FROM trajectories ORDER BY 1").await.unwrap();
    let mut n = 0;
    while let Some(batch) = query.next_batch().await.unwrap() {
        n += batch.num_rows();
    }
    assert_eq!((n, query.truncated()), (2, true));
    let mut query = session.sql("SELECT trajectory_id FROM trajectories WHERE reward >= 1").await.unwrap();
    while query.next_batch().await.unwrap().is_some() {}
    assert!(!query.truncated());
}

#[tokio::test]
async fn every_view_plans_and_describes_every_column() {
    let session = session(&lake());
    for table in session.tables().await.unwrap() {
        let sql = format!("SELECT * FROM {}.{} LIMIT 3", table.schema, table.name);
        rows(&session, &sql).await;
        if table.schema == "public" {
            let silent: Vec<_> = table.columns.iter().filter(|c| c.doc.is_empty()).map(|c| &c.name).collect();
            assert!(silent.is_empty(), "{}: nothing is said about {silent:?}", table.name);
        }
    }
}
