//! Bad weather: a store that answers 503, resets connections, loses answers and cuts bodies; one that dies and comes
//! back; a disk that fills up.

use std::process::{Command, Stdio};
use std::time::Duration;

use dressage_rig::{Fault, FaultPlan, FaultProxy, FaultRule, Seed, Weed, Workload};

use crate::whole::{BINARY, complete, field, local, nothing_lost, on_s3, visible_whole};

fn ingest(file: &str, run: &str) -> Vec<String> {
    ["ingest", file, "--run", run, "--commit-bytes", "16KiB", "--json", "--quiet"].map(str::to_owned).to_vec()
}

#[test]
fn an_ingest_gets_through_a_bad_day_and_stores_everything_once() {
    let weed = Weed::shared();
    let seed = Seed::of_run("bad day");
    let proxy = FaultProxy::start(weed.address(), weed.credentials(), FaultPlan::none()).expect("starts");
    let place = weed.place("bad-day");
    let (behind, direct) = (on_s3(&place.through(&proxy.endpoint())), on_s3(&place));
    direct.run(&["store", "init"]).and_then(|f| f.expect_code(0).map(drop)).expect("init");

    let dir = tempfile::tempdir().expect("a folder");
    let workload = Workload::make(&seed.fork(1), "bad", 120, 120).expect("makes");
    let file = dir.path().join("bad.jsonl");
    workload.write(&file).expect("writes");
    proxy.set_plan(FaultPlan::bad_day(&seed));
    let mut seen = Default::default();
    // A client may give up on a day like this, saying so (6); the same command then goes on where it stopped.
    for attempt in 0.. {
        assert!(attempt < 8, "eight ingests in a row gave up; faults so far: {:?}", proxy.counts());
        let finished = behind.run(&ingest(&file.display().to_string(), "bad")).expect("runs");
        let now = visible_whole(&direct, "bad", &workload).expect("whole");
        nothing_lost(&seen, &now).expect("nothing lost");
        seen = now;
        if finished.code == Some(0) {
            break;
        }
        assert_eq!(finished.code, Some(6), "gives up as unavailable or not at all: {finished:?}");
    }
    complete(&direct, "bad", &workload).expect("complete");
    assert!(proxy.counts().faults() > 0, "no fault struck: {:?}", proxy.counts());
    eprintln!("{:?}", proxy.counts());
    direct.run(&["store", "check", "--json"]).and_then(|f| f.expect_code(0).map(drop)).expect("consistent");
}

#[test]
fn a_commit_whose_answer_was_lost_is_neither_lost_nor_doubled() {
    let weed = Weed::shared();
    let seed = Seed::of_run("lost answers");
    let proxy = FaultProxy::start(weed.address(), weed.credentials(), FaultPlan::none()).expect("starts");
    let place = weed.place("lost-answers");
    let (behind, direct) = (on_s3(&place.through(&proxy.endpoint())), on_s3(&place));
    direct.run(&["store", "init"]).and_then(|f| f.expect_code(0).map(drop)).expect("init");
    let dir = tempfile::tempdir().expect("a folder");
    // The manifest of every table, told nothing or told a lie: the server has committed, the client believes it has not.
    let manifests = [
        "contents.lance/_versions",
        "steps.lance/_versions",
        "rewards.lance/_versions",
        "ingest_log.lance/_versions",
        "trajectories.lance/_versions",
    ];
    let cases = manifests.into_iter().flat_map(|path| [(path, Fault::AnswerLost), (path, Fault::FailedAfter)]);
    for (index, (manifests, fault)) in cases.enumerate() {
        let name = format!("lost{index}");
        let workload = Workload::make(&seed.fork(index as u64), &name, 40, 80).expect("makes");
        let file = dir.path().join(format!("{name}.jsonl"));
        workload.write(&file).expect("writes");
        let before = proxy.counts().answers_lost;
        let rule = FaultRule::any(fault, 1000).on(&["PUT"]).under(manifests).after(1).at_most(2);
        proxy.set_plan(FaultPlan::new(&seed, vec![rule]));
        let finished = behind.run(&ingest(&file.display().to_string(), &name)).expect("runs");
        assert!(proxy.counts().answers_lost > before, "no answer was lost under {manifests}");
        let seen = visible_whole(&direct, &name, &workload).expect("whole");
        if finished.code != Some(0) {
            assert_eq!(finished.code, Some(6), "gives up as unavailable or not at all: {finished:?}");
            proxy.set_plan(FaultPlan::none());
            let again = behind.run(&ingest(&file.display().to_string(), &name)).expect("runs");
            again.expect_code(0).expect("the same command completes it");
        }
        nothing_lost(&seen, &complete(&direct, &name, &workload).expect("complete")).expect("nothing lost");
    }
    direct.run(&["store", "check", "--json"]).and_then(|f| f.expect_code(0).map(drop)).expect("consistent");
}

