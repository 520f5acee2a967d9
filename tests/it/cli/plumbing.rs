//! Settings, help, completions, exit codes: what works without a store.

use std::io::Read;
use std::process::Stdio;

use super::run::{dressage, finish, run};

#[test]
fn every_setting_shows_the_layer_that_won() {
    let folder = tempfile::tempdir().expect("tempdir");
    std::fs::write(folder.path().join("dressage.toml"), "[sql]\nmemory_limit = '1GiB'\n").expect("write");
    let shown = finish(dressage(folder.path()).env("DRESSAGE__INGEST__JOBS", "3").args([
        "--store",
        "elsewhere",
        "config",
        "show",
        "--json",
    ]))
    .exits(0)
    .json();
    assert_eq!(shown["store"]["value"], "elsewhere");
    assert_eq!(shown["store"]["origin"], "flag --store");
    assert_eq!(shown["ingest.jobs"]["origin"], "env DRESSAGE__INGEST__JOBS");
    assert_eq!(shown["sql.memory_limit"]["value"], "1GiB");
    assert_eq!(shown["sql.memory_limit"]["origin"], "file dressage.toml");
    assert_eq!(shown["ingest.run"]["origin"], "default");
}

#[test]
fn shown_settings_are_a_settings_file() {
    let folder = tempfile::tempdir().expect("tempdir");
    let shown = run(folder.path(), &["config", "show", "--store", "s3://lake/a"]).exits(0).stdout;
    std::fs::write(folder.path().join("dressage.toml"), &shown).expect("write");
    assert_eq!(run(folder.path(), &["config", "show"]).exits(0).stdout, shown);
}

#[test]
fn a_misspelt_setting_is_refused_with_the_file_it_is_in() {
    let folder = tempfile::tempdir().expect("tempdir");
    std::fs::write(folder.path().join("dressage.toml"), "stoer = 'x'\n").expect("write");
    let ran = run(folder.path(), &["config", "show"]).exits(2);
    assert!(ran.stderr.contains("`stoer` (from file dressage.toml)"), "{}", ran.stderr);
}

#[test]
fn unknown_flags_exit_with_2() {
    let folder = tempfile::tempdir().expect("tempdir");
    let ran = run(folder.path(), &["config", "show", "--colour"]).exits(2);
    assert!(ran.stdout.is_empty());
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    let folder = tempfile::tempdir().expect("tempdir");
    let mut child = dressage(folder.path())
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("read");
    assert_eq!(child.wait().expect("ends").code(), Some(0), "{stderr}");
    assert!(stderr.is_empty(), "{stderr}");
}

#[test]
fn the_reference_pages_are_those_of_this_build() {
    let folder = tempfile::tempdir().expect("tempdir");
    run(folder.path(), &["reference-pages", "pages"]).exits(0);
    let kept = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/commands");
    for entry in std::fs::read_dir(folder.path().join("pages")).expect("written") {
        let entry = entry.expect("entry");
        let fresh = std::fs::read_to_string(entry.path()).expect("read");
        let stored = std::fs::read_to_string(kept.join(entry.file_name())).unwrap_or_default();
        assert!(
            fresh == stored,
            "docs/commands/{} is stale: run `cargo run -- reference-pages`",
            entry.file_name().to_string_lossy()
        );
    }
}
