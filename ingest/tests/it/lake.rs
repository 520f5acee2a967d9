//! A store for one test, and what is in it.

use std::path::{Path, PathBuf};

use arrow::array::{Array, ArrayRef, Float64Array, Int64Array, LargeBinaryArray, StringArray};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use dressage_ingest::{Error, IngestReport, IngestSettings, Unwatched, ingest};
use dressage_schemas::Table;
use dressage_storage::{Lake, ScanOptions, StoreSettings};
use futures::TryStreamExt;

/// A store in a folder of its own, with room for files to ingest.
pub(crate) struct TestLake {
    pub(crate) lake: Lake,
    pub(crate) dir: tempfile::TempDir,
}

impl TestLake {
    pub(crate) async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let uri = dir.path().join("store").display().to_string();
        let settings = StoreSettings { uri, local_fsync: false, ..StoreSettings::default() };
        Self { lake: Lake::init(settings).await.unwrap(), dir }
    }

    /// Writes a file beside the store.
    pub(crate) fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    pub(crate) async fn ingest(&self, source: impl AsRef<Path>) -> IngestReport {
        self.ingest_with(source, |_| {}).await.unwrap()
    }

    pub(crate) async fn ingest_with(
        &self,
        source: impl AsRef<Path>,
        change: impl FnOnce(&mut IngestSettings),
    ) -> Result<IngestReport, Error> {
        let sources = vec![source.as_ref().display().to_string()];
        let mut settings = IngestSettings { sources, jobs: 2, ..IngestSettings::default() };
        change(&mut settings);
        ingest(&self.lake, settings, &Unwatched, std::future::pending()).await
    }

    async fn column(&self, table: Table, column: &str, filter: Option<&str>) -> Vec<ArrayRef> {
        let snapshot = self.lake.snapshot(None).await.unwrap();
        let mut options = ScanOptions::columns([column]);
        options.filter = filter.map(str::to_owned);
        let batches: Vec<_> = snapshot.scan(table, options).await.unwrap().try_collect().await.unwrap();
        batches.iter().map(|b| b.column(0).clone()).collect()
    }

    pub(crate) async fn count(&self, table: Table) -> usize {
        self.lake.snapshot(None).await.unwrap().row_count(table)
    }

    /// Text of a column, row by row; whatever is no text in its printed form.
    pub(crate) async fn texts(&self, table: Table, column: &str, filter: Option<&str>) -> Vec<String> {
        let mut out = Vec::new();
        for array in self.column(table, column, filter).await {
            match array.as_any().downcast_ref::<StringArray>() {
                Some(texts) => out.extend(texts.iter().map(|t| t.unwrap_or("null").to_owned())),
                None => {
                    let options = FormatOptions::default().with_null("null");
                    let formatter = ArrayFormatter::try_new(array.as_ref(), &options).unwrap();
                    out.extend((0..array.len()).map(|row| formatter.value(row).to_string()));
                }
            }
        }
        out
    }

    pub(crate) async fn floats(&self, table: Table, column: &str) -> Vec<Option<f64>> {
        let arrays = self.column(table, column, None).await;
        let values = |a: &ArrayRef| a.as_any().downcast_ref::<Float64Array>().unwrap().iter().collect::<Vec<_>>();
        arrays.iter().flat_map(values).collect()
    }

    pub(crate) async fn ints(&self, table: Table, column: &str) -> Vec<i64> {
        let arrays = self.column(table, column, None).await;
        let values = |a: &ArrayRef| a.as_any().downcast_ref::<Int64Array>().unwrap().values().to_vec();
        arrays.iter().flat_map(values).collect()
    }

    pub(crate) async fn bytes(&self, table: Table, column: &str, filter: Option<&str>) -> Vec<Vec<u8>> {
        let arrays = self.column(table, column, filter).await;
        let values = |a: &ArrayRef| {
            let bytes = a.as_any().downcast_ref::<LargeBinaryArray>().unwrap();
            bytes.iter().map(|b| b.unwrap_or_default().to_vec()).collect::<Vec<_>>()
        };
        arrays.iter().flat_map(values).collect()
    }
}

/// A line of the `dressage` format: one trajectory of one segment.
pub(crate) fn line(id: &str, tokens: &[i32], reward: f64) -> String {
    let mask: Vec<i32> = (0..tokens.len()).map(|i| i32::from(i > 0)).collect();
    let logprobs: Vec<f64> = (0..tokens.len()).map(|i| if i > 0 { -0.5 } else { 0.0 }).collect();
    serde_json::json!({
        "trajectory_id": id, "instance_id": "i", "reward": reward, "status": "completed",
        "segments": [{"segment_index": 0, "tokens": tokens, "full_loss_mask": mask, "full_logprobs": logprobs,
            "messages": [{"role": "user", "content": "the same question"}, {"role": "assistant", "content": id}],
            "finish_reason": "stop"}],
    })
    .to_string()
}

pub(crate) fn lines(lines: &[String]) -> String {
    lines.iter().map(|l| format!("{l}\n")).collect()
}
