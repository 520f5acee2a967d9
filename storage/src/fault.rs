//! A documented seam for crash tests: `DRESSAGE_FAULT=after:steps` makes the process die at that point of a commit.
//!
//! Points are `written:<table>`, between writing a table's data files and committing them, and `after:<table>`, after
//! that commit; `half:file`, while a file of a folder is written, and `after:file`, when it is durable; `after:retired`,
//! between removing rows of checkpoints and removing their files. `after:steps:3` dies at the third time. The process ends
//! as by a kill: no destructor runs, nothing is flushed.

use std::fmt::Display;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The environment variable.
pub const FAULT_VARIABLE: &str = "DRESSAGE_FAULT";

struct Fault {
    point: String,
    left: AtomicU32,
}

static FAULT: OnceLock<Option<Fault>> = OnceLock::new();

fn configured() -> Option<&'static Fault> {
    FAULT
        .get_or_init(|| {
            let text = std::env::var(FAULT_VARIABLE).ok()?;
            let mut parts = text.split(':');
            let (when, what) = (parts.next()?, parts.next()?);
            let times = parts.next().and_then(|n| n.parse().ok()).unwrap_or(1);
            Some(Fault { point: format!("{when}:{what}"), left: AtomicU32::new(times) })
        })
        .as_ref()
}

/// Dies here if the environment says so; costs one load otherwise.
pub(crate) fn point(when: &str, what: impl Display) {
    let Some(fault) = configured() else { return };
    if fault.point == format!("{when}:{what}") && fault.left.fetch_sub(1, Ordering::SeqCst) == 1 {
        std::process::abort();
    }
}
