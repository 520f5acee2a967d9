//! Running the built command in a folder of its own.

use std::path::Path;
use std::process::{Command, Output};

/// A finished call.
pub(crate) struct Ran {
    /// Standard output.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
    /// The exit code.
    pub(crate) code: i32,
}

impl Ran {
    /// Itself, if the exit code is the one expected.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Standard output as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e} in stdout:\n{}", self.stdout))
    }
}

/// The command, free of the settings of whoever runs the tests.
pub(crate) fn dressage(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dressage"));
    command.current_dir(folder);
    for (name, _) in std::env::vars() {
        if name.starts_with("DRESSAGE") || name.starts_with("AWS_") {
            command.env_remove(name);
        }
    }
    command
}

/// Runs `dressage` with these arguments in this folder.
pub(crate) fn run(folder: &Path, args: &[&str]) -> Ran {
    finish(dressage(folder).args(args))
}

/// Runs a prepared command to its end.
pub(crate) fn finish(command: &mut Command) -> Ran {
    let Output { status, stdout, stderr } = command.output().expect("the dressage binary starts");
    Ran {
        stdout: String::from_utf8(stdout).expect("stdout is UTF-8"),
        stderr: String::from_utf8(stderr).expect("stderr is UTF-8"),
        code: status.code().unwrap_or(-1),
    }
}
