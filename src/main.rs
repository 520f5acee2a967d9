//! The `dressage` command: parses arguments, merges settings and wires the rooms together.
//!
//! Takes a command line, a settings file and the environment; gives results on stdout, progress and errors on
//! stderr, and an exit code that says what to do. It refuses logic: what is worth testing lives in a room.
//!
//! ```text
//!   argv ─▶ cli (clap) ─┐
//!   dressage.toml ──────┼▶ settings (one value, one origin each) ─▶ commands/<name>.rs ─▶ rooms
//!   DRESSAGE__… ────────┘                                                │
//!                               stdout ◀── output (table | JSON) ◀───────┤
//!                               exit code ◀── failure (ErrorKind) ◀──────┘
//! ```
//!
//! Read first: [`cli::Cli`] (what can be asked), [`settings::Settings`] (what can be tuned), [`failure`] (exit codes).

mod cli;
mod commands;
mod destination;
mod failure;
mod interrupt;
mod output;
mod picture;
mod rows;
mod settings;
mod startup;
mod training;

use std::process::ExitCode;

fn main() -> ExitCode {
    startup::run()
}
