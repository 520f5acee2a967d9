//! Records larger than the pipeline's share of the memory, and files many times larger.

use std::io::Write;

use dressage_schemas::Table;

use crate::lake::{TestLake, line};

#[tokio::test(flavor = "multi_thread")]
async fn a_64_mib_line_is_read_under_the_limit() {
    let lake = TestLake::new().await;
    let question = "0123456789abcdef".repeat(4 << 20);
    let text = line("t", &[1, 2], 1.0).replace("the same question", &question) + "\n" + &line("u", &[1, 2], 1.0);
    let file = lake.file("a.jsonl", text);
    let report = lake.ingest_with(&file, |s| s.memory_limit_bytes = 512 << 20).await.unwrap();
    assert_eq!((report.trajectories_new, report.quarantined), (2, 0), "{report:?}");
    let longest = lake.texts(Table::Contents, "n_bytes", None).await;
    assert!(longest.iter().any(|n| n.parse::<usize>().unwrap() > 64 << 20));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_over_the_limit_is_quarantined_and_the_next_one_read() {
    let lake = TestLake::new().await;
    let long = line("t", &[1, 2], 1.0).replace("the same question", &"x".repeat(3 << 20));
    let file = lake.file("a.jsonl", format!("{long}\n{}\n", line("u", &[1, 2], 1.0)));
    let report = lake.ingest_with(&file, |s| s.line_bytes_max = 2 << 20).await.unwrap();
    assert_eq!((report.trajectories_new, report.quarantined), (1, 1), "{report:?}");
    assert_eq!(lake.texts(Table::Quarantine, "rule", None).await, ["too_large"]);
    assert_eq!(lake.ints(Table::Quarantine, "byte_length").await, [long.len() as i64]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_many_times_the_pipelines_share_passes_through() {
    let lake = TestLake::new().await;
    let path = lake.file("a.jsonl", "");
    let mut file = std::io::BufWriter::new(std::fs::File::create(&path).unwrap());
    // nothing repeats, so that nothing is saved by being stored once
    let said = |i: usize| -> String { (0..2_500).map(|word| format!("{:x} ", word * 7_919 + i * 104_729)).collect() };
    for i in 0..2_500 {
        writeln!(file, "{}", line(&format!("t{i}"), &[1, 2], 1.0).replace("the same question", &said(i))).unwrap();
    }
    file.flush().unwrap();
    // the least that is allowed: a third of it is the pipeline's, and a block takes three times its bytes of that
    let report = lake.ingest_with(&path, |s| s.memory_limit_bytes = 64 << 20).await.unwrap();
    assert_eq!((report.trajectories_new, lake.count(Table::Contents).await), (2_500, 5_000));
    assert!(report.bytes_in > 40 << 20, "{report:?}");
}
