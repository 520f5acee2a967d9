//! Rooms depend one way, and a heavy dependency lives in one room.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::Findings;

/// Which packages of the workspace a package may use.
pub(crate) const MAY_USE: &[(&str, &[&str])] = &[
    ("dressage-schemas", &[]),
    ("dressage-codec", &[]),
    ("dressage-tokenizer", &["dressage-schemas"]),
    ("dressage-storage", &["dressage-schemas", "dressage-codec"]),
    ("dressage-ingest", &["dressage-schemas", "dressage-codec", "dressage-tokenizer", "dressage-storage"]),
    ("dressage-segmenter", &["dressage-schemas", "dressage-codec", "dressage-tokenizer", "dressage-storage"]),
    ("dressage-trainer", &["dressage-schemas", "dressage-codec", "dressage-storage"]),
];

/// Heavy crates and the rooms that may name them.
const HEAVY: &[(&str, &[&str])] = &[
    ("datafusion", &["dressage-segmenter"]),
    ("lance", &["dressage-storage"]),
    ("object_store", &["dressage-storage", "dressage-segmenter"]),
    ("tch", &["dressage-trainer"]),
    ("axum", &["dressage-proxy", "dressage-policy"]),
    ("tokenizers", &["dressage-tokenizer"]),
    ("anyhow", &["dressage", "dressage-tidy", "dressage-rig"]),
    ("clap", &["dressage"]),
];

/// Packages in which rooms meet.
const MEETING_PLACES: &[&str] = &["dressage", "dressage-tidy", "dressage-rig"];

/// Checks the workspace's manifests.
pub(crate) fn check(root: &Path, findings: &mut Findings) -> Result<()> {
    let out = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(root)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .output()
        .context("cannot run cargo metadata")?;
    if !out.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&out.stderr));
    }
    let metadata: Value = serde_json::from_slice(&out.stdout).context("cargo metadata is not JSON")?;
    for package in metadata["packages"].as_array().context("cargo metadata has no packages")? {
        let name = package["name"].as_str().context("a package has no name")?;
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let used = dependency["name"].as_str().unwrap_or_default();
            let for_tests = dependency["kind"] == "dev";
            findings.errors.extend(violation(name, used, for_tests));
        }
    }
    Ok(())
}

/// The rule that an edge breaks, if it breaks one.
fn violation(package: &str, used: &str, for_tests: bool) -> Option<String> {
    let room_of = |crate_name: &str| {
        HEAVY.iter().find(|(heavy, _)| crate_name == *heavy || crate_name.starts_with(&format!("{heavy}-")))
    };
    if used.starts_with("dressage") {
        if MEETING_PLACES.contains(&package) {
            return None;
        }
        let Some((_, allowed)) = MAY_USE.iter().find(|(name, _)| *name == package) else {
            return Some(format!("{package} is no known room: add it to MAY_USE in tests/tidy/src/rooms.rs"));
        };
        return (!allowed.contains(&used))
            .then(|| format!("{package} may not depend on {used}: rooms meet in src/ and tests/"));
    }
    let (heavy, rooms) = room_of(used)?;
    // a test may look at a store from outside
    let allowed = rooms.contains(&package) || (for_tests && (MEETING_PLACES.contains(&package) || *heavy == "anyhow"));
    (!allowed).then(|| format!("{package} may not depend on {used}: it lives in {}", rooms.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_depend_one_way() {
        assert_eq!(violation("dressage-ingest", "dressage-storage", false), None);
        assert!(violation("dressage-storage", "dressage-ingest", false).is_some());
        assert!(violation("dressage-segmenter", "dressage-ingest", true).is_some());
        assert!(violation("dressage-trainer", "dressage-segmenter", false).is_some());
        assert!(violation("dressage-newroom", "dressage-schemas", false).is_some());
        assert_eq!(violation("dressage", "dressage-ingest", false), None);
    }

    #[test]
    fn a_heavy_crate_stays_in_its_room() {
        assert!(violation("dressage-ingest", "lance-io", false).is_some());
        assert!(violation("dressage", "datafusion", false).is_some());
        assert!(violation("dressage-storage", "anyhow", false).is_some());
        assert_eq!(violation("dressage-storage", "anyhow", true), None);
        assert_eq!(violation("dressage-storage", "lance-io", false), None);
        assert_eq!(violation("dressage-ingest", "serde", false), None);
    }
}
