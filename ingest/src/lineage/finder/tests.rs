//! Segment finding against the worked examples, and against made-up sessions.

use super::*;

/// `m1` to a key; the same word is the same message.
fn keys(words: &[&str]) -> Vec<MessageKey> {
    words.iter().map(|word| MessageKey(xxhash_rust::xxh3::xxh3_128(word.as_bytes()))).collect()
}

fn place(finder: &mut Finder, prompt: &[&str], reply: &str) -> Placement {
    finder.place(&Call { prompt: &keys(prompt), reply: &keys(&[reply]), ..Call::default() })
}

fn place_ids(finder: &mut Finder, prompt: &[i32], output: &[i32]) -> Placement {
    finder.place(&Call { tokens: Some(CallTokens { prompt, output }), ..Call::default() })
}

#[test]
fn five_requests_of_a_main_agent_and_two_sub_agents_give_three_lineages() {
    // semantics 3.3: m1, s1, [m1,m2,s2], s3, [m1,m2,s2,m3,s4]
    let mut finder = Finder::default();
    let placed = [
        place(&mut finder, &["m1"], "m2"),
        place(&mut finder, &["s1"], "s1-reply"),
        place(&mut finder, &["m1", "m2", "s2"], "m3"),
        place(&mut finder, &["s3"], "s3-reply"),
        place(&mut finder, &["m1", "m2", "s2", "m3", "s4"], "m5"),
    ];
    let routes: Vec<_> = placed.iter().map(|p| p.route).collect();
    assert_eq!(routes, [Route::Create, Route::Create, Route::Append, Route::Create, Route::Append]);
    assert_eq!(placed.iter().map(|p| p.lineage).collect::<Vec<_>>(), [0, 1, 0, 2, 0]);
    assert_eq!(placed.iter().filter(|p| !p.reasons.is_empty()).count(), 3, "three lineage segments");
    assert_eq!(placed[0].reasons, ["initial"]);
    assert_eq!(placed[1].reasons, ["initial", "history_rewrite"]);
    assert_eq!(placed.iter().map(|p| p.known_messages).collect::<Vec<_>>(), [0, 0, 2, 0, 4]);
}

#[test]
fn going_back_to_an_answered_conversation_branches_and_repeats_the_prefix() {
    let mut finder = Finder::default();
    place(&mut finder, &["root"], "reply1");
    place(&mut finder, &["root", "reply1", "append"], "reply2");
    let branch = place(&mut finder, &["root", "reply1", "branch"], "reply3");
    assert_eq!((branch.route, branch.base, branch.lineage), (Route::Branch, Some(0), 1));
    assert_eq!(branch.reasons, ["initial", "history_rewrite"]);
    assert_eq!(branch.known_messages, 0, "the shared prefix is stored again, masked");
}

#[test]
fn a_retry_creates_on_the_first_request_and_branches_on_a_later_one() {
    // semantics 3.15
    let mut finder = Finder::default();
    place(&mut finder, &["a"], "b");
    assert_eq!(place(&mut finder, &["a"], "b2").route, Route::Create);
    let mut finder = Finder::default();
    place(&mut finder, &["a"], "b");
    place(&mut finder, &["a", "b", "c"], "d");
    let retry = place(&mut finder, &["a", "b", "c"], "d2");
    assert_eq!((retry.route, retry.base), (Route::Branch, Some(0)));
}

#[test]
fn the_longest_conversation_wins_then_the_latest_of_its_lineage_then_the_most_recent() {
    let mut finder = Finder::default();
    place(&mut finder, &["a"], "b");
    place(&mut finder, &["a", "b", "c"], "d");
    assert_eq!(place(&mut finder, &["a", "b", "c", "d", "e"], "f").base, Some(1));

    // the same conversation twice: 0 in lineage 0 (not its latest any more), 2 in lineage 1
    let mut finder = Finder::default();
    place(&mut finder, &["a"], "b");
    place(&mut finder, &["a", "b", "c"], "d");
    place(&mut finder, &["a"], "b");
    let next = place(&mut finder, &["a", "b", "x"], "y");
    assert_eq!((next.base, next.route), (Some(2), Route::Append));

    // both latest: the most recent
    let mut finder = Finder::default();
    place(&mut finder, &["a"], "b");
    place(&mut finder, &["a"], "b");
    assert_eq!(place(&mut finder, &["a", "b", "x"], "y").base, Some(1));
}

#[test]
fn other_tools_start_a_segment_in_the_same_lineage() {
    let mut finder = Finder::default();
    let call = |finder: &mut Finder, prompt: &[&str], reply: &str, tools| {
        finder.place(&Call { prompt: &keys(prompt), reply: &keys(&[reply]), tools, ..Call::default() })
    };
    call(&mut finder, &["a"], "b", Some(1));
    let changed = call(&mut finder, &["a", "b", "c"], "d", Some(2));
    assert_eq!((changed.route, changed.lineage), (Route::Append, 0));
    assert_eq!(changed.reasons, ["tools_changed"]);
    assert_eq!(changed.known_messages, 0);
    assert!(call(&mut finder, &["a", "b", "c", "d", "e"], "f", Some(2)).reasons.is_empty());
}

