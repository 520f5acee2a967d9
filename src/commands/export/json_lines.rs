//! JSON lines: our own format, one trajectory a line; chats, one segment a line.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{Float32Type, Float64Type, Int8Type, Int32Type, TimestampMicrosecondType};
use serde_json::{Map, Value, json};

use super::RowSink;
use crate::destination::Destination;

/// A line at a time, to a file or to standard output.
struct Lines(Destination);

impl Lines {
    fn create(path: &Path) -> Result<Self> {
        Ok(Self(Destination::create_binary(path)?))
    }

    fn write(&mut self, value: &Value) -> Result<()> {
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        let written = self.0.write_all(&line);
        self.0.witness().judge(written.map_err(Into::into))
    }

    fn finish(self) -> Result<u64> {
        self.0.keep()
    }
}

/// Our own format: a trajectory with its segments.
pub(super) struct Trajectories {
    lines: Lines,
    /// The trajectory whose segments are still coming: (run, id), and its line so far.
    open: Option<((String, String), Value)>,
}

impl Trajectories {
    pub(super) fn create(path: &Path) -> Result<Self> {
        Ok(Self { lines: Lines::create(path)?, open: None })
    }
}

impl RowSink for Trajectories {
    fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        for row in 0..rows.num_rows() {
            let cells = Cells { rows, row };
            let text = |name| cells.text(name).unwrap_or_default();
            let id = (text("run_id"), text("trajectory_id"));
            if self.open.as_ref().is_none_or(|(open, _)| *open != id) {
                if let Some((_, line)) = self.open.take() {
                    self.lines.write(&line)?;
                }
                self.open = Some((id, cells.trajectory()));
            }
            if let (Some((_, line)), Some(segment)) = (&mut self.open, cells.segment())
                && let Some(segments) = line["segments"].as_array_mut()
            {
                segments.push(segment);
            }
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<u64> {
        if let Some((_, line)) = self.open.take() {
            self.lines.write(&line)?;
        }
        self.lines.finish()
    }
}

/// `messages` and `tools` of each segment that has messages.
pub(super) struct Chats(Lines);

impl Chats {
    pub(super) fn create(path: &Path) -> Result<Self> {
        Ok(Self(Lines::create(path)?))
    }
}

impl RowSink for Chats {
    fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        for row in 0..rows.num_rows() {
            let cells = Cells { rows, row };
            let Some(messages) = cells.json("messages") else { continue };
            let mut line = Map::new();
            line.insert("messages".to_owned(), messages);
            if let Some(tools) = cells.json("tools") {
                line.insert("tools".to_owned(), tools);
            }
            for name in ["trajectory_id", "instance_id", "group_id", "run_id", "status", "model"] {
                line.insert(name.to_owned(), json!(cells.text(name)));
            }
            line.insert("segment_index".to_owned(), json!(cells.int("segment_index")));
            line.insert("reward".to_owned(), json!(cells.reward()));
            self.0.write(&Value::Object(line))?;
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<u64> {
        self.0.finish()
    }
}

/// One row of the interchange schema.
struct Cells<'a> {
    rows: &'a RecordBatch,
    row: usize,
}

impl Cells<'_> {
    fn column(&self, name: &str) -> Option<&ArrayRef> {
        self.rows.column_by_name(name).filter(|column| column.is_valid(self.row))
    }

    fn text(&self, name: &str) -> Option<String> {
        let column = self.column(name)?;
        let short = column.as_string_opt::<i32>().map(|c| c.value(self.row));
        short.or_else(|| column.as_string_opt::<i64>().map(|c| c.value(self.row))).map(str::to_owned)
    }

