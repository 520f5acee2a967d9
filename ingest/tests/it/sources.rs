//! Files in every wrapping.

use std::io::Write;

use dressage_ingest::Error;
use dressage_schemas::Table;
use zip::write::SimpleFileOptions;

use crate::lake::{TestLake, line, lines};

fn some_lines(prefix: &str) -> String {
    lines(&(0..5).map(|i| line(&format!("{prefix}{i}"), &[1, 2, i], 1.0)).collect::<Vec<_>>())
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zipped(members: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes) in members {
        writer.start_file(*name, SimpleFileOptions::default()).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

#[tokio::test(flavor = "multi_thread")]
async fn compression_is_found_by_content_under_any_name() {
    let lake = TestLake::new().await;
    lake.file("in/a.jsonl", gzip(some_lines("gz").as_bytes()));
    lake.file("in/b.gz", some_lines("plain"));
    lake.file("in/c", zstd::encode_all(some_lines("zst").as_bytes(), 1).unwrap());
    let members = [("x/d.json", some_lines("zip").into_bytes()), ("e.gz", gzip(some_lines("both").as_bytes()))];
    lake.file("in/d.traj", zipped(&members));
    lake.file("in/empty.jsonl", "");
    let report = lake.ingest(lake.dir.path().join("in")).await;
    assert_eq!((report.trajectories_new, report.quarantined), (25, 0), "{report:?}");
    assert_eq!(report.formats["dressage"], 5);
    assert_eq!(report.formats["empty"], 1);
    // the archive's two members count, and it does not
    assert_eq!(report.files, 6);
    let names = lake.texts(Table::Trajectories, "source", Some("trajectory_id = 'zip0'")).await;
    assert!(names[0].ends_with("in/d.traj!x/d.json"), "{names:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_archive_gives_what_it_holds_and_a_row_of_quarantine() {
    let lake = TestLake::new().await;
    let text: String = (0..10_000).map(|i| line(&format!("t{i}"), &[1, 2, i], 1.0) + "\n").collect();
    let mut bytes = gzip(text.as_bytes());
    bytes.truncate(bytes.len() / 2);
    let report = lake.ingest(lake.file("cut.gz", bytes)).await;
    assert!(report.trajectories_new > 500, "{report:?}");
    assert_eq!(report.quarantined_by_rule["damaged"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_are_no_rollouts_are_named_one_by_one() {
    let lake = TestLake::new().await;
    lake.file("in/LICENSE", "MIT License\n\nPermission is hereby granted, free of charge\n");
    lake.file("in/weights.pt", zipped(&[("archive/data.pkl", vec![0x80, 2]), ("archive/data/0", vec![0; 10])]));
    lake.file("in/image", [0x89, b'P', b'N', b'G', 13, 10, 26, 10]);
    lake.file("in/good.jsonl", some_lines("t"));
    let report = lake.ingest(lake.dir.path().join("in")).await;
    assert_eq!((report.trajectories_new, report.quarantined), (5, 3));
    let reasons = lake.texts(Table::Quarantine, "reason", None).await.join("\n");
    for word in ["licence", "PyTorch", "image"] {
        assert!(reasons.contains(word), "{reasons}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_holds_records_too() {
    let lake = TestLake::new().await;
    let all: Vec<serde_json::Value> = some_lines("t").lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let array = serde_json::to_string_pretty(&all).unwrap();
    let report = lake.ingest(lake.file("array.json", array)).await;
    assert_eq!((report.trajectories_new, report.quarantined), (5, 0), "{report:?}");
    let one = serde_json::to_string_pretty(&all[0]).unwrap();
    let report = lake.ingest(lake.file("one.json", one)).await;
    assert_eq!((report.trajectories_new, report.trajectories_unchanged), (0, 1), "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_or_misspelt_is_an_error_before_anything_is_read() {
    let lake = TestLake::new().await;
    let missing = lake.ingest_with("/no/such/file.jsonl", |_| {}).await.unwrap_err();
    assert!(matches!(missing, Error::SourceNotFound { .. }), "{missing}");
    let file = lake.file("a.jsonl", some_lines("t"));
    let format = lake.ingest_with(&file, |s| s.format = "jsnol".into()).await.unwrap_err();
    assert!(matches!(&format, Error::UnknownFormat { known, .. } if known.contains("dressage")), "{format}");
    let jobs = lake.ingest_with(&file, |s| s.jobs = 0).await.unwrap_err();
    assert!(matches!(jobs, Error::BadSetting { setting: "jobs", .. }), "{jobs}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_format_by_name_covers_its_forms() {
    let lake = TestLake::new().await;
    let events = r#"{"kind":"finish","trajectory_id":"e","status":"aborted"}"#;
    let whole = line("w", &[1, 2], 1.0);
    for text in [events, &whole] {
        let file = lake.file("a", text);
        let report = lake.ingest_with(&file, |s| s.format = "dressage".into()).await.unwrap();
        assert_eq!((report.trajectories_new, report.quarantined), (1, 0), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_through_a_pipe_is_stored_while_it_is_open() {
    let lake = TestLake::new().await;
    let path = lake.dir.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    let (first_stored, wait) = std::sync::mpsc::channel::<()>();
    let writer = std::thread::spawn({
        let path = path.clone();
        move || {
            let mut pipe = std::fs::File::options().write(true).open(path).unwrap();
            writeln!(pipe, "{}", line("first", &[1, 2], 1.0)).unwrap();
            // the second comes only when the first has been seen in the store
            wait.recv().unwrap();
            writeln!(pipe, "{}", line("second", &[1, 2], 1.0)).unwrap();
        }
    });
    let seen = async {
        while lake.count(Table::Trajectories).await == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        first_stored.send(()).unwrap();
    };
    let (report, ()) = tokio::join!(lake.ingest_with(&path, |s| s.commit_interval_ms = 50), seen);
    writer.join().unwrap();
    assert_eq!(report.unwrap().trajectories_new, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_cannot_be_read_is_named_and_the_others_are_read() {
    let lake = TestLake::new().await;
    let folder = lake.dir.path().join("in");
    lake.file("in/a.jsonl", some_lines("a"));
    lake.file("in/z.jsonl", some_lines("z"));
    // cannot be opened, whoever asks
    let socket = std::os::unix::net::UnixListener::bind(folder.join("socket")).unwrap();
    std::os::unix::fs::symlink(folder.join("nothing"), folder.join("dangling")).unwrap();
    // can be opened and not be read
    std::os::unix::fs::symlink("/proc/self/mem", folder.join("broken-disk")).unwrap();
    let pattern = folder.join("*");
    for sources in [&folder, &pattern] {
        let report = lake.ingest(sources).await;
        assert_eq!(report.trajectories_new + report.trajectories_unchanged, 10, "{report:?}");
        assert_eq!((report.quarantined_by_rule["unreadable"], report.formats["unreadable"]), (3, 2), "{report:?}");
    }
    drop(socket);
    let mut named = lake.texts(Table::Quarantine, "source", None).await;
    named.sort();
    let wanted = ["broken-disk", "dangling", "socket"].map(|name| folder.join(name).display().to_string());
    assert_eq!(named, wanted);
    let reasons = lake.texts(Table::Quarantine, "reason", None).await.join("\n");
    for word in ["a link that leads nowhere", "No such device", "Input/output error", "ingest it again"] {
        assert!(reasons.contains(word), "{word} is not in: {reasons}");
    }
    assert!(lake.bytes(Table::Quarantine, "raw", None).await.iter().all(Vec::is_empty));
    let strict = lake.ingest_with(&folder, |s| s.strict = true).await.unwrap_err();
    assert!(matches!(&strict, Error::Strict { rule, .. } if rule == "unreadable"), "{strict}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_and_a_folder_without_permission_are_named_and_the_others_are_read() {
    use std::os::unix::fs::PermissionsExt;
    let lake = TestLake::new().await;
    lake.file("in/a.jsonl", some_lines("a"));
    let file = lake.file("in/b.jsonl", some_lines("b"));
    let folder = lake.file("in/c/d.jsonl", some_lines("d")).parent().unwrap().to_owned();
    let set = |mode: u32| {
        for path in [&file, &folder] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    set(0);
    if std::fs::File::open(&file).is_ok() {
        eprintln!("skipped: this user may read everything");
        return set(0o700);
    }
    let report = lake.ingest(lake.dir.path().join("in")).await;
    set(0o700);
    assert_eq!((report.trajectories_new, report.quarantined_by_rule["unreadable"]), (5, 2), "{report:?}");
}
