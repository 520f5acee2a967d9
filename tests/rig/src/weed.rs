//! A real S3 server: SeaweedFS on the loopback, on data of its own, gone with the test process.
//!
//! One server serves a whole test binary ([`Weed::shared`]); a test gets a prefix of its own in the one bucket.
//! One bucket, because each is a collection of its own there and takes seven volumes; fifty tests would run out.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::sigv4::Credentials;
use crate::watchdog::Watchdog;
use crate::wire::{REGION, Request, send};
use crate::{Seed, ports};

/// Longest wait until the server answers: 3 s on an empty folder, up to 21 s on one with data, on a busy machine.
const READY_TIMEOUT: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(100);
/// Port races lost in a row before giving up.
const START_TRIES: usize = 4;
const BUCKET: &str = "lake";
const PROBE: &[u8] = b"ready";

/// A running SeaweedFS.
#[derive(Debug)]
pub struct Weed {
    s3_port: u16,
    ports: [u16; 4],
    dir: PathBuf,
    binary: PathBuf,
    child: Mutex<Option<Child>>,
    prefixes: AtomicU64,
    was_ready: AtomicBool,
    _watchdog: Watchdog,
}

/// Where one test may write: an endpoint, credentials and a prefix nobody else uses.
#[derive(Debug, Clone)]
pub struct S3Place {
    /// `http://127.0.0.1:PORT`, of the server or of a proxy in front of it.
    pub endpoint: String,
    /// `s3://lake/PREFIX`.
    pub uri: String,
    /// The key pair of the server's one identity.
    pub credentials: Credentials,
}

