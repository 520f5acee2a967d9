//! The facts of the real token corpora: calls, tokens, and whether each prompt extends the one before.

use dressage_schemas::words::{Status, boundary, flag};
use dressage_tokenizer::Tokenizer;

use super::harness::{Read, kept, shipped};
use crate::rollout::{Rollout, RolloutStep};

fn generated(read: &Read) -> usize {
    read.rollouts.iter().flat_map(|rollout| &rollout.steps).map(|step| step.n_output_tokens).sum()
}

/// Ids of a segment up to and including a step.
fn segment(rollout: &Rollout, index: usize) -> Vec<i32> {
    let mut ids = Vec::new();
    let lineage = rollout.steps[index].lineage_index;
    for step in rollout.steps.iter().take(index + 1).filter(|step| step.lineage_index == lineage) {
        if step.boundary {
            ids.clear();
        }
        ids.extend(step.token_ids.iter().flat_map(|ids| ids.iter()));
    }
    ids
}

/// Prompt tokens of all calls, as if each had been stored whole.
fn prompted(read: &Read) -> usize {
    let of = |rollout: &Rollout| -> usize {
        (0..rollout.steps.len()).map(|index| segment(rollout, index).len() - rollout.steps[index].n_output_tokens).sum()
    };
    read.rollouts.iter().map(of).sum()
}

fn calls(read: &Read) -> usize {
    read.rollouts.iter().flat_map(|rollout| &rollout.steps).filter(|step| step.token_ids.is_some()).count()
}

fn extending(read: &Read) -> usize {
    read.rollouts.iter().flat_map(|rollout| &rollout.steps).filter(|step| !step.boundary).count()
}

fn check(read: &Read, rollouts: usize, n_calls: usize, output: usize, prompt: usize, extend: usize) {
    assert!(read.rejected.is_empty(), "{:?}", read.rejected);
    assert_eq!(read.rollouts.len(), rollouts);
    assert_eq!(calls(read), n_calls);
    assert_eq!(generated(read), output);
    assert_eq!(prompted(read), prompt);
    assert_eq!(extending(read), extend);
    for step in read.rollouts.iter().flat_map(|rollout| &rollout.steps) {
        let Some(ids) = &step.token_ids else { continue };
        assert_eq!(step.mask.n_tokens(), ids.len());
        assert_eq!(step.mask.n_trained(), step.n_output_tokens);
        assert!(step.logprobs.as_ref().is_none_or(|logprobs| logprobs.len() == ids.len()));
    }
}

#[test]
fn blackjack_has_six_calls_and_one_of_one_extends() {
    let read = shipped("nemo-gym/tokens_blackjack.jsonl");
    check(&read, 5, 6, 48, 321, 1);
    assert!(read.rewards().iter().all(|reward| matches!(reward, Some(1.0 | -1.0))));
}

#[test]
fn tictactoe_has_nine_calls_a_game_and_40_of_40_extend() {
    check(&shipped("nemo-gym/tokens_tictactoe.jsonl"), 5, 45, 450, 12_330, 40);
}

#[test]
fn no_call_of_the_workplace_assistant_extends_the_one_before() {
    let read = shipped("nemo-gym/tokens_workplace_assistant.jsonl");
    check(&read, 5, 33, 2_674, 144_244, 0);
    let steps = || read.rollouts.iter().flat_map(|rollout| &rollout.steps);
    let broken = steps().filter(|step| step.boundary_reasons == [boundary::TOKEN_PREFIX_MISMATCH]).count();
    assert_eq!(broken, 28, "the messages go on, the ids do not");
    assert!(steps().all(|step| step.lineage_index == 0));
    assert!(steps().all(|step| step.tools.as_ref().is_some_and(|tools| {
        let tools: serde_json::Value = serde_json::from_str(tools.body.as_deref().unwrap()).unwrap();
        tools.as_array().unwrap().len() == 27
    })));
}

#[test]
fn the_same_task_twice_in_one_file_is_two_trajectories_of_one_instance() {
    let read = shipped("nemo-gym/tokens_workplace_assistant.jsonl");
    let of_task_0: Vec<&Rollout> =
        read.rollouts.iter().filter(|r| r.instance_id.as_deref() == Some("workplace_assistant_env_agent/0")).collect();
    assert_eq!(of_task_0.len(), 2);
    assert_ne!(of_task_0[0].trajectory_id, of_task_0[1].trajectory_id);
}

#[test]
fn rollouts_that_generated_nothing_are_kept_as_failed() {
    let read = shipped("nemo-gym/tokens_verifiers_reverse_text.jsonl");
    check(&read, 10, 5, 1_598, 261, 0);
    let failed = read.rollouts.iter().filter(|rollout| rollout.status == Status::Failed);
    assert_eq!(failed.map(|rollout| rollout.steps.len()).collect::<Vec<_>>(), [1; 5]);
}

#[test]
fn a_string_as_input_is_a_users_message_and_thoughts_belong_to_their_call() {
    let Some(read) = kept("data/nemo-gym/tokens_competitive_coding.jsonl") else { return };
    check(&read, 5, 5, 5_023, 545, 0);
    for rollout in &read.rollouts {
        let [prompt, reply] = rollout.steps[0].messages.as_slice() else { panic!("two messages") };
        assert_eq!(prompt.role.as_deref(), Some("user"));
        assert!(reply.reasoning.is_some() && reply.text.is_some());
    }
}

