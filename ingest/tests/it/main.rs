//! The ingest room from outside: files in, rows out.

// a failed set-up step should stop its test with the line
#![allow(clippy::unwrap_used)]

mod broken_inputs;
mod columns;
mod copies;
mod corpus;
mod documented;
mod exactly_once;
mod lake;
mod memory;
mod sources;
