//! Columnar files: a folder of Parquet, one file of Arrow IPC.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use arrow::array::{AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::ipc::CompressionType;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use dressage_schemas::tables::rollout;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;

use super::RowSink;
use crate::destination::{Destination, DestinationFolder, FolderFile, Witness, is_stdout};

/// Rows wait in memory until a row group has this many bytes.
const ROW_GROUP_BYTES: usize = 64 << 20;

/// A file of a run is ended at this size and the next one begun.
const FILE_BYTES: usize = 1 << 30;

/// Files open at once; beyond, the one that was begun first is ended.
const FILES_OPEN_MAX: usize = 64;

/// `run=<run>/part-0000.parquet`, as DuckDB, Polars and pandas read a folder.
pub(super) struct ParquetFolder {
    folder: DestinationFolder,
    open: BTreeMap<String, OpenFile>,
    parts: BTreeMap<String, usize>,
    begun: u64,
    bytes: u64,
}

struct OpenFile {
    writer: ArrowWriter<FolderFile>,
    witness: Witness,
    begun: u64,
}

impl ParquetFolder {
    /// A folder that is empty or not there: parts of two exports must not mix.
    pub(super) fn create(folder: &Path) -> Result<Self> {
        let (open, parts) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { folder: DestinationFolder::create(folder)?, open, parts, begun: 0, bytes: 0 })
    }

    fn write_run(&mut self, run: &str, rows: &RecordBatch) -> Result<()> {
        if !self.open.contains_key(run) {
            while self.open.len() >= FILES_OPEN_MAX {
                let oldest = self.open.iter().min_by_key(|(_, f)| f.begun).map(|(run, _)| run.clone());
                self.end(&oldest.unwrap_or_default())?;
            }
            let file = self.begin(run)?;
            self.open.insert(run.to_owned(), file);
        }
        let mut full = false;
        if let Some(file) = self.open.get_mut(run) {
            let mut written = file.writer.write(rows);
            if written.is_ok() && file.writer.in_progress_size() >= ROW_GROUP_BYTES {
                written = file.writer.flush();
            }
            file.witness.judge(written.map_err(Into::into))?;
            full = file.writer.bytes_written() >= FILE_BYTES;
        }
        if full { self.end(run) } else { Ok(()) }
    }

    fn begin(&mut self, run: &str) -> Result<OpenFile> {
        let part = self.parts.entry(run.to_owned()).or_default();
        let within = Path::new(&format!("run={}", escaped(run))).join(format!("part-{part:04}.parquet"));
        *part += 1;
        self.begun += 1;
        let file = self.folder.file(&within)?;
        let witness = file.witness();
        let writer =
            witness.judge(ArrowWriter::try_new(file, rollout::schema(), Some(properties())).map_err(Into::into))?;
        Ok(OpenFile { writer, witness, begun: self.begun })
    }

    fn end(&mut self, run: &str) -> Result<()> {
        if let Some(file) = self.open.remove(run) {
            let written = file.writer.into_inner();
            self.bytes += file.witness.judge(written.map_err(Into::into))?.len();
        }
        Ok(())
    }
}

/// Token ids repeat little in order but much in bytes; log-probs compress best with their bytes apart.
fn properties() -> WriterProperties {
    let item = |column: &str| ColumnPath::new(vec![column.to_owned(), "list".to_owned(), "item".to_owned()]);
    WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_column_dictionary_enabled(item("full_logprobs"), false)
        .set_column_encoding(item("full_logprobs"), Encoding::BYTE_STREAM_SPLIT)
        .set_column_dictionary_enabled(ColumnPath::from("routed_experts"), false)
        .set_column_dictionary_enabled(ColumnPath::from("messages"), false)
        .build()
}

impl RowSink for ParquetFolder {
    fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        let runs = rows.column_by_name("run_id").context("the interchange schema has run_id")?;
        let runs = runs.as_string::<i32>();
        let mut names: Vec<&str> = runs.iter().map(Option::unwrap_or_default).collect();
        names.sort_unstable();
        names.dedup();
        if let [run] = names.as_slice() {
            return self.write_run(run, rows);
        }
        for run in names {
            let own: BooleanArray = runs.iter().map(|r| Some(r.unwrap_or_default() == run)).collect();
            self.write_run(run, &filter_record_batch(rows, &own)?)?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<u64> {
        if self.parts.is_empty() {
            // an empty export is still a table: readers find its columns
            let file = self.begin("none")?;
            self.open.insert("none".to_owned(), file);
        }
        let runs: Vec<String> = self.open.keys().cloned().collect();
        for run in runs {
            self.end(&run)?;
        }
        self.folder.keep()?;
        Ok(self.bytes)
    }
}

/// A run's name as a folder's: what is not plain is percent-encoded, as Hive does.
fn escaped(run: &str) -> String {
    let mut out = String::new();
    for byte in run.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    if out.is_empty() || out.chars().all(|c| c == '.') { format!("%{out}") } else { out }
}

/// One Arrow IPC file, or a stream on standard output; zstd within.
pub(super) struct ArrowFile {
    writer: ArrowWriting,
    witness: Witness,
}

enum ArrowWriting {
    File(Box<FileWriter<Destination>>),
    Stream(Box<StreamWriter<Destination>>),
}

impl ArrowFile {
    pub(super) fn create(path: &Path) -> Result<Self> {
        let options = IpcWriteOptions::default().try_with_compression(Some(CompressionType::ZSTD))?;
        let schema = rollout::schema();
        let out = Destination::create_binary(path)?;
        let witness = out.witness();
        let writer = match is_stdout(path) {
            true => {
                StreamWriter::try_new_with_options(out, &schema, options).map(|w| ArrowWriting::Stream(Box::new(w)))
            }
            false => FileWriter::try_new_with_options(out, &schema, options).map(|w| ArrowWriting::File(Box::new(w))),
        };
        Ok(Self { writer: witness.judge(writer.map_err(Into::into))?, witness })
    }
}

impl RowSink for ArrowFile {
    fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        // the schema's metadata travels in the file's head, not with each batch
        let rows = RecordBatch::try_new(Arc::clone(&rollout::schema()), rows.columns().to_vec())?;
        let written = match &mut self.writer {
            ArrowWriting::File(writer) => writer.write(&rows),
            ArrowWriting::Stream(writer) => writer.write(&rows),
        };
        self.witness.judge(written.map_err(Into::into))
    }

    fn finish(self: Box<Self>) -> Result<u64> {
        let out = match self.writer {
            ArrowWriting::File(writer) => writer.into_inner(),
            ArrowWriting::Stream(writer) => writer.into_inner(),
        };
        self.witness.judge(out.map_err(Into::into))?.keep()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_cannot_leave_the_folder() {
        assert_eq!(escaped("nightly-7.1"), "nightly-7.1");
        assert_eq!(escaped("../x"), "..%2Fx");
        assert_eq!(escaped(".."), "%..");
        assert_eq!(escaped("a=b"), "a%3Db");
    }
}
