//! Servers that answer 200 to a conditional write and ignore the condition: refused where they can be seen at the
//! start, detected where they begin later.

use dressage_rig::{FaultPlan, FaultProxy, Seed, Weed, Workload};

use crate::whole::on_s3;

fn proxy() -> FaultProxy {
    let weed = Weed::shared();
    FaultProxy::start(weed.address(), weed.credentials(), FaultPlan::none()).expect("the proxy starts")
}

#[test]
fn a_server_that_ignores_conditions_is_refused_at_init_with_the_reason() {
    let proxy = proxy();
    proxy.set_lying(true);
    let dressage = on_s3(&Weed::shared().place("lying-init").through(&proxy.endpoint()));
    let finished = dressage.run(&["store", "init"]).expect("runs");
    assert!(proxy.counts().lies > 0, "init sent no conditional request: {finished:?}");
    assert!(matches!(finished.code, Some(2 | 8)), "refused as the caller's or the store's fault: {finished:?}");
    assert!(finished.stderr.contains("conditional writes"), "says what is wrong:\n{}", finished.stderr);
    assert!(finished.stderr.contains("If-None-Match"), "says what a store must honour:\n{}", finished.stderr);
    // Nothing may be written to it afterwards either.
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("w.jsonl");
    Workload::make(&Seed::new(5), "w", 3, 20).and_then(|w| w.write(&file)).expect("writes");
    let ingest = dressage.run(&["ingest", &file.display().to_string()]).expect("runs");
    assert_ne!(ingest.code, Some(0), "an ingest into a refused store must not succeed: {ingest:?}");
}

#[test]
fn doctor_names_a_server_that_ignores_conditions() {
    let proxy = proxy();
    let dressage = on_s3(&Weed::shared().place("lying-doctor").through(&proxy.endpoint()));
    dressage.run(&["store", "init"]).and_then(|f| f.expect_code(0).map(drop)).expect("an honest server is accepted");
    let honest = dressage.run(&["doctor"]).expect("runs");
    assert_eq!(honest.code, Some(0), "{honest:?}");
    proxy.set_lying(true);
    let finished = dressage.run(&["doctor"]).expect("runs");
    assert_ne!(finished.code, Some(0), "doctor must not pass a server that lies: {finished:?}");
    let said = format!("{}{}", finished.stdout, finished.stderr);
    assert!(said.contains("conditional"), "doctor names the finding:\n{said}");
}

#[test]
fn a_store_that_starts_to_lie_after_init_is_detected_by_a_writer_and_not_acknowledged() {
    let proxy = proxy();
    let place = Weed::shared().place("lying-later");
    let behind = on_s3(&place.through(&proxy.endpoint()));
    behind.run(&["store", "init"]).and_then(|f| f.expect_code(0).map(drop)).expect("honest at first");
    proxy.set_lying(true);

    // Several writers at once on a server without conditions overwrite each other's manifests: at least one must
    // notice that a version it committed is no longer its own. With luck no two of them collide, so try again.
    let dir = tempfile::tempdir().expect("a folder");
    let seed = Seed::of_run("lying later");
    for round in 0..10u64 {
        let running: Vec<_> = (0..6u64)
            .map(|writer| {
                let name = format!("r{round}w{writer}");
                let file = dir.path().join(format!("{name}.jsonl"));
                let workload = Workload::make(&seed.fork(round * 10 + writer), &name, 40, 60).expect("makes");
                workload.write(&file).expect("writes");
                let file = file.display().to_string();
                let args = ["ingest", &file, "--run", &name, "--commit-bytes", "4KiB", "--json", "--quiet"];
                behind.spawn(&args).expect("starts")
            })
            .collect();
        let finished: Vec<_> = running.into_iter().map(|one| one.wait().expect("ends")).collect();
        let noticed: Vec<_> = finished.iter().filter(|f| f.code != Some(0)).collect();
        if let Some(first) = noticed.first() {
            assert_eq!(first.code, Some(8), "stored data is not what it should be: {first:?}");
            assert!(first.stderr.contains("conditional writes"), "says why:\n{}", first.stderr);
            assert!(proxy.counts().lies > 0);
            return;
        }
        // Nobody noticed: then nothing may be lost.
        let visible = behind.sql("select count(*) as n from trajectories").expect("reads");
        let expected = (round + 1) * 6 * 40;
        assert_eq!(visible[0]["n"].as_u64(), Some(expected), "rows were lost and no writer said so");
    }
    panic!("sixty writers on a server without conditions never collided; the test proves nothing");
}
