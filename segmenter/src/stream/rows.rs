//! The step rows of a window, as they were taken: several batches in stored order, and where each address is in them.

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int32Array, Int64Array, LargeBinaryArray, ListArray, RecordBatch,
    StringArray, StructArray,
};
use arrow::datatypes::{Int32Type, Int64Type};
use bytes::Bytes;
use dressage_schemas::spans::VersionSpans;

use crate::error::{Error, Result};

/// Scalars that every stream reads: they say what the payload must be.
const SCALARS: [&str; 7] = [
    "trajectory_key",
    "trainable",
    "mask_spans",
    "version_spans",
    "weight_version",
    "mask_nonlast_version",
    "finish_reason",
];

/// What is read of `steps`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) token_ids: bool,
    pub(super) logprobs: bool,
    pub(super) experts: bool,
}

impl Wanted {
    /// The columns of the take; router choices are read beside it.
    pub(super) fn columns(self) -> Vec<String> {
        let payload = [("token_ids", self.token_ids), ("logprobs", self.logprobs)];
        let payload = payload.into_iter().filter(|(_, wanted)| *wanted).map(|(name, _)| name);
        SCALARS.into_iter().chain(payload).map(str::to_owned).collect()
    }
}

/// The rows of one take.
#[derive(Debug)]
pub(super) struct TakenRows {
    addresses: Vec<u64>,
    trajectory_key: Int64Array,
    trainable: BooleanArray,
    mask_spans: ListArray,
    version_spans: ListArray,
    weight_version: StringArray,
    mask_nonlast_version: BooleanArray,
    finish_reason: StringArray,
    token_ids: Option<LargeBinaryArray>,
    logprobs: Option<LargeBinaryArray>,
    experts: Vec<Option<Bytes>>,
}

impl TakenRows {
    pub(super) fn new(addresses: Vec<u64>, batch: &RecordBatch, experts: Vec<Option<Bytes>>) -> Result<Self> {
        let bytes = |name: &'static str| match batch.column_by_name(name) {
            Some(column) => typed(name, column, column.as_binary_opt::<i64>()).map(Some),
            None => Ok(None),
        };
        let column = |name: &'static str| {
            batch
                .column_by_name(name)
                .ok_or_else(|| Error::ViewShape { column: name.to_owned(), problem: "is missing".to_owned() })
        };
        let truth = |name| column(name).and_then(|c| typed(name, c, c.as_boolean_opt()));
        let text = |name| column(name).and_then(|c| typed(name, c, c.as_string_opt::<i32>()));
        let list = |name| column(name).and_then(|c| typed(name, c, c.as_list_opt::<i32>()));
        Ok(Self {
            addresses,
            trajectory_key: column("trajectory_key")
                .and_then(|c| typed("trajectory_key", c, c.as_primitive_opt::<Int64Type>()))?,
            trainable: truth("trainable")?,
            mask_spans: list("mask_spans")?,
            version_spans: list("version_spans")?,
            weight_version: text("weight_version")?,
            mask_nonlast_version: truth("mask_nonlast_version")?,
            finish_reason: text("finish_reason")?,
            token_ids: bytes("token_ids")?,
            logprobs: bytes("logprobs")?,
            experts,
        })
    }

    /// The first and the last address.
    fn reach(&self) -> Option<(u64, u64)> {
        Some((*self.addresses.first()?, *self.addresses.last()?))
    }
}

/// An array as the type that its schema promises.
fn typed<A: Clone>(name: &str, column: &ArrayRef, array: Option<&A>) -> Result<A> {
    array.cloned().ok_or_else(|| Error::ViewShape {
        column: name.to_owned(),
        problem: format!("has type {}", column.data_type()),
    })
}

/// All rows of a window.
#[derive(Debug)]
pub(super) struct WindowRows {
    takes: Vec<TakenRows>,
}

impl WindowRows {
    /// From takes in ascending order of address.
    pub(super) fn new(takes: Vec<TakenRows>) -> Self {
        Self { takes }
    }

    /// The step at an address.
    pub(super) fn step(&self, address: u64) -> Option<StepRef<'_>> {
        let at = self.takes.partition_point(|take| take.reach().is_none_or(|(_, last)| last < address));
        let take = self.takes.get(at)?;
        Some(StepRef { take, row: take.addresses.binary_search(&address).ok()? })
    }
}

/// One step of a window.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepRef<'a> {
    take: &'a TakenRows,
    row: usize,
}

impl<'a> StepRef<'a> {
    pub(super) fn trajectory_key(self) -> i64 {
        self.take.trajectory_key.value(self.row)
    }

    pub(super) fn trainable(self) -> bool {
        self.take.trainable.value(self.row)
    }

    pub(super) fn masks_older_versions(self) -> bool {
        self.take.mask_nonlast_version.value(self.row)
    }

    pub(super) fn finish_reason(self) -> Option<&'a str> {
        let column = &self.take.finish_reason;
        column.is_valid(self.row).then(|| column.value(self.row))
    }

    pub(super) fn weight_version(self) -> Option<&'a str> {
        let column = &self.take.weight_version;
        column.is_valid(self.row).then(|| column.value(self.row))
    }

    /// The run lengths of its mask.
    pub(super) fn mask_lengths(self) -> &'a [i32] {
        let spans = &self.take.mask_spans;
        let offsets = spans.value_offsets();
        let (from, to) = (offsets[self.row] as usize, offsets[self.row + 1] as usize);
        spans.values().as_primitive_opt::<Int32Type>().map_or(&[], |values: &'a Int32Array| &values.values()[from..to])
    }

    /// The versions of its tokens, where they were recorded one by one.
    pub(super) fn version_spans(self) -> Option<VersionSpans> {
        let spans = &self.take.version_spans;
        if spans.is_null(self.row) {
            return None;
        }
        let runs = spans.value(self.row);
        let runs: &StructArray = runs.as_struct_opt()?;
        let names = runs.column_by_name("weight_version")?.as_string_opt::<i32>()?;
        let lengths = runs.column_by_name("n_tokens")?.as_primitive_opt::<Int32Type>()?;
        let name = |i| if names.is_valid(i) { names.value(i).to_owned() } else { String::new() };
        Some(VersionSpans((0..runs.len()).map(|i| (name(i), lengths.value(i))).collect()))
    }

    pub(super) fn token_ids(self) -> Option<&'a [u8]> {
        cell(self.take.token_ids.as_ref()?, self.row)
    }

    pub(super) fn logprobs(self) -> Option<&'a [u8]> {
        cell(self.take.logprobs.as_ref()?, self.row)
    }

    pub(super) fn experts(self) -> Option<&'a Bytes> {
        self.take.experts.get(self.row)?.as_ref()
    }
}

fn cell(column: &LargeBinaryArray, row: usize) -> Option<&[u8]> {
    column.is_valid(row).then(|| column.value(row))
}