    fn json(&self, name: &str) -> Option<Value> {
        let text = self.text(name)?;
        // what was stored as JSON text is JSON; anything else goes out as the text that it is
        Some(serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    fn int(&self, name: &str) -> Option<i32> {
        Some(self.column(name)?.as_primitive_opt::<Int32Type>()?.value(self.row))
    }

    fn reward(&self) -> Option<f64> {
        Some(self.column("reward")?.as_primitive_opt::<Float64Type>()?.value(self.row)).filter(|r| r.is_finite())
    }

    fn list(&self, name: &str) -> Option<ArrayRef> {
        Some(self.column(name)?.as_list_opt::<i64>()?.value(self.row))
    }

    /// The trajectory's keys, with no segments yet.
    fn trajectory(&self) -> Value {
        let mut line = Map::new();
        for name in
            ["trajectory_id", "instance_id", "group_id", "run_id", "parent_trajectory_id", "status", "model", "agent"]
        {
            if let Some(text) = self.text(name) {
                line.insert(name.to_owned(), Value::String(text));
            }
        }
        line.insert("reward".to_owned(), json!(self.reward()));
        if let Some(labels) = self.json("labels") {
            line.insert("labels".to_owned(), labels);
        }
        if let Some(micros) = self.column("created_at").and_then(|c| c.as_primitive_opt::<TimestampMicrosecondType>()) {
            line.insert("created_at".to_owned(), json!(micros.value(self.row) as f64 / 1e6));
        }
        line.insert("segments".to_owned(), json!([]));
        Value::Object(line)
    }

    /// The segment of this row; none for a trajectory that has none.
    fn segment(&self) -> Option<Value> {
        let mut segment = Map::new();
        segment.insert("segment_index".to_owned(), json!(self.int("segment_index")?));
        if let Some(ids) = self.list("tokens") {
            segment.insert("tokens".to_owned(), json!(ids.as_primitive::<Int32Type>().values()[..]));
        }
        if let Some(mask) = self.list("full_loss_mask") {
            segment.insert("full_loss_mask".to_owned(), json!(mask.as_primitive::<Int8Type>().values()[..]));
        }
        if let Some(logprobs) = self.list("full_logprobs") {
            // NaN has no form in JSON; null is what servers write for it
            let values: Vec<Option<f32>> =
                logprobs.as_primitive::<Float32Type>().values().iter().map(|p| p.is_finite().then_some(*p)).collect();
            segment.insert("full_logprobs".to_owned(), json!(values));
        }
        if let Some(versions) = self.list("full_versions") {
            let values: Vec<Option<&str>> = versions.as_string::<i32>().iter().collect();
            segment.insert("full_versions".to_owned(), json!(values));
        }
        if let Some(chunk) = self.experts() {
            segment.insert("routed_experts_chunks".to_owned(), json!([chunk]));
        }
        for name in ["messages", "tools", "extra_info"] {
            if let Some(value) = self.json(name) {
                segment.insert(name.to_owned(), value);
            }
        }
        for name in ["finish_reason", "weight_version"] {
            if let Some(text) = self.text(name) {
                segment.insert(name.to_owned(), Value::String(text));
            }
        }
        if let Some(trainable) = self.column("trainable").and_then(|c| c.as_boolean_opt()) {
            segment.insert("trainable".to_owned(), json!(trainable.value(self.row)));
        }
        if let Some(reasons) = self.list("segment_reasons") {
            let reasons: Vec<&str> = reasons.as_string::<i32>().iter().flatten().collect();
            segment.insert("segment_reasons".to_owned(), json!(reasons));
        }
        Some(Value::Object(segment))
    }

    fn experts(&self) -> Option<Value> {
        let bytes = self.column("routed_experts")?.as_binary_opt::<i64>()?.value(self.row);
        let dtype = self.text("routed_experts_dtype")?;
        let (layers, topk) = (self.int("routed_experts_layers")?, self.int("routed_experts_topk")?);
        let width = match dtype.as_str() {
            "uint8" => 1,
            "uint16" => 2,
            _ => 4,
        };
        let row_bytes = width * usize::try_from(layers).ok()? * usize::try_from(topk).ok()?;
        let row_count = bytes.len().checked_div(row_bytes)?;
        Some(json!({
            "data": dressage_segmenter::base64(bytes),
            "row_count": row_count,
            "dtype": dtype,
            "layers": layers,
            "topk": topk,
        }))
    }
}
