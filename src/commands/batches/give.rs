//! Giving micro-batches out: as an Arrow IPC stream, as JSON lines, or as a line each.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use arrow::array::{ArrayRef, Int32Array, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::ipc::writer::StreamWriter;
use dressage_segmenter::{MicroBatch, MicroBatches, StoredPlan};
use serde::Serialize;

use super::BatchFormat;
use crate::destination::{Destination, Witness};
use crate::output::grouped;

/// Columns before those of the batch: which micro-batch it is.
const PLACE: [&str; 3] = ["train_step", "dp_rank", "micro_batch"];

/// What is said of a micro-batch without its payload.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Told {
    pub(crate) train_step: i32,
    pub(crate) dp_rank: u32,
    pub(crate) micro_batch: i32,
    pub(crate) n_samples: usize,
    pub(crate) n_tokens: i64,
    pub(crate) mask_sum: i64,
    pub(crate) content_hash: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) experts_hash: Option<String>,
}

impl Told {
    pub(crate) fn of(micro_batch: &MicroBatch) -> Self {
        Self {
            train_step: micro_batch.train_step,
            dp_rank: micro_batch.dp_rank,
            micro_batch: micro_batch.micro_batch,
            n_samples: micro_batch.batch.num_rows(),
            n_tokens: micro_batch.n_tokens,
            mask_sum: micro_batch.mask_sum,
            content_hash: micro_batch.content_hash.map(|hash| hash.to_string()),
            experts_hash: micro_batch.experts_hash.map(|hash| hash.to_string()),
        }
    }
}

/// Where micro-batches go, and in which form.
pub(super) struct Giver {
    form: Form,
    /// None where only the report at the end is given.
    witness: Option<Witness>,
}

enum Form {
    Arrow {
        writer: Box<StreamWriter<Destination>>,
        schema: SchemaRef,
    },
    Json(Destination),
    Summary {
        out: Destination,
        begun: bool,
    },
    /// Only the report at the end.
    Silent,
}

impl Giver {
    pub(super) fn create(
        format: BatchFormat,
        json: bool,
        path: &Path,
        plan: &StoredPlan,
        stream: &MicroBatches,
    ) -> Result<Self> {
        if json && format == BatchFormat::Summary {
            return Ok(Self { form: Form::Silent, witness: None });
        }
        let out = match format {
            // the line buffer of stdout would look for newlines in every payload
            BatchFormat::Arrow => Destination::create_binary(path)?,
            BatchFormat::Json | BatchFormat::Summary => Destination::create(path)?,
        };
        let witness = out.witness();
        let form = match format {
            BatchFormat::Summary => Form::Summary { out, begun: false },
            BatchFormat::Json => Form::Json(out),
            BatchFormat::Arrow => {
                let schema = schema(plan, stream);
                let writer = StreamWriter::try_new(out, &schema).map_err(Into::into);
                Form::Arrow { writer: Box::new(witness.judge(writer)?), schema }
            }
        };
        Ok(Self { form, witness: Some(witness) })
    }

    pub(super) fn give(&mut self, micro_batch: &MicroBatch) -> Result<()> {
        let given = self.form.give(micro_batch);
        judge(self.witness.as_ref(), given)
    }

    /// Ends the stream. One that was stopped has no end mark, so that its reader does not take it for whole; a file of
    /// one is not kept.
    pub(super) fn finish(self, stopped: bool) -> Result<()> {
        let out = match self.form {
            Form::Arrow { mut writer, .. } if stopped => {
                return judge(self.witness.as_ref(), writer.flush().map_err(Into::into));
            }
            Form::Arrow { writer, .. } => judge(self.witness.as_ref(), writer.into_inner().map_err(Into::into))?,
            Form::Json(out) | Form::Summary { out, .. } => out,
            Form::Silent => return Ok(()),
        };
        if stopped && out.is_whole_or_nothing() {
            return Ok(());
        }
        out.keep().map(drop)
    }
}

impl Form {
    fn give(&mut self, micro_batch: &MicroBatch) -> Result<()> {
        match self {
            Self::Silent => {}
            Self::Arrow { writer, schema } => {
                writer.write(&placed(micro_batch, schema)?)?;
                // its reader waits for this one, not for the next
                writer.flush()?;
            }
            Self::Json(out) => {
                #[derive(Serialize)]
                struct Line {
                    #[serde(flatten)]
                    told: Told,
                    samples: Vec<serde_json::Value>,
                }
                let line = Line { told: Told::of(micro_batch), samples: samples(&micro_batch.batch)? };
                serde_json::to_writer(&mut *out, &line).map_err(io::Error::from)?;
                out.write_all(b"\n")?;
            }
            Self::Summary { out, begun } => {
                if !std::mem::replace(begun, true) {
                    writeln!(
                        out,
                        "{:>10} {:>11} {:>8} {:>11} {:>11}  hash",
                        "train_step", "micro_batch", "samples", "tokens", "trained"
                    )?;
                }
                let told = Told::of(micro_batch);
                writeln!(
                    out,
                    "{:>10} {:>11} {:>8} {:>11} {:>11}  {}{}",
                    told.train_step,
                    told.micro_batch,
                    told.n_samples,
                    grouped(told.n_tokens),
                    grouped(told.mask_sum),
                    told.content_hash.as_deref().unwrap_or("-"),
                    told.experts_hash.map(|hash| format!(" experts {hash}")).unwrap_or_default(),
                )?;
            }
        }
        Ok(())
    }
}

fn judge<T>(witness: Option<&Witness>, result: Result<T>) -> Result<T> {
    match witness {
        Some(witness) => witness.judge(result),
        None => result,
    }
}

fn schema(plan: &StoredPlan, stream: &MicroBatches) -> SchemaRef {
    let place = PLACE.map(|name| Arc::new(Field::new(name, DataType::Int32, false)));
    let fields: Vec<_> = place.into_iter().chain(stream.schema().fields().iter().cloned()).collect();
    let counts: Vec<String> = stream.micro_batch_counts().iter().map(ToString::to_string).collect();
    let metadata = [
        ("dressage:plan_id", plan.plan_id().to_owned()),
        ("dressage:world_size", plan.world_size().to_string()),
        ("dressage:micro_batches", counts.join(",")),
    ];
    Arc::new(Schema::new_with_metadata(fields, metadata.map(|(key, value)| (key.to_owned(), value)).into()))
}

/// The batch with the columns that say which one it is.
fn placed(micro_batch: &MicroBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let rows = micro_batch.batch.num_rows();
    let rank = i32::try_from(micro_batch.dp_rank).unwrap_or(i32::MAX);
    let place = [micro_batch.train_step, rank, micro_batch.micro_batch];
    let place = place.map(|value| -> ArrayRef { Arc::new(Int32Array::from_value(value, rows)) });
    let columns = place.into_iter().chain(micro_batch.batch.columns().iter().cloned()).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
}

/// Rows as JSON objects, nulls too.
fn samples(batch: &RecordBatch) -> Result<Vec<serde_json::Value>> {
    if batch.num_rows() == 0 {
        return Ok(Vec::new());
    }
    let mut writer = arrow::json::WriterBuilder::new()
        .with_explicit_nulls(true)
        .build::<_, arrow::json::writer::JsonArray>(Vec::new());
    writer.write(batch)?;
    writer.finish()?;
    Ok(serde_json::from_slice(&writer.into_inner())?)
}