#[test]
fn a_rewritten_history_is_a_mismatch_in_another_turn_and_a_rewrite_in_the_same() {
    for (turn, reason) in [("t1", "history_rewrite"), ("t2", "message_prefix_mismatch")] {
        let mut finder = Finder::default();
        let (first, second) = (keys(&["a"]), keys(&["z"]));
        finder.place(&Call { prompt: &first, reply: &keys(&["b"]), turn: Some("t1"), ..Call::default() });
        let placed = finder.place(&Call { prompt: &second, turn: Some(turn), ..Call::default() });
        assert_eq!(placed.reasons, ["initial", reason]);
    }
}

#[test]
fn a_branch_in_another_turn_needs_no_reason_but_being_one() {
    let mut finder = Finder::default();
    let prompts = [keys(&["a"]), keys(&["a", "b", "c"]), keys(&["a", "b", "x"])];
    finder.place(&Call { prompt: &prompts[0], reply: &keys(&["b"]), turn: Some("t1"), ..Call::default() });
    finder.place(&Call { prompt: &prompts[1], reply: &keys(&["d"]), turn: Some("t2"), ..Call::default() });
    let placed = finder.place(&Call { prompt: &prompts[2], turn: Some("t3"), ..Call::default() });
    assert_eq!((placed.route, placed.reasons.as_slice()), (Route::Branch, &["initial"][..]));
}

#[test]
fn a_stated_cause_replaces_the_guess() {
    let mut finder = Finder::default();
    place(&mut finder, &["a"], "b");
    let summary = keys(&["summary"]);
    let placed = finder.place(&Call { prompt: &summary, cause: Some(boundary::COMPACTION), ..Call::default() });
    assert_eq!(placed.reasons, ["initial", "compaction"]);
}

#[test]
fn prompt_ids_that_extend_all_ids_so_far_append() {
    let mut finder = Finder::default();
    place_ids(&mut finder, &[10, 11, 12], &[90, 20]);
    let next = place_ids(&mut finder, &[10, 11, 12, 90, 20, 30], &[31]);
    assert_eq!((next.route, next.known_tokens), (Route::Append, 5));
    assert!(next.reasons.is_empty());
}

#[test]
fn stripped_thoughts_start_a_segment_and_the_next_call_joins_it() {
    // the turns of bug report 30
    let mut finder = Finder::default();
    let placed = [
        place_ids(&mut finder, &[10, 11, 12], &[90, 91, 92, 93, 20, 21]),
        place_ids(&mut finder, &[10, 11, 12, 20, 21, 30, 31], &[22, 23]),
        place_ids(&mut finder, &[10, 11, 12, 20, 21, 30, 31, 22, 23, 40], &[24]),
        place_ids(&mut finder, &[10, 11, 99], &[25]),
    ];
    assert_eq!(placed.iter().map(|p| p.lineage).collect::<Vec<_>>(), [0, 1, 1, 2]);
    assert_eq!(placed[1].reasons, ["initial", "token_prefix_mismatch"]);
    assert!(placed[2].reasons.is_empty());
    assert_eq!(placed[2].known_tokens, 9);
}

#[test]
fn messages_that_extend_while_ids_do_not_stay_in_their_lineage_behind_a_boundary() {
    let mut finder = Finder::default();
    let (first, second) = (keys(&["a"]), keys(&["a", "b", "c"]));
    let tokens = |prompt, output| Some(CallTokens { prompt, output });
    finder.place(&Call { prompt: &first, reply: &keys(&["b"]), tokens: tokens(&[1, 2], &[3, 4]), ..Call::default() });
    let placed = finder.place(&Call { prompt: &second, tokens: tokens(&[1, 2, 9, 4, 5], &[6]), ..Call::default() });
    assert_eq!((placed.route, placed.lineage), (Route::Append, 0));
    assert_eq!(placed.reasons, ["token_prefix_mismatch"]);
    assert_eq!((placed.known_messages, placed.known_tokens), (0, 0));
}

#[test]
fn a_call_whose_ids_were_lost_does_not_turn_the_next_one_into_a_branch() {
    let mut finder = Finder::default();
    let tokens = |prompt, output| Some(CallTokens { prompt, output });
    let prompts = [keys(&["a"]), keys(&["a", "b", "c"]), keys(&["a", "b", "c", "d", "e"])];
    finder.place(&Call { prompt: &prompts[0], reply: &keys(&["b"]), tokens: tokens(&[1], &[2]), ..Call::default() });
    let lost = finder.place(&Call { prompt: &prompts[1], reply: &keys(&["d"]), ..Call::default() });
    assert_eq!((lost.route, lost.reasons.len()), (Route::Append, 0));
    let next = finder.place(&Call { prompt: &prompts[2], tokens: tokens(&[1, 2, 3, 4, 5], &[6]), ..Call::default() });
    assert_eq!((next.route, next.reasons.as_slice()), (Route::Append, &["token_prefix_mismatch"][..]));
}

#[test]
fn a_link_to_the_latest_call_appends_and_to_an_older_one_branches() {
    let mut finder = Finder::default();
    let reply = keys(&["r"]);
    finder.attach(None, &keys(&["a"]), &reply, None);
    let next = finder.attach(Some(0), &keys(&["b"]), &reply, None);
    assert_eq!((next.route, next.known_messages, next.reasons.len()), (Route::Append, 2, 0));
    let rewound = finder.attach(Some(0), &keys(&["c"]), &reply, Some(boundary::REWIND));
    assert_eq!((rewound.route, rewound.reasons.as_slice()), (Route::Branch, &["initial", "rewind"][..]));
    let unknown = finder.attach(Some(99), &keys(&["d"]), &reply, None);
    assert_eq!(unknown.route, Route::Create);
}
