//! Public reports of what breaks readers of rollouts, each reproduced end to end through the command.
//!
//! The inputs are ours and of the reported kind; the reports are other people's. Where an input's own format has an
//! importer, the file itself is read; where it has none, the file must be named in quarantine, and the same fault is
//! reproduced in the `dressage` format.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use dressage_rig::{Dressage, Finished};
use serde_json::Value;
use tempfile::TempDir;

use crate::whole::{field, local};

/// An ingest into a fresh store, and the store.
struct Read {
    _dir: TempDir,
    dressage: Dressage,
    finished: Finished,
    report: Value,
}

impl Read {
    fn file(file: &Path) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let dressage = local(&dir.path().join("store"));
        let finished = dressage.run(&["ingest", &file.display().to_string(), "--json", "--quiet"])?;
        ensure!(matches!(finished.code, Some(0 | 9)), "{} was not read to its end: {finished:?}", file.display());
        let report = finished.json()?;
        let expected_code = if field(&report, "quarantined")? == 0 { 0 } else { 9 };
        finished.expect_code(expected_code)?;
        Ok(Self { _dir: dir, dressage, finished, report })
    }

    /// Reads text as a file of its own.
    fn text(text: &str) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("input");
        std::fs::write(&file, text)?;
        Self::file(&file)
    }

    fn rows(&self, query: &str) -> Result<Vec<Value>> {
        self.dressage.sql(query)
    }

    fn row(&self, query: &str) -> Result<Value> {
        let mut rows = self.rows(query)?;
        ensure!(rows.len() == 1, "{} rows, not one, from {query}: {rows:?}", rows.len());
        Ok(rows.remove(0))
    }

    fn count(&self, name: &str) -> Result<i64> {
        field(&self.report, name)
    }

    /// The reasons of quarantine, joined; what a person reads.
    fn reasons(&self) -> Result<String> {
        let rows = self.rows("select rule, reason from quarantine order by byte_offset")?;
        Ok(rows.iter().map(|row| format!("{}: {}\n", row["rule"], row["reason"])).collect())
    }
}

/// A trajectory of one segment in the `dressage` format.
fn trajectory(id: &str, reward: &str, tokens: &str, mask: &str, logprobs: &str) -> String {
    format!(
        "{{\"trajectory_id\":\"{id}\",\"instance_id\":\"i\",\"reward\":{reward},\"status\":\"completed\",\
         \"segments\":[{{\"segment_index\":0,\"tokens\":{tokens},\"full_loss_mask\":{mask},\
         \"full_logprobs\":{logprobs},\"messages\":[{{\"role\":\"user\",\"content\":\"q\"}},\
         {{\"role\":\"assistant\",\"content\":\"a\"}}],\"finish_reason\":\"stop\"}}]}}\n"
    )
}

/// radixark/miles#2662, NVIDIA-NeMo/RL#2962 and #1742; huggingface/trl#6166, #6693, #6868.
#[test]
fn reports_01_and_02_a_logprob_that_is_no_number_is_kept_as_nan_flagged_and_not_trained_on() {
    let text = trajectory("nan", "1.0", "[1,2,3]", "[0,1,1]", "[0.0,NaN,-0.5]")
        + &trajectory("inf", "1.0", "[1,2,3]", "[0,1,1]", "[0.0,-Infinity,-0.5]")
        + &trajectory("null", "1.0", "[1,2,3]", "[0,1,1]", "[0.0,null,-0.5]")
        + &trajectory("fine", "1.0", "[1,2,3]", "[0,1,1]", "[0.0,-0.25,-0.5]");
    let read = Read::text(&text).expect("reads");
    assert_eq!((read.count("trajectories_new").unwrap(), read.count("quarantined").unwrap()), (4, 0));
    let rows = read
        .rows(
            "select trajectory_id, trainable, cardinality(logprobs) as n, isnan(logprobs[2]) as is_nan, \
               array_has(flags, 'nonfinite_logprob') as flagged from steps order by trajectory_id",
        )
        .expect("rows");
    for row in rows {
        let bad = row["trajectory_id"] != "fine";
        assert_eq!(
            (&row["trainable"], &row["flagged"], &row["is_nan"]),
            (&(!bad).into(), &bad.into(), &bad.into()),
            "{row}"
        );
        assert_eq!(row["n"], 3, "alignment is kept: {row}");
    }
}

