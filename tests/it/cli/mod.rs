//! The command line: flags, settings, output and exit codes.

mod lake;
mod plumbing;
mod run;
