//! JSON, NDJSON and CSV.

use std::io::Write;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use arrow::json::writer::{ArrayWriter, JsonArray, JsonFormat, LineDelimited, WriterBuilder};
use datafusion::error::DataFusionError;

use super::Sink;
use super::flat::{flattened, readable};

/// JSON objects, nulls written out so that every row has the same keys.
pub(super) struct JsonSink<'a, F: JsonFormat> {
    writer: arrow::json::Writer<&'a mut (dyn Write + Send), F>,
    /// What follows the last row: a file of text ends with a line end.
    end: &'static str,
}

impl<'a> JsonSink<'a, JsonArray> {
    pub(super) fn array(out: &'a mut (dyn Write + Send)) -> Self {
        let writer: ArrayWriter<_> = WriterBuilder::new().with_explicit_nulls(true).build(out);
        Self { writer, end: "\n" }
    }
}

impl<'a> JsonSink<'a, LineDelimited> {
    pub(super) fn lines(out: &'a mut (dyn Write + Send)) -> Self {
        Self { writer: WriterBuilder::new().with_explicit_nulls(true).build(out), end: "" }
    }
}

impl<F: JsonFormat> Sink for JsonSink<'_, F> {
    fn batch(&mut self, batch: &RecordBatch) -> Result<(), DataFusionError> {
        Ok(self.writer.write(&readable(batch)?)?)
    }

    fn finish(mut self: Box<Self>) -> Result<(), DataFusionError> {
        self.writer.finish()?;
        let out = self.writer.into_inner();
        out.write_all(self.end.as_bytes())?;
        Ok(out.flush()?)
    }
}

/// CSV with a header, also of a result without rows.
pub(super) struct CsvSink<'a> {
    header: Option<RecordBatch>,
    writer: arrow::csv::Writer<&'a mut (dyn Write + Send)>,
}

impl<'a> CsvSink<'a> {
    pub(super) fn new(schema: &Schema, out: &'a mut (dyn Write + Send)) -> Self {
        let writer = arrow::csv::WriterBuilder::new()
            .with_header(true)
            .with_timestamp_tz_format("%Y-%m-%dT%H:%M:%S%.6fZ".to_owned())
            .build(out);
        Self { header: Some(RecordBatch::new_empty(std::sync::Arc::new(schema.clone()))), writer }
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<(), DataFusionError> {
        Ok(self.writer.write(&flattened(&readable(batch)?)?)?)
    }
}

impl Sink for CsvSink<'_> {
    fn batch(&mut self, batch: &RecordBatch) -> Result<(), DataFusionError> {
        self.header = None;
        self.write(batch)
    }

    fn finish(mut self: Box<Self>) -> Result<(), DataFusionError> {
        if let Some(empty) = self.header.take() {
            self.write(&empty)?;
        }
        Ok(self.writer.into_inner().flush()?)
    }
}