/// vllm-project/vllm#6626, eval-protocol/python-sdk#457.
#[test]
fn report_08_token_ids_that_split_a_character_are_kept_as_they_are() {
    let text = trajectory("emoji", "1.0", "[6023,11162,237,115,0]", "[0,1,1,1,1]", "[0.0,-0.1,-0.2,-0.3,-0.4]");
    let read = Read::text(&text).expect("reads");
    let row = read.row("select token_ids from steps").expect("a row");
    assert_eq!(row["token_ids"], serde_json::json!([6023, 11162, 237, 115, 0]));
}

/// THUDM/slime#200, #2361, #1252; radixark/miles#1013.
#[test]
fn report_19_an_aborted_trajectory_has_no_reward_rather_than_zero() {
    let live = trajectory("live", "1.0", "[1,2,3]", "[0,1,1]", "[0.0,-0.1,-0.2]");
    let dead = trajectory("dead", "null", "[1,2]", "[0,0]", "[0.0,0.0]").replace("completed", "aborted");
    let read = Read::text(&(live + &dead)).expect("reads");
    assert_eq!(read.count("trajectories_new").unwrap(), 2);
    let row = read.row("select reward is null as ungraded, status from trajectories where trajectory_id = 'dead'");
    assert_eq!(row.expect("a row"), serde_json::json!({"ungraded": true, "status": "aborted"}));
    let group = read.row("select n_trajectories, n_live, n_graded, reward_mean from groups").expect("a row");
    assert_eq!(group, serde_json::json!({"n_trajectories": 2, "n_live": 1, "n_graded": 1, "reward_mean": 1.0}));
}

/// huggingface/trl#5773, #5775.
#[test]
fn report_22_a_group_of_one_has_a_spread_of_zero_not_nan() {
    let alone = trajectory("alone", "0.5", "[1,2,3]", "[0,1,1]", "[0.0,-0.1,-0.2]");
    let ungraded = trajectory("ungraded", "null", "[1,2,4]", "[0,1,1]", "[0.0,-0.1,-0.2]");
    let read = Read::text(&(alone + &ungraded)).expect("reads");
    let group = read.row("select n_graded, n_ungraded, reward_mean, reward_std from groups").expect("a row");
    assert_eq!(group, serde_json::json!({"n_graded": 1, "n_ungraded": 1, "reward_mean": 0.5, "reward_std": 0.0}));
}

/// NVIDIA-NeMo/RL#158, NVIDIA-NeMo/Automodel#3796, redai-studio/Relax#285.
#[test]
fn report_23_a_trajectory_without_trained_tokens_is_stored_and_says_so() {
    let read = Read::text(&trajectory("none", "1.0", "[1,2,3,4]", "[0,0,0,0]", "[0,0,0,0]")).expect("reads");
    let row =
        read.row("select n_tokens, n_trained_tokens, array_has(flags, 'no_trained_tokens') as flagged from steps");
    assert_eq!(row.expect("a row"), serde_json::json!({"n_tokens": 4, "n_trained_tokens": 0, "flagged": true}));
}

/// verl-project/verl#4600, #2069.
#[test]
fn report_24_a_mask_of_another_length_is_refused_with_both_lengths_and_its_neighbours_are_read() {
    let text = trajectory("before", "1.0", "[1,2,3]", "[0,1,1]", "[0.0,-0.1,-0.2]")
        + &trajectory("short", "1.0", "[1,2,3,4]", "[0,1,1]", "[0.0,-0.1,-0.2,-0.3]")
        + &trajectory("after", "1.0", "[1,2,3]", "[0,1,1]", "[0.0,-0.1,-0.2]");
    let read = Read::text(&text).expect("reads");
    assert_eq!((read.count("trajectories_new").unwrap(), read.count("quarantined").unwrap()), (2, 1));
    let row =
        read.row("select rule, reason, trajectory_id, line, byte_offset, byte_length from quarantine").expect("a row");
    assert_eq!((&row["rule"], &row["trajectory_id"]), (&"mask_length_mismatch".into(), &"short".into()), "{row}");
    let reason = row["reason"].as_str().expect("text");
    assert!(reason.contains('3') && reason.contains('4'), "names both lengths: {reason}");
    let line = text.lines().nth(1).expect("a line");
    assert_eq!(row["line"], 2, "{row}");
    assert_eq!(row["byte_offset"].as_u64().expect("an offset"), text.find(line).expect("it is there") as u64);
    assert_eq!(row["byte_length"].as_u64().expect("a length"), line.len() as u64);
}

