//! Checkpoints on a real S3 server in bad weather: parts that are refused, answers that are lost, a server that stays away.

use std::io::Write;
use std::time::Duration;

use dressage_rig::{Fault, FaultPlan, FaultProxy, FaultRule, Seed, Weed};
use dressage_storage::{BlockingFolder, ErrorKind, ObjectFolder, StoreSettings};
use tokio::runtime::Runtime;

use crate::conformance::on_s3;

/// Seven parts.
const BYTES: usize = 100 << 20;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

fn folder(runtime: &Runtime, settings: &StoreSettings) -> BlockingFolder {
    let folder = runtime.block_on(ObjectFolder::open(&settings.uri, settings)).expect("opens");
    folder.blocking(runtime.handle().clone())
}

fn content(out: &mut dyn Write) -> std::io::Result<()> {
    let block: Vec<u8> = (0..1 << 20).map(|i| (i * 31 % 251) as u8).collect();
    (0..BYTES >> 20).try_for_each(|_| out.write_all(&block))
}

/// What each fault does to a file of seven parts: nothing that the caller sees.
#[test]
fn a_large_file_gets_through_refused_parts_and_lost_answers() {
    let weed = Weed::shared();
    let seed = Seed::of_run("checkpoint parts");
    let proxy = FaultProxy::start(weed.address(), weed.credentials(), FaultPlan::none()).expect("starts");
    let place = weed.place("checkpoint-parts");
    let runtime = runtime();
    let behind = folder(&runtime, &on_s3(&place.through(&proxy.endpoint())));
    let direct = folder(&runtime, &on_s3(&place));
    let cases = [
        ("busy", FaultRule::any(Fault::Busy, 1000).on(&["PUT"]).after(1).at_most(9)),
        ("reset", FaultRule::any(Fault::ResetBefore, 400).at_most(12)),
        ("lost", FaultRule::any(Fault::AnswerLost, 1000).on(&["POST"]).at_most(4)),
        ("failed", FaultRule::any(Fault::FailedAfter, 1000).on(&["POST"]).after(1).at_most(5)),
    ];
    for (name, rule) in cases {
        let before = proxy.counts().faults();
        proxy.set_plan(FaultPlan::new(&seed, vec![rule]));
        let file = behind.write(&format!("{name}/model.bin"), &mut content).unwrap_or_else(|e| panic!("{name}: {e:?}"));
        assert!(proxy.counts().faults() > before, "{name}: no fault struck");
        assert_eq!(file.bytes, BYTES as i64, "{name}");
        direct.verify(std::slice::from_ref(&file)).unwrap_or_else(|e| panic!("{name}: {e}"));
        proxy.set_plan(FaultPlan::new(&seed, vec![FaultRule::any(Fault::BodyCut, 500).on(&["GET"]).at_most(6)]));
        let read = behind.read(&file.path).expect("reads");
        assert_eq!(read.len(), BYTES, "{name}");
        behind.verify(&[file]).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

#[test]
fn a_server_that_stays_away_is_unavailable_and_leaves_no_file_and_no_secret() {
    let weed = Weed::shared();
    let seed = Seed::of_run("checkpoint away");
    let proxy = FaultProxy::start(weed.address(), weed.credentials(), FaultPlan::none()).expect("starts");
    let place = weed.place("checkpoint-away");
    let settings = StoreSettings { retry_timeout_ms: 1_500, ..on_s3(&place.through(&proxy.endpoint())) };
    let runtime = runtime();
    let behind = folder(&runtime, &settings);
    // after the upload began and some parts were taken
    proxy.set_plan(FaultPlan::new(&seed, vec![FaultRule::any(Fault::Busy, 1000).on(&["PUT"]).after(2)]));
    let started = std::time::Instant::now();
    let error = behind.write("model.bin", &mut content).expect_err("no server, no file");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(started.elapsed() < Duration::from_secs(60), "gives up when its time is over");
    let secret = weed.credentials().secret_access_key;
    assert!(!format!("{error:?} {error}").contains(secret.as_str()), "{error:?}");
    proxy.set_plan(FaultPlan::none());
    assert_eq!(behind.list().expect("lists"), Vec::new());
}
