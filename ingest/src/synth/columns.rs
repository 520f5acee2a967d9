//! The interchange schema as Arrow IPC or Parquet, batch by batch.

use std::io::Write;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Float32Array, Float64Array, Int8Array, Int32Array, LargeBinaryArray, LargeListArray,
    LargeStringArray, RecordBatch, StringArray, TimestampMicrosecondArray, new_null_array,
};
use arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field};
use arrow::error::ArrowError;
use arrow::ipc::writer::FileWriter;
use dressage_schemas::tables::rollout;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;

use super::maker::{Maker, SynthTrajectory};
use super::{SynthReport, write_failed};
use crate::error::{Error, Result};

/// A batch is handed on when its payload reaches this.
const BATCH_BYTES: usize = 8 << 20;
/// Rows a batch, where the payload is small.
const BATCH_ROWS: usize = 4_096;

fn failed(error: ArrowError) -> Error {
    match error {
        ArrowError::IoError(_, source) => write_failed(source),
        source => Error::Rows { table: "rollout", source },
    }
}

/// Writes an IPC file.
pub(super) fn write_ipc(maker: &Maker, out: &mut (impl Write + Send)) -> Result<SynthReport> {
    let mut writer = FileWriter::try_new(out, &rollout::schema()).map_err(failed)?;
    let report = each_batch(maker, |batch| writer.write(&batch))?;
    writer.finish().map_err(failed)?;
    Ok(report)
}

/// Writes a Parquet file.
pub(super) fn write_parquet(maker: &Maker, out: &mut (impl Write + Send)) -> Result<SynthReport> {
    let level = ZstdLevel::try_new(1).map_err(|error| failed(error.into()))?;
    let properties = WriterProperties::builder().set_compression(Compression::ZSTD(level)).build();
    let mut writer =
        ArrowWriter::try_new(out, rollout::schema(), Some(properties)).map_err(|error| failed(error.into()))?;
    let report = each_batch(maker, |batch| {
        writer.write(&batch)?;
        // A row group stays in memory until it is written, so its bytes are bounded, not only its rows.
        if writer.in_progress_size() > 8 * BATCH_BYTES {
            writer.flush()?;
        }
        Ok(())
    })?;
    writer.close().map_err(|error| failed(error.into()))?;
    Ok(report)
}

fn each_batch(maker: &Maker, mut write: impl FnMut(RecordBatch) -> Result<(), ArrowError>) -> Result<SynthReport> {
    let mut report = SynthReport::default();
    let mut columns = Columns::default();
    for index in 0..maker.settings().trajectories {
        let trajectory = maker.trajectory(index);
        report.count(&trajectory);
        columns.push(trajectory);
        if columns.bytes >= BATCH_BYTES || columns.rows >= BATCH_ROWS {
            write(std::mem::take(&mut columns).batch(maker).map_err(failed)?).map_err(failed)?;
        }
    }
    if columns.rows > 0 {
        write(columns.batch(maker).map_err(failed)?).map_err(failed)?;
    }
    Ok(report)
}

/// Trajectories waiting to become a batch.
#[derive(Default)]
struct Columns {
    trajectories: Vec<SynthTrajectory>,
    rows: usize,
    bytes: usize,
}

fn lists(values: ArrayRef, lengths: impl IntoIterator<Item = usize>) -> Result<ArrayRef, ArrowError> {
    let field = Arc::new(Field::new_list_field(values.data_type().clone(), true));
    Ok(Arc::new(LargeListArray::try_new(field, OffsetBuffer::from_lengths(lengths), values, None)?))
}

impl Columns {
    fn push(&mut self, trajectory: SynthTrajectory) {
        for segment in &trajectory.segments {
            self.rows += 1;
            self.bytes += segment.tokens.len() * 9 + segment.routed_experts.len() + segment.versions.len() * 4;
            self.bytes += segment.messages.as_ref().map_or(0, String::len);
        }
        self.trajectories.push(trajectory);
    }

