//! Runs `tests/slt/*.slt`: what views and functions give, written so that a person who trains can read and extend it.
//!
//! Each file runs over the fixture (see `fixture.rs` for its trajectories), or if its name begins with `training`, over
//! that of `training_lake.rs`, in a session of its own.
//! `{loss_weights/token_mean.sql}` stands for the text of that file of `sql/`: loss weights are no views, the planner runs
//! them over its own relation. `SLT_COMPLETE=1` writes the results found into the files; look at the difference before keeping it.

use std::path::{Path, PathBuf};

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::DataType;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use dressage_segmenter::{Error, Outcome, Session, SessionSettings};
use sqllogictest::{AsyncDB, DBOutput, DefaultColumnType, Runner};

use crate::fixture::{chain, lake, session, session_with};
use crate::training_lake::training_lake;

/// A session as the runner wants it.
struct Database(Session);

/// An error with its causes in one line, so that a file can expect any of them.
#[derive(Debug)]
struct Failed(String);

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failed {}

#[async_trait::async_trait]
impl AsyncDB for Database {
    type Error = Failed;
    type ColumnType = DefaultColumnType;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>, Failed> {
        let mut output = DBOutput::StatementComplete(0);
        let failed = |e: Error| Failed(chain(&e));
        for statement in self.0.parse(&with_files(sql)).map_err(failed)? {
            let Outcome::Rows(query) = self.0.execute(statement).await.map_err(failed)? else { continue };
            let types = query.schema().fields().iter().map(|f| column_type(f.data_type())).collect();
            let mut rows = Vec::new();
            for batch in query.collect().await.map_err(failed)? {
                let columns: Vec<Vec<String>> = batch.columns().iter().map(cells).collect();
                rows.extend((0..batch.num_rows()).map(|r| columns.iter().map(|c| c[r].clone()).collect::<Vec<_>>()));
            }
            output = DBOutput::Rows { types, rows };
        }
        Ok(output)
    }

    async fn shutdown(&mut self) {}

    fn engine_name(&self) -> &str {
        "dressage"
    }
}

/// A query with the files of `sql/` that it names put in their places.
fn with_files(sql: &str) -> String {
    let mut text = sql.to_owned();
    while let Some((before, rest)) = text.split_once("{loss_weights/") {
        let (name, after) = rest.split_once('}').expect("a name in braces");
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("sql/loss_weights").join(name);
        let file = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        text = format!("{before}{file}{after}");
    }
    text
}

fn column_type(data_type: &DataType) -> DefaultColumnType {
    match data_type {
        t if t.is_integer() => DefaultColumnType::Integer,
        t if t.is_floating() => DefaultColumnType::FloatingPoint,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => DefaultColumnType::Text,
        _ => DefaultColumnType::Any,
    }
}

/// Cells as text: NULL for null, (empty) for an empty text, blanks as `·` since the runner splits at them.
fn cells(column: &ArrayRef) -> Vec<String> {
    let options = FormatOptions::default().with_null("NULL");
    let formatter = ArrayFormatter::try_new(column.as_ref(), &options).unwrap();
    (0..column.len())
        .map(|row| match formatter.value(row).to_string() {
            text if text.is_empty() && column.is_valid(row) => "(empty)".to_owned(),
            text => text.replace('\n', "⏎"),
        })
        .collect()
}

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/slt");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "slt"));
    files.sort();
    files
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_slt_file_holds() {
    let files = files();
    assert!(files.len() >= 4, "the .slt files are missing");
    for file in files {
        let training = file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("training"));
        let lake = if training { training_lake() } else { lake() };
        let mut runner = Runner::new(|| async { Ok(Database(session(&lake))) });
        if std::env::var_os("SLT_COMPLETE").is_some() {
            let (normalizer, validator) = (sqllogictest::default_normalizer, sqllogictest::default_validator);
            runner
                .update_test_file(&file, "\t", validator, normalizer, sqllogictest::default_column_validator)
                .await
                .unwrap();
            continue;
        }
        // a filter is the store's where nothing is kept in memory, and the scan's own where it is
        for resident_bytes_max in [SessionSettings::default().resident_bytes_max, 0] {
            let settings = SessionSettings { resident_bytes_max, ..SessionSettings::default() };
            let mut runner = Runner::new(|| async { Ok(Database(session_with(&lake, settings.clone()))) });
            if let Err(error) = runner.run_file_async(&file).await {
                panic!("{}: {}", file.display(), error.display(false));
            }
        }
    }
}
