//! What a process of ours does first and last, whichever of the two binaries it is.

use std::process::ExitCode;

use clap::Parser;

use crate::cli::Cli;
use crate::{commands, failure};

/// Long ingests allocate and free many large buffers from many threads; glibc's arenas keep what they once held, and
/// the memory limit is a promise about the whole process.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A query that is stopped (time limit, row limit, Ctrl-C) drops its tasks, and Lance's readers unwrap the cancellation
/// of a task that they spawned. That harms nothing, but would print a backtrace under our own message.
fn hush_cancelled_tasks() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let cancelled = info.payload_as_str().is_some_and(|text| text.contains("JoinError::Cancelled"));
        if !cancelled {
            usual(info);
        }
    }));
}

/// A file that reaches the limit of its size (`ulimit -f`) is a full disk to be told of, not a signal to die by.
#[cfg(unix)]
fn fail_writes_at_the_file_size_limit() {
    // SAFETY: no pointers, and no other thread yet
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Does what the command line asks.
pub(crate) fn run() -> ExitCode {
    hush_cancelled_tasks();
    #[cfg(unix)]
    fail_writes_at_the_file_size_limit();
    let cli = Cli::parse();
    match commands::run(cli) {
        Ok(outcome) => outcome.exit_code(),
        Err(error) => failure::report(&error),
    }
}