#[test]
fn a_server_killed_in_the_middle_of_an_ingest_loses_nothing() {
    let weed = Weed::start().expect("a server of its own");
    let dressage = on_s3(&weed.place("killed"));
    dressage.run(&["store", "init"]).and_then(|f| f.expect_code(0).map(drop)).expect("init");
    let seed = Seed::of_run("server killed");
    let dir = tempfile::tempdir().expect("a folder");
    let workload = Workload::make(&seed, "killed", 240, 120).expect("makes");
    let file = dir.path().join("killed.jsonl");
    workload.write(&file).expect("writes");
    let args = ingest(&file.display().to_string(), "killed");
    let mut running = dressage.spawn(&args).expect("starts");
    // In the middle: the first rows are visible, the last ones are not.
    let seen = loop {
        let seen = visible_whole(&dressage, "killed", &workload).expect("whole");
        if !seen.is_empty() {
            break seen;
        }
        assert!(running.is_running().expect("can be asked"), "the ingest ended before anything was visible");
    };
    weed.kill();
    std::thread::sleep(Duration::from_secs(1));
    weed.restart().expect("comes back");
    let finished = running.wait().expect("ends");
    let after = visible_whole(&dressage, "killed", &workload).expect("whole");
    nothing_lost(&seen, &after).expect("what was visible survives the server's death");
    if finished.code != Some(0) {
        assert_eq!(finished.code, Some(6), "gives up as unavailable or not at all: {finished:?}");
        dressage.run(&args).and_then(|f| f.expect_code(0).map(drop)).expect("the same command completes it");
    }
    nothing_lost(&seen, &complete(&dressage, "killed", &workload).expect("complete")).expect("nothing lost");
}

#[test]
fn a_server_that_is_not_there_is_unavailable_and_the_message_names_it() {
    let mut place = Weed::shared().place("nobody");
    // Port 1 on the loopback: nobody listens, refused at once.
    place.endpoint = "http://127.0.0.1:1".to_owned();
    let dressage = on_s3(&place).with("DRESSAGE__STORAGE__RETRY_TIMEOUT", "2s");
    let finished = dressage.run(&["sql", "select count(*) from trajectories"]).expect("runs");
    assert_eq!(finished.code, Some(6), "{finished:?}");
    assert!(finished.stderr.contains("s3://lake/nobody"), "names the place:\n{}", finished.stderr);
    assert!(!finished.stderr.contains("rig-secret"), "no secret in a message:\n{}", finished.stderr);
}

#[test]
fn a_file_that_cannot_grow_stops_an_ingest_with_an_error_and_the_rerun_completes_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let dressage = local(&dir.path().join("store"));
    dressage.run(&["store", "init"]).and_then(|f| f.expect_code(0).map(drop)).expect("init");
    let workload = Workload::make(&Seed::of_run("file limit"), "big", 12, 60_000).expect("makes");
    let file = dir.path().join("big.jsonl");
    workload.write(&file).expect("writes");
    let args = ["ingest", &file.display().to_string(), "--run", "big", "--json", "--quiet"].map(str::to_owned);
    let finished = dressage.clone().with_files_bytes_max(200_000).run(&args).expect("runs");
    assert!(matches!(finished.code, Some(6 | 7)), "refused by the disk, not crashed: {finished:?}");
    assert!(finished.stderr.to_lowercase().contains("too large"), "says what the disk said:\n{}", finished.stderr);
    assert!(finished.stderr.contains("the same command goes on from there"), "says how to go on:\n{}", finished.stderr);
    visible_whole(&dressage, "big", &workload).expect("whole");
    dressage.run(&args).and_then(|f| f.expect_code(0).map(drop)).expect("completes once there is room");
    complete(&dressage, "big", &workload).expect("complete");
}

#[test]
fn a_full_disk_stops_an_ingest_with_an_error_and_the_rerun_completes_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let workload = Workload::make(&Seed::of_run("full disk"), "big", 24, 60_000).expect("makes");
    let file = dir.path().join("big.jsonl");
    workload.write(&file).expect("writes");
    std::fs::create_dir(dir.path().join("disk")).expect("a folder");
    // A tiny file system in a mount namespace of its own (no root needed); it lives as long as the script.
    let script = r#"
        set -u; cd "$1"
        mount -t tmpfs -o size=2m tmpfs disk || exit 99
        run() { "$2" ingest big.jsonl --run big --json --quiet --store disk/store >"$1.out" 2>"$1.err"; echo $? >"$1.code"; }
        "$2" store init --store disk/store >init.out 2>init.err; echo $? >init.code
        run full "$2"
        mount -o remount,size=512m disk
        "$2" sql 'select count(*) as n from trajectories' --format ndjson --store disk/store >between.out 2>between.err
        echo $? >between.code
        run again "$2"
        cp -r disk/store store
    "#;
    let status = Command::new("unshare")
        .args(["-rm", "sh", "-c", script, "full-disk"])
        .arg(dir.path())
        .arg(BINARY)
        .stdin(Stdio::null())
        .status()
        .expect("unshare (util-linux) can be run");
    if status.code() == Some(99) || !dir.path().join("init.code").exists() {
        // Said, not hidden: the file limit test above covers the same path of the code.
        eprintln!("NOT RUN: this machine allows no user namespace, so no tiny disk can be mounted");
        return;
    }
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap_or_default();
    assert_eq!(read("init.code").trim(), "0", "{}", read("init.err"));
    let full = read("full.code");
    assert!(
        matches!(full.trim(), "6" | "7"),
        "a full disk is exhausted or unavailable, not {full}: {}",
        read("full.err")
    );
    assert!(read("full.err").to_lowercase().contains("no space"), "says what the disk said:\n{}", read("full.err"));
    assert_eq!(read("between.code").trim(), "0", "the store still reads: {}", read("between.err"));
    assert_eq!(read("again.code").trim(), "0", "{}", read("again.err"));
    let report: serde_json::Value = serde_json::from_str(&read("again.out")).expect("a report");
    assert_eq!(field(&report, "quarantined").expect("a count"), 0);
    complete(&local(&dir.path().join("store")), "big", &workload).expect("complete");
}
