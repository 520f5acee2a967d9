//! Transcripts: folding, links, compaction, rewinds, sub-agents, longer copies.

use dressage_schemas::words::{Route, boundary, flag};

use super::harness::{kept, shipped};
use crate::rollout::RolloutStep;

fn texts(step: &RolloutStep) -> Vec<String> {
    step.messages.iter().map(|message| format!("{message:?}")).collect()
}

#[test]
fn rows_of_one_response_are_one_step() {
    // so many different message ids are in the files
    for (name, responses) in [
        ("checkpoint_1_of_3", 14),
        ("checkpoint_2_of_3", 26),
        ("checkpoint_3_of_3", 37),
        ("glued_lines", 42),
        ("erk_59bd23f4", 3),
        ("erk_a5c478e1", 75),
        ("forked_two_session_ids", 56),
        ("kv_rejection", 6),
    ] {
        let Some(read) = kept(&format!("data/claude-code/{name}.jsonl")) else { return };
        let steps = &read.one().steps;
        assert_eq!(steps.iter().filter(|s| s.messages.len() > s.n_context_messages).count(), responses, "{name}");
        assert!(steps.iter().all(|step| step.token_ids.is_none()));
    }
}

#[test]
fn growing_usage_is_counted_once_and_parallel_results_are_all_there() {
    let Some(read) = kept("bug-inputs/14-one-response-many-rows-growing-usage.jsonl") else { return };
    let step = &read.one().steps[0];
    assert_eq!((step.usage_input_tokens, step.usage_output_tokens), (Some(10), Some(300)));
    let reply = &step.messages[1];
    assert_eq!(reply.reasoning.as_deref(), Some("…"));
    assert_eq!(reply.text.as_deref(), Some("I will run it."));
    assert!(reply.tool_calls.as_deref().is_some_and(|calls| calls.contains("c1") && calls.contains("c2")));
    let answered: Vec<_> = read.one().steps[1].messages.iter().filter_map(|m| m.tool_call_id.as_deref()).collect();
    assert_eq!(answered.len(), 2);
    assert!(step.flags.is_empty(), "both calls are answered");
}

#[test]
fn a_longer_copy_begins_with_the_steps_of_the_shorter_one() {
    let copies: Option<Vec<_>> =
        (1..=3).map(|n| kept(&format!("data/claude-code/checkpoint_{n}_of_3.jsonl"))).collect();
    let Some(copies) = copies else { return };
    for pair in copies.windows(2) {
        let (short, long) = (pair[0].one(), pair[1].one());
        assert_eq!(short.trajectory_id, long.trajectory_id);
        assert!(short.extent < long.extent);
        for (a, b) in short.steps.iter().zip(&long.steps) {
            assert_eq!(texts(a), texts(b));
            assert_eq!((a.route, a.base_step), (b.route, b.base_step));
        }
    }
}

#[test]
fn a_compaction_starts_a_segment_whose_context_is_the_summary() {
    let read = shipped("claude-code/compaction_small.jsonl");
    let rollout = read.one();
    let compacted: Vec<&RolloutStep> =
        rollout.steps.iter().filter(|step| step.boundary_reasons.iter().any(|r| r == boundary::COMPACTION)).collect();
    let [step] = compacted.as_slice() else { panic!("one compaction") };
    assert_eq!(step.route, Route::Create);
    assert!(step.messages[0].text.as_deref().unwrap().starts_with("This session is being continued"));
    assert_eq!(rollout.steps.iter().filter(|step| step.boundary).count(), 2);
    // what the client said in the model's place is kept, and is no step
    assert!(rollout.extra.contains_key("client_messages"));
}

#[test]
fn links_decide_and_not_times() {
    let Some(read) = kept("bug-inputs/16-out-of-order-timestamps.jsonl") else { return };
    let last = read.one().steps.iter().find(|step| step.messages.len() > step.n_context_messages).unwrap();
    assert!(last.boundary_reasons.iter().any(|reason| reason == boundary::COMPACTION));
    assert_eq!(last.messages.len(), 2);
}

#[test]
fn an_abandoned_branch_is_kept_and_not_trained_on() {
    let Some(read) = kept("bug-inputs/17-dangling-parent-and-rewind-branch.jsonl") else { return };
    let steps = &read.one().steps;
    assert_eq!(steps[0].flags, [flag::ABANDONED]);
    assert!(!steps[0].trainable);
    assert!(steps[1].trainable && steps[1].flags == [flag::DANGLING_PARENT]);
    assert!(steps[1].boundary_reasons.iter().any(|reason| reason == boundary::REWIND));
    let said: Vec<_> = steps[1].messages.iter().map(|m| m.text.as_deref().unwrap()).collect();
    assert_eq!(said, ["a", "rewound: try again", "right"]);
}

#[test]
fn a_sub_agents_file_is_a_child_of_its_session() {
    let parent = shipped("claude-code/scout_agent_session.jsonl");
    let child = shipped("claude-code/scout_agent-atest01.jsonl");
    assert_eq!(child.one().parent_trajectory_id.as_deref(), Some(parent.one().trajectory_id.as_str()));
    assert_ne!(child.one().trajectory_id, parent.one().trajectory_id);
    assert_eq!(child.one().steps[0].boundary_reasons, [boundary::INITIAL]);
}

#[test]
fn glued_cut_and_nul_rows_do_not_end_the_file() {
    let Some(read) = kept("bug-inputs/10-glued-objects.jsonl") else { return };
    let said: usize = read.one().steps.iter().map(|step| step.messages.len()).sum();
    assert_eq!((said, read.rejected.len()), (3, 1));
    let Some(read) = kept("bug-inputs/11-nul-bytes-line.jsonl") else { return };
    assert_eq!(read.one().steps[0].messages.len(), 2);
    let Some(read) = kept("data/claude-code/glued_lines.jsonl") else { return };
    assert!(read.rejected.is_empty());
}

#[test]
fn a_fork_is_the_session_that_it_became() {
    let Some(read) = kept("data/claude-code/forked_two_session_ids.jsonl") else { return };
    let rollout = read.one();
    assert!(rollout.trajectory_id.starts_with("4931d4"));
    assert!(rollout.labels["forked_from"].as_str().unwrap().starts_with("2a8af1"));
}

#[test]
fn rows_that_are_no_rows_are_rejected_one_by_one() {
    let Some(read) = kept("data/claude-code/log-tool_edge_cases.jsonl") else { return };
    assert_eq!(read.rejected.len(), 4, "text, a number, a list, and an object without a type");
    assert!(!read.rollouts.is_empty());
}
