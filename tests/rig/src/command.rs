//! Runs the real `dressage` binary: to its end, or to its death.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

use crate::S3Place;

/// A command that has not ended by then is hanging: it is killed and the test fails.
const HANG_TIMEOUT: Duration = Duration::from_secs(240);
const POLL: Duration = Duration::from_millis(5);

/// The binary under test, and the store it works on.
#[derive(Debug, Clone)]
pub struct Dressage {
    binary: PathBuf,
    store: String,
    environment: Vec<(String, String)>,
    files_bytes_max: Option<u64>,
}

/// A command on its way.
#[derive(Debug)]
pub struct Running {
    child: Child,
    output: TempDir,
    shown: String,
    begun: Instant,
}

/// A command that ended.
#[derive(Debug)]
pub struct Finished {
    /// Its exit code; none where a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// What it wrote to stdout.
    pub stdout: String,
    /// What it wrote to stderr.
    pub stderr: String,
    /// How long it ran.
    pub took: Duration,
    shown: String,
}

impl Dressage {
    /// The binary on a store in a folder.
    pub fn local(binary: impl Into<PathBuf>, store: &Path) -> Self {
        Self {
            binary: binary.into(),
            store: store.display().to_string(),
            environment: Vec::new(),
            files_bytes_max: None,
        }
    }

    /// The binary on a store in a bucket.
    pub fn on_s3(binary: impl Into<PathBuf>, place: &S3Place) -> Self {
        Self {
            binary: binary.into(),
            store: place.uri.clone(),
            environment: place.environment(),
            files_bytes_max: None,
        }
    }

    /// With one more environment variable.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With a limit on the size of every file it writes (`RLIMIT_FSIZE`), which is how a full disk can be had without
    /// being root: writing beyond it fails.
    #[must_use]
    pub fn with_files_bytes_max(mut self, files_bytes_max: u64) -> Self {
        self.files_bytes_max = Some(files_bytes_max);
        self
    }

    /// The store's URI.
    pub fn store(&self) -> &str {
        &self.store
    }

    /// Starts `dressage ARGS --store STORE`.
    ///
    /// # Errors
    /// When the binary cannot be run.
    pub fn spawn<S: AsRef<OsStr>>(&self, args: &[S]) -> Result<Running> {
        let output = tempfile::tempdir()?;
        let mut command = Command::new(&self.binary);
        command.args(args).arg("--store").arg(&self.store);
        for (name, _) in std::env::vars_os() {
            // Settings of the person who runs the tests must not reach the command under test.
            let name_text = name.to_string_lossy();
            if name_text.starts_with("AWS_") || name_text.starts_with("DRESSAGE_") {
                command.env_remove(&name);
            }
        }
        command.env("NO_COLOR", "1").envs(self.environment.iter().map(|(name, value)| (name, value)));
        // Files, not pipes: nobody reads a pipe while the command runs, and a full one would stop it.
        command
            .stdin(Stdio::null())
            .stdout(File::create(output.path().join("stdout"))?)
            .stderr(File::create(output.path().join("stderr"))?)
            .current_dir(output.path());
        if let Some(bytes) = self.files_bytes_max {
            let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
            // SAFETY: between fork and exec; setrlimit and signal are async-signal-safe, and `limit` is a copy.
            unsafe {
                command.pre_exec(move || {
                    // Without this the kernel kills the process with SIGXFSZ instead of failing the write.
                    libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
                    if libc::setrlimit(libc::RLIMIT_FSIZE, &limit) == 0 {
                        Ok(())
                    } else {
                        Err(std::io::Error::last_os_error())
                    }
                });
            }
        }
        let shown = args.iter().map(|arg| arg.as_ref().to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ");
        let child = command.spawn().with_context(|| format!("{} cannot be run", self.binary.display()))?;
        Ok(Running { child, output, shown, begun: Instant::now() })
    }

    /// Runs `dressage ARGS --store STORE` to its end.
    ///
    /// # Errors
    /// When the binary cannot be run, or hangs.
    pub fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Result<Finished> {
        self.spawn(args)?.wait()
    }

    /// The rows of a query, as JSON objects.
    ///
    /// # Errors
    /// When the query fails; with what it wrote to stderr.
    pub fn sql(&self, query: &str) -> Result<Vec<serde_json::Value>> {
        self.sql_with(&[], query)
    }

    /// The rows of a query, with more flags.
    ///
    /// # Errors
    /// When the query fails; with what it wrote to stderr.
    pub fn sql_with(&self, flags: &[&str], query: &str) -> Result<Vec<serde_json::Value>> {
        let args = [&["sql", query, "--format", "ndjson"], flags].concat();
        let finished = self.run(&args)?;
        finished.expect_code(0)?;
        finished
            .stdout
            .lines()
            .filter(|line| !line.trim().is_empty())
            .map(|line| serde_json::from_str(line).with_context(|| format!("not JSON on stdout of sql: {line}")))
            .collect()
    }
}

impl Running {
    /// SIGKILL once `delay` has passed since it started; nothing if it ends before. True where it was killed.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn kill_after(mut self, delay: Duration) -> Result<(bool, Finished)> {
        while self.begun.elapsed() < delay {
            if let Some(status) = self.child.try_wait()? {
                return Ok((false, self.finished(status)?));
            }
            std::thread::sleep(POLL.min(delay.saturating_sub(self.begun.elapsed())));
        }
        // An error means that it has ended by itself.
        let _ = self.child.kill();
        let status = self.child.wait()?;
        Ok((status.signal() == Some(libc::SIGKILL), self.finished(status)?))
    }

