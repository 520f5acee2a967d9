//! What went wrong, as an exit code and one line per cause.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use dressage_schemas::ErrorKind;

/// Exit code of a run that finished, with records in quarantine.
pub(crate) const EXIT_QUARANTINED: u8 = 9;

/// Exit code of a check that ran well and found something wrong with what it looked at.
pub(crate) const EXIT_FINDINGS: u8 = 8;

/// Exit code of a command that was stopped by Ctrl-C, as shells have it.
pub(crate) const EXIT_STOPPED: u8 = 130;

/// How a command that did not fail ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Everything asked for was done.
    Done,
    /// Done, but some records could not be read and are in quarantine.
    Quarantined,
    /// A check found something wrong.
    Findings,
    /// Stopped by Ctrl-C, in good order.
    Stopped,
}

impl Outcome {
    /// The process's exit code.
    pub(crate) fn exit_code(self) -> ExitCode {
        match self {
            Self::Done => ExitCode::SUCCESS,
            Self::Quarantined => ExitCode::from(EXIT_QUARANTINED),
            Self::Findings => ExitCode::from(EXIT_FINDINGS),
            Self::Stopped => ExitCode::from(EXIT_STOPPED),
        }
    }
}

/// A mistake that the command itself finds, before or between the rooms.
#[derive(Debug)]
pub(crate) struct Failure {
    kind: ErrorKind,
    message: String,
}

impl Failure {
    /// The input or a setting is wrong.
    pub(crate) fn invalid(message: impl Into<String>) -> anyhow::Error {
        Self { kind: ErrorKind::Invalid, message: message.into() }.into()
    }

    /// What is stored is not what it should be.
    #[allow(dead_code, reason = "for dressage-train")]
    pub(crate) fn corrupt(message: impl Into<String>) -> anyhow::Error {
        Self { kind: ErrorKind::Corrupt, message: message.into() }.into()
    }

    /// Somebody else has a hand on it.
    pub(crate) fn conflict(message: impl Into<String>) -> anyhow::Error {
        Self { kind: ErrorKind::Conflict, message: message.into() }.into()
    }

    /// What was named does not exist.
    pub(crate) fn not_found(message: impl Into<String>) -> anyhow::Error {
        Self { kind: ErrorKind::NotFound, message: message.into() }.into()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// What the caller should do about an error: the first room error in the chain decides.
pub(crate) fn kind_of(error: &anyhow::Error) -> ErrorKind {
    for cause in error.chain() {
        if let Some(failure) = cause.downcast_ref::<Failure>() {
            return failure.kind;
        }
        if let Some(kind) = room_kind(cause) {
            return kind;
        }
        if let Some(io) = cause.downcast_ref::<io::Error>() {
            return match io.kind() {
                io::ErrorKind::NotFound => ErrorKind::NotFound,
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                    ErrorKind::Exhausted
                }
                io::ErrorKind::TimedOut | io::ErrorKind::ConnectionRefused => ErrorKind::Unavailable,
                _ => ErrorKind::Invalid,
            };
        }
    }
    ErrorKind::Internal
}

/// The kind of a room's error.
fn room_kind(cause: &(dyn std::error::Error + 'static)) -> Option<ErrorKind> {
    crate::training::kind_of(cause)
        .or_else(|| cause.downcast_ref().map(dressage_ingest::Error::kind))
        .or_else(|| cause.downcast_ref().map(dressage_segmenter::Error::kind))
        .or_else(|| cause.downcast_ref().map(dressage_storage::Error::kind))
        .or_else(|| cause.downcast_ref().map(dressage_tokenizer::Error::kind))
}

/// A reader that went away (`dressage sql … | head`) has what it wanted.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|io| io.kind() == io::ErrorKind::BrokenPipe))
}

/// Prints the chain on stderr, each cause once, and gives the exit code.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if is_broken_pipe(error) {
        return ExitCode::SUCCESS;
    }
    let kind = kind_of(error);
    // nothing can be done about a stderr that is gone
    let _ = writeln!(io::stderr().lock(), "{}", chain_text(error, kind));
    ExitCode::from(kind.exit_code())
}

fn chain_text(error: &anyhow::Error, kind: ErrorKind) -> String {
    let mut text = format!("error: {error}");
    let mut last = error.to_string();
    for cause in error.chain().skip(1) {
        let line = cause.to_string();
        // an error that already tells its source would be printed twice
        if !last.contains(&line) {
            text.push_str("\n  because: ");
            text.push_str(&line);
        }
        last = line;
    }
    if kind == ErrorKind::Internal {
        text.push_str("\n  this is a bug of dressage: please report it with the command line that led here");
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_failure_keeps_its_kind_under_context() {
        let error = Err::<(), _>(Failure::not_found("no store")).context("while opening").unwrap_err();
        assert_eq!(kind_of(&error), ErrorKind::NotFound);
        assert_eq!(chain_text(&error, ErrorKind::NotFound), "error: while opening\n  because: no store");
    }

    #[test]
    fn a_reader_that_left_is_success() {
        let error = anyhow::Error::from(io::Error::from(io::ErrorKind::BrokenPipe)).context("writing rows");
        assert_eq!(report(&error), ExitCode::SUCCESS);
    }
}
