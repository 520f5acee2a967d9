//! Inspect logs, SWE-agent documents and chat rows.

use dressage_schemas::words::{Status, boundary, flag};

use super::harness::{kept, shipped};

#[test]
fn each_sample_in_each_epoch_is_a_trajectory() {
    let read = shipped("inspect/2025-02-11T15-17-00-05-00_popularity_dPiJifoWeEQBrfWsAopzWr.eval");
    assert_eq!((read.rollouts.len(), read.steps()), (10, 10));
    assert!(read.rewards().iter().all(Option::is_none), "this run was not scored");
    let sample = read.rollouts.iter().find(|r| r.instance_id.as_deref() == Some("popularity/5")).unwrap();
    assert_eq!(sample.trajectory_id, "dPiJifoWeEQBrfWsAopzWr/5/1");
    assert_eq!(sample.model.as_deref(), Some("openai/gpt-4o-mini"));
    let step = &sample.steps[0];
    assert_eq!((step.usage_input_tokens, step.usage_output_tokens), (Some(63), Some(2)));
    // the attachment's text stands where the event refers to it
    assert!(step.messages[0].text.as_deref().unwrap().starts_with("\nPlease note"));

    let Some(read) = kept("data/inspect/log_streaming.eval") else { return };
    let mut epochs: Vec<_> =
        read.rollouts.iter().map(|r| (r.instance_id.clone().unwrap(), r.labels["epoch"].as_i64().unwrap())).collect();
    epochs.sort();
    assert_eq!(epochs, [("1", 1), ("1", 2), ("2", 1), ("2", 2)].map(|(id, epoch)| (format!("popularity/{id}"), epoch)));
}

#[test]
fn letters_of_a_scorer_are_rewards() {
    let Some(read) = kept("data/inspect/scout_popularity_2025-09-23.eval") else { return };
    assert_eq!(read.rollouts.len(), 100);
    let correct: f64 = read.rewards().into_iter().flatten().sum();
    assert_eq!(correct, 63.0, "the log's own accuracy is 0.63");
    assert!(read.rollouts.iter().all(|r| r.rewards[0].grader.as_deref() == Some("match")));
}

#[test]
fn both_file_forms_of_one_log_give_one_trajectory() {
    let (Some(zip), Some(json)) = (kept("data/inspect/log_formats.eval"), kept("data/inspect/log_formats.json")) else {
        return;
    };
    assert_eq!(zip.one().trajectory_id, json.one().trajectory_id);
    assert_eq!(zip.one().steps[0].messages, json.one().steps[0].messages);
    assert_eq!(zip.rewards(), json.rewards());
}

#[test]
fn a_compaction_event_is_a_boundary_even_between_equal_prompts() {
    let Some(read) = kept("data/inspect/scout_events_compaction_boundary.json") else { return };
    let steps = &read.one().steps;
    let compacted: Vec<_> =
        steps.iter().filter(|step| step.boundary_reasons.iter().any(|r| r == boundary::COMPACTION)).collect();
    assert_eq!(compacted.len(), 1);
    assert_eq!(steps.iter().map(|step| step.lineage_index).max(), Some(1));
}

#[test]
fn a_log_without_model_events_is_read_from_its_messages() {
    let read = shipped("inspect/log_tool_call_error.json");
    assert_eq!(read.steps(), 1);
    assert_eq!(read.one().steps[0].messages.len(), 11);
}

#[test]
fn steps_of_a_trajectory_are_the_agents_replies() {
    let read = shipped("swe-agent/claude35_astropy-7166.traj");
    let steps = &read.one().steps;
    assert_eq!(steps.iter().filter(|step| step.messages.len() > step.n_context_messages).count(), 12);
    assert_eq!(steps.iter().filter(|step| step.boundary).count(), 1);
    // replies of the demonstration are context of the first step
    let shown = steps[0].messages[..steps[0].n_context_messages].iter();
    assert!(shown.filter(|message| message.role.as_deref() == Some("assistant")).count() > 5);
    assert_eq!(read.one().labels["exit_status"], "submitted");

    let read = shipped("swe-agent/gpt4_function_calling_test-repo.traj");
    let rollout = read.one();
    assert_eq!(rollout.instance_id.as_deref(), Some("SWE-agent__test-repo-i1"));
    assert_eq!(rollout.model.as_deref(), Some("gpt-4o"));
    assert_eq!(rollout.status, Status::Completed);
    // the history ends before the last step: its reply and observation are in the trajectory only
    assert_eq!(rollout.steps.len(), 6);
    let [reply] = &rollout.steps[4].messages[rollout.steps[4].n_context_messages..] else { panic!("a reply") };
    assert!(reply.text.as_deref().unwrap().starts_with("The script `missing_colon.py`"));
    let last = rollout.steps.last().unwrap();
    assert!(last.messages[0].text.as_deref().unwrap().contains("diff --git"));
    assert!(rollout.steps.iter().all(|step| !step.flags.contains(&flag::TOOL_CALL_UNANSWERED)));
}