/// eval-protocol/python-sdk#457, sgl-project/sglang#20799; rllm-org/rllm#898, fw-ai/cookbook#483.
#[test]
fn reports_26_and_27_logprobs_of_another_length_are_refused_not_shifted_or_padded() {
    let text = trajectory("one-more", "1.0", "[1,2,3]", "[0,1,1]", "[0.0,-0.1,-0.2,-0.9]")
        + &trajectory("one-less", "1.0", "[1,2,3]", "[0,1,1]", "[0.0,-0.1]");
    let read = Read::text(&text).expect("reads");
    assert_eq!((read.count("trajectories_new").unwrap(), read.count("quarantined").unwrap()), (0, 2));
    let reasons = read.reasons().expect("reasons");
    assert_eq!(reasons.matches("logprobs_length_mismatch").count(), 2, "{reasons}");
}

/// openai/codex#34863, #29812, #33735, #40111.
#[test]
fn report_34_an_image_repeated_in_every_segment_is_stored_once() {
    // 60,000 characters of base64, in eight segments of each of four trajectories: 1.9 MB said, 45 kB stored.
    let image = format!("data:image/png;base64,iVBORw0KGgoA{}", "QUJD".repeat(15_000));
    let mut text = String::new();
    for number in 0..4 {
        let segments: Vec<Value> = (0..8)
            .map(|index| {
                serde_json::json!({
                    "segment_index": index, "tokens": [1, 2, index + 3], "full_loss_mask": [0, 1, 1],
                    "full_logprobs": [0.0, -0.1, -0.2], "finish_reason": "stop",
                    "messages": [
                        {"role": "user", "content": [
                            {"type": "text", "text": "look"},
                            {"type": "image_url", "image_url": {"url": image}},
                        ]},
                        {"role": "assistant", "content": format!("seen {number} {index}")},
                    ],
                })
            })
            .collect();
        let line = serde_json::json!({
            "trajectory_id": format!("t{number}"), "instance_id": "i", "reward": 1.0, "status": "completed",
            "segments": segments,
        });
        text.push_str(&format!("{line}\n"));
    }
    let read = Read::text(&text).expect("reads");
    assert_eq!(read.count("trajectories_new").unwrap(), 4);
    let row = read.row("select count(*) as n, max(n_bytes) as bytes from contents where kind = 'data'").expect("a row");
    assert_eq!(row["n"], 1, "{row}");
    assert!(row["bytes"].as_i64().is_some_and(|n| (44_000..46_000).contains(&n)), "{row}");
    let stored = read.count("bytes_stored").unwrap();
    assert!(stored < 300_000, "{stored} bytes stored of {} read", text.len());
}

/// openai/codex#18629, #37346: a line of 53.7 MiB. Here 8 MiB, under the smallest memory limit there is.
#[test]
fn report_35_a_huge_line_is_read_under_a_small_memory_limit() {
    let dir = tempfile::tempdir().expect("a folder");
    let big = "0123456789abcdef".repeat(512 * 1024);
    let line = serde_json::json!({"messages": [
        {"role": "user", "content": "cat big.log"},
        {"role": "assistant", "content": big},
    ]});
    let file = dir.path().join("huge.jsonl");
    std::fs::write(&file, format!("{line}\n")).expect("writes");
    let dressage = local(&dir.path().join("store"));
    let args = ["ingest", &file.display().to_string(), "--memory-limit", "64MiB", "--json", "--quiet"];
    let finished = dressage.run(&args).expect("runs");
    finished.expect_code(0).expect("reads");
    let rows = dressage.sql("select max(octet_length(text)) as n from messages").expect("rows");
    assert_eq!(rows[0]["n"].as_u64(), Some(big.len() as u64));
}

