//! `cargo run -p dressage-tidy`: house rules that a compiler does not check.
//!
//! Takes the workspace folder, gives one line a violation (exit 1 if there is any) and a line a warning. It links
//! nothing heavy, so that `make check` has its answer in seconds.
//!
//! ```text
//!   cargo metadata ─▶ rooms    who may depend on whom, which heavy crate lives where
//!   *.rs, *.sql ────▶ sources  length, names, opening comment, words
//!   *.md ───────────▶ links    every relative link and anchor resolves
//! ```
//!
//! Read first: [`rooms::MAY_USE`] (the direction of the rooms).

mod links;
mod rooms;
mod sources;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

/// What the rules found.
#[derive(Debug, Default)]
struct Findings {
    errors: Vec<String>,
    warnings: Vec<String>,
}

fn main() -> Result<ExitCode> {
    let root = workspace_root()?;
    let files = tracked_files(&root)?;
    let mut findings = Findings::default();
    rooms::check(&root, &mut findings)?;
    sources::check(&root, &files, &mut findings)?;
    links::check(&root, &files, &mut findings)?;
    for warning in &findings.warnings {
        println!("warning: {warning}");
    }
    for error in &findings.errors {
        println!("error: {error}");
    }
    let (errors, warnings) = (findings.errors.len(), findings.warnings.len());
    println!("tidy: {} files, {errors} errors, {warnings} warnings", files.len());
    Ok(if errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn workspace_root() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).map(Path::to_path_buf).context("tests/tidy is two folders below the workspace")
}

/// Files of the working tree that git does not ignore, so that a new file is looked at before it is committed.
fn tracked_files(root: &Path) -> Result<Vec<PathBuf>> {
    let out = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("cannot run git")?;
    if !out.status.success() {
        bail!("git ls-files failed: {}", String::from_utf8_lossy(&out.stderr));
    }
    let text = String::from_utf8(out.stdout).context("a file name is not UTF-8")?;
    let mut files: Vec<PathBuf> = text.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from).collect();
    // a file deleted but not yet committed is still listed
    files.retain(|file| root.join(file).is_file());
    files.sort();
    files.dedup();
    Ok(files)
}
