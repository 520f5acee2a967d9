//! Event files: read back by ours, cut off anywhere, and by TensorBoard's own reader.

use std::path::Path;
use std::process::Command;

use dressage_schemas::ErrorKind;
use dressage_trainer::metrics::StepMetrics;
use dressage_trainer::metrics::tensorboard::{EventWriter, What, read_events};

fn metrics(loss: f64) -> StepMetrics {
    let mut metrics = StepMetrics::new();
    metrics.extend([("loss", loss), ("kl", 0.25)]);
    metrics
}

fn scalars(path: &Path) -> Vec<(i64, Vec<(String, f32)>)> {
    let events = read_events(path).unwrap().events.into_iter();
    events.filter_map(|e| if let What::Scalars(s) = e.what { Some((e.step, s)) } else { None }).collect()
}

fn expected(steps: &[(i64, f32)]) -> Vec<(i64, Vec<(String, f32)>)> {
    let of = |loss: f32| vec![("train/loss".to_owned(), loss), ("train/kl".to_owned(), 0.25)];
    steps.iter().map(|(step, loss)| (*step, of(*loss))).collect()
}

#[test]
fn events_are_read_as_they_were_written() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = EventWriter::create(&folder.path().join("run"), 1_700_000_000.5).unwrap();
    writer.step(0, 1_700_000_001.0, &metrics(2.0)).unwrap();
    writer.step(1, 1_700_000_002.0, &metrics(1.5)).unwrap();
    writer.sync().unwrap();
    let file = read_events(writer.path()).unwrap();
    assert_eq!((file.events[0].what.clone(), file.events[0].wall_time), (What::FileVersion, 1_700_000_000.5));
    assert_eq!(file.torn_bytes, 0);
    assert_eq!(scalars(writer.path()), expected(&[(0, 2.0), (1, 1.5)]));
    assert!(writer.path().file_name().unwrap().to_string_lossy().starts_with("events.out.tfevents.1700000000."));
}

#[test]
fn two_writers_of_one_second_have_two_files() {
    let folder = tempfile::tempdir().unwrap();
    let first = EventWriter::create(folder.path(), 1.0).unwrap();
    let second = EventWriter::create(folder.path(), 1.0).unwrap();
    assert_ne!(first.path(), second.path());
}

#[test]
fn a_file_cut_off_anywhere_is_gone_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = EventWriter::create(folder.path(), 1.0).unwrap();
    writer.step(0, 2.0, &metrics(2.0)).unwrap();
    let after_first = std::fs::metadata(writer.path()).unwrap().len() as usize;
    writer.step(1, 3.0, &metrics(1.0)).unwrap();
    let whole = std::fs::read(writer.path()).unwrap();
    let path = folder.path().join("cut");
    for cut in 0..=whole.len() {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let mut writer = EventWriter::append(&path, 4.0).unwrap();
        writer.step(9, 5.0, &metrics(0.5)).unwrap();
        let mut steps = Vec::new();
        steps.extend((cut >= after_first).then_some((0, 2.0)));
        steps.extend((cut == whole.len()).then_some((1, 1.0)));
        steps.push((9, 0.5));
        let file = read_events(&path).unwrap();
        assert_eq!((scalars(&path), file.torn_bytes), (expected(&steps), 0), "cut at {cut}");
        assert_eq!(file.events[0].what, What::FileVersion, "cut at {cut}");
    }
}

#[test]
fn damage_in_the_middle_is_told_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = EventWriter::create(folder.path(), 1.0).unwrap();
    let first = std::fs::metadata(writer.path()).unwrap().len();
    writer.step(0, 2.0, &metrics(2.0)).unwrap();
    writer.step(1, 3.0, &metrics(1.0)).unwrap();
    let mut bytes = std::fs::read(writer.path()).unwrap();
    bytes[first as usize + 20] ^= 1;
    std::fs::write(writer.path(), bytes).unwrap();
    let error = read_events(writer.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains(&format!("at byte {first}")), "{error}");
    assert_eq!(EventWriter::append(writer.path(), 4.0).unwrap_err().kind(), ErrorKind::Corrupt);
    let missing = EventWriter::append(&folder.path().join("none"), 4.0).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
}

/// `TENSORBOARD_PYTHON=…/bin/python cargo test -p dressage-trainer -- --ignored tensorboard`, with the package `tensorboard`.
#[test]
#[ignore = "needs a Python with the package tensorboard, named by TENSORBOARD_PYTHON"]
fn tensorboard_reads_what_is_written_and_drops_what_a_restart_takes_back() {
    let python = std::env::var("TENSORBOARD_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let folder = tempfile::tempdir().unwrap();
    let mut writer = EventWriter::create(folder.path(), 1_700_000_000.0).unwrap();
    for step in 0..4 {
        writer.step(step, 1_700_000_000.0 + step as f64, &metrics(4.0 - step as f64)).unwrap();
    }
    let path = writer.path().to_owned();
    drop(writer);
    // the crash tears the last record off; the run goes on from its checkpoint at step 2
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
    let mut writer = EventWriter::append(&path, 1_700_000_100.0).unwrap();
    writer.restart(2, 1_700_000_100.0).unwrap();
    writer.step(2, 1_700_000_101.0, &metrics(0.5)).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle/read_events.py");
    let output = Command::new(python).arg(script).arg(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let expected = serde_json::json!({
        "train/loss": [[0, 4.0], [1, 3.0], [2, 0.5]],
        "train/kl": [[0, 0.25], [1, 0.25], [2, 0.25]],
    });
    assert_eq!(found, expected);
}
