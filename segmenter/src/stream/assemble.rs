//! Samples to one `RecordBatch`. Payload is copied once, from where the store's reader left it to its place in the list.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Float32Array, Float64Array, Int8Array, Int32Array, ListArray, RecordBatch,
    RecordBatchOptions, StringArray, StringBuilder,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, SchemaRef};

use super::columns::BatchColumn;
use super::experts::{self, Routed};
use super::rows::StepRef;
use super::sample::Sample;

/// A batch of these columns, one row a sample.
///
/// # Errors
/// The position of the sample that does not fit together, and why.
pub(super) fn batch(
    samples: &[Sample<'_>],
    columns: &[BatchColumn],
    schema: &SchemaRef,
) -> Result<RecordBatch, (usize, String)> {
    let routed = columns.iter().any(|c| c.is_routed()).then(|| experts::decode(samples)).transpose()?;
    let lists = Lists::of(samples)?;
    let arrays = columns.iter().map(|column| array(*column, samples, &lists, routed.as_ref()));
    let arrays = arrays.collect::<Result<Vec<_>, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(samples.len()));
    // every array was made for its field above
    RecordBatch::try_new_with_options(Arc::clone(schema), arrays, &options).map_err(|e| (0, e.to_string()))
}

fn array(
    column: BatchColumn,
    samples: &[Sample<'_>],
    lists: &Lists,
    routed: Option<&Routed>,
) -> Result<ArrayRef, (usize, String)> {
    let int = |get: &dyn Fn(&Sample<'_>) -> usize| -> ArrayRef {
        Arc::new(Int32Array::from_iter_values(samples.iter().map(|s| get(s) as i32)))
    };
    let float =
        |get: fn(&Sample<'_>) -> f64| -> ArrayRef { Arc::new(Float64Array::from_iter_values(samples.iter().map(get))) };
    Ok(match column {
        BatchColumn::TrajectoryId => {
            Arc::new(StringArray::from_iter_values(samples.iter().map(|s| s.placed.trajectory_id.as_ref())))
        }
        BatchColumn::SegmentIndex => {
            Arc::new(Int32Array::from_iter_values(samples.iter().map(|s| s.placed.segment_index)))
        }
        BatchColumn::NTokens => int(&|s| s.n_tokens),
        BatchColumn::ResponseStart => int(&|s| s.response_start),
        BatchColumn::TokenIds => {
            lists.aligned(DataType::Int32, Arc::new(Int32Array::from(token_ids(samples, lists)?)), None)
        }
        BatchColumn::PositionIds => {
            let mut positions = Vec::with_capacity(lists.n_tokens);
            samples.iter().for_each(|s| positions.extend(0..s.n_tokens as i32));
            lists.aligned(DataType::Int32, Arc::new(Int32Array::from(positions)), None)
        }
        BatchColumn::LossMask => {
            let mut mask = Vec::with_capacity(lists.n_tokens);
            for sample in samples {
                for (i, n) in sample.mask.as_slice().iter().enumerate() {
                    mask.resize(mask.len() + *n as usize, (i % 2) as i8);
                }
            }
            lists.aligned(DataType::Int8, Arc::new(Int8Array::from(mask)), None)
        }
        BatchColumn::Logprobs => logprobs(samples, lists)?,
        BatchColumn::WeightVersions => version_names(samples),
        BatchColumn::WeightVersionLengths => version_lengths(samples),
        BatchColumn::Advantage => float(|s| s.placed.advantage),
        BatchColumn::LossWeight => float(|s| s.placed.loss_weight),
        BatchColumn::Truncated => Arc::new(BooleanArray::from_iter(samples.iter().map(|s| Some(s.truncated)))),
        BatchColumn::RoutedExperts
        | BatchColumn::RoutedExpertsDtype
        | BatchColumn::RoutedExpertsLayers
        | BatchColumn::RoutedExpertsTopk => routed
            .and_then(|routed| routed.column(column))
            .ok_or_else(|| (0, "router choices were not read".to_owned()))?,
    })
}

/// The shape of every token-aligned list.
struct Lists {
    offsets: OffsetBuffer<i32>,
    n_tokens: usize,
}

impl Lists {
    fn of(samples: &[Sample<'_>]) -> Result<Self, (usize, String)> {
        let n_tokens: usize = samples.iter().map(|s| s.n_tokens).sum();
        if i32::try_from(n_tokens).is_err() {
            return Err((0, format!("its micro-batch has {n_tokens} tokens, more than a list can hold")));
        }
        Ok(Self { offsets: OffsetBuffer::from_lengths(samples.iter().map(|s| s.n_tokens)), n_tokens })
    }

    fn aligned(&self, item: DataType, values: ArrayRef, nulls: Option<NullBuffer>) -> ArrayRef {
        let field = Arc::new(Field::new_list_field(item, true));
        Arc::new(ListArray::new(field, self.offsets.clone(), values, nulls))
    }
}

/// The part of a step that a sample still takes.
struct Part<'a> {
    step: StepRef<'a>,
    /// Tokens of the step.
    n_tokens: usize,
    /// Of them before the cap.
    n_kept: usize,
}

fn parts<'a>(sample: &'a Sample<'_>) -> impl Iterator<Item = Part<'a>> {
    let mut left = sample.n_tokens;
    sample.steps.iter().map(move |step| {
        let n_tokens: usize = step.mask_lengths().iter().map(|n| usize::try_from(*n).unwrap_or(0)).sum();
        let n_kept = n_tokens.min(left);
        left -= n_kept;
        Part { step: *step, n_tokens, n_kept }
    })
}

fn token_ids(samples: &[Sample<'_>], lists: &Lists) -> Result<Vec<i32>, (usize, String)> {
    let mut ids: Vec<i32> = Vec::with_capacity(lists.n_tokens);
    for (at, sample) in samples.iter().enumerate() {
        for part in parts(sample).filter(|part| part.n_kept > 0) {
            let bytes = part.step.token_ids().ok_or_else(|| {
                (at, "it has no token ids: it was recorded as messages only, and cannot be trained on".to_owned())
            })?;
            let words = words(bytes, &part, "bytes of token ids").map_err(|problem| (at, problem))?;
            ids.extend(words.iter().map(|word| i32::from_le_bytes(*word)));
        }
    }
    Ok(ids)
}

/// 0 on context and NaN on generated tokens of a step that has none; null where no step has any.
fn logprobs(samples: &[Sample<'_>], lists: &Lists) -> Result<ArrayRef, (usize, String)> {
    let mut values: Vec<f32> = Vec::with_capacity(lists.n_tokens);
    let mut valid = Vec::with_capacity(samples.len());
    for (at, sample) in samples.iter().enumerate() {
        valid.push(sample.steps.iter().any(|step| step.logprobs().is_some()));
        for part in parts(sample).filter(|part| part.n_kept > 0) {
            match part.step.logprobs() {
                Some(bytes) => {
                    let words = words(bytes, &part, "bytes of log-probs").map_err(|problem| (at, problem))?;
                    values.extend(words.iter().map(|word| f32::from_le_bytes(*word)));
                }
                None => {
                    let from = values.len();
                    for (i, n) in part.step.mask_lengths().iter().enumerate() {
                        let unknown = if i % 2 == 1 { f32::NAN } else { 0.0 };
                        values.resize(values.len() + usize::try_from(*n).unwrap_or(0), unknown);
                    }
                    values.truncate(from + part.n_kept);
                }
            }
        }
    }
    let nulls = valid.contains(&false).then(|| NullBuffer::from(valid));
    Ok(lists.aligned(DataType::Float32, Arc::new(Float32Array::from(values)), nulls))
}

/// The 32-bit values of a step that are kept.
fn words<'a>(bytes: &'a [u8], part: &Part<'_>, what: &str) -> Result<&'a [[u8; 4]], String> {
    match bytes.as_chunks::<4>() {
        (words, []) if words.len() == part.n_tokens => Ok(&words[..part.n_kept]),
        _ => Err(format!("a step of {} tokens has {} {what}", part.n_tokens, bytes.len())),
    }
}

fn version_names(samples: &[Sample<'_>]) -> ArrayRef {
    let mut names = StringBuilder::new();
    let runs = samples.iter().flat_map(|s| s.versions.iter()).flat_map(|versions| &versions.0);
    // a version that nobody recorded is no version
    runs.for_each(|(name, _)| names.append_option((!name.is_empty()).then_some(name)));
    runs_list(samples, DataType::Utf8, Arc::new(names.finish()))
}

fn version_lengths(samples: &[Sample<'_>]) -> ArrayRef {
    let runs = samples.iter().flat_map(|s| s.versions.iter()).flat_map(|versions| &versions.0);
    runs_list(samples, DataType::Int32, Arc::new(Int32Array::from_iter_values(runs.map(|(_, n)| *n))))
}

/// A list of one item a version run.
fn runs_list(samples: &[Sample<'_>], item: DataType, values: ArrayRef) -> ArrayRef {
    let lengths = samples.iter().map(|s| s.versions.as_ref().map_or(0, |versions| versions.0.len()));
    let valid: Vec<bool> = samples.iter().map(|s| s.versions.is_some()).collect();
    let nulls = valid.contains(&false).then(|| NullBuffer::from(valid));
    let field = Arc::new(Field::new_list_field(item, true));
    Arc::new(ListArray::new(field, OffsetBuffer::from_lengths(lengths), values, nulls))
}
