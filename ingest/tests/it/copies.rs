//! Two trajectories of one name are both kept, or one of them is named in quarantine: none is lost without a word.

use std::path::{Path, PathBuf};

use dressage_ingest::{Error, IngestReport, IngestSettings, Unwatched, ingest};
use dressage_schemas::Table;

use crate::lake::{TestLake, line, lines};

/// A line of the `dressage` format with tokens and nothing said.
fn tokens_only(id: &str, instance: &str, tokens: &[i32]) -> String {
    let mut record: serde_json::Value = serde_json::from_str(&line(id, tokens, 1.0)).unwrap();
    record["instance_id"] = instance.into();
    record["segments"][0]["messages"] = serde_json::json!([]);
    record.to_string()
}

/// A chat of one trajectory id.
fn chat(id: &str, said: &[&str]) -> String {
    let roles = ["user", "assistant"].iter().cycle();
    let messages: Vec<_> =
        said.iter().zip(roles).map(|(text, role)| serde_json::json!({"role": role, "content": text})).collect();
    serde_json::json!({ "trajectory_id": id, "messages": messages }).to_string()
}

fn conflicts(report: &IngestReport) -> u64 {
    report.quarantined_by_rule.get("id_conflict").copied().unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn unrelated_trajectories_of_one_id_are_never_taken_for_copies() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/bug-inputs");
    let names = ["10-", "11-", "14-", "16-", "17-", "30-", "36-"];
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|p| names.iter().any(|n| p.file_name().unwrap().to_string_lossy().starts_with(n)));
    files.sort();
    assert_eq!(files.len(), names.len());
    for reversed in [false, true] {
        if reversed {
            files.reverse();
        }
        let one_by_one = TestLake::new().await;
        for file in &files {
            let report = one_by_one.ingest(file).await;
            assert_eq!((report.trajectories_updated, report.trajectories_unchanged), (0, 0), "{}", file.display());
        }
        let together = TestLake::new().await;
        let sources = files.iter().map(|f| f.display().to_string()).collect();
        let settings = IngestSettings { sources, jobs: 2, ..IngestSettings::default() };
        ingest(&together.lake, settings, &Unwatched, std::future::pending()).await.unwrap();
        for lake in [&one_by_one, &together] {
            assert_eq!(lake.count(Table::Trajectories).await, 1);
            let named = lake.texts(Table::Quarantine, "source", Some("rule = 'id_conflict'")).await;
            for file in &files[1..] {
                assert!(named.contains(&file.display().to_string()), "{} left no trace: {named:?}", file.display());
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_names_both_sources_and_what_to_do_and_is_told_once() {
    let lake = TestLake::new().await;
    let first = lake.file("first.jsonl", lines(&[tokens_only("t", "a", &[1, 2, 3, 4])]));
    let second = lake.file("second.jsonl", lines(&[line("u", &[1, 2], 1.0), tokens_only("t", "b", &[7, 8])]));
    lake.ingest(&first).await;
    for _ in 0..2 {
        let report = lake.ingest(&second).await;
        assert_eq!((report.trajectories_unchanged + report.trajectories_new, conflicts(&report)), (1, 1));
        assert_eq!(lake.texts(Table::Quarantine, "trajectory_id", None).await, ["t"]);
    }
    let reason = lake.texts(Table::Quarantine, "reason", None).await.remove(0);
    for word in ["first.jsonl", "second.jsonl", "instance a", "instance b", "run default", "--run"] {
        assert!(reason.contains(word), "{word} is not in: {reason}");
    }
    assert_eq!(lake.texts(Table::Quarantine, "line", None).await, ["2"]);
    assert_eq!(lake.ints(Table::Quarantine, "byte_offset").await, [line("u", &[1, 2], 1.0).len() as i64 + 1]);
    let strict = lake.ingest_with(&second, |s| s.strict = true).await.unwrap_err();
    assert!(matches!(&strict, Error::Strict { rule, .. } if rule == "id_conflict"), "{strict}");
    let report = lake.ingest_with(&second, |s| s.run = Some("other".into())).await.unwrap();
    assert_eq!((report.trajectories_new, report.quarantined), (2, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_longer_answer_to_the_same_question_is_another_trajectory() {
    for (short, long) in [
        (chat("t", &["2+2?", "4"]), chat("t", &["2+2?", "It is five", "Sure?", "No."])),
        (chat("t", &["2+2?"]), chat("t", &["3+3?", "6"])),
        (tokens_only("t", "i", &[1, 2]), tokens_only("t", "i", &[1, 3, 4])),
        (line("t", &[1, 2, 3], 1.0), line("t", &[1, 2, 4, 5], 0.0)),
    ] {
        for order in [[&short, &long], [&long, &short]] {
            let lake = TestLake::new().await;
            assert_eq!(lake.ingest(lake.file("a.jsonl", order[0])).await.trajectories_new, 1);
            let report = lake.ingest(lake.file("b.jsonl", order[1])).await;
            assert_eq!((report.trajectories_updated, report.trajectories_unchanged), (0, 0), "{order:?}");
            assert_eq!(conflicts(&report), 1, "{order:?}");
            // and within one file
            let lake = TestLake::new().await;
            let report = lake.ingest(lake.file("c.jsonl", format!("{}\n{}\n", order[0], order[1]))).await;
            assert_eq!((report.trajectories_new, conflicts(&report)), (1, 1), "{order:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_says_more_replaces_what_it_begins_with_whatever_counts_records() {
    for (short, long) in [
        (chat("t", &["2+2?", "4"]), chat("t", &["2+2?", "4", "Sure?", "Yes."])),
        // a reply that was still being written
        (chat("t", &["2+2?", "It is"]), chat("t", &["2+2?", "It is four", "Sure?", "Yes."])),
        (tokens_only("t", "i", &[1, 2]), tokens_only("t", "i", &[1, 2, 4])),
    ] {
        let lake = TestLake::new().await;
        let (a, b) = (lake.file("a.jsonl", &short), lake.file("b.jsonl", &long));
        assert_eq!(lake.ingest(&a).await.trajectories_new, 1);
        let report = lake.ingest(&b).await;
        assert_eq!((report.trajectories_updated, report.quarantined), (1, 0), "{long}: {report:?}");
        for again in [&a, &b, &a] {
            let report = lake.ingest(again).await;
            assert_eq!((report.trajectories_unchanged, report.quarantined), (1, 0), "{long}");
        }
        assert_eq!(lake.count(Table::Trajectories).await, 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_beginning_of_a_real_session_is_an_older_copy_of_it() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/data");
    for name in [
        "claude-code/scout_agent_session.jsonl",
        "claude-code/compaction_small.jsonl",
        "claude-code/subagent/parent.jsonl",
        "agent-lightning/vllm_archive_nonstream.jsonl",
        "agent-lightning/vllm_archive_stream_chunks.jsonl",
    ] {
        let text = std::fs::read_to_string(folder.join(name)).unwrap();
        let ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at + 1).collect();
        let lake = TestLake::new().await;
        let stem = Path::new(name).file_name().unwrap().to_str().unwrap();
        let step = ends.len().div_ceil(6).max(1);
        let mut cuts: Vec<usize> = ends.iter().copied().step_by(step).chain([text.len()]).collect();
        for round in 0..2 {
            for cut in &cuts {
                let file = lake.file(&format!("{cut}/{stem}"), &text[..*cut]);
                let report = lake.ingest_with(&file, |s| s.format = "auto".into()).await.unwrap();
                assert_eq!(conflicts(&report), 0, "{name} up to byte {cut}: {report:?}");
                if round == 1 {
                    assert_eq!((report.trajectories_new, report.trajectories_updated), (0, 0), "{name} {cut}");
                }
            }
            cuts.reverse();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verdict_on_a_refused_trajectory_is_not_given_to_the_one_of_its_name() {
    let lake = TestLake::new().await;
    lake.ingest(lake.file("a.jsonl", lines(&[tokens_only("t", "a", &[1, 2, 3])]))).await;
    let events = [
        r#"{"kind":"step","trajectory_id":"t","tokens":[7,8],"n_output_tokens":1,"logprobs":[0,-1]}"#,
        r#"{"kind":"finish","trajectory_id":"t","status":"completed"}"#,
        r#"{"kind":"reward","trajectory_id":"t","grader":"judge","value":0.25}"#,
    ];
    let report = lake.ingest(lake.file("b.jsonl", events.join("\n"))).await;
    assert_eq!((report.trajectories_new, conflicts(&report)), (0, 2), "{report:?}");
    assert!(!lake.floats(Table::Rewards, "value").await.contains(&Some(0.25)));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_writers_at_once_keep_one_of_two_trajectories_and_name_the_other() {
    let lake = TestLake::new().await;
    let files: Vec<PathBuf> = (0..2)
        .map(|writer| {
            let text: Vec<String> =
                (0..20).map(|i| tokens_only(&format!("t{i}"), "i", &[writer, i, 7, 8 + writer])).collect();
            lake.file(&format!("w{writer}.jsonl"), lines(&text))
        })
        .collect();
    let (one, two) =
        tokio::join!(lake.ingest_with(&files[0], |s| s.jobs = 1), lake.ingest_with(&files[1], |s| s.jobs = 1));
    let (one, two) = (one.unwrap(), two.unwrap());
    // of each pair, readers see one, and the other one is in quarantine: by whoever came last
    assert_eq!(lake.count(Table::Quarantine).await, 20, "{one:?} {two:?}");
    assert_eq!(conflicts(&one) + conflicts(&two), 20);
    let named = lake.texts(Table::Quarantine, "reason", None).await;
    assert!(named.iter().all(|r| r.contains("w0.jsonl") && r.contains("w1.jsonl")), "{named:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_writers_of_one_file_at_once_the_later_one_says_unchanged() {
    let lake = TestLake::new().await;
    let text: Vec<String> = (0..20).map(|i| line(&format!("t{i}"), &[1, i, 7], 1.0)).collect();
    let file = lake.file("a.jsonl", lines(&text));
    let (one, two) = tokio::join!(lake.ingest_with(&file, |s| s.jobs = 1), lake.ingest_with(&file, |s| s.jobs = 1));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!((one.trajectories_new + two.trajectories_new, one.quarantined + two.quarantined), (20, 0));
    assert_eq!(one.trajectories_unchanged + two.trajectories_unchanged, 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_source_that_was_read_leaves_one_trace() {
    let lake = TestLake::new().await;
    let text = lines(&[line("t", &[1, 2], 1.0), line("u", &[1, 2, 3], 1.0)]);
    let first = lake.file("first.jsonl", &text);
    lake.ingest(&first).await;
    lake.ingest(&first).await;
    assert_eq!(lake.texts(Table::IngestLog, "outcome", None).await, ["new", "new"]);
    let second = lake.file("second.jsonl", &text);
    for _ in 0..3 {
        assert_eq!(lake.ingest(&second).await.trajectories_unchanged, 2);
    }
    let unchanged = Some("outcome = 'unchanged'");
    let sources = lake.texts(Table::IngestLog, "source", unchanged).await;
    assert_eq!(sources, [second.display().to_string(), second.display().to_string()]);
    // a trace names the attempt that wrote what was there
    let written = lake.ints(Table::Trajectories, "write_id").await;
    let mut named = lake.ints(Table::IngestLog, "write_id").await;
    named.sort_unstable();
    named.dedup();
    assert_eq!(named.len(), 2);
    assert!(named.iter().all(|id| written.contains(id)));
}
