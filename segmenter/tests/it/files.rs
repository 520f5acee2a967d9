//! Results as files, and files as tables.

use std::str::FromStr;

use dressage_schemas::ErrorKind;
use dressage_segmenter::{Error, Format, SessionSettings, TableStyle, write};

use crate::fixture::{chain, lake, rows, session, session_with};

async fn written(session: &dressage_segmenter::Session, sql: &str, format: Format) -> Vec<u8> {
    let mut out = Vec::new();
    let query = session.sql(sql).await.unwrap();
    write(query, format, TableStyle::default(), &mut out).await.unwrap_or_else(|e| panic!("{}", chain(&e)));
    out
}

const SQL: &str = "SELECT trajectory_id, step_index, token_ids, created_at, decode('00ff', 'hex') AS raw, \
                   CASE WHEN step_index = 0 THEN 'a \"b\", c' END AS note FROM steps WHERE trajectory_id = 't1' ORDER BY 2 LIMIT 2";

#[tokio::test]
async fn text_formats_say_the_same() {
    let session = session(&lake());
    let text = async |format| String::from_utf8(written(&session, SQL, format).await).unwrap();
    let first = r#"{"trajectory_id":"t1","step_index":0,"token_ids":[0,1,2,3,4],"created_at":"2026-01-01T00:00:00Z","raw":"AP8=","note":"a \"b\", c"}"#;
    let second = r#"{"trajectory_id":"t1","step_index":1,"token_ids":[100,101,102,103],"created_at":"2026-01-01T00:00:01Z","raw":"AP8=","note":null}"#;
    assert_eq!(text(Format::Ndjson).await, format!("{first}\n{second}\n"));
    assert_eq!(text(Format::Json).await, format!("[{first},{second}]\n"));
    assert_eq!(
        text(Format::Csv).await,
        "trajectory_id,step_index,token_ids,created_at,raw,note\n\
         t1,0,\"[0,1,2,3,4]\",2026-01-01T00:00:00.000000Z,AP8=,\"a \"\"b\"\", c\"\n\
         t1,1,\"[100,101,102,103]\",2026-01-01T00:00:01.000000Z,AP8=,\n"
    );
    insta::assert_snapshot!("table", text(Format::Table).await);
}

#[tokio::test]
async fn an_empty_result_is_still_a_document() {
    let session = session(&lake());
    let sql = "SELECT trajectory_id, reward FROM trajectories WHERE reward > 1000";
    let text = async |format| String::from_utf8(written(&session, sql, format).await).unwrap();
    assert_eq!(text(Format::Json).await, "[]\n");
    assert_eq!(text(Format::Ndjson).await, "");
    assert_eq!(text(Format::Csv).await, "trajectory_id,reward\n");
    assert!(text(Format::Table).await.starts_with(" trajectory_id │ reward\n"));
}

#[tokio::test]
async fn written_files_attach_and_join() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(&lake());
    let sql = "SELECT trajectory_id, reward * 2 AS doubled FROM trajectories WHERE reward IS NOT NULL";
    for (name, file, format) in [
        ("in_parquet", "r.parquet", Format::Parquet),
        ("in_csv", "r.csv", Format::Csv),
        ("in_json", "array.json", Format::Json),
        ("in_lines", "lines.json", Format::Ndjson),
        ("in_jsonl", "r.jsonl", Format::Ndjson),
    ] {
        let path = folder.path().join(file);
        std::fs::write(&path, written(&session, sql, format).await).unwrap();
        session.attach(name, path.to_str().unwrap()).await.unwrap_or_else(|e| panic!("{file}: {}", chain(&e)));
        let sql = format!(
            "SELECT t.trajectory_id, a.doubled FROM trajectories t JOIN {name} a ON a.trajectory_id = t.trajectory_id ORDER BY 1"
        );
        assert_eq!(rows(&session, &sql).await, ["g1|5.0", "t1|2.0", "t2|0.0"], "{file}");
    }
    let error = session.attach("in_csv", "x.csv").await.unwrap_err();
    assert!(matches!(error, Error::NameTaken { .. }), "{error}");
    let error = session.attach("steps", "x.csv").await.unwrap_err();
    assert!(matches!(error, Error::NameTaken { .. }), "{error}");
    let error = session.attach("new", folder.path().join("missing.csv").to_str().unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let error = session.attach("new", "what.xlsx").await.unwrap_err();
    assert!(error.to_string().contains(".parquet, .csv, .json"), "{error}");
}

/// A destination that stops taking bytes.
struct Full(usize);

impl std::io::Write for Full {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(std::io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_closed_pipe_is_told_from_a_failure_in_every_format() {
    let session = session(&lake());
    for format in Format::ALL {
        let query = session.sql("SELECT trajectory_id, reward FROM trajectories").await.unwrap();
        let error = write(query, format, TableStyle::default(), &mut Full(5)).await.unwrap_err();
        assert!(error.is_broken_pipe(), "{}: {}", format.as_str(), chain(&error));
    }
    assert!(Format::from_str("xml").unwrap_err().to_string().contains("ndjson"));
}

#[tokio::test]
async fn a_cut_result_says_so() {
    let session = session_with(&lake(), SessionSettings { row_limit: Some(3), ..Default::default() });
    let query = session.sql("SELECT * FROM trajectories").await.unwrap();
    let report = write(query, Format::Ndjson, TableStyle::default(), &mut Vec::new()).await.unwrap();
    assert_eq!((report.rows, report.truncated), (3, true));
}
