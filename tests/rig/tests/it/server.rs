//! The server: conditional writes are real, data outlives a kill, nothing outlives its owner.

use dressage_rig::{Request, Weed, send};

fn put(weed: &Weed, key: &str, headers: &[(&str, &str)], body: &[u8]) -> u16 {
    let path = format!("/lake/{key}");
    let request = Request { method: "PUT", path: &path, headers, body, ..Request::default() };
    send(weed.address(), Some(&weed.credentials()), &request).expect("the server answers").status
}

fn get(weed: &Weed, key: &str) -> (u16, Vec<u8>) {
    let path = format!("/lake/{key}");
    let request = Request { method: "GET", path: &path, ..Request::default() };
    let answer = send(weed.address(), Some(&weed.credentials()), &request).expect("the server answers");
    (answer.status, answer.body)
}

#[test]
fn a_second_conditional_create_is_refused_and_the_first_bytes_stay() {
    let weed = Weed::shared();
    assert_eq!(put(weed, "once", &[("if-none-match", "*")], b"first"), 200);
    assert_eq!(put(weed, "once", &[("if-none-match", "*")], b"second"), 412);
    assert_eq!(get(weed, "once"), (200, b"first".to_vec()));
}

#[test]
fn a_wrong_secret_and_no_signature_are_refused() {
    let weed = Weed::shared();
    let mut credentials = weed.credentials();
    credentials.secret_access_key.push('x');
    let request = Request { method: "GET", path: "/lake/once", ..Request::default() };
    assert_eq!(send(weed.address(), Some(&credentials), &request).expect("answers").status, 403);
    assert_eq!(send(weed.address(), None, &request).expect("answers").status, 403);
}

#[test]
fn what_was_acknowledged_is_there_after_a_kill_and_a_restart() {
    let weed = Weed::start().expect("starts");
    assert_eq!(put(&weed, "kept", &[], b"kept bytes"), 200);
    weed.kill();
    let request = Request { method: "GET", path: "/lake/kept", ..Request::default() };
    assert!(send(weed.address(), Some(&weed.credentials()), &request).is_err(), "a killed server answers nothing");
    weed.restart().expect("starts again on its data");
    assert_eq!(get(&weed, "kept"), (200, b"kept bytes".to_vec()));
}