impl S3Place {
    /// The environment in which any S3 tool finds this place.
    pub fn environment(&self) -> Vec<(String, String)> {
        [
            ("AWS_ENDPOINT_URL", self.endpoint.as_str()),
            ("AWS_ACCESS_KEY_ID", &self.credentials.access_key_id),
            ("AWS_SECRET_ACCESS_KEY", &self.credentials.secret_access_key),
            ("AWS_REGION", REGION),
            ("AWS_ALLOW_HTTP", "true"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
    }

    /// The same place seen through another endpoint.
    pub fn through(&self, endpoint: &str) -> Self {
        Self { endpoint: endpoint.to_owned(), ..self.clone() }
    }
}

impl Weed {
    /// The server of this test binary, started on first use.
    ///
    /// # Panics
    /// When it cannot be started: a test that needs S3 fails then, it is not left out.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Weed> = OnceLock::new();
        SHARED.get_or_init(|| match Self::start() {
            Ok(weed) => weed,
            Err(error) => panic!("the S3 server of the tests did not start: {error:#}"),
        })
    }

    /// A server of one's own, for tests that kill it.
    ///
    /// # Errors
    /// When `weed` is not installed (the message says what to run) or does not become ready.
    pub fn start() -> Result<Self> {
        let binary = find_binary()?;
        let mut seed = Seed::new(u64::from(std::process::id()) ^ (Instant::now().elapsed().as_nanos() as u64));
        let mut last = None;
        for _ in 0..START_TRIES {
            match Self::start_on(&binary, &ports::free_pairs(4, &mut seed)?) {
                Ok(weed) => return Ok(weed),
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("no try was made")?).context("weed could not be started, on four sets of ports")
    }

    fn start_on(binary: &Path, free: &[u16]) -> Result<Self> {
        let ports: [u16; 4] = free.try_into().context("four ports")?;
        // Not a TempDir: the watchdog removes it, also when no destructor runs.
        let dir = tempfile::Builder::new().prefix("dressage-weed-").tempdir()?.keep();
        std::fs::create_dir(dir.join("data"))?;
        let credentials = credentials();
        let identities = serde_json::json!({"identities": [{
            "name": "test",
            "credentials": [{"accessKey": credentials.access_key_id, "secretKey": credentials.secret_access_key}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }]});
        std::fs::write(dir.join("s3.json"), identities.to_string())?;
        let watchdog = Watchdog::over(&dir.join("pid"), &dir).context("the watchdog shell did not start")?;
        let weed = Self {
            s3_port: ports[3],
            ports,
            dir,
            binary: binary.to_owned(),
            child: Mutex::new(None),
            prefixes: AtomicU64::new(0),
            was_ready: AtomicBool::new(false),
            _watchdog: watchdog,
        };
        weed.spawn()?;
        weed.was_ready.store(true, Ordering::SeqCst);
        Ok(weed)
    }

    fn spawn(&self) -> Result<()> {
        let [master, volume, filer, s3] = self.ports;
        let log = File::options().create(true).append(true).open(self.dir.join("log"))?;
        let child = Command::new(&self.binary)
            .arg("server")
            .arg(format!("-dir={}", self.dir.join("data").display()))
            .args(["-ip=127.0.0.1", "-ip.bind=127.0.0.1"])
            // It would report to its vendor otherwise.
            .arg("-master.telemetry=false")
            .args(["-master.volumeSizeLimitMB=1024", "-volume.max=50", "-volume.preStopSeconds=1"])
            .args(["-s3", "-s3.port.iceberg=0", "-s3.port.lance=0"])
            .arg(format!("-s3.config={}", self.dir.join("s3.json").display()))
            .arg(format!("-s3.port={s3}"))
            .arg(format!("-master.port={master}"))
            .arg(format!("-volume.port={volume}"))
            .arg(format!("-filer.port={filer}"))
            .current_dir(&self.dir)
            .env("GOMEMLIMIT", "400MiB")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C is the watchdog's business: weed would take 12 s to say goodbye.
            .process_group(0)
            .spawn()
            .with_context(|| format!("{} cannot be run", self.binary.display()))?;
        std::fs::write(self.dir.join("pid"), child.id().to_string())?;
        *self.lock() = Some(child);
        self.wait_until_ready()
    }

    fn wait_until_ready(&self) -> Result<()> {
        let begun = Instant::now();
        loop {
            let ended = self.lock().as_mut().and_then(|child| child.try_wait().ok().flatten());
            if let Some(status) = ended {
                bail!("weed ended at once with {status}; the end of its log:\n{}", self.log_end());
            }
            if self.is_ready() {
                return Ok(());
            }
            if begun.elapsed() > READY_TIMEOUT {
                bail!("weed was not ready after {READY_TIMEOUT:?}; the end of its log:\n{}", self.log_end());
            }
            std::thread::sleep(POLL);
        }
    }

    /// Whether it makes the bucket, stores an object and gives it back. A restarted server accepts connections well
    /// before its volumes have reported to its master, and answers 500 meanwhile.
    fn is_ready(&self) -> bool {
        let ask = |method, path, body| {
            send(self.address(), Some(&credentials()), &Request { method, path, body, ..Request::default() })
        };
        let bucket = format!("/{BUCKET}");
        // 409: it has the bucket from before.
        let made = ask("PUT", &bucket, &[]).is_ok_and(|answer| [200, 409].contains(&answer.status));
        // The object of the run before must be there again, not only a new one be possible.
        let object = format!("{bucket}/.ready");
        let kept = self.was_ready.load(Ordering::SeqCst);
        made && (kept || ask("PUT", &object, PROBE).is_ok_and(|answer| answer.status == 200))
            && ask("GET", &object, &[]).is_ok_and(|answer| answer.status == 200 && answer.body == PROBE)
    }

    /// SIGKILL, and no sooner back than the process is gone.
    pub fn kill(&self) {
        if let Some(mut child) = self.lock().take() {
            // Errors mean that it has ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts a killed server again on the same ports and data.
    ///
    /// # Errors
    /// When it does not become ready.
    pub fn restart(&self) -> Result<()> {
        self.kill();
        self.spawn()
    }

    /// Where its S3 listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.s3_port).into()
    }

    /// Its one identity.
    pub fn credentials(&self) -> Credentials {
        credentials()
    }

    /// A prefix that nobody else has.
    pub fn place(&self, name: &str) -> S3Place {
        let number = self.prefixes.fetch_add(1, Ordering::Relaxed);
        S3Place {
            endpoint: format!("http://{}", self.address()),
            uri: format!("s3://{BUCKET}/{name}-{number}"),
            credentials: credentials(),
        }
    }

    fn log_end(&self) -> String {
        let log = std::fs::read(self.dir.join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log[log.len().saturating_sub(2000)..]).into_owned()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Weed {
    fn drop(&mut self) {
        self.kill();
    }
}

fn credentials() -> Credentials {
    Credentials { access_key_id: "rig-key".to_owned(), secret_access_key: "rig-secret-4f1c".to_owned() }
}

/// `$DRESSAGE_WEED`, then the PATH, then where `make setup` puts it.
fn find_binary() -> Result<PathBuf> {
    if let Some(given) = std::env::var_os("DRESSAGE_WEED") {
        let given = PathBuf::from(given);
        if given.is_file() {
            return Ok(given);
        }
        bail!("DRESSAGE_WEED names {}, which is not a file", given.display());
    }
    let on_path =
        std::env::var_os("PATH").into_iter().flat_map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache/dressage/venv/bin"));
    on_path.chain(home).map(|dir| dir.join("weed")).find(|file| file.is_file()).context(
        "the S3 server of the tests, `weed` (SeaweedFS 4.47), is neither on PATH nor in ~/.cache/dressage/venv/bin: \
         run `make setup`, or set DRESSAGE_WEED to the binary",
    )
}
