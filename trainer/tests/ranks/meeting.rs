//! Ranks that must not train together do not, and each of them knows why.

use std::time::{Duration, Instant};

use dressage_trainer::collective::{CollectiveError, Fingerprint, GroupOptions, Rendezvous};

use crate::processes::{Part, Ranks, options};

pub(crate) const PARTS: &[(&str, Part)] = &[("differs", differs), ("waits_a_little", waits_a_little)];

/// With a version from the environment.
fn differs(rendezvous: &Rendezvous) -> String {
    let version = std::env::var("TEST_VERSION").unwrap();
    let fingerprint = Fingerprint::new().with("version", version).with("plan", "a");
    match rendezvous.join(&fingerprint, &options()) {
        Ok(_) => "joined".to_owned(),
        Err(error @ CollectiveError::Refused { .. }) => error.to_string(),
        Err(other) => panic!("{other}"),
    }
}

fn waits_a_little(rendezvous: &Rendezvous) -> String {
    let options = GroupOptions { join_timeout: Duration::from_secs(3), ..options() };
    let started = Instant::now();
    let error = rendezvous.join(&Fingerprint::new(), &options).unwrap_err();
    assert!(matches!(error, CollectiveError::Rendezvous { .. }), "{error}");
    assert!(started.elapsed() < Duration::from_secs(20));
    error.to_string()
}

#[test]
fn a_rank_of_another_version_is_refused_by_all_and_named() {
    let version = |rank| vec![("TEST_VERSION", if rank == 1 { "2" } else { "1" }.to_owned())];
    for (rank, said) in Ranks::start_with("differs", 3, &version).said().iter().enumerate() {
        assert!(said.starts_with(&format!("rank {rank} of 3 does not train")), "{said}");
        assert!(said.contains("rank 1 has version = 2, rank 0 has 1"), "{said}");
        assert!(!said.contains("rank 2 has"), "{said}");
    }
    let same = |_| vec![("TEST_VERSION", "1".to_owned())];
    assert_eq!(Ranks::start_with("differs", 2, &same).said(), ["joined", "joined"]);
}

#[test]
fn ranks_that_do_not_come_are_named() {
    // says that it is one of three, and is alone
    let alone = |_| vec![("WORLD_SIZE", "3".to_owned())];
    let said = Ranks::start_with("waits_a_little", 1, &alone).said().remove(0);
    assert!(said.contains("ranks 1, 2 did not come in time"), "{said}");
}

#[test]
fn a_store_that_nobody_runs_is_named_by_its_address() {
    let lost = |_| vec![("WORLD_SIZE", "2".to_owned()), ("RANK", "1".to_owned())];
    let said = Ranks::start_with("waits_a_little", 1, &lost).said().remove(0);
    assert!(said.starts_with("rank 1 of 2 cannot meet the others at 127.0.0.1:"), "{said}");
}