/// anthropics/claude-code#52387 and #50347, github/copilot-cli#4098, anthropics/claude-code#49876.
#[test]
fn reports_10_and_11_glued_and_cut_records_and_nul_runs_do_not_end_the_file() {
    let one = trajectory("one", "1.0", "[1,2,3]", "[0,1,1]", "[0.0,-0.1,-0.2]");
    let two = trajectory("two", "1.0", "[1,2,4]", "[0,1,1]", "[0.0,-0.1,-0.2]");
    let three = trajectory("three", "1.0", "[1,2,5]", "[0,1,1]", "[0.0,-0.1,-0.2]");
    let four = trajectory("four", "1.0", "[1,2,6]", "[0,1,1]", "[0.0,-0.1,-0.2]");
    let cut = &one.trim_end()[..60];
    // Two whole records on a line; half of one glued to a whole one; a run of NULs; a last line without its end.
    let text = format!("{}{two}{cut}{three}{}\n{}", one.trim_end(), "\0".repeat(4096), four.trim_end());
    let read = Read::text(&text).expect("reads");
    assert_eq!((read.count("trajectories_new").unwrap(), read.count("quarantined").unwrap()), (4, 1));
    let raw = read.row("select byte_offset, byte_length from quarantine").expect("a row");
    let offset = raw["byte_offset"].as_u64().expect("an offset") as usize;
    let length = raw["byte_length"].as_u64().expect("a length") as usize;
    assert_eq!(&text[offset..offset + length], cut, "exactly the cut part is in quarantine");
}

/// infiniflow/ragflow#19179, viggy28/recall#38, wbolster/jsonlines#68.
#[test]
fn report_13_a_byte_order_mark_and_crlf_lose_no_record() {
    let lines = trajectory("one", "1.0", "[1,2,3]", "[0,1,1]", "[0.0,-0.1,-0.2]")
        + &trajectory("two", "1.0", "[1,2,4]", "[0,1,1]", "[0.0,-0.1,-0.2]").replace("\"q\"", "\"q\\r\\nq\"");
    let read = Read::text(&format!("\u{feff}{}", lines.replace('\n', "\r\n"))).expect("reads");
    assert_eq!((read.count("trajectories_new").unwrap(), read.count("quarantined").unwrap()), (2, 0));
    let row = read.row("select count(*) as n from messages where text = 'q' || chr(13) || chr(10) || 'q'");
    assert_eq!(row.expect("a row")["n"], 1, "the line end inside the string is kept");
}

/// anthropics/claude-code#45982, #56064, #68325, nanocoai/nanoclaw#889, anomalyco/opencode#17758.
#[test]
fn report_07_a_lone_surrogate_costs_its_character_and_not_its_record() {
    let text =
        trajectory("cut", "1.0", "[1,2,3]", "[0,1,1]", "[0.0,-0.1,-0.2]").replace("\"q\"", "\"price \\ud83c...\"");
    let read = Read::text(&text).expect("reads");
    assert_eq!((read.count("trajectories_new").unwrap(), read.count("quarantined").unwrap()), (1, 0));
    let row = read.row("select text from messages where role = 'user'").expect("a row");
    assert_eq!(row["text"], "price \u{fffd}...");
    let flagged = read.row("select array_has(flags, 'lone_surrogate') as flagged from trajectories").expect("a row");
    assert_eq!(flagged["flagged"], true);
}