    /// Sends it a signal, such as `libc::SIGTERM`.
    ///
    /// # Errors
    /// When there is no such process any more.
    pub fn signal(&self, signal: i32) -> Result<()> {
        let pid = libc::pid_t::try_from(self.child.id())?;
        // SAFETY: no pointers; the child was not waited for, so its id is not another's
        ensure!(unsafe { libc::kill(pid, signal) } == 0, "signal {signal}: {}", std::io::Error::last_os_error());
        Ok(())
    }

    /// What it wrote to stderr so far.
    ///
    /// # Errors
    /// When that cannot be read.
    pub fn stderr(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&std::fs::read(self.output.path().join("stderr"))?).into_owned())
    }

    /// Its end.
    ///
    /// # Errors
    /// When it hangs.
    pub fn wait(mut self) -> Result<Finished> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return self.finished(status);
            }
            if self.begun.elapsed() > HANG_TIMEOUT {
                let _ = self.child.kill();
                let status = self.child.wait()?;
                let finished = self.finished(status)?;
                bail!("`dressage {}` did not end in {HANG_TIMEOUT:?}; stderr:\n{}", finished.shown, finished.stderr);
            }
            std::thread::sleep(POLL);
        }
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    fn finished(self, status: ExitStatus) -> Result<Finished> {
        let read = |name: &str| -> Result<String> {
            Ok(String::from_utf8_lossy(&std::fs::read(self.output.path().join(name))?).into_owned())
        };
        Ok(Finished {
            code: status.code(),
            signal: status.signal(),
            stdout: read("stdout")?,
            stderr: read("stderr")?,
            took: self.begun.elapsed(),
            shown: self.shown.clone(),
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Finished {
    /// Itself, if it ended with that code.
    ///
    /// # Errors
    /// Otherwise; with everything it wrote.
    pub fn expect_code(&self, code: i32) -> Result<&Self> {
        if self.code != Some(code) {
            let ended = match (self.code, self.signal) {
                (Some(code), _) => format!("exit code {code}"),
                (None, signal) => format!("signal {signal:?}"),
            };
            bail!(
                "`dressage {}` ended with {ended}, not {code}; stdout:\n{}\nstderr:\n{}",
                self.shown,
                self.stdout,
                self.stderr
            );
        }
        Ok(self)
    }

    /// Its stdout as one JSON value.
    ///
    /// # Errors
    /// When it is not.
    pub fn json(&self) -> Result<serde_json::Value> {
        serde_json::from_str(&self.stdout)
            .with_context(|| format!("stdout of `dressage {}` is not one JSON value:\n{}", self.shown, self.stdout))
    }
}
