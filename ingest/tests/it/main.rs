//! The ingest room from outside: files in, rows out.

mod broken_inputs;
mod columns;
mod corpus;
mod documented;
mod exactly_once;
mod lake;
mod memory;
mod sources;
