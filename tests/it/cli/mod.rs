//! The command line: flags, settings, output and exit codes.

mod plumbing;
mod run;
