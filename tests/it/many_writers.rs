//! Four processes at once on one store: different files, and the same file.

use std::path::Path;

use anyhow::Result;
use dressage_rig::{Dressage, Seed, Weed, Workload};

use crate::whole::{complete, field, local, on_s3};

const WRITERS: usize = 4;

fn ingest(file: &Path, run: &str) -> Vec<String> {
    let file = file.display().to_string();
    ["ingest", &file, "--run", run, "--commit-bytes", "16KiB", "--json", "--quiet"].map(str::to_owned).to_vec()
}

/// Starts all, then waits for all; gives their reports.
fn together(dressage: &Dressage, all: &[Vec<String>]) -> Result<Vec<serde_json::Value>> {
    let running = all.iter().map(|args| dressage.spawn(args)).collect::<Result<Vec<_>>>()?;
    running
        .into_iter()
        .map(|one| {
            let finished = one.wait()?;
            finished.expect_code(0)?.json()
        })
        .collect()
}

fn different_files(dressage: &Dressage, dir: &Path, seed: &Seed) -> Result<()> {
    dressage.run(&["store", "init"])?.expect_code(0)?;
    let mut all = Workload::make(seed, "none", 0, 0)?;
    let mut args = Vec::new();
    for writer in 0..WRITERS {
        let workload = Workload::make(&seed.fork(writer as u64 + 1), &format!("w{writer}"), 40, 120)?;
        let file = dir.join(format!("w{writer}.jsonl"));
        workload.write(&file)?;
        args.push(ingest(&file, "many"));
        all = all.and(workload);
    }
    let reports = together(dressage, &args)?;
    complete(dressage, "many", &all)?;
    for report in &reports {
        assert_eq!((field(report, "trajectories_new")?, field(report, "quarantined")?), (40, 0), "{report}");
    }
    dressage.run(&["store", "check", "--json"])?.expect_code(0)?;
    Ok(())
}

fn the_same_file(dressage: &Dressage, dir: &Path, seed: &Seed) -> Result<()> {
    dressage.run(&["store", "init"])?.expect_code(0)?;
    let workload = Workload::make(&seed.fork(77), "same", 40, 120)?;
    let file = dir.join("same.jsonl");
    workload.write(&file)?;
    together(dressage, &vec![ingest(&file, "same"); WRITERS])?;
    complete(dressage, "same", &workload)?;
    // And once more alone: now everything is known.
    let report = dressage.run(&ingest(&file, "same"))?;
    let report = report.expect_code(0)?.json()?;
    assert_eq!((field(&report, "trajectories_new")?, field(&report, "trajectories_unchanged")?), (0, 40), "{report}");
    complete(dressage, "same", &workload)?;
    Ok(())
}

#[test]
fn four_writers_of_different_files_lose_and_double_nothing_on_a_folder() {
    let dir = tempfile::tempdir().expect("a folder");
    let dressage = local(&dir.path().join("store"));
    different_files(&dressage, dir.path(), &Seed::of_run("writers, folder")).expect("nothing lost or doubled");
}

#[test]
fn four_writers_of_different_files_lose_and_double_nothing_on_s3() {
    let dir = tempfile::tempdir().expect("a folder");
    let dressage = on_s3(&Weed::shared().place("writers"));
    different_files(&dressage, dir.path(), &Seed::of_run("writers, S3")).expect("nothing lost or doubled");
}

#[test]
fn four_readings_of_the_same_file_at_once_store_it_once_on_a_folder() {
    let dir = tempfile::tempdir().expect("a folder");
    let dressage = local(&dir.path().join("store"));
    the_same_file(&dressage, dir.path(), &Seed::of_run("same file, folder")).expect("once");
}

#[test]
fn four_readings_of_the_same_file_at_once_store_it_once_on_s3() {
    let dir = tempfile::tempdir().expect("a folder");
    let dressage = on_s3(&Weed::shared().place("same"));
    the_same_file(&dressage, dir.path(), &Seed::of_run("same file, S3")).expect("once");
}
