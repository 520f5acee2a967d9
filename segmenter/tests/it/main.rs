//! The SQL session as its users see it: one binary for all integration tests.

// shared set-up is no test function, and a failure in it is a failure of the test
#![allow(clippy::unwrap_used)]

mod files;
mod fixture;
mod limits;
mod payload;
mod plan;
mod pushdown;
mod rewards;
mod segments;
mod session;
mod slt;
mod stored;
mod stream;
mod trainer_rows;
mod training;
mod training_lake;
mod user_sql;
