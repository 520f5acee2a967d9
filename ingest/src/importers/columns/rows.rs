//! Rows of whole trajectories to rollouts.

use std::collections::HashMap;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::datatypes::DataType;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use dressage_schemas::tables::rollout;
use dressage_schemas::words::Status;
use serde_json::{Map, Value};

use super::Piece;
use super::cells::{self, TextColumn};
use crate::importer::{RecordError, Rejected, Sink};
use crate::importers::dressage::segment::Segment;
use crate::importers::dressage::whole::settle_status;
use crate::rollout::{ExpertDtype, Provenance, Rollout, RolloutReward, RoutedExperts};
use crate::rule;

/// A batch whose known columns have the types of the interchange schema.
struct Columns {
    known: HashMap<&'static str, ArrayRef>,
    other: Vec<(String, ArrayRef)>,
    rows: usize,
}

/// The names of the interchange schema live as long as the program.
const NAMES: [&str; 27] = [
    "trajectory_id",
    "instance_id",
    "group_id",
    "run_id",
    "parent_trajectory_id",
    "status",
    "reward",
    "model",
    "agent",
    "created_at",
    "labels",
    "segment_index",
    "segment_reasons",
    "finish_reason",
    "trainable",
    "weight_version",
    "tokens",
    "full_loss_mask",
    "full_logprobs",
    "full_versions",
    "routed_experts",
    "routed_experts_dtype",
    "routed_experts_layers",
    "routed_experts_topk",
    "messages",
    "tools",
    "extra_info",
];

impl Columns {
    fn of(batch: &RecordBatch) -> Result<Self, RecordError> {
        let wanted = rollout::schema();
        let mut columns = Self { known: HashMap::new(), other: Vec::new(), rows: batch.num_rows() };
        for (field, array) in batch.schema().fields().iter().zip(batch.columns()) {
            let Some(name) = NAMES.iter().find(|n| *n == field.name()) else {
                columns.other.push((field.name().clone(), array.clone()));
                continue;
            };
            if matches!(array.data_type(), DataType::Null) {
                continue;
            }
            let Ok(target) = wanted.field_with_name(name) else { continue };
            let array = cells::cast_to(array, target.data_type()).map_err(|error| {
                let reason = format!(
                    "column {name} is {} and cannot be read as {}: {error}",
                    array.data_type(),
                    target.data_type()
                );
                RecordError::refused(rule::WRONG_TYPE, reason)
            })?;
            columns.known.insert(name, array);
        }
        Ok(columns)
    }

    fn get<T>(&self, name: &str, row: usize, read: fn(&ArrayRef, usize) -> Option<T>) -> Option<T> {
        self.known.get(name).and_then(|array| read(array, row))
    }

    fn text(&self, name: &str, row: usize) -> Option<String> {
        self.get(name, row, |array, row| TextColumn::of(array)?.get(row).map(str::to_owned))
    }

    fn json(&self, name: &str, row: usize) -> Result<Option<Value>, RecordError> {
        let Some(text) = self.text(name, row) else { return Ok(None) };
        let (value, _) = crate::json::parse(text.as_bytes()).map_err(|broken| {
            let reason = format!("column {name} is no JSON at byte {}: {}", broken.byte_offset, broken.reason);
            RecordError::refused(rule::NOT_JSON, reason)
        })?;
        Ok(Some(value).filter(|v| !v.is_null()))
    }

    /// Columns that we do not know, as JSON where they are simple and as text where they are not.
    fn others(&self, row: usize) -> Map<String, Value> {
        let mut map = Map::new();
        for (name, array) in self.other.iter().filter(|(_, a)| a.is_valid(row)) {
            let options = FormatOptions::default();
            let Ok(formatter) = ArrayFormatter::try_new(array.as_ref(), &options) else { continue };
            let text = formatter.value(row).to_string();
            let simple = array.data_type().is_numeric() || matches!(array.data_type(), DataType::Boolean);
            let value = simple.then(|| serde_json::from_str(&text).ok()).flatten().unwrap_or(Value::String(text));
            map.insert(name.clone(), value);
        }
        map
    }
}

