//! A rank that dies, stalls, gives up or is late: the others say so within the timeout, and say who.

use std::time::{Duration, Instant};

use dressage_trainer::collective::{CollectiveError, Collectives, GroupOptions, Reduce, Rendezvous};
use tch::{Device, Kind, Tensor};

use crate::processes::{Ended, Part, Ranks, join, options};

pub(crate) const PARTS: &[(&str, Part)] =
    &[("until_it_fails", until_it_fails), ("gives_up", gives_up), ("is_late", is_late)];

const TIMEOUT: Duration = Duration::from_secs(8);

fn limited() -> GroupOptions {
    GroupOptions { timeout: TIMEOUT, ..options() }
}

fn numbers() -> Tensor {
    Tensor::ones([100_000], (Kind::Float, Device::Cpu))
}

/// What an operation said, and in how many milliseconds. Later ones must say the same at once.
fn told(group: &dyn Collectives, failed: CollectiveError, waited: Duration) -> String {
    let again = Instant::now();
    assert_eq!(group.barrier().unwrap_err(), failed);
    assert!(again.elapsed() < Duration::from_secs(1));
    format!("{} ms: {failed}", waited.as_millis())
}

/// Reduces until somebody is missing.
fn until_it_fails(rendezvous: &Rendezvous) -> String {
    let group = join(rendezvous, &limited()).unwrap();
    group.enter("train step 7, gradients");
    let begun = Instant::now();
    loop {
        let started = Instant::now();
        if let Err(error) = group.all_reduce(&numbers(), Reduce::Sum) {
            return told(&group, error, started.elapsed());
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "nobody failed");
    }
}

/// The last rank cannot go on, and says why.
fn gives_up(rendezvous: &Rendezvous) -> String {
    let group = join(rendezvous, &limited()).unwrap();
    group.enter("train step 3");
    if group.rank() + 1 == group.world_size() {
        group.give_up("the disk is full");
        std::thread::sleep(TIMEOUT);
        return "gave up".to_owned();
    }
    let started = Instant::now();
    let error = group.all_reduce(&numbers(), Reduce::Sum).unwrap_err();
    told(&group, error, started.elapsed())
}

/// The last rank lives, and is elsewhere.
fn is_late(rendezvous: &Rendezvous) -> String {
    let group = join(rendezvous, &limited()).unwrap();
    if group.rank() + 1 == group.world_size() {
        group.enter("train step 4, micro-batch 0");
        std::thread::sleep(TIMEOUT);
        return "late".to_owned();
    }
    group.enter("train step 4, gradients");
    let started = Instant::now();
    let error = group.all_reduce(&numbers(), Reduce::Sum).unwrap_err();
    told(&group, error, started.elapsed())
}

#[track_caller]
fn assert_says(ended: &Ended, words: &[&str]) {
    assert!(ended.success, "{}", ended.said);
    for word in words {
        assert!(ended.said.contains(word), "no `{word}` in: {}", ended.said);
    }
    let waited_ms: u64 = ended.said.split(' ').next().unwrap().parse().unwrap();
    assert!(Duration::from_millis(waited_ms) <= TIMEOUT, "{}", ended.said);
}

/// Lets ranks run for a while, does something to one of them, and gives what the others said.
fn after(world_size: usize, rank: usize, signal: &str) -> Vec<(usize, Ended)> {
    let ranks = Ranks::start("until_it_fails", world_size);
    std::thread::sleep(Duration::from_secs(6));
    ranks.signal(rank, signal);
    let others: Vec<usize> = (0..world_size).filter(|other| *other != rank).collect();
    ranks.wait_for(&others).into_iter().enumerate().filter(|(other, _)| *other != rank).collect()
}

#[test]
fn a_rank_that_is_killed_is_named_by_every_other() {
    for (world_size, rank) in [(2, 1), (4, 2)] {
        for (other, ended) in after(world_size, rank, "KILL") {
            let own = format!("all-reduce of rank {other} of {world_size}");
            assert_says(&ended, &[&own, "train step 7, gradients", &format!("rank {rank} ("), "no sign of life"]);
        }
    }
}

#[test]
fn a_rank_that_stands_still_is_named_by_every_other() {
    for (_, ended) in after(4, 1, "STOP") {
        assert_says(&ended, &["rank 1 (", "no sign of life", "was last in train step 7"]);
    }
}

#[test]
fn the_rank_with_the_store_may_be_the_one_that_is_gone() {
    for signal in ["KILL", "STOP"] {
        for (_, ended) in after(2, 0, signal) {
            assert_says(&ended, &["all-reduce of rank 1 of 2", "the store on rank 0's host"]);
        }
    }
}

#[test]
fn a_rank_that_gives_up_is_quoted() {
    let ended = Ranks::start("gives_up", 2).wait_for(&[0, 1]);
    assert_says(&ended[0], &["rank 1 (", "gave up: the disk is full", "train step 3"]);
    assert_eq!(ended[1].said, "gave up");
}

#[test]
fn a_rank_that_is_late_is_named_with_what_it_does() {
    let ended = Ranks::start("is_late", 2).wait_for(&[0, 1]);
    assert_says(&ended[0], &["rank 1 (", "is in train step 4, micro-batch 0", "during train step 4, gradients"]);
}
