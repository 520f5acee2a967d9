//! The full collection of real logs, where it is at hand: every file is read, or named for what it is.

use std::path::PathBuf;

use dressage_schemas::Table;

use crate::lake::TestLake;

#[tokio::test(flavor = "multi_thread")]
async fn every_file_of_the_collection_is_read_or_named_for_what_it_is() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    if !folder.exists() {
        eprintln!("skipped: {} is not there", folder.display());
        return;
    }
    let lake = TestLake::new().await;
    let report = lake.ingest(&folder).await;
    println!("{report:#?}");
    let mut rows = lake.texts(Table::Quarantine, "source", None).await;
    let reasons = lake.texts(Table::Quarantine, "reason", None).await;
    for (source, reason) in rows.iter().zip(&reasons) {
        println!("{}\t{reason}", source.rsplit("shared/data/").next().unwrap());
    }
    rows.extend(lake.texts(Table::IngestLog, "source", None).await);
    let read = |source: &str| rows.iter().any(|row| row.starts_with(source));
    assert!(report.trajectories_new > 100, "{report:?}");
    for format in ["nemo-gym", "agent-lightning", "claude-code", "swe-agent", "inspect", "chat"] {
        assert!(report.formats.keys().any(|name| name.starts_with(format)), "{format}: {:?}", report.formats);
    }
    for name in ["LICENSES", "prompts", "tokenizers", "openrlhf", "codex", "atif"] {
        assert!(read(&folder.join(name).display().to_string()), "{name} left no row");
    }
    assert!(!reasons.iter().any(|reason| reason.contains("kind that is not known")), "a file is not named");
    let again = lake.ingest(&folder).await;
    assert_eq!((again.trajectories_new, again.trajectories_updated), (0, 0), "{again:?}");
    assert_eq!(again.quarantined, report.quarantined);
}