#[test]
fn empty_and_sentinel_ids_mean_no_token_data() {
    for name in ["hermes_math_empty_ids", "sentinel_tau2_synth", "sentinel_automationbench"] {
        let Some(read) = kept(&format!("data/nemo-gym/{name}.jsonl")) else { return };
        assert_eq!((read.rollouts.len(), calls(&read)), (5, 0), "{name}");
        let bodies = |step: &RolloutStep| step.messages.iter().filter_map(|m| m.body.clone()).collect::<String>();
        let said = read.rollouts.iter().flat_map(|r| &r.steps).any(|step| bodies(step).contains("msg_empty"));
        assert!(!said, "{name}: the sentinel is no reply");
    }
}

#[test]
fn other_rollouts_of_the_gym_are_read_whole() {
    for (name, steps) in
        [("tokens_reasoning_gym", 5), ("osworld", 35), ("codex_math", 37), ("anyswe_claude_code", 21), ("tau2", 14)]
    {
        let Some(read) = kept(&format!("data/nemo-gym/{name}.jsonl")) else { return };
        assert!(read.rejected.is_empty());
        assert_eq!((read.rollouts.len(), read.steps()), (5, steps), "{name}");
        assert!(read.rewards().iter().all(Option::is_some), "{name}");
    }
}

#[test]
fn an_archive_has_the_servers_ids_and_the_last_reward() {
    let read = shipped("agent-lightning/vllm_archive_nonstream.jsonl");
    check(&read, 5, 5, 1_674, 479, 0);
    assert_eq!(read.rewards(), [0.0, 1.0, 0.0, 0.0, 1.0].map(Some));
    for rollout in &read.rollouts {
        assert_eq!(rollout.steps[0].weight_version.as_deref(), Some("1"));
        assert_eq!(rollout.steps[0].finish_reason.as_deref(), Some("stop"));
        assert_eq!(rollout.model.as_deref(), Some("Qwen/Qwen2.5-1.5B-Instruct"));
    }
}

#[test]
fn streamed_chunks_are_put_together() {
    let read = shipped("agent-lightning/vllm_archive_stream_chunks.jsonl");
    // every chunk but the first of each stream brings one id
    let chunks = [294, 201, 368, 257, 352];
    let generated: Vec<usize> = read.rollouts.iter().map(|rollout| rollout.steps[0].n_output_tokens).collect();
    assert_eq!(generated, chunks.map(|count| count - 1));
    assert_eq!(read.rewards(), [1.0, 1.0, 0.0, 1.0, 0.0].map(Some));
    let reply = read.rollouts[0].steps[0].messages[2].text.as_deref().unwrap();
    assert!(reply.starts_with("To determine how much Janet makes"), "{reply}");
}

#[test]
fn every_generated_id_decodes_to_what_the_reply_says() {
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/tokenizers/qwen3.tokenizer.json.zst");
    let tokenizer = Tokenizer::load(path).unwrap();
    let mut compared = 0;
    for name in ["tokens_blackjack", "tokens_tictactoe", "tokens_verifiers_reverse_text"] {
        let read = shipped(&format!("nemo-gym/{name}.jsonl"));
        for step in read.rollouts.iter().flat_map(|rollout| &rollout.steps) {
            let Some(ids) = &step.token_ids else { continue };
            let output = tokenizer.decode(&ids[ids.len() - step.n_output_tokens..]).unwrap();
            let reply = step.messages.last().and_then(|message| message.text.as_deref()).unwrap();
            assert_eq!(output.trim_end_matches("<|im_end|>").trim(), reply.trim(), "{name}");
            compared += 1;
        }
    }
    assert_eq!(compared, 56);
}

#[test]
fn flat_rows_of_tokens_are_read_or_refused_with_both_lengths() {
    let Some(read) = kept("bug-inputs/26-logprobs-off-by-one.jsonl") else { return };
    assert_eq!(read.rejected.len(), 2);
    assert!(read.rejected[0].reason.contains('2') && read.rejected[0].reason.contains('3'));
    // shifted, with a null in front: as long as the ids, so it is kept, and not a number where it was null
    assert!(read.one().steps[0].logprobs.as_ref().unwrap()[2].is_nan());

    let Some(read) = kept("bug-inputs/24-mask-length-mismatch.jsonl") else { return };
    // the second is as long as prompt and output together by chance: it would train on the prompt
    assert_eq!(read.rejected.len(), 2);
    assert!(read.rejected.iter().all(|rejected| rejected.rule == crate::rule::MASK_LENGTH_MISMATCH));

    let Some(read) = kept("bug-inputs/27-logprobs-of-other-tokenisation.jsonl") else { return };
    let step = &read.one().steps[0];
    assert!(step.logprobs.is_none() && !step.trainable);
    assert!(step.flags.contains(&flag::LOGPROBS_DROPPED) && step.flags.contains(&flag::RETOKENISED));
}

#[test]
fn calls_of_one_session_in_rows_of_their_own_are_one_trajectory() {
    let Some(read) = kept("bug-inputs/30-prompt-not-extending-previous.jsonl") else { return };
    let rollout = read.one();
    assert_eq!(rollout.steps.iter().map(|step| step.lineage_index).collect::<Vec<_>>(), [0, 1, 1, 2]);
    assert!(!rollout.steps[2].boundary, "turn 3 joins turn 2");

    let Some(read) = kept("bug-inputs/36-tools-change-mid-run.jsonl") else { return };
    let rollout = read.one();
    assert_eq!(rollout.steps[1].boundary_reasons, [boundary::TOOLS_CHANGED]);
    assert!(rollout.steps[2].tools.is_none());
}

#[test]
fn an_aborted_sample_has_no_reward() {
    let Some(read) = kept("bug-inputs/19-reward-null-aborted.jsonl") else { return };
    assert_eq!(read.rewards(), [Some(1.0), None]);
    assert_eq!(read.rollouts[1].status, Status::Aborted);
    assert!(read.rollouts[1].rewards.is_empty());
}
