//! Inputs of the kinds that public bug reports tell of: what can be read is read, the rest is in quarantine.

use std::path::PathBuf;

use dressage_ingest::{Error, IngestReport};
use dressage_schemas::Table;

use crate::lake::{TestLake, line};

fn input(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/bug-inputs").join(name)
}

async fn unrecognised(name: &str) -> String {
    let lake = TestLake::new().await;
    let report = lake.ingest(input(name)).await;
    assert_eq!(report.quarantined_by_rule.get("unrecognised"), Some(&1), "{name}: {report:?}");
    assert_eq!((report.trajectories_new, report.quarantined), (0, 1), "{name}: {report:?}");
    lake.texts(Table::Quarantine, "reason", None).await.remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_data_is_named_for_what_it_is() {
    assert!(unrecognised("41-not-data-lfs-pointer.jsonl").await.contains("Git LFS pointer"));
    assert!(unrecognised("42-not-json-placeholder.jsonl").await.contains("placeholder"));
    assert!(unrecognised("43-json-document-named-jsonl.jsonl").await.contains("Gemini CLI"));
    assert!(unrecognised("37-duplicate-tool-call-ids.json").await.contains("ATIF"));
    assert!(unrecognised("34-base64-image-repeated-in-compaction.jsonl").await.contains("Codex"));
}

/// A whole trajectory with one array changed.
fn with(key: &str, value: &str) -> String {
    let text = line("t", &[1, 2, 3, 4], 1.0);
    let mut record: serde_json::Value = serde_json::from_str(&text).unwrap();
    record["segments"][0][key] = serde_json::Value::String("HERE".into());
    record.to_string().replace("\"HERE\"", value)
}

async fn one(text: &str) -> (TestLake, IngestReport) {
    let lake = TestLake::new().await;
    let report = lake.ingest(lake.file("a.jsonl", text)).await;
    (lake, report)
}

#[tokio::test(flavor = "multi_thread")]
async fn lengths_that_differ_are_quarantined_with_both_numbers_and_the_place() {
    for (key, value, rule, numbers) in [
        ("full_loss_mask", "[0,1,1]", "mask_length_mismatch", ["3", "4"]),
        ("full_loss_mask", "[0,1,1,0,0]", "mask_length_mismatch", ["5", "4"]),
        ("full_logprobs", "[0,-1,-1,-1,-0.9]", "logprobs_length_mismatch", ["5", "4"]),
        ("full_versions", "[\"1\",\"1\"]", "versions_length_mismatch", ["2", "4"]),
    ] {
        let text = format!("{}\n{}\n", line("good", &[1, 2], 1.0), with(key, value));
        let (lake, report) = one(&text).await;
        assert_eq!((report.trajectories_new, report.quarantined), (1, 1), "{key} {value}");
        assert_eq!(lake.texts(Table::Quarantine, "rule", None).await, [rule]);
        let reason = lake.texts(Table::Quarantine, "reason", None).await.remove(0);
        assert!(numbers.iter().all(|n| reason.contains(n)), "{reason}");
        assert_eq!(lake.texts(Table::Quarantine, "trajectory_id", None).await, ["t"]);
        assert_eq!(lake.texts(Table::Quarantine, "line", None).await, ["2"]);
        let offset = line("good", &[1, 2], 1.0).len() as i64 + 1;
        assert_eq!(lake.ints(Table::Quarantine, "byte_offset").await, [offset]);
        assert_eq!(lake.bytes(Table::Quarantine, "raw", None).await, [with(key, value).into_bytes()]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn log_probs_that_are_no_numbers_keep_their_place_and_are_not_trained() {
    for value in ["[0,-0.5,NaN,-0.7]", "[0,-0.5,null,-0.7]", "[0,-0.5,-Infinity,-0.7]"] {
        let (lake, report) = one(&with("full_logprobs", value)).await;
        assert_eq!((report.trajectories_new, report.quarantined), (1, 0), "{value}");
        let stored = lake.bytes(Table::Steps, "logprobs", None).await.remove(0);
        let floats: Vec<f32> = stored.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        assert!(floats[2].is_nan() && floats[1] == -0.5 && floats[3] == -0.7, "{floats:?}");
        assert_eq!(lake.texts(Table::Steps, "trainable", None).await, ["false"]);
        assert_eq!(lake.texts(Table::Steps, "flags", None).await, ["[nonfinite_logprob]"]);
        assert_eq!(lake.texts(Table::Trajectories, "n_trained_tokens", None).await, ["0"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_trained_tokens_is_a_flag_and_a_null_reward_is_no_reward() {
    let text = with("full_loss_mask", "[0,0,0,0]").replace("\"reward\":1.0", "\"reward\":null");
    let (lake, report) = one(&text).await;
    assert_eq!(report.trajectories_new, 1);
    assert_eq!(lake.texts(Table::Steps, "flags", None).await, ["[no_trained_tokens]"]);
    assert_eq!(lake.count(Table::Rewards).await, 0);
    assert_eq!(lake.floats(Table::Trajectories, "recorded_reward").await, [None]);
}

#[tokio::test(flavor = "multi_thread")]
async fn glued_cut_and_nul_lines_lose_only_what_is_cut() {
    let (a, b, c, d) =
        (line("a", &[1, 2], 1.0), line("b", &[1, 2], 1.0), line("c", &[1, 2], 1.0), line("d", &[1, 2], 1.0));
    let text = format!("\u{feff}{a}{b}\r\n\0\0\0\0\n{}{c}\n{}", &d[..60], &d[..30]);
    let (lake, report) = one(&text).await;
    assert_eq!((report.trajectories_new, report.quarantined), (3, 2), "{report:?}");
    assert_eq!(report.quarantined_by_rule["cut_record"], 2);
    let raw = lake.bytes(Table::Quarantine, "raw", None).await;
    assert_eq!(raw, [d.as_bytes()[..60].to_vec(), d.as_bytes()[..30].to_vec()]);
    // the same bytes again are the same rows of quarantine
    let again = lake.ingest(lake.file("copy.jsonl", &text)).await;
    assert_eq!((again.trajectories_unchanged, again.quarantined), (3, 2));
    assert_eq!(lake.count(Table::Quarantine).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lone_surrogate_is_replaced_flagged_and_kept_raw() {
    let text = line("t", &[1, 2], 1.0).replace("the same question", r"price \ud83c... cut");
    let (lake, report) = one(&text).await;
    assert_eq!((report.trajectories_new, report.quarantined), (1, 0));
    let said = lake.texts(Table::Contents, "text", None).await;
    assert!(said.contains(&"price \u{fffd}... cut".to_owned()), "{said:?}");
    assert_eq!(lake.texts(Table::Trajectories, "flags", None).await, ["[lone_surrogate]"]);
    let extra = lake.texts(Table::Trajectories, "extra", None).await.remove(0);
    assert!(extra.contains("5c7564383363"), "the raw bytes are kept: {extra}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_known_broken_input_is_read_or_quarantined_and_never_lost() {
    let lake = TestLake::new().await;
    let mut names: Vec<_> = std::fs::read_dir(input("")).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert!(names.len() > 30);
    for name in names {
        // a run each: many of the files tell of a session of the same name
        let run = name.display().to_string();
        let file = input(&run);
        let report = lake.ingest_with(&file, |s| s.run = Some(run.clone())).await.unwrap();
        assert!(report.trajectories_new + report.quarantined > 0, "{run} left no row at all: {report:?}");
        let again = lake.ingest_with(&file, |s| s.run = Some(run.clone())).await.unwrap();
        assert_eq!((again.trajectories_new, again.trajectories_updated), (0, 0), "{run}");
        assert_eq!(
            (again.trajectories_unchanged, again.quarantined),
            (report.trajectories_new, report.quarantined),
            "{run}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn strict_stops_at_the_first_bad_record_and_says_where() {
    let lake = TestLake::new().await;
    let file = lake.file("a.jsonl", with("full_loss_mask", "[0]"));
    let error = lake.ingest_with(&file, |s| s.strict = true).await.unwrap_err();
    let Error::Strict { place, rule, .. } = &error else { panic!("{error:?}") };
    assert_eq!(rule, "mask_length_mismatch");
    assert!(place.contains("line 1") && place.contains("trajectory t"), "{place}");
    assert_eq!(lake.count(Table::Quarantine).await, 0);
}
