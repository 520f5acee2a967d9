//! The command line: flags, settings, output and exit codes.

mod lake;
mod plan;
mod plumbing;
pub(crate) mod run;