    fn batch(self, maker: &Maker) -> Result<RecordBatch, ArrowError> {
        let settings = maker.settings();
        let rows: Vec<_> =
            self.trajectories.iter().flat_map(|t| t.segments.iter().enumerate().map(move |(i, s)| (t, i, s))).collect();
        let rows = || rows.iter().copied();
        let lengths = || rows().map(|(_, _, segment)| segment.tokens.len());
        let mut tokens = Vec::new();
        let mut mask = Vec::new();
        let mut logprobs = Vec::new();
        let mut experts = Vec::new();
        for (_, _, segment) in rows() {
            tokens.extend_from_slice(&segment.tokens);
            mask.extend_from_slice(&segment.mask);
            logprobs.extend_from_slice(&segment.logprobs);
            experts.extend_from_slice(&segment.routed_experts);
        }
        let schema = rollout::schema();
        let null = |name: &str| -> Result<ArrayRef, ArrowError> {
            Ok(new_null_array(schema.field_with_name(name)?.data_type(), self.rows))
        };
        let dtype = maker.experts_dtype();
        let columns = schema.fields().iter().map(|field| -> Result<ArrayRef, ArrowError> {
            Ok(match field.name().as_str() {
                "trajectory_id" => Arc::new(StringArray::from_iter_values(rows().map(|(t, _, _)| &t.trajectory_id))),
                "instance_id" => Arc::new(StringArray::from_iter_values(rows().map(|(t, _, _)| &t.instance_id))),
                "run_id" => Arc::new(StringArray::from_iter_values(rows().map(|_| &settings.run_id))),
                "status" => Arc::new(StringArray::from_iter_values(rows().map(|(t, _, _)| t.status))),
                "reward" => Arc::new(Float64Array::from_iter(rows().map(|(t, _, _)| t.reward))),
                "created_at" => {
                    let times = TimestampMicrosecondArray::from_iter_values(rows().map(|(t, _, _)| t.created_at));
                    Arc::new(times.with_timezone("UTC"))
                }
                "segment_index" => Arc::new(Int32Array::from_iter_values(rows().map(|(_, index, _)| index as i32))),
                "finish_reason" => Arc::new(StringArray::from_iter_values(rows().map(|(_, _, s)| s.finish_reason))),
                "trainable" => Arc::new(BooleanArray::from_iter(rows().map(|_| Some(true)))),
                "weight_version" => {
                    Arc::new(StringArray::from_iter(rows().map(|(t, _, _)| t.weight_version.as_deref())))
                }
                "tokens" => lists(Arc::new(Int32Array::from(std::mem::take(&mut tokens))), lengths())?,
                "full_loss_mask" => lists(Arc::new(Int8Array::from(std::mem::take(&mut mask))), lengths())?,
                "full_logprobs" => lists(Arc::new(Float32Array::from(std::mem::take(&mut logprobs))), lengths())?,
                "full_versions" if settings.weight_versions > 0 => {
                    let versions: Vec<&String> = rows().flat_map(|(_, _, s)| &s.versions).collect();
                    lists(Arc::new(StringArray::from_iter_values(versions)), lengths())?
                }
                "routed_experts" if dtype.is_some() => {
                    let sizes = rows().map(|(_, _, segment)| segment.routed_experts.len());
                    let bytes = Buffer::from(std::mem::take(&mut experts));
                    Arc::new(LargeBinaryArray::try_new(OffsetBuffer::from_lengths(sizes), bytes, None)?)
                }
                "routed_experts_dtype" => {
                    Arc::new(StringArray::from_iter(rows().map(|_| dtype.map(|dtype| dtype.name()))))
                }
                "routed_experts_layers" => optional_int(dtype.map(|_| settings.layers), self.rows),
                "routed_experts_topk" => optional_int(dtype.map(|_| settings.topk), self.rows),
                "messages" => {
                    Arc::new(LargeStringArray::from_iter(rows().map(|(_, _, segment)| segment.messages.as_deref())))
                }
                other => null(other)?,
            })
        });
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        RecordBatch::try_new(Arc::clone(&schema), columns)
    }
}

fn optional_int(value: Option<u32>, rows: usize) -> ArrayRef {
    match value {
        Some(value) => Arc::new(Int32Array::new(ScalarBuffer::from(vec![value as i32; rows]), None)),
        None => new_null_array(&DataType::Int32, rows),
    }
}
