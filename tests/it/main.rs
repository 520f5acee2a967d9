//! The command as a user types it, over real stores: one binary, one module a subject.

mod batches;
mod checkpoints;
mod cli;
mod conformance;
mod crash;
mod dp_schedule;
mod fault;
mod lying_store;
mod many_writers;
mod memory;
mod regression;
mod samples;
mod train;
mod whole;
