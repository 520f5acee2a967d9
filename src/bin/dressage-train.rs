//! The `dressage` command with training in it: what `dressage train` starts in its own place.
//!
//! libtorch takes a third of a second and 130 MiB to load. The same sources are therefore compiled twice: without it, as
//! `dressage`, and with it, as this.

#[path = "../cli.rs"]
mod cli;
#[path = "../commands/mod.rs"]
mod commands;
#[path = "../destination/mod.rs"]
mod destination;
#[path = "../failure.rs"]
mod failure;
#[path = "../interrupt.rs"]
mod interrupt;
#[path = "../output.rs"]
mod output;
#[path = "../picture.rs"]
mod picture;
#[path = "../rows.rs"]
mod rows;
#[path = "../settings/mod.rs"]
mod settings;
#[path = "../startup.rs"]
mod startup;
#[path = "../commands/train/mod.rs"]
mod training;

use std::process::ExitCode;

fn main() -> ExitCode {
    startup::run()
}
