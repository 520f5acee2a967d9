//! Results as text and files: table, JSON, NDJSON, CSV, Parquet. All stream; none holds a whole result, except that a
//! table is laid out from its first thousand rows.

mod flat;
mod parquet;
mod table;
mod text;

use std::io::Write;
use std::str::FromStr;

use datafusion::error::DataFusionError;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::query::QueryStream;

pub use table::TableStyle;

/// How a result is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// For a person at a terminal.
    #[default]
    Table,
    /// One JSON array of objects.
    Json,
    /// One JSON object a line.
    Ndjson,
    /// With a header; nested values as JSON.
    Csv,
    /// One file, zstd.
    Parquet,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Table, Self::Json, Self::Ndjson, Self::Csv, Self::Parquet];

    /// The word that a user types.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Json => "json",
            Self::Ndjson => "ndjson",
            Self::Csv => "csv",
            Self::Parquet => "parquet",
        }
    }
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|f| f.as_str() == word).ok_or_else(|| Error::InvalidSetting {
            key: "format".to_owned(),
            value: word.to_owned(),
            expected: "table, json, ndjson, csv or parquet",
        })
    }
}

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Written {
    /// Rows.
    pub rows: u64,
    /// Whether the session's row limit cut the result.
    pub truncated: bool,
}

/// Writes a result to `out`, batch by batch.
///
/// # Errors
/// The query's own; `Invalid` for values that the format cannot hold; [`Error::Output`] where `out` does not take it
/// (see [`Error::is_broken_pipe`]).
pub async fn write(
    mut query: QueryStream,
    format: Format,
    style: TableStyle,
    out: &mut (dyn Write + Send),
) -> Result<Written> {
    let schema = query.schema().clone();
    let mut sink: Box<dyn Sink + Send + '_> = match format {
        Format::Table => Box::new(table::TableSink::new(schema, style, out)),
        Format::Json => Box::new(text::JsonSink::array(out)),
        Format::Ndjson => Box::new(text::JsonSink::lines(out)),
        Format::Csv => Box::new(text::CsvSink::new(&schema, out)),
        Format::Parquet => Box::new(parquet::ParquetSink::new(&schema, out)?),
    };
    let mut written = Written::default();
    while let Some(batch) = query.next_batch().await? {
        written.rows += batch.num_rows() as u64;
        sink.batch(&batch).map_err(|e| failed(format, e))?;
    }
    written.truncated = query.truncated();
    sink.finish().map_err(|e| failed(format, e))?;
    Ok(written)
}

/// A format being written.
trait Sink {
    fn batch(&mut self, batch: &arrow::array::RecordBatch) -> Result<(), DataFusionError>;
    fn finish(self: Box<Self>) -> Result<(), DataFusionError>;
}

/// Tells a full disk or a closed pipe from a value that the format cannot hold: writers wrap the former.
fn failed(format: Format, error: DataFusionError) -> Error {
    match io_error(error) {
        Ok(source) => Error::Output { source },
        Err(source) => Error::Encode { format: format.as_str(), source: Box::new(source) },
    }
}

/// The error of a message that ends in `(os error N)`.
fn os_error(text: &str) -> Option<std::io::Error> {
    let number = text.strip_suffix(')')?.rsplit_once("(os error ")?.1;
    number.parse().ok().map(std::io::Error::from_raw_os_error)
}

fn io_error(error: DataFusionError) -> Result<std::io::Error, DataFusionError> {
    use arrow::error::ArrowError;
    match error {
        DataFusionError::IoError(source) => Ok(source),
        DataFusionError::ArrowError(inner, context) => match *inner {
            ArrowError::IoError(_, source) => Ok(source),
            ArrowError::ExternalError(source) => match source.downcast::<std::io::Error>() {
                Ok(source) => Ok(*source),
                Err(source) => Err(DataFusionError::ArrowError(Box::new(ArrowError::ExternalError(source)), context)),
            },
            // the CSV writer keeps the text only
            ArrowError::CsvError(text) => match os_error(&text) {
                Some(source) => Ok(source),
                None => Err(DataFusionError::ArrowError(Box::new(ArrowError::CsvError(text)), context)),
            },
            other => Err(DataFusionError::ArrowError(Box::new(other), context)),
        },
        DataFusionError::ParquetError(inner) => match *inner {
            datafusion::parquet::errors::ParquetError::External(source) => match source.downcast::<std::io::Error>() {
                Ok(source) => Ok(*source),
                Err(source) => Err(DataFusionError::ParquetError(Box::new(
                    datafusion::parquet::errors::ParquetError::External(source),
                ))),
            },
            other => Err(DataFusionError::ParquetError(Box::new(other))),
        },
        other => Err(other),
    }
}
