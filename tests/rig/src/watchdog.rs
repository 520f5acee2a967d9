//! Ends a server and removes its data when the test process is gone, however it went.
//!
//! A destructor does not run for a `static`, nor when the test process is killed, and `PR_SET_PDEATHSIG` follows the
//! *thread* that forked, which in a test harness ends with its test. A shell that reads from a pipe sees the end of
//! the file exactly when the last holder of the other end is gone.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

/// The shell and the pipe that keeps it waiting.
#[derive(Debug)]
pub(crate) struct Watchdog {
    shell: Child,
    leash: Option<ChildStdin>,
}

impl Watchdog {
    /// Watches this process; when it ends, sends SIGKILL to the process whose id is in `pid_file` and removes `dir`.
    /// The id is read then, not now, because a server may be started again under another one.
    pub(crate) fn over(pid_file: &Path, dir: &Path) -> io::Result<Self> {
        let mut shell = Command::new("/bin/sh")
            .arg("-c")
            .arg("cat >/dev/null; kill -9 \"$(cat \"$1\")\" 2>/dev/null; rm -rf -- \"$2\"")
            .arg("watchdog")
            .arg(pid_file)
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Its own process group: Ctrl-C on the test run must not end the watchdog before its work is done.
            .process_group(0)
            .spawn()?;
        let leash = shell.stdin.take();
        Ok(Self { shell, leash })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.leash.take());
        // An error here means that the shell is gone already.
        let _ = self.shell.wait();
    }
}
