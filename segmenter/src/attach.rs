//! Files of the user's that a query can join with: `--attach name=path.parquet|csv|json`.

use std::path::Path;
use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::error::DataFusionError;
use datafusion::prelude::{CsvReadOptions, DataFrame, JsonReadOptions, ParquetReadOptions};

use crate::catalog::Origin;
use crate::error::{Error, Result};
use crate::session::Session;
use crate::settings::is_plain_name;

/// The formats that can be attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Parquet,
    Csv,
    /// One JSON document: an array of objects.
    Json,
    /// One object a line.
    JsonLines,
}

impl Format {
    fn of(path: &str) -> Option<Self> {
        match Path::new(path).extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "parquet" => Some(Self::Parquet),
            "csv" => Some(Self::Csv),
            "json" => Some(Self::Json),
            "jsonl" | "ndjson" => Some(Self::JsonLines),
            _ => None,
        }
    }
}

impl Session {
    /// Makes a local file a table of this session, read when a query needs it. `.json` may hold an array of objects or
    /// one object a line.
    ///
    /// # Errors
    /// `Invalid` for a name that is taken or no name, or an ending that says no format; `NotFound` for a file that is
    /// not there or has no readable schema.
    pub async fn attach(&self, name: &str, path: &str) -> Result<()> {
        if !is_plain_name(name) {
            return Err(Error::InvalidName { what: "table name", name: name.to_owned() });
        }
        if self.catalog().public().origin(name).is_some() {
            return Err(Error::NameTaken { name: name.to_owned() });
        }
        let format = Format::of(path).ok_or_else(|| Error::UnknownAttachment { path: path.to_owned() })?;
        let failed = |source| Error::Attach { name: name.to_owned(), path: path.to_owned(), source: Box::new(source) };
        // without this a missing file is an empty folder without a schema, and the message says neither
        let metadata = std::fs::metadata(path).map_err(|e| failed(DataFusionError::IoError(e)))?;
        let table = self.open_file(path, format, metadata.len()).await.map_err(failed)?;
        if table.schema().fields().is_empty() {
            return Err(failed(DataFusionError::Plan("it has no columns".to_owned())));
        }
        self.catalog().public().put(name.to_owned(), Origin::Attached, table);
        Ok(())
    }

    async fn open_file(
        &self,
        path: &str,
        format: Format,
        bytes: u64,
    ) -> Result<Arc<dyn TableProvider>, DataFusionError> {
        let context = self.context();
        let extension = Path::new(path).extension().and_then(|e| e.to_str()).unwrap_or_default();
        let frame: DataFrame = match format {
            Format::Parquet => context.read_parquet(path, ParquetReadOptions::new().file_extension(extension)).await?,
            Format::Csv => context.read_csv(path, CsvReadOptions::new().file_extension(extension)).await?,
            Format::JsonLines => context.read_json(path, JsonReadOptions::default().file_extension(extension)).await?,
            Format::Json => {
                let lines = !begins_with_bracket(path)? && bytes > 0;
                let options = JsonReadOptions::default().file_extension(extension).newline_delimited(lines);
                context.read_json(path, options).await?
            }
        };
        Ok(frame.into_view())
    }
}

/// Whether the first byte that is no space opens an array.
fn begins_with_bracket(path: &str) -> std::io::Result<bool> {
    use std::io::Read;
    let mut start = [0; 4096];
    let n = std::fs::File::open(path)?.read(&mut start)?;
    Ok(start[..n].iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'['))
}
