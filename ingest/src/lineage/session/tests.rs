//! Whole sessions: what is appended, where segments begin, and that no message or token is lost or doubled.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::message_form::chat_message;

fn message(role: &str, text: &str) -> Arc<Message> {
    Arc::new(Message::plain(role, text))
}

fn reply(text: &str) -> ModelCall {
    ModelCall { reply: Some(Message::plain("assistant", text)), ..ModelCall::default() }
}

fn sampled(text: &str, prompt_ids: &[i32], ids: &[i32]) -> ModelCall {
    let output = CallOutput { ids: ids.to_vec(), logprobs: Some(vec![-0.5; ids.len()]), experts: None };
    ModelCall { prompt_ids: prompt_ids.to_vec(), output: Some(output), ..reply(text) }
}

/// One id a character: the char-level tokenizer of the reference's worked example.
fn ids(text: &str) -> Vec<i32> {
    text.chars().map(|c| c as i32).collect()
}

#[test]
fn two_requests_of_one_lineage_make_one_segment_with_the_mask_on_the_two_answers() {
    // semantics 3.11
    let (user, hello, again) = (message("user", "hi"), message("assistant", "hello"), message("user", "again"));
    let mut session = SessionBuilder::default();
    session.call(std::slice::from_ref(&user), sampled("hello", &ids("<user>hi<assistant>"), &ids("hello"))).unwrap();
    let second = ids("<user>hi<assistant>hello<user>again<assistant>");
    session.call(&[user, hello, again], sampled("follow", &second, &ids("follow"))).unwrap();
    let (steps, _) = session.finish();

    let tokens: Vec<i32> = steps.iter().flat_map(|s| s.token_ids.clone().unwrap().to_vec()).collect();
    assert_eq!(tokens, ids("<user>hi<assistant>hello<user>again<assistant>follow"));
    let trained: Vec<i32> = steps
        .iter()
        .flat_map(|s| s.token_ids.clone().unwrap().to_vec().into_iter().zip(s.mask.iter().collect::<Vec<_>>()))
        .filter_map(|(id, trained)| trained.then_some(id))
        .collect();
    assert_eq!(trained, ids("hellofollow"));
    assert_eq!(steps.iter().filter(|s| s.boundary).count(), 1, "one segment");
    let context: usize = steps.iter().map(|s| s.mask.n_tokens() - s.n_output_tokens).sum();
    assert_eq!(context, "<user>hi<assistant>".len() + "<user>again<assistant>".len());
    assert_eq!(steps.iter().map(|s| s.n_output_tokens).collect::<Vec<_>>(), [5, 6]);
    assert_eq!(steps[1].messages.len(), 2, "the second step holds only what it appended");
    assert_eq!(steps[1].logprobs.clone().unwrap()[0].to_bits(), 0.0_f32.to_bits());
}

#[test]
fn a_branch_holds_the_shared_prefix_with_mask_0() {
    let root = message("user", "root");
    let first = message("assistant", "reply1");
    let mut session = SessionBuilder::default();
    session.call(std::slice::from_ref(&root), sampled("reply1", &[1], &[2, 3])).unwrap();
    session.call(&[root.clone(), first.clone(), message("user", "append")], sampled("x", &[1, 2, 3, 4], &[5])).unwrap();
    session.call(&[root, first, message("user", "branch")], sampled("y", &[1, 2, 3, 6], &[7])).unwrap();
    let (steps, _) = session.finish();
    assert_eq!((steps[2].route, steps[2].base_step), (Route::Branch, Some(0)));
    assert_eq!(steps[2].token_ids.clone().unwrap().to_vec(), [1, 2, 3, 6, 7]);
    assert_eq!(steps[2].mask.as_slice(), [4, 1]);
    assert_eq!(steps[2].messages.len(), 4);
    assert_eq!(steps[2].n_context_messages, 3);
}

#[test]
fn log_probs_of_another_length_are_refused_with_both_lengths() {
    let mut call = sampled("x", &[1, 2], &[3, 4]);
    call.output.as_mut().unwrap().logprobs = Some(vec![-0.1; 3]);
    let Err(RecordError::Refused { rule, reason, .. }) = SessionBuilder::default().call(&[], call) else {
        panic!("accepted")
    };
    assert_eq!(rule, rule::LOGPROBS_LENGTH_MISMATCH);
    assert!(reason.contains('2') && reason.contains('3'), "{reason}");
}