/// THUDM/slime#2157, huggingface/datasets#6106 and #6324, microsoft/agent-lightning#405.
#[test]
fn report_20_rewards_of_mixed_types_are_neither_dropped_nor_rounded_in_silence() {
    let line = |id: &str, reward: &str| trajectory(id, reward, "[1,2,3]", "[0,1,1]", "[0.0,-0.1,-0.2]");
    let text = line("int", "1")
        + &line("float", "1.5")
        + &line("bool", "true")
        + &line("text", "\"0.5\"")
        + &line("dict", "{\"acc\":1,\"format\":0.2}")
        + &line("list", "[0.0,0.0,1.0]")
        + &line("minus-zero", "-0.0")
        + &line("big", "9007199254740993");
    let read = Read::text(&text).expect("reads");
    let stored = read.count("trajectories_new").unwrap();
    assert_eq!(
        stored + read.count("quarantined").unwrap(),
        8,
        "each is stored or quarantined: {}",
        read.finished.stdout
    );
    let rows = read
        .rows(
            "select t.trajectory_id, r.value, r.parts, r.detail from rewards r \
               join trajectories t on t.trajectory_key = r.trajectory_key",
        )
        .expect("rows");
    let find = |id: &str| rows.iter().find(|row| row["trajectory_id"] == id);
    assert_eq!(find("int").expect("stored")["value"], 1.0);
    assert_eq!(find("float").expect("stored")["value"], 1.5);
    for id in ["dict", "list", "text"] {
        if let Some(row) = find(id) {
            assert!(
                !(row["value"].is_null() && row["parts"].is_null() && row["detail"].is_null()),
                "{id} is gone: {row}"
            );
        }
    }
    if let Some(big) = find("big") {
        // 2^53 + 1 is no f64: the exact number must be somewhere.
        assert!(big["detail"].to_string().contains("9007199254740993"), "rounded in silence: {big}");
    }
}

/// What must come of each input file: how many trajectories are new, how many records are quarantined, words that the
/// reasons must contain, and a query that must give one row of trues. A file whose format has no importer yet is
/// named, whole.
const FILES: &[(&str, i64, i64, &[&str], &str)] = &[
    (
        "01-nan-literal-logprob",
        3,
        0,
        &[],
        "select count(*) filter (where not trainable and array_has(flags, 'nonfinite_logprob')) = 2 from steps",
    ),
    ("02-null-logprob", 1, 0, &[], "select not trainable and array_has(flags, 'nonfinite_logprob') from steps"),
    (
        "03-empty-assistant-message",
        1,
        0,
        &[],
        "select count(*) = 5, count(*) filter (where role = 'assistant') = 4 from messages",
    ),
    (
        "04-tool-message-without-tool_call_id",
        1,
        0,
        &[],
        "select bool_or(array_has(flags, 'tool_call_id_inferred')) from steps",
    ),
    ("06-tool-call-without-result", 1, 0, &[], "select bool_or(array_has(flags, 'tool_call_unanswered')) from steps"),
    ("07-lone-surrogate", 2, 0, &[], "select count(*) filter (where text like '%\u{fffd}%') = 2 from messages"),
    ("08-emoji-split-across-tokens", 0, 1, &["unrecognised", "token arrays"], ""),
    (
        "10-glued-objects",
        1,
        1,
        &["cut_record"],
        "select count(*) filter (where text in ('a', 'b', 'c')) = 3 from messages",
    ),
    ("11-nul-bytes-line", 1, 0, &[], "select count(*) filter (where text in ('before', 'after')) = 2 from messages"),
    (
        "13-bom-and-crlf",
        2,
        0,
        &[],
        "select count(*) filter (where text = 'b' || chr(13) || chr(10) || 'b') = 1 from messages",
    ),
    (
        "14-one-response-many-rows-growing-usage",
        1,
        0,
        &[],
        "select count(*) filter (where usage_output_tokens = 300) = 1, sum(usage_output_tokens) = 300 from steps",
    ),
    ("16-out-of-order-timestamps", 1, 0, &[], "select bool_or(array_has(boundary_reasons, 'compaction')) from steps"),
    (
        "17-dangling-parent-and-rewind-branch",
        1,
        0,
        &[],
        "select bool_or(array_has(flags, 'dangling_parent')), bool_or(array_has(flags, 'abandoned')) from steps",
    ),
    (
        "19-reward-null-aborted",
        2,
        0,
        &[],
        "select count(*) filter (where status = 'aborted' and reward is null) = 1 from trajectories",
    ),
    ("20-mixed-reward-types", 0, 1, &["unrecognised", "rewards without trajectories"], ""),
    ("22-group-of-one", 0, 1, &["unrecognised", "rewards without trajectories"], ""),
    ("23-zero-trainable-tokens", 2, 0, &[], "select sum(n_trained_tokens) = 0 from trajectories"),
    ("24-mask-length-mismatch", 0, 2, &["mask_length_mismatch", "4 output token ids and a mask of 3"], ""),
    (
        "26-logprobs-off-by-one",
        1,
        2,
        &["2 output token ids and 3 log-probs", "3 output token ids and 2 log-probs"],
        "select not bool_or(trainable) from steps",
    ),
    (
        "27-logprobs-of-other-tokenisation",
        1,
        0,
        &[],
        "select logprobs is null and not trainable and array_has(flags, 'logprobs_dropped') from steps",
    ),
    (
        "28-prompt-ids-missing",
        3,
        0,
        &[],
        "select count(*) = 3, not bool_or(trainable), bool_and(array_has(flags, 'prompt_ids_missing')) from steps",
    ),
    (
        "30-prompt-not-extending-previous",
        1,
        0,
        &[],
        "select count(distinct segment_index) = 3, count(*) filter (where step_index = 2 and not boundary) = 1 from steps",
    ),
    (
        "31-reasoning-field-variants",
        7,
        0,
        &[],
        "select count(*) filter (where reasoning like '%think%') = 7 from messages",
    ),
    (
        "32-arguments-string-dict-broken",
        7,
        0,
        &[],
        "select count(*) filter (where tool_calls like '%lookup%') = 7 from messages",
    ),
    ("34-base64-image-repeated-in-compaction", 0, 1, &["unrecognised", "Codex"], ""),
    (
        "36-tools-change-mid-run",
        1,
        0,
        &[],
        "select bool_or(array_has(boundary_reasons, 'tools_changed')), count(distinct tools) = 2 from steps",
    ),
    ("37-duplicate-tool-call-ids", 0, 1, &["unrecognised", "ATIF"], ""),
    (
        "39-content-string-or-parts",
        5,
        0,
        &[],
        "select count(*) = 5, count(*) filter (where text is null) = 0 from messages",
    ),
    ("41-not-data-lfs-pointer", 0, 1, &["unrecognised", "Git LFS pointer"], ""),
    ("42-not-json-placeholder", 0, 1, &["unrecognised", "placeholder"], ""),
    ("43-json-document-named-jsonl", 0, 1, &["unrecognised", "Gemini"], ""),
    ("45-image-placeholder-expansion", 1, 0, &[], "select not bool_or(trainable) from steps"),
];