#[test]
fn elided_observations_start_segments() {
    let Some(read) = kept("data/swe-agent/demo_marshmallow-1867_fc_replace_from_source.traj") else { return };
    let steps = &read.one().steps;
    assert_eq!(steps.len(), 14, "13 calls and the last observation");
    let rewritten = steps.iter().filter(|s| s.boundary_reasons.iter().any(|r| r == boundary::HISTORY_REWRITE)).count();
    assert_eq!(rewritten, 8, "only the last five observations are sent");
}

#[test]
fn a_demonstration_that_has_only_history_is_read() {
    let Some(read) = kept("data/swe-agent/demo_function_calling_simple.traj") else { return };
    let steps = &read.one().steps;
    assert_eq!(steps.iter().filter(|step| step.messages.len() > step.n_context_messages).count(), 5);
    assert!(steps.iter().all(|step| step.flags.is_empty()));
}

#[test]
fn a_renamed_copy_is_the_same_trajectory() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data");
    for (importer, file) in [
        ("swe-agent", "swe-agent/claude35_astropy-7166.traj"),
        ("nemo-gym", "nemo-gym/tokens_blackjack.jsonl"),
        ("inspect", "inspect/scout_websearch_2025-11-07.eval"),
        ("claude-code", "claude-code/compaction_small.jsonl"),
        ("agent-lightning", "agent-lightning/vllm_archive_nonstream.jsonl"),
    ] {
        let importer = crate::importers::by_name(importer).unwrap();
        let bytes = std::fs::read(path.join(file)).unwrap();
        let ids = |name: &str| {
            let read = super::harness::read_with(importer, name, &bytes);
            read.rollouts.into_iter().map(|r| (r.trajectory_id, r.instance_id, r.labels)).collect::<Vec<_>>()
        };
        assert_eq!(ids("a.jsonl"), ids("other-name.json"));
    }
}

#[test]
fn chat_rows_are_read_in_every_shape() {
    for (name, rollouts, steps) in [
        ("03-empty-assistant-message", 1, 4),
        ("04-tool-message-without-tool_call_id", 1, 2),
        ("06-tool-call-without-result", 1, 2),
        ("07-lone-surrogate", 2, 2),
        ("13-bom-and-crlf", 2, 2),
        ("31-reasoning-field-variants", 7, 7),
        ("32-arguments-string-dict-broken", 7, 7),
        ("35-huge-single-line", 1, 2),
        ("39-content-string-or-parts", 5, 5),
    ] {
        let Some(read) = kept(&format!("bug-inputs/{name}.jsonl")) else { return };
        assert_eq!((read.rollouts.len(), read.steps()), (rollouts, steps), "{name}");
        assert!(read.rejected.is_empty(), "{name}: {:?}", read.rejected);
    }
    let Some(read) = kept("bug-inputs/04-tool-message-without-tool_call_id.jsonl") else { return };
    assert_eq!(read.one().steps[1].flags, [flag::TOOL_CALL_ID_INFERRED]);
    let Some(read) = kept("bug-inputs/07-lone-surrogate.jsonl") else { return };
    assert_eq!(read.rollouts[0].flags, [flag::LONE_SURROGATE]);
    assert!(read.rollouts[0].extra["raw"].as_str().unwrap().contains("\\ud83c..."), "the record as it came");
    assert!(read.rollouts[1].flags.is_empty());
    let Some(read) = kept("bug-inputs/39-content-string-or-parts.jsonl") else { return };
    // the image became a row of its own, named in the message
    assert_eq!(read.rollouts[1].data.len(), 1);
    assert!(read.rollouts[1].steps[0].messages[0].body.as_deref().unwrap().contains("$content"));
}

#[test]
fn prompt_and_completion_rows_are_grouped_by_their_prompt() {
    let Some(read) = kept("data/verifiers/math_python_gpt-5-nano.jsonl") else { return };
    let instances: std::collections::BTreeSet<_> = read.rollouts.iter().map(|r| r.instance_id.clone()).collect();
    assert_eq!((read.rollouts.len(), instances.len()), (15, 5), "three attempts at each of five problems");
    let Some(read) = kept("data/verifiers/gsm8k_empty_completions.jsonl") else { return };
    assert!(read.rollouts.iter().all(|r| r.status == Status::Failed && r.rewards[0].value == Some(0.0)));
}
