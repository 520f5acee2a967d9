//! The proxy: transparent without a plan, each fault as named, and a lie that the server's signature check passes.

use std::time::Duration;

use dressage_rig::{Answer, Fault, FaultPlan, FaultProxy, FaultRule, Request, Seed, Weed, send};

fn proxy(rules: Vec<FaultRule>) -> FaultProxy {
    let weed = Weed::shared();
    let plan = FaultPlan::new(&Seed::new(42), rules);
    FaultProxy::start(weed.address(), weed.credentials(), plan).expect("the proxy starts")
}

fn ask(proxy: &FaultProxy, method: &str, key: &str, headers: &[(&str, &str)], body: &[u8]) -> anyhow::Result<Answer> {
    let path = format!("/lake/{key}");
    let request = Request { method, path: &path, headers, body, ..Request::default() };
    send(proxy.address(), Some(&Weed::shared().credentials()), &request)
}

fn status(proxy: &FaultProxy, method: &str, key: &str, headers: &[(&str, &str)], body: &[u8]) -> u16 {
    ask(proxy, method, key, headers, body).expect("an answer").status
}

const CREATE: &[(&str, &str)] = &[("if-none-match", "*")];

#[test]
fn without_a_plan_conditions_and_bytes_pass_unchanged() {
    let proxy = proxy(Vec::new());
    let body: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
    assert_eq!(status(&proxy, "PUT", "p/plain", CREATE, &body), 200);
    assert_eq!(status(&proxy, "PUT", "p/plain", CREATE, b"other"), 412);
    assert_eq!(ask(&proxy, "GET", "p/plain", &[], b"").expect("an answer").body, body);
    assert_eq!(status(&proxy, "HEAD", "p/plain", &[], b""), 200);
    assert_eq!(proxy.counts().faults(), 0);
}

#[test]
fn a_lying_proxy_turns_a_conditional_create_into_an_overwrite() {
    let proxy = proxy(Vec::new());
    assert_eq!(status(&proxy, "PUT", "p/lie", CREATE, b"first"), 200);
    proxy.set_lying(true);
    assert_eq!(status(&proxy, "PUT", "p/lie", CREATE, b"second"), 200, "the condition is ignored, the signature holds");
    assert_eq!(status(&proxy, "PUT", "p/lie", &[("if-match", "\"0\"")], b"third"), 200);
    proxy.set_lying(false);
    assert_eq!(status(&proxy, "PUT", "p/lie", CREATE, b"fourth"), 412);
    assert_eq!(ask(&proxy, "GET", "p/lie", &[], b"").expect("an answer").body, b"third");
    assert_eq!(proxy.counts().lies, 2);
}

#[test]
fn a_lost_answer_leaves_the_object_and_a_reset_before_does_not() {
    let proxy = proxy(vec![
        FaultRule::any(Fault::AnswerLost, 1000).on(&["PUT"]).under("lost").at_most(1),
        FaultRule::any(Fault::FailedAfter, 1000).on(&["PUT"]).under("failed").at_most(1),
        FaultRule::any(Fault::ResetBefore, 1000).on(&["PUT"]).under("reset").at_most(1),
    ]);
    assert_eq!(status(&proxy, "PUT", "p/failed", CREATE, b"there"), 500);
    assert_eq!(status(&proxy, "PUT", "p/failed", CREATE, b"there"), 412, "it was carried out all the same");
    assert!(ask(&proxy, "PUT", "p/lost", CREATE, b"there").is_err());
    assert_eq!(ask(&proxy, "GET", "p/lost", &[], b"").expect("an answer").body, b"there");
    assert!(ask(&proxy, "PUT", "p/reset", CREATE, b"not there").is_err());
    assert_eq!(status(&proxy, "GET", "p/reset", &[], b""), 404);
    let counts = proxy.counts();
    assert_eq!((counts.answers_lost, counts.resets), (2, 1));
}

#[test]
fn a_busy_answer_is_a_503_and_a_cut_body_is_not_the_whole() {
    let proxy = proxy(vec![
        FaultRule::any(Fault::Busy, 1000).under("busy").at_most(1),
        FaultRule::any(Fault::BodyCut, 1000).on(&["GET"]).under("cut").at_most(1),
        FaultRule::any(Fault::Delay(Duration::from_millis(5)), 1000).under("slow"),
    ]);
    assert_eq!(status(&proxy, "PUT", "p/busy", &[], b"x"), 503);
    assert_eq!(status(&proxy, "PUT", "p/busy", &[], b"x"), 200);
    assert_eq!(status(&proxy, "PUT", "p/cut", &[], &[7; 1000]), 200);
    // Either the reset is seen while reading, or fewer bytes than the head promised.
    assert!(ask(&proxy, "GET", "p/cut", &[], b"").map_or(true, |answer| answer.body.len() == 500));
    assert_eq!(ask(&proxy, "GET", "p/cut", &[], b"").expect("an answer").body, [7; 1000]);
    assert_eq!(status(&proxy, "PUT", "p/slow", &[], b"x"), 200);
    let counts = proxy.counts();
    assert_eq!((counts.busy, counts.bodies_cut, counts.delays), (1, 1, 1));
}

#[test]
fn a_dead_server_behind_the_proxy_is_a_broken_connection() {
    let weed = Weed::start().expect("starts");
    let proxy = FaultProxy::start(weed.address(), weed.credentials(), FaultPlan::none()).expect("starts");
    weed.kill();
    assert!(ask(&proxy, "GET", "p/any", &[], b"").is_err());
}