fn inputs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("ingest/tests/data/bug-inputs")
}

/// Reads one input and says what is not as expected.
fn check(file: &Path, new: i64, quarantined: i64, words: &[&str], query: &str) -> Result<()> {
    let read = Read::file(file)?;
    let counts = (read.count("trajectories_new")?, read.count("quarantined")?);
    ensure!(counts == (new, quarantined), "(new, quarantined) is {counts:?}, not {:?}", (new, quarantined));
    let reasons = if words.is_empty() { String::new() } else { read.reasons()? };
    for word in words {
        ensure!(reasons.contains(word), "the reasons do not say {word:?}: {reasons}");
    }
    if !query.is_empty() {
        let row = read.row(query)?;
        let all_true = row.as_object().is_some_and(|row| row.values().all(|value| *value == Value::Bool(true)));
        ensure!(all_true, "{query}\ngives {row}");
    }
    Ok(())
}

#[test]
fn every_reported_input_is_read_or_named() {
    let mut files: Vec<_> = std::fs::read_dir(inputs())
        .expect("the inputs")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension != "md"))
        .collect();
    files.sort();
    let mut wrong = Vec::new();
    for file in &files {
        let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let Some((_, new, quarantined, words, query)) = FILES.iter().find(|row| row.0 == stem) else {
            wrong.push(format!("{stem}: no expectation"));
            continue;
        };
        if let Err(error) = check(file, *new, *quarantined, words, query) {
            wrong.push(format!("{stem}: {error:#}"));
        }
    }
    assert_eq!(files.len(), FILES.len(), "one input for each expectation");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
