//! Writing results: to stdout, to a file, or into the prompt's page.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use dressage_segmenter::{Format, QueryStream, TableStyle};

use super::ResultFormat;
use crate::destination::Destination;
use crate::failure::Failure;
use crate::output::counted;

/// What was written of one query.
#[derive(Debug, Clone, Copy)]
pub(super) struct Printed {
    pub(super) rows: u64,
    /// Whether the session's row limit cut it.
    pub(super) truncated: bool,
}

/// Where the results of a call go.
pub(super) struct Sink {
    format: ResultFormat,
    file: Option<PathBuf>,
    written: usize,
}

impl Sink {
    pub(super) fn new(format: ResultFormat, file: Option<PathBuf>) -> Self {
        Self { format, file, written: 0 }
    }

    /// Writes one result.
    pub(super) async fn write(&mut self, rows: QueryStream) -> Result<Printed> {
        self.written += 1;
        let path = self.file.as_deref().unwrap_or(Path::new("-"));
        if self.written > 1 && self.file.is_some() {
            let text = format!("{} already holds the first result; ask one query a file", path.display());
            return Err(Failure::invalid(text));
        }
        let mut out = Destination::create_binary(path)?;
        let printed = write(rows, self.format, &mut out).await;
        let printed = out.witness().judge(printed)?;
        out.keep()?;
        Ok(printed)
    }
}

/// Writes one result in one format.
pub(super) async fn write(rows: QueryStream, format: ResultFormat, out: &mut (impl Write + Send)) -> Result<Printed> {
    let format = match format {
        ResultFormat::Table => Format::Table,
        ResultFormat::Json => Format::Json,
        ResultFormat::Ndjson => Format::Ndjson,
        ResultFormat::Csv => Format::Csv,
        ResultFormat::Parquet => Format::Parquet,
    };
    let written = dressage_segmenter::write(rows, format, TableStyle::default(), &mut *out).await?;
    out.flush()?;
    Ok(Printed { rows: written.rows, truncated: written.truncated })
}

/// `12 rows, 34 ms`.
pub(super) fn timing(rows: u64, took: Duration) -> String {
    let took = if took.as_secs() >= 10 {
        format!("{:.1} s", took.as_secs_f64())
    } else {
        format!("{:.1} ms", took.as_secs_f64() * 1000.0)
    };
    format!("{}, {took}", counted(rows, "row"))
}