#[test]
fn output_ids_without_prompt_ids_are_kept_and_not_trained_on() {
    let mut session = SessionBuilder::default();
    session.call(&[message("user", "q")], sampled("4", &[], &[19, 151_645])).unwrap();
    let (steps, _) = session.finish();
    assert_eq!(steps[0].flags, [flag::PROMPT_IDS_MISSING]);
    assert!(!steps[0].trainable);
    assert_eq!(steps[0].token_ids.clone().unwrap().to_vec(), [19, 151_645]);
}

#[test]
fn versions_name_the_weights_on_output_only() {
    let mut session = SessionBuilder::default();
    let call = ModelCall { weight_version: Some("7".into()), ..sampled("x", &[1, 2], &[3]) };
    session.call(&[], call).unwrap();
    let (steps, _) = session.finish();
    assert_eq!(steps[0].versions.clone().unwrap().0, [("-1".to_owned(), 2), ("7".to_owned(), 1)]);
}

fn calling(ids: &[&str]) -> ModelCall {
    let calls: Vec<Value> =
        ids.iter().map(|id| json!({"id": id, "function": {"name": "f", "arguments": "{}"}})).collect();
    ModelCall {
        reply: Some(chat_message(json!({"role": "assistant", "content": "", "tool_calls": calls}))),
        ..ModelCall::default()
    }
}

#[test]
fn results_without_an_id_are_paired_by_order_and_open_calls_are_flagged() {
    let question = message("user", "q");
    let mut session = SessionBuilder::default();
    let call = calling(&["c1", "c2"]);
    let said = Arc::new(call.reply.clone().unwrap());
    session.call(std::slice::from_ref(&question), call).unwrap();
    let result = Arc::new(chat_message(json!({"role": "tool", "content": "r"})));
    session.call(&[question, said, result], reply("done")).unwrap();
    let (steps, _) = session.finish();
    assert_eq!(steps[1].messages[0].tool_call_id.as_deref(), Some("c1"));
    assert_eq!(steps[1].flags, [flag::TOOL_CALL_ID_INFERRED]);
    assert_eq!(steps[0].flags, [flag::TOOL_CALL_UNANSWERED], "c2 has no result");
}

#[test]
fn a_result_in_a_rewritten_history_answers_the_call() {
    let (question, summary) = (message("user", "q"), message("user", "q, shortened"));
    let mut session = SessionBuilder::default();
    let call = calling(&["c1"]);
    let said = Arc::new(call.reply.clone().unwrap());
    session.call(&[question], call).unwrap();
    let result = Arc::new(chat_message(json!({"role": "tool", "content": "r", "tool_call_id": "c1"})));
    session.call(&[summary, said, result], reply("done")).unwrap();
    let (steps, _) = session.finish();
    assert_eq!(steps[1].route, Route::Create);
    assert!(steps[0].flags.is_empty(), "{:?}", steps[0].flags);
}

#[test]
fn the_same_call_id_twice_is_paired_by_order() {
    let question = message("user", "q");
    let mut session = SessionBuilder::default();
    let call = calling(&["call_0", "call_0"]);
    let said = Arc::new(call.reply.clone().unwrap());
    session.call(std::slice::from_ref(&question), call).unwrap();
    let result =
        |text: &str| Arc::new(chat_message(json!({"role": "tool", "content": text, "tool_call_id": "call_0"})));
    session.call(&[question, said, result("1"), result("2")], reply("done")).unwrap();
    let (steps, _) = session.finish();
    assert_eq!(steps[0].flags, [flag::TOOL_CALL_ID_DUPLICATE], "and not unanswered");
}