/// The trajectory whose rows are being read.
struct Current {
    rollout: Rollout,
    status: Option<Status>,
    first_row: u64,
    rows: u64,
    broken: Option<RecordError>,
}

/// Reads the rows of a piece; a trajectory with a row that cannot be read is rejected whole.
pub(crate) fn read_piece(piece: &Piece, sink: &mut impl Sink) -> Result<(), RecordError> {
    let mut current: Option<Current> = None;
    let mut row_number = piece.row_offset;
    for batch in &piece.batches {
        let columns = match Columns::of(batch) {
            Ok(columns) => columns,
            Err(error) => {
                reject(sink, row_number, batch.num_rows() as u64, None, error)?;
                row_number += batch.num_rows() as u64;
                continue;
            }
        };
        for row in 0..columns.rows {
            let id = columns.text("trajectory_id", row).unwrap_or_default();
            let run = columns.text("run_id", row);
            let same = current.as_ref().is_some_and(|c| c.rollout.trajectory_id == id && c.rollout.run_id == run);
            if !same {
                finish(current.take(), sink)?;
                current = Some(begin(&columns, row, id, run, row_number));
            }
            if let Some(current) = &mut current {
                add(current, &columns, row);
            }
            row_number += 1;
        }
    }
    finish(current, sink)
}

fn begin(columns: &Columns, row: usize, id: String, run: Option<String>, first_row: u64) -> Current {
    let mut rollout = Rollout::new(id);
    rollout.run_id = run;
    rollout.steps_known = false;
    rollout.instance_id = columns.text("instance_id", row);
    rollout.group_id = columns.text("group_id", row);
    rollout.parent_trajectory_id = columns.text("parent_trajectory_id", row);
    rollout.model = columns.text("model", row);
    rollout.agent = columns.text("agent", row);
    rollout.created_at = columns.get("created_at", row, cells::micros);
    if let Some(value) = columns.get("reward", row, cells::float) {
        rollout.rewards.push(RolloutReward { value: Some(value), ..RolloutReward::default() });
    }
    let mut broken = None;
    match columns.json("labels", row) {
        Ok(Some(Value::Object(labels))) => rollout.labels = labels,
        Ok(Some(other)) => drop(rollout.extra.insert("labels".to_owned(), other)),
        Ok(None) => {}
        Err(error) => broken = Some(error),
    }
    let status = columns.text("status", row).and_then(|word| match Status::parse(&word) {
        Some(status) => Some(status),
        None => {
            let reason = format!("status is `{word}`; known are completed, truncated, aborted and failed");
            broken = Some(RecordError::refused(rule::UNKNOWN_WORD, reason));
            None
        }
    });
    Current { rollout, status, first_row, rows: 0, broken }
}

fn add(current: &mut Current, columns: &Columns, row: usize) {
    current.rows += 1;
    if current.broken.is_some() {
        return;
    }
    match segment(columns, row) {
        // a trajectory without segments is a row without tokens and messages
        Ok(None) => {}
        Ok(Some(segment)) => {
            let position = current.rollout.steps.len();
            let step = segment.into_step(position, &mut current.rollout.data);
            current.rollout.steps.push(step);
        }
        Err(error) => current.broken = Some(error),
    }
}

