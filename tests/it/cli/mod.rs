//! The command line: flags, settings, output and exit codes.

mod lake;
mod names;
mod outputs;
mod plan;
mod plumbing;
pub(crate) mod run;
