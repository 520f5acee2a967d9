//! The SQL session as its users see it: one binary for all integration tests.

// helpers of tests are tests, too
#![allow(clippy::unwrap_used)]

mod files;
mod fixture;
mod limits;
mod payload;
mod pushdown;
mod rewards;
mod segments;
mod session;
mod slt;
mod stored;
