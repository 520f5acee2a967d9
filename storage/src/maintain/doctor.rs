//! Is this place fit for a store, and is the store there reachable? Each finding says what to do.

use std::time::{Duration, Instant};

use dressage_schemas::Table;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::lake::{Lake, now_micros};
use crate::location::Location;

/// Clocks may differ by this much before it is a warning: `--as-of` and grace periods compare times of machines.
const CLOCK_SKEW_MAX_MS: i64 = 5_000;
/// S3 refuses requests that are signed this far from its own time.
const CLOCK_SKEW_REFUSED_MS: i64 = 15 * 60 * 1_000;
/// Less free space than this is a warning.
const FREE_BYTES_MIN: u64 = 5 << 30;

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingStatus {
    /// As it should be.
    Ok,
    /// Works, but look at it.
    Warning,
    /// Does not work.
    Failed,
    /// Does not apply here.
    Skipped,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was checked.
    pub check: &'static str,
    /// How it came out.
    pub status: FindingStatus,
    /// What was seen.
    pub detail: String,
    /// What to do, where something should be done.
    pub what_to_do: Option<String>,
}

impl Finding {
    fn new(check: &'static str, status: FindingStatus, detail: impl Into<String>) -> Self {
        Self { check, status, detail: detail.into(), what_to_do: None }
    }

    fn advise(mut self, what_to_do: impl Into<String>) -> Self {
        self.what_to_do = Some(what_to_do.into());
        self
    }

    fn failed(check: &'static str, error: &Error, advice: &str) -> Self {
        let mut detail = error.to_string();
        if let Some(cause) = std::error::Error::source(error) {
            detail = format!("{detail}: {cause}");
        }
        Self::new(check, FindingStatus::Failed, detail).advise(advice)
    }
}

/// All checks. Writes and removes a few small objects under the store; never fails, whatever it finds.
pub async fn doctor(lake: &Lake) -> Vec<Finding> {
    let mut findings = vec![libraries()];
    findings.extend(quick(lake).await);
    findings.push(tables(lake).await);
    findings.push(write_and_clock(lake).await);
    findings.push(conditional_writes(lake).await);
    findings
}

/// The cheap part, run at every open: nothing is written.
pub async fn quick(lake: &Lake) -> Vec<Finding> {
    vec![endpoint(lake).await, disk(lake)]
}

fn libraries() -> Finding {
    let detail = format!("dressage {}, lance 14.0.2, object_store 0.14, arrow 58", env!("CARGO_PKG_VERSION"));
    Finding::new("libraries", FindingStatus::Ok, detail)
}

async fn endpoint(lake: &Lake) -> Finding {
    let opened = &lake.inner;
    let record = opened.root.clone().join(crate::RECORD_NAME);
    let started = Instant::now();
    match opened.objects.head(&record).await {
        Ok(_) => {
            let ms = started.elapsed().as_millis();
            Finding::new("endpoint", FindingStatus::Ok, format!("{} answers in {ms} ms", lake.uri()))
        }
        Err(e) => {
            let advice = "check the address, the network and the AWS_* variables; for a service other than AWS give \
                          --s3-endpoint, and allow http where it is http://";
            Finding::failed("endpoint", &Error::object("read", record.to_string(), e), advice)
        }
    }
}

async fn tables(lake: &Lake) -> Finding {
    match lake.snapshot(None).await {
        Ok(snapshot) => {
            let rows = snapshot.row_count(Table::Trajectories);
            let detail = format!("{} tables open, {rows} rows of trajectories", snapshot.versions().len());
            Finding::new("tables", FindingStatus::Ok, detail)
        }
        Err(e) => Finding::failed("tables", &e, "run `dressage store check`"),
    }
}

