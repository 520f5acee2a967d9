//! Each file is recognised by its own importer and by no other as surely; what is no rollout by none.

use std::collections::BTreeMap;

use super::harness::{kept, kept_files, recognised};
use crate::importer::Confidence;
use crate::prepare::door;

/// Folders of formats that are read, and the files in them that are something else.
const READ: [(&str, &str, &[&str]); 5] = [
    (
        "data/nemo-gym",
        "nemo-gym",
        &["blackjack_materialized_inputs", "ether0_agent_metrics", "ether0_reward_profiling", "placeholder_invalid"],
    ),
    ("data/agent-lightning", "agent-lightning", &[]),
    ("data/claude-code", "claude-code", &["checkpoint_metadata"]),
    ("data/swe-agent", "swe-agent", &["all_preds", "llm_interactions"]),
    ("data/inspect", "inspect", &[]),
];

/// Folders of formats that have no importer yet, and of no rollouts at all.
const NOT_READ: [&str; 11] = [
    "data/atif",
    "data/codex",
    "data/gemini-cli",
    "data/mini-swe-agent",
    "data/openclaw",
    "data/opencode",
    "data/openhands",
    "data/tokenizers",
    "data/LICENSES",
    "data/verl",
    "data/openrlhf",
];

#[test]
fn every_kept_file_of_a_read_format_is_recognised_and_read() {
    for (folder, format, others) in READ {
        for name in kept_files(folder) {
            let Some(read) = kept(&name) else { return };
            if others.iter().any(|other| name.contains(other)) {
                assert_eq!(read.format, None, "{name} is no rollout");
                continue;
            }
            assert!(read.format.is_some_and(|f| f.starts_with(format)), "{name} was read as {:?}", read.format);
            let stripped = ["scout_events_nested_agents", "scout_events_parallel_tool_calls"];
            let has_no_content = stripped.iter().any(|file| name.contains(file));
            assert_eq!(read.rollouts.is_empty(), has_no_content, "{name}: {:?}", read.rejected);
        }
    }
}

#[test]
fn formats_without_an_importer_are_not_mistaken_for_one_that_has() {
    for folder in NOT_READ {
        for name in kept_files(folder) {
            let Some(read) = kept(&name) else { return };
            assert_eq!(read.format, None, "{name}");
        }
    }
}

#[test]
fn transcripts_of_other_agents_are_not_mistaken_for_claude_codes() {
    for name in kept_files("data/other-agents") {
        let Some(read) = kept(&name) else { return };
        // one of them writes plain chat messages
        assert_eq!(read.format, name.contains("hermes").then_some("chat"), "{name}");
    }
}

#[test]
fn prompt_sets_are_no_rollouts() {
    for name in kept_files("data/prompts") {
        let Some(read) = kept(&name) else { return };
        // this one is conversations to fine-tune on
        let expected = name.contains("azure_finetune").then_some("chat");
        assert_eq!(read.format, expected, "{name}");
    }
}

#[test]
fn what_importers_give_passes_the_door() {
    let mut passed = 0;
    for name in kept_files("data").into_iter().chain(kept_files("bug-inputs")) {
        let Some(read) = kept(&name) else { return };
        for mut rollout in read.rollouts {
            if let Err(refusal) = door::check(&mut rollout) {
                panic!("{name}, {}: {}", rollout.trajectory_id, refusal.reason);
            }
            assert_eq!(rollout.steps[0].boundary_reasons.first().map(String::as_str), Some("initial"), "{name}");
            passed += 1;
        }
    }
    assert!(passed == 0 || passed > 300, "{passed}");
}

#[test]
fn no_file_is_claimed_by_two_importers_alike() {
    let mut claims: BTreeMap<Confidence, usize> = BTreeMap::new();
    for name in kept_files("data").into_iter().chain(kept_files("bug-inputs")) {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared").join(&name);
        let found = recognised(&std::fs::read(path).unwrap());
        if let [(first, a), (second, b), ..] = found.as_slice() {
            assert!(a > b, "{name} is claimed by {} and {} alike", first.name(), second.name());
        }
        if let Some((_, confidence)) = found.first() {
            *claims.entry(*confidence).or_default() += 1;
        }
    }
    assert!(claims.is_empty() || claims.get(&Confidence::Certain).is_some_and(|count| *count > 20), "{claims:?}");
}