#[test]
fn an_image_in_two_messages_is_one_row() {
    let url = format!("data:image/png;base64,{}", "A".repeat(400));
    let image = |text: &str| {
        Arc::new(chat_message(json!({"role": "user", "content": [
            {"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]})))
    };
    let mut session = SessionBuilder::default();
    session.call(&[image("one")], reply("a")).unwrap();
    session.call(&[image("two")], reply("b")).unwrap();
    assert_eq!(session.finish().1.len(), 1);
}

/// A conversation of made-up calls: each goes on from an earlier one (or from nothing), possibly after losing some of
/// its ids, and generates ids that no other call generates.
#[derive(Debug, Clone)]
struct MadeUp {
    from: usize,
    lose: usize,
    context: usize,
    output: usize,
}

fn made_up() -> impl Strategy<Value = Vec<MadeUp>> {
    let call = (0_usize..6, 0_usize..8, 0_usize..4, 0_usize..4).prop_map(|(from, lose, context, output)| MadeUp {
        from,
        // mostly nothing is lost
        lose: lose.saturating_sub(5),
        context,
        output,
    });
    proptest::collection::vec(call, 1..25)
}

/// The whole prompt and output of every call, with ids counted up so that each generated id is unique.
fn conversations(calls: &[MadeUp]) -> Vec<(Vec<i32>, Vec<i32>)> {
    let mut next = 0_i32;
    let mut fresh = |n: usize| {
        (0..n)
            .map(|_| {
                next += 1;
                next
            })
            .collect::<Vec<i32>>()
    };
    let mut made: Vec<(Vec<i32>, Vec<i32>)> = Vec::new();
    for call in calls {
        let mut prompt = match made.len().checked_sub(call.from + 1).and_then(|i| made.get(i)) {
            Some((prompt, output)) => [prompt.as_slice(), output].concat(),
            None => fresh(1),
        };
        prompt.truncate(prompt.len().saturating_sub(call.lose).max(1));
        prompt.extend(fresh(call.context));
        let output = fresh(call.output);
        made.push((prompt, output));
    }
    made
}

fn build(made: &[(Vec<i32>, Vec<i32>)]) -> Vec<RolloutStep> {
    let mut session = SessionBuilder::default();
    for (prompt, output) in made {
        session.call(&[], sampled("x", prompt, output)).unwrap();
    }
    session.finish().0
}

proptest! {
    #[test]
    fn a_segments_steps_give_back_every_calls_prompt_and_output(calls in made_up()) {
        let made = conversations(&calls);
        let steps = build(&made);
        prop_assert_eq!(steps.len(), made.len());
        for (index, (prompt, output)) in made.iter().enumerate() {
            // from the last boundary of the step's lineage up to the step
            let mut segment: Vec<i32> = Vec::new();
            for step in steps.iter().take(index + 1).filter(|s| s.lineage_index == steps[index].lineage_index) {
                if step.boundary {
                    segment.clear();
                }
                segment.extend(step.token_ids.clone().unwrap().iter());
            }
            prop_assert_eq!(segment, [prompt.as_slice(), output].concat());
        }
    }

    #[test]
    fn each_generated_token_is_trained_on_exactly_once(calls in made_up()) {
        let made = conversations(&calls);
        let mut trained: Vec<i32> = Vec::new();
        for step in build(&made) {
            let ids = step.token_ids.unwrap().to_vec();
            prop_assert_eq!(step.mask.n_tokens(), ids.len());
            trained.extend(ids.into_iter().zip(step.mask.iter()).filter_map(|(id, t)| t.then_some(id)));
        }
        let generated: Vec<i32> = made.into_iter().flat_map(|(_, output)| output).collect();
        prop_assert_eq!(trained, generated);
    }

    #[test]
    fn a_call_is_placed_the_same_whatever_comes_after_it(calls in made_up(), cut in 1_usize..25) {
        let made = conversations(&calls);
        let cut = cut.min(made.len());
        let (whole, part) = (build(&made), build(&made[..cut]));
        for (a, b) in whole.iter().zip(&part) {
            prop_assert_eq!(a.lineage_index, b.lineage_index);
            prop_assert_eq!(&a.boundary_reasons, &b.boundary_reasons);
            prop_assert_eq!(a.token_ids.clone().unwrap().to_vec(), b.token_ids.clone().unwrap().to_vec());
        }
    }

    #[test]
    fn no_message_of_a_prompt_is_lost_or_doubled(calls in made_up()) {
        // the same conversations as messages instead of ids
        let made = conversations(&calls);
        let said = |id: i32, role: &str| message(role, &id.to_string());
        let mut session = SessionBuilder::default();
        let mut answers: Vec<i32> = Vec::new();
        for (prompt, output) in &made {
            let prompt: Vec<Arc<Message>> = prompt
                .iter()
                .map(|id| said(*id, if answers.contains(id) { "assistant" } else { "user" }))
                .collect();
            let answer = output.first().copied();
            answers.extend(answer);
            session.call(&prompt, answer.map_or_else(ModelCall::default, |id| reply(&id.to_string()))).unwrap();
        }
        let steps = session.finish().0;
        for (index, (prompt, output)) in made.iter().enumerate() {
            let mut segment: Vec<String> = Vec::new();
            for step in steps.iter().take(index + 1).filter(|s| s.lineage_index == steps[index].lineage_index) {
                if step.boundary {
                    segment.clear();
                }
                segment.extend(step.messages.iter().map(|m| m.text.clone().unwrap()));
            }
            let whole: Vec<String> = prompt.iter().chain(output.first()).map(i32::to_string).collect();
            prop_assert_eq!(segment, whole);
        }
    }
}