/// Writes a small object, and compares the time that the store gives it with ours.
async fn write_and_clock(lake: &Lake) -> Finding {
    const CHECK: &str = "write permission and clock";
    let opened = &lake.inner;
    let key = opened.root.clone().join("_race").join(format!("doctor-{}", uuid::Uuid::new_v4().simple()));
    let before = now_micros();
    let skew = probe_time(opened.objects.as_ref(), &key).await;
    let after = now_micros();
    match skew {
        Err(e) => {
            Finding::failed(CHECK, &e, "reading works without it; to write, grant put, get and delete on the prefix")
        }
        Ok(stamp) => {
            // services give whole seconds
            let early = (before / 1_000_000) * 1_000_000 - stamp;
            let late = stamp - after;
            let skew_ms = early.max(late).max(0) / 1_000;
            let detail = format!("writes are allowed; clocks differ by {skew_ms} ms");
            if skew_ms > CLOCK_SKEW_REFUSED_MS {
                Finding::new(CHECK, FindingStatus::Failed, detail).advise("set this machine's clock: S3 refuses it")
            } else if skew_ms > CLOCK_SKEW_MAX_MS {
                Finding::new(CHECK, FindingStatus::Warning, detail)
                    .advise("set this machine's clock (NTP): time travel and grace periods compare times")
            } else {
                Finding::new(CHECK, FindingStatus::Ok, detail)
            }
        }
    }
}

async fn probe_time(store: &dyn ObjectStore, key: &Path) -> Result<i64> {
    let name = key.to_string();
    let payload = PutPayload::from_static(b"dressage doctor");
    store.put(key, payload).await.map_err(|e| Error::object("write", name.clone(), e))?;
    let meta = store.head(key).await.map_err(|e| Error::object("read", name.clone(), e));
    store.delete(key).await.map_err(|e| Error::object("delete", name, e))?;
    Ok(meta?.last_modified.timestamp_micros())
}

async fn conditional_writes(lake: &Lake) -> Finding {
    const CHECK: &str = "conditional writes";
    match tokio::time::timeout(Duration::from_secs(120), lake.race_conditional_writes()).await {
        Err(_) => Finding::new(CHECK, FindingStatus::Failed, "the races did not end in 120 s")
            .advise("the store serialises contended writes badly; use one writer, or another store"),
        Ok(Err(e)) => Finding::failed(CHECK, &e, "grant put, get and delete on the prefix, then try again"),
        Ok(Ok(outcome)) => match outcome.broken {
            None => {
                let detail = format!(
                    "{} clients raced {} times for one key and {} times for one ETag: one winner each",
                    outcome.racers, outcome.create_rounds, outcome.update_rounds
                );
                Finding::new(CHECK, FindingStatus::Ok, detail)
            }
            Some(broken) => Finding::new(CHECK, FindingStatus::Failed, broken).advise(
                "stop all writers: rows may be lost without an error; move the store to one that honours If-None-Match",
            ),
        },
    }
}

fn disk(lake: &Lake) -> Finding {
    const CHECK: &str = "disk space";
    let Location::Local(folder) = &lake.inner.location else {
        return Finding::new(CHECK, FindingStatus::Skipped, "the store is not on a local disk");
    };
    match free_bytes(folder) {
        Err(e) => Finding::new(CHECK, FindingStatus::Failed, format!("{}: {e}", folder.display()))
            .advise("make the folder readable"),
        Ok(free) if free < FREE_BYTES_MIN => {
            Finding::new(CHECK, FindingStatus::Warning, format!("{} MiB free at {}", free >> 20, folder.display()))
                .advise("free some space, or run `dressage store compact` and `dressage store gc`")
        }
        Ok(free) => Finding::new(CHECK, FindingStatus::Ok, format!("{} MiB free at {}", free >> 20, folder.display())),
    }
}

#[allow(unsafe_code)]
fn free_bytes(folder: &std::path::Path) -> std::io::Result<u64> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(folder.as_os_str().as_bytes()).map_err(std::io::Error::other)?;
    let mut stats = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: `path` is a C string that lives across the call, and `stats` is valid for writes of one statvfs
    let done = unsafe { libc::statvfs(path.as_ptr(), stats.as_mut_ptr()) };
    if done != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: statvfs succeeded, so it filled the struct; it was zeroed before in any case
    let stats = unsafe { stats.assume_init() };
    Ok(stats.f_bavail.saturating_mul(stats.f_frsize))
}
