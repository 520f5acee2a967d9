//! Parquet: one file, zstd, written as batches come.

use std::io::Write;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::error::DataFusionError;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::{Compression, ZstdLevel};
use datafusion::parquet::file::properties::WriterProperties;

use super::Sink;
use crate::error::{Error, Result};

/// Bytes of a row group that are held before it is written out.
const ROW_GROUP_BYTES_MAX: usize = 64 << 20;

pub(super) struct ParquetSink<'a> {
    writer: ArrowWriter<&'a mut (dyn Write + Send)>,
}

impl<'a> ParquetSink<'a> {
    pub(super) fn new(schema: &SchemaRef, out: &'a mut (dyn Write + Send)) -> Result<Self> {
        let properties = WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default())).build();
        let writer = ArrowWriter::try_new(out, Arc::clone(schema), Some(properties)).map_err(|e| Error::Encode {
            format: "parquet",
            source: Box::new(DataFusionError::ParquetError(Box::new(e))),
        })?;
        Ok(Self { writer })
    }
}

impl Sink for ParquetSink<'_> {
    fn batch(&mut self, batch: &RecordBatch) -> Result<(), DataFusionError> {
        self.writer.write(batch)?;
        if self.writer.in_progress_size() > ROW_GROUP_BYTES_MAX {
            self.writer.flush()?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<(), DataFusionError> {
        self.writer.finish()?;
        Ok(self.writer.inner_mut().flush()?)
    }
}