fn segment(columns: &Columns, row: usize) -> Result<Option<Segment>, RecordError> {
    let mut segment = Segment {
        segment_index: columns.get("segment_index", row, cells::int),
        segment_reasons: columns.get("segment_reasons", row, cells::texts),
        finish_reason: columns.text("finish_reason", row),
        trainable: columns.get("trainable", row, cells::truth),
        weight_version: columns.text("weight_version", row),
        logprobs: columns.get("full_logprobs", row, cells::logprobs),
        versions: columns.get("full_versions", row, cells::versions),
        experts: experts(columns, row)?,
        messages: columns.json("messages", row)?,
        tools: columns.json("tools", row)?,
        ..Segment::default()
    };
    if let Some(array) = columns.known.get("tokens") {
        segment.tokens = cells::token_ids(array, row).map_err(|null| {
            RecordError::refused(rule::TOKEN_ID_RANGE, format!("the token id at position {} is null", null.0))
        })?;
    }
    if let Some(array) = columns.known.get("full_loss_mask") {
        segment.mask = cells::mask(array, row).map_err(|(at, value)| {
            let reason = format!("the loss mask has {value} at position {at}; only 0 and 1 are masks");
            RecordError::refused(rule::MASK_VALUE, reason)
        })?;
    }
    let is_empty = segment.tokens.is_none() && segment.messages.is_none() && segment.segment_index.is_none();
    if is_empty {
        return Ok(None);
    }
    segment.extra = columns.others(row);
    if let Some(info) = columns.json("extra_info", row)? {
        segment.extra.insert("extra_info".to_owned(), info);
    }
    Ok(Some(segment))
}

fn experts(columns: &Columns, row: usize) -> Result<Option<RoutedExperts>, RecordError> {
    let Some(bytes) = columns.get("routed_experts", row, cells::binary) else { return Ok(None) };
    let refused = |reason: String| RecordError::refused(rule::ROUTED_EXPERTS_SHAPE, reason);
    let dtype = columns.text("routed_experts_dtype", row);
    let dtype = ExpertDtype::parse(dtype.as_deref().unwrap_or("uint8"))
        .ok_or_else(|| refused(format!("routed_experts_dtype is {}", dtype.unwrap_or_default())))?;
    let count = |name: &str| {
        let value = columns.get(name, row, cells::int).and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
        value.ok_or_else(|| refused(format!("routed_experts without {name}")))
    };
    let (layers, top_k) = (count("routed_experts_layers")?, count("routed_experts_topk")?);
    let row_bytes = layers as usize * top_k as usize * dtype.width();
    if !bytes.len().is_multiple_of(row_bytes) {
        let reason =
            format!("{} bytes of routed experts are no multiple of {layers} layers × top-{top_k}", bytes.len());
        return Err(refused(reason));
    }
    let rows = bytes.len() / row_bytes;
    Ok(Some(RoutedExperts { chunks: vec![bytes], dtype, layers, top_k, rows }))
}

fn finish(current: Option<Current>, sink: &mut impl Sink) -> Result<(), RecordError> {
    let Some(Current { mut rollout, status, first_row, rows, broken }) = current else { return Ok(()) };
    if let Some(error) = broken {
        return reject(sink, first_row, rows, Some(rollout.trajectory_id), error);
    }
    rollout.extent = i64::try_from(rows).unwrap_or(i64::MAX);
    rollout.provenance = Provenance { byte_offset: first_row, byte_length: rows, ..Provenance::default() };
    rollout.steps.sort_by_key(|step| step.segment_index);
    settle_status(&mut rollout, status);
    sink.rollout(rollout)
}

/// Rows have no bytes of their own: the place is the row's number, and there is nothing raw to keep.
fn reject(
    sink: &mut impl Sink,
    first_row: u64,
    rows: u64,
    trajectory_id: Option<String>,
    error: RecordError,
) -> Result<(), RecordError> {
    let RecordError::Refused { rule, reason, .. } = error else { return Err(error) };
    sink.reject(Rejected {
        byte_offset: first_row,
        byte_length: rows,
        line: None,
        trajectory_id,
        rule: rule.into(),
        reason: format!("row {first_row}: {reason}"),
        raw: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_of_the_interchange_schema_is_read() {
        let schema = rollout::schema();
        let names: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
        assert_eq!(names, NAMES);
    }
}
