//! Reading again changes nothing; reading more adds what is more.

use dressage_ingest::{IngestSettings, Unwatched, ingest};
use dressage_schemas::Table;

use crate::lake::{TestLake, line, lines};

fn some_lines() -> Vec<String> {
    (0..50).map(|i| line(&format!("t{i}"), &[1, 2, 3 + i], f64::from(i))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_comes_out_as_it_went_in() {
    let lake = TestLake::new().await;
    let report = lake.ingest(lake.file("a.jsonl", lines(&some_lines()))).await;
    assert_eq!((report.files, report.records, report.trajectories_new, report.quarantined), (1, 50, 50, 0));
    assert_eq!((report.steps, report.tokens), (50, 150));
    assert!(report.bytes_stored > 0 && report.bytes_in > 0);
    let filter = Some("n_context_tokens = 1");
    let ids = lake.bytes(Table::Steps, "token_ids", filter).await;
    assert_eq!(ids.len(), 50);
    assert_eq!(ids[7], [1_i32, 2, 10].map(i32::to_le_bytes).concat());
    assert_eq!(lake.texts(Table::Trajectories, "trajectory_id", None).await[7], "t7");
    assert_eq!(lake.floats(Table::Rewards, "value").await[7], Some(7.0));
    assert_eq!(lake.texts(Table::Steps, "mask_spans", None).await[0], "[1, 2]");
    // the question is stored once, each answer once
    assert_eq!(lake.count(Table::Contents).await, 51);
    assert_eq!(lake.count(Table::IngestLog).await, 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_file_twice_and_a_renamed_copy_change_nothing() {
    let lake = TestLake::new().await;
    let file = lake.file("a.jsonl", lines(&some_lines()));
    lake.ingest(&file).await;
    for again in [file, lake.file("other/name.json.txt", lines(&some_lines()))] {
        let report = lake.ingest(&again).await;
        assert_eq!((report.trajectories_new, report.trajectories_updated, report.trajectories_unchanged), (0, 0, 50));
        assert_eq!(report.steps, 0);
    }
    assert_eq!(lake.count(Table::Steps).await, 50);
    assert_eq!(lake.count(Table::Trajectories).await, 50);
    assert_eq!(lake.count(Table::Contents).await, 51);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_trajectory_twice_in_one_file_is_stored_once() {
    let lake = TestLake::new().await;
    let text = lines(&[line("t", &[1, 2], 1.0), line("t", &[1, 2], 1.0), line("u", &[1, 2], 1.0)]);
    let report = lake.ingest(lake.file("a.jsonl", text)).await;
    assert_eq!((report.trajectories_new, report.trajectories_unchanged), (2, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ingest_that_was_stopped_goes_on_from_there() {
    let lake = TestLake::new().await;
    for file in 0..40 {
        let of_file: Vec<_> = (0..50).map(|i| line(&format!("t{file}-{i}"), &[1, 2, 3 + i], 0.5)).collect();
        lake.file(&format!("in/{file:02}.jsonl"), lines(&of_file));
    }
    let folder = lake.dir.path().join("in");
    let settings = IngestSettings { sources: vec![folder.display().to_string()], ..IngestSettings::default() };
    let first = ingest(&lake.lake, settings, &Unwatched, async {}).await.unwrap();
    assert!(first.stopped);
    // what it says is stored is stored
    assert_eq!(lake.count(Table::Trajectories).await as u64, first.trajectories_new);
    let rest = lake.ingest(&folder).await;
    assert!(!rest.stopped);
    assert_eq!(first.trajectories_new + rest.trajectories_new, 2_000);
    assert_eq!(rest.trajectories_unchanged, first.trajectories_new);
}

/// Three copies of one stream of events, each longer than the one before.
fn copies() -> [String; 3] {
    let step = |token: i32| {
        format!(r#"{{"kind":"step","trajectory_id":"s","tokens":[7,{token}],"n_output_tokens":1,"logprobs":[0,-1]}}"#)
    };
    let finish = r#"{"kind":"finish","trajectory_id":"s","status":"completed","reward":1}"#.to_owned();
    [lines(&[step(1)]), lines(&[step(1), step(2)]), lines(&[step(1), step(2), step(3), finish])]
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_of_different_length_in_any_order_end_in_the_longest() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let lake = TestLake::new().await;
        let mut updates = 0;
        for index in order {
            let report = lake.ingest(lake.file(&format!("{index}.jsonl"), &copies()[index])).await;
            updates += report.trajectories_new + report.trajectories_updated;
        }
        let revisions = lake.texts(Table::Trajectories, "revision", None).await;
        let last = revisions.len() - 1;
        assert_eq!(updates as usize, revisions.len(), "{order:?}");
        let newest = format!("revision = {last}");
        assert_eq!(lake.texts(Table::Trajectories, "status", Some(&newest)).await, ["completed"], "{order:?}");
        assert_eq!(lake.texts(Table::Trajectories, "n_steps", Some(&newest)).await, ["3"], "{order:?}");
        // and once more, the other way round: nothing moves
        for index in [2, 1, 0] {
            let report = lake.ingest(lake.file(&format!("{index}.jsonl"), &copies()[index])).await;
            assert_eq!((report.trajectories_new, report.trajectories_updated), (0, 0), "{order:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_different_copies_of_one_length_do_not_overtake_each_other_for_ever() {
    let lake = TestLake::new().await;
    let a = lake.file("a.jsonl", lines(&[line("t", &[1, 2], 1.0)]));
    let b = lake.file("b.jsonl", lines(&[line("t", &[1, 2], 0.0)]));
    assert_eq!(lake.ingest(&a).await.trajectories_new, 1);
    assert_eq!(lake.ingest(&b).await.trajectories_updated, 1);
    for again in [&a, &b, &a] {
        assert_eq!(lake.ingest(again).await.trajectories_unchanged, 1);
    }
    assert_eq!(lake.count(Table::Trajectories).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_stored_does_not_depend_on_the_number_of_threads() {
    let text: String = (0..2_000).map(|i| line(&format!("t{}", i % 700), &[1, 2, i], f64::from(i)) + "\n").collect();
    let mut seen = Vec::new();
    for jobs in [1, 4] {
        let lake = TestLake::new().await;
        let file = lake.file("a.jsonl", &text);
        lake.ingest_with(&file, |s| s.jobs = jobs).await.unwrap();
        let mut rows = lake.texts(Table::Trajectories, "content_hash", None).await;
        rows.extend(lake.texts(Table::Trajectories, "revision", None).await);
        seen.push(rows);
    }
    assert_eq!(seen[0], seen[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_keep_trajectories_of_one_name_apart() {
    let lake = TestLake::new().await;
    let file = lake.file("a.jsonl", lines(&[line("t", &[1, 2], 1.0)]));
    lake.ingest_with(&file, |s| s.run = Some("one".into())).await.unwrap();
    let report = lake.ingest_with(&file, |s| s.run = Some("two".into())).await.unwrap();
    assert_eq!(report.trajectories_new, 1);
    assert_eq!(lake.texts(Table::Trajectories, "run_id", None).await, ["one", "two"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_and_labels_are_the_users() {
    let lake = TestLake::new().await;
    let text = line("t", &[1, 2], 1.0).replace("\"status\"", "\"labels\":{\"level\":{\"name\":\"hard\"}},\"status\"");
    let file = lake.file("a.jsonl", text);
    let change = |s: &mut dressage_ingest::IngestSettings| {
        s.group_by = Some("level.name".into());
        s.labels.insert("who".into(), "me".into());
    };
    lake.ingest_with(&file, change).await.unwrap();
    assert_eq!(lake.texts(Table::Trajectories, "group_id", None).await, ["hard"]);
    let labels = lake.texts(Table::Trajectories, "labels", None).await.remove(0);
    assert_eq!(labels, r#"{"level":{"name":"hard"},"who":"me"}"#);
    lake.ingest_with(&file, |s| s.group_by = Some("labels.level.name".into())).await.unwrap();
    let report = lake.ingest_with(&file, |s| s.group_by = Some("extra.level".into())).await.unwrap();
    assert_eq!(report.quarantined_by_rule["missing_field"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_verdict_is_a_row_of_its_own_once() {
    let lake = TestLake::new().await;
    lake.ingest(lake.file("a.jsonl", lines(&[line("t", &[1, 2], 0.0)]))).await;
    let verdict = |id: &str, value: f64| {
        format!(r#"{{"kind":"reward","trajectory_id":"{id}","grader":"judge","value":{value}}}"#)
    };
    let file = lake.file("verdicts.jsonl", lines(&[verdict("t", 0.5), verdict("t", 0.5), verdict("nobody", 1.0)]));
    for _ in 0..2 {
        let report = lake.ingest(&file).await;
        assert_eq!(report.quarantined_by_rule["orphan"], 1);
    }
    let mut values = lake.floats(Table::Rewards, "value").await;
    values.sort_by(|a, b| a.partial_cmp(b).unwrap());
    assert_eq!(values, [Some(0.0), Some(0.5)]);
    assert_eq!(lake.texts(Table::Rewards, "grader", Some("write_id IS NULL")).await, ["judge"]);
    let changed = lake.file("changed.jsonl", lines(&[verdict("t", 0.75)]));
    lake.ingest(changed).await;
    assert_eq!(lake.count(Table::Rewards).await, 3);
}
