//! Stores from outside: what a user of this crate may rely on, on memory and on a local disk. The same suite runs on
//! an S3 service from the root package's tests.

// tests fail by panicking; helpers outside of test functions are no different
#![allow(clippy::unwrap_used)]

mod checkpoints;
mod crash;
mod damage;
mod doctor;
mod fence;
mod golden;
mod plans;
mod refusals;
mod stores;
