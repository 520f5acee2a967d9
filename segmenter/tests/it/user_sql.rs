//! Estimators and filters that users bring as files: the examples that ship, and what is refused before it runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use dressage_segmenter::{MemoryLake, Session};
use tempfile::TempDir;

use crate::fixture::{chain, rows, session};
use crate::training_lake::{given, lake_of, member, training_lake};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("sql/examples").join(name)
}

fn with(lake: &Arc<MemoryLake>, setting: &str, file: &Path) -> Session {
    let session = session(lake);
    session.set(setting, Some(&file.display().to_string())).unwrap();
    session
}

/// What a query over samples says under an estimator of this text.
async fn refusal(text: &str) -> String {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("mine.sql");
    std::fs::write(&file, text).unwrap();
    let session = with(&training_lake(), "estimator", &file);
    match session.sql("SELECT count(*) FROM samples").await {
        Ok(_) => "it runs".to_owned(),
        Err(error) => {
            assert_eq!(error.kind(), dressage_schemas::ErrorKind::Invalid, "{}", chain(&error));
            chain(&error)
        }
    }
}

const PER_TRAJECTORY: &str = "SELECT trajectory_id, max(advantage) AS a FROM samples GROUP BY 1 ORDER BY 1";

#[tokio::test(flavor = "multi_thread")]
async fn every_segment_costs_under_the_segment_count_penalty() {
    // two rollouts with the same reward, one of three segments: 1 - 0.1 against 1
    let (long, short) = (member("g", "p", "long", Some(1.0)), member("g", "p", "short", Some(1.0)));
    let mut segments: Vec<_> = (0..3).map(|i| given(&long, i, 1, 1, &["1"])).collect();
    segments.push(given(&short, 0, 1, 1, &["1"]));
    let session = with(&lake_of(vec![long, short], &segments), "estimator", &example("segment_count_penalty.sql"));
    let sql = "SELECT trajectory_id, round(max(advantage), 6), count(*) FROM samples GROUP BY 1 ORDER BY 1";
    assert_eq!(rows(&session, sql).await, ["long|-1.0|3", "short|1.0|1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn earlier_segments_get_less_under_the_segment_discount() {
    let (long, short) = (member("g", "p", "long", Some(1.0)), member("g", "p", "short", Some(0.0)));
    let mut segments: Vec<_> = (0..3).map(|i| given(&long, i, 1, 1, &["1"])).collect();
    segments.push(given(&short, 0, 1, 1, &["1"]));
    let session = with(&lake_of(vec![long, short], &segments), "estimator", &example("segment_discount.sql"));
    let sql = "SELECT trajectory_id, segment_index, round(advantage, 6) FROM samples ORDER BY 1, 2";
    assert_eq!(rows(&session, sql).await, ["long|0|0.405", "long|1|0.45", "long|2|0.5", "short|0|-0.5"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outlier_counts_as_one_under_clipped_leave_one_out() {
    // g2 of the lake: rewards 3 (clipped to 1) and 1 are the same; g0: 1, 0, 1
    let session = with(&training_lake(), "estimator", &example("leave_one_out_clipped.sql"));
    assert_eq!(rows(&session, PER_TRAJECTORY).await, ["a|0.5", "b|-1.0", "c|0.5", "e|0.0", "g|0.0", "h|0.0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_drops_by_name_and_changes_no_advantage() {
    let lake = training_lake();
    let session = with(&lake, "filter", &example("only_varied_groups.sql"));
    let dropped = "SELECT trajectory_id, n_lost_tokens FROM drops WHERE reason = 'filtered'";
    assert_eq!(rows(&session, dropped).await, ["e|1"]);
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("keep.sql");
    std::fs::write(&file, "SELECT trajectory_id FROM anchors WHERE trajectory_id <> 'b'; -- not that one").unwrap();
    session.set("filter", Some(&file.display().to_string())).unwrap();
    let kept =
        "SELECT DISTINCT trajectory_id, round(advantage, 4), denominator FROM samples WHERE group_id = 'g0' ORDER BY 1";
    assert_eq!(rows(&session, kept).await, ["a|0.7071|14.0", "c|0.7071|14.0"]);
    session.set("filter", None).unwrap();
    assert_eq!(rows(&session, "SELECT count(*) FROM drops WHERE reason = 'filtered'").await, ["0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_estimator_is_refused_before_it_runs_with_what_is_wrong() {
    for (text, says) in [
        ("SELECT trajectory_id FROM anchors", "it has no column advantage (it has trajectory_id)"),
        ("SELECT reward AS advantage FROM anchors", "it has no column trajectory_id or trajectory_key"),
        ("SELECT trajectory_id, 'x' AS advantage FROM anchors", "column advantage is Utf8: it must be a number"),
        ("SELECT trajectory_id, 1.5 AS segment_index, 1 AS advantage FROM anchors", "it must be an integer"),
        (
            "SELECT trajectory_id, CASE WHEN trajectory_id IN ('b', 'g') THEN ln(-1) ELSE 1 END AS advantage FROM anchors",
            "it gives an advantage that is null, NaN or infinite for trajectory_id: b, g",
        ),
        (
            "SELECT trajectory_id, nullif(reward, 0) AS advantage FROM anchors",
            "null, NaN or infinite for trajectory_id: b",
        ),
        (
            "SELECT trajectory_id, reward AS advantage FROM anchors UNION ALL SELECT 'a', 0",
            "it gives more than one row for trajectory_id: a",
        ),
        (
            "SELECT trajectory_id, reward AS advantage FROM anchors WHERE group_id <> 'g2'",
            "it gives no advantage for trajectory_id: g, h",
        ),
        (
            "SELECT trajectory_id, reward AS advantage FROM anchors UNION ALL SELECT 'nobody', 0",
            "it names what is not there trajectory_id: nobody",
        ),
        (
            "SELECT trajectory_id, 0 AS segment_index, 1 AS advantage FROM anchors",
            "it gives no advantage for trajectory / segment: a / 1",
        ),
        ("SELECT trajectory_id, advantage FROM samples", "it reads samples, which is made from it"),
        ("SELECT 1; SELECT 2", "mine.sql cannot be used: it must be one SQL statement, and holds 2"),
        ("", "mine.sql cannot be used: it must be one SQL statement, and holds 0"),
        ("SELEKT 1", "mine.sql cannot be used"),
        ("SELECT trajectory_id, random() AS advantage FROM anchors", "it calls random()"),
        ("SELECT trajectory_id, extract(epoch FROM now()) AS advantage FROM anchors", "it calls now()"),
    ] {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("mine.sql");
        std::fs::write(&file, text).unwrap();
        let found = match session(&training_lake()).set("estimator", Some(&file.display().to_string())) {
            Ok(()) => refusal(text).await,
            Err(error) => chain(&error),
        };
        assert!(found.contains(says), "{text}\n  says {found}\n  not  {says}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hashed_key_is_told_by_the_id_that_it_is_of() {
    for (text, says) in [
        (
            "SELECT trajectory_key, CASE WHEN trajectory_id = 'b' THEN ln(-1) ELSE 1 END AS advantage FROM anchors",
            "it gives an advantage that is null, NaN or infinite for trajectory_id: b",
        ),
        (
            "SELECT trajectory_key, 1 AS advantage FROM anchors UNION ALL SELECT trajectory_key, 0 FROM anchors WHERE \
             trajectory_id = 'a'",
            "it gives more than one row for trajectory_id: a",
        ),
        (
            "SELECT trajectory_key, reward AS advantage FROM anchors UNION ALL SELECT 7, 0",
            "it names what is not there trajectory_id: trajectory_key 7",
        ),
    ] {
        let found = refusal(text).await;
        assert!(found.contains(says), "{text}\n  says {found}\n  not  {says}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_estimator_need_not_leave_out_those_that_are_dropped() {
    let text = "SELECT trajectory_id, coalesce(reward, 0) AS advantage FROM trajectories";
    assert_eq!(refusal(text).await, "it runs");
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let error = session(&training_lake()).set("estimator", Some("nowhere/mine.sql")).unwrap_err();
        assert!(chain(&error).contains("cannot read the estimator nowhere/mine.sql"), "{}", chain(&error));
        let error = session(&training_lake()).set("filter", Some("mine")).unwrap_err();
        assert!(chain(&error).contains("ends in .sql"), "{}", chain(&error));
    });
}
