//! Range and row-count checks of what is about to be written: a batch that contradicts itself is refused whole.
//!
//! `n_context_tokens + n_output_tokens` is the number of tokens; `token_ids`, `logprobs`, `mask_spans` and
//! `version_spans` must agree with it wherever they are present. Text-only steps have none of them.

use arrow::array::{
    Array, BooleanArray, Int32Array, Int64Array, LargeBinaryArray, ListArray, RecordBatch, StringArray, StructArray,
};
use dressage_codec::Header;
use dressage_schemas::Table;
use dressage_schemas::ids::TrajectoryKey;
use dressage_schemas::tables::trainer_logprobs::LIST_COLUMNS;

use crate::error::{Error, Result};
use crate::physical::{binary, typed};

/// Checks a batch for a table against its logical schema and its rules.
pub(crate) fn check(table: Table, batch: &RecordBatch) -> Result<()> {
    check_shape(table, batch)?;
    match table {
        Table::Steps => check_steps(batch),
        Table::Trajectories => check_trajectories(batch),
        Table::TrainerLogprobs => check_trainer_logprobs(batch),
        _ => Ok(()),
    }
}

fn check_shape(table: Table, batch: &RecordBatch) -> Result<()> {
    let logical = table.schema();
    for field in logical.fields() {
        let given = batch.schema();
        let Ok(found) = given.field_with_name(field.name()) else {
            return Err(Error::BatchShape { table, detail: format!("column {:?} is missing", field.name()) });
        };
        if found.data_type() != field.data_type() {
            let detail = format!("column {:?} is {} instead of {}", field.name(), found.data_type(), field.data_type());
            return Err(Error::BatchShape { table, detail });
        }
        let nulls = batch.column_by_name(field.name()).map_or(0, |c| c.null_count());
        if !field.is_nullable() && nulls > 0 {
            let detail = format!("column {:?} has {nulls} nulls and must have none", field.name());
            return Err(Error::BatchShape { table, detail });
        }
    }
    Ok(())
}

/// The columns that the rules of a step speak of.
struct StepColumns<'a> {
    key: &'a Int64Array,
    step_index: &'a Int32Array,
    revision: &'a Int32Array,
    route: &'a StringArray,
    boundary: &'a BooleanArray,
    n_context: &'a Int32Array,
    n_output: &'a Int32Array,
    mask_spans: &'a ListArray,
    version_spans: &'a ListArray,
    messages: &'a ListArray,
    n_context_messages: &'a Int32Array,
    token_ids: &'a LargeBinaryArray,
    logprobs: &'a LargeBinaryArray,
    routed_experts: &'a LargeBinaryArray,
}

impl<'a> StepColumns<'a> {
    fn of(batch: &'a RecordBatch) -> Result<Self> {
        const T: Table = Table::Steps;
        Ok(Self {
            key: typed(T, batch, "trajectory_key")?,
            step_index: typed(T, batch, "step_index")?,
            revision: typed(T, batch, "revision")?,
            route: typed(T, batch, "route")?,
            boundary: typed(T, batch, "boundary")?,
            n_context: typed(T, batch, "n_context_tokens")?,
            n_output: typed(T, batch, "n_output_tokens")?,
            mask_spans: typed(T, batch, "mask_spans")?,
            version_spans: typed(T, batch, "version_spans")?,
            messages: typed(T, batch, "messages")?,
            n_context_messages: typed(T, batch, "n_context_messages")?,
            token_ids: binary(T, batch, "token_ids")?,
            logprobs: binary(T, batch, "logprobs")?,
            routed_experts: binary(T, batch, "routed_experts")?,
        })
    }
}

fn check_steps(batch: &RecordBatch) -> Result<()> {
    let columns = StepColumns::of(batch)?;
    (0..batch.num_rows()).try_for_each(|row| {
        step_fault(&columns, row).map_or(Ok(()), |(rule, detail)| {
            Err(Error::BadStep {
                trajectory_key: columns.key.value(row),
                step_index: columns.step_index.value(row),
                rule,
                detail,
            })
        })
    })
}

/// The first rule that a step breaks.
fn step_fault(c: &StepColumns<'_>, row: usize) -> Option<(&'static str, String)> {
    let (n_context, n_output) = (c.n_context.value(row), c.n_output.value(row));
    if n_context < 0 || n_output < 0 || c.step_index.value(row) < 0 || c.revision.value(row) < 0 {
        return Some(("count_range", format!("a count or index is negative: {n_context} context, {n_output} output")));
    }
    let n_tokens = i64::from(n_context) + i64::from(n_output);
    let tokens_stored = c.token_ids.is_valid(row);

    if tokens_stored {
        let bytes = c.token_ids.value(row);
        if bytes.len() as i64 != n_tokens * 4 {
            return Some(("token_length", format!("{} bytes of token ids for {n_tokens} tokens", bytes.len())));
        }
        if let Some(at) = bytes.chunks_exact(4).position(|id| id[3] & 0x80 != 0) {
            return Some(("token_range", format!("token id at position {at} is negative")));
        }
    }
    if c.logprobs.is_valid(row) {
        let bytes = c.logprobs.value(row);
        if bytes.len() as i64 != n_tokens * 4 {
            return Some(("logprob_length", format!("{} bytes of log-probs for {n_tokens} tokens", bytes.len())));
        }
        let infinite = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]).is_infinite();
        if let Some(at) = bytes.chunks_exact(4).position(infinite) {
            return Some(("logprob_range", format!("log-prob at position {at} is infinite; store NaN for unknown")));
        }
    }
    let masked = span_sum(&c.mask_spans.value(row));
    match masked {
        None => return Some(("mask_spans", "a run length is negative".to_owned())),
        // a step without tokens may leave its mask out
        Some(sum) if sum != n_tokens && (tokens_stored || sum != 0) => {
            return Some(("mask_length", format!("mask_spans add up to {sum}, not to {n_tokens} tokens")));
        }
        Some(_) => {}
    }
    if c.version_spans.is_valid(row) {
        let spans = c.version_spans.value(row);
        let lengths = spans.as_any().downcast_ref::<StructArray>().and_then(|s| s.column_by_name("n_tokens").cloned());
        match lengths.as_ref().and_then(span_sum) {
            None => return Some(("version_spans", "a run length is negative or missing".to_owned())),
            Some(sum) if sum != n_tokens => {
                return Some(("version_length", format!("version_spans add up to {sum}, not to {n_tokens} tokens")));
            }
            Some(_) => {}
        }
    }
    let n_messages = c.messages.value(row).len() as i64;
    let n_context_messages = i64::from(c.n_context_messages.value(row));
    if n_context_messages < 0 || n_context_messages > n_messages {
        return Some(("message_count", format!("{n_context_messages} of {n_messages} messages are context")));
    }
    if c.routed_experts.is_valid(row) {
        return routed_fault(c.routed_experts.value(row), n_tokens, c.route.value(row), c.boundary.value(row));
    }
    None
}

/// The engine gives one row a token except for the last; a step that extends another begins with the row of that
/// one's last token, so it has a row for each of its tokens (semantics 8.3). A branch may have either.
fn routed_fault(bytes: &[u8], n_tokens: i64, route: &str, boundary: bool) -> Option<(&'static str, String)> {
    let rows = match Header::parse(bytes) {
        Ok(header) => header.layout().rows as i64,
        Err(error) => return Some(("routed_container", error.to_string())),
    };
    let starts_segment = boundary || matches!(route, "create" | "given");
    let fits = match (route, starts_segment) {
        ("branch", _) => rows == n_tokens || rows == n_tokens - 1,
        (_, true) => rows == n_tokens - 1,
        (_, false) => rows == n_tokens,
    };
    (!fits).then(|| ("routed_rows", format!("{rows} rows of routed experts for {n_tokens} tokens")))
}

/// The sum of run lengths; none if one is negative or null.
fn span_sum(lengths: &arrow::array::ArrayRef) -> Option<i64> {
    let lengths = lengths.as_any().downcast_ref::<Int32Array>()?;
    let mut sum = 0_i64;
    for length in lengths {
        sum += length.filter(|n| *n >= 0).map(i64::from)?;
    }
    Some(sum)
}

/// A log-prob for each place, and places that ascend.
fn check_trainer_logprobs(batch: &RecordBatch) -> Result<()> {
    const T: Table = Table::TrainerLogprobs;
    let [places, logprobs, trainer_logprobs]: [&ListArray; 3] =
        [typed(T, batch, LIST_COLUMNS[0])?, typed(T, batch, LIST_COLUMNS[1])?, typed(T, batch, LIST_COLUMNS[2])?];
    let id: &StringArray = typed(T, batch, "trajectory_id")?;
    for row in 0..batch.num_rows() {
        let n_places = places.value_length(row);
        let recorded = if logprobs.is_valid(row) { logprobs.value_length(row) } else { n_places };
        let list = places.value(row);
        let ascending = list.as_any().downcast_ref::<Int32Array>().is_some_and(|list| {
            list.null_count() == 0
                && list.values().first().is_none_or(|n| *n >= 0)
                && list.values().is_sorted_by(|a, b| a < b)
        });
        if !ascending || recorded != n_places || trainer_logprobs.value_length(row) != n_places {
            let (id, trained) = (id.value(row), trainer_logprobs.value_length(row));
            let detail = format!(
                "trajectory {id:?}: {n_places} token_places, {recorded} logprobs, {trained} trainer_logprobs; there must be \
                 as many of each, and the places must ascend from 0 or more"
            );
            return Err(Error::BatchShape { table: T, detail });
        }
    }
    Ok(())
}

fn check_trajectories(batch: &RecordBatch) -> Result<()> {
    const T: Table = Table::Trajectories;
    let key: &Int64Array = typed(T, batch, "trajectory_key")?;
    let id: &StringArray = typed(T, batch, "trajectory_id")?;
    let run: &StringArray = typed(T, batch, "run_id")?;
    let revision: &Int32Array = typed(T, batch, "revision")?;
    let n_tokens: &Int64Array = typed(T, batch, "n_tokens")?;
    let n_trained: &Int64Array = typed(T, batch, "n_trained_tokens")?;
    for row in 0..batch.num_rows() {
        let name = || format!("trajectory {:?} of run {:?}", id.value(row), run.value(row));
        if TrajectoryKey::of(run.value(row), id.value(row)).0 != key.value(row) {
            let detail = format!("{} has a trajectory_key that is not its own", name());
            return Err(Error::BatchShape { table: T, detail });
        }
        let (tokens, trained) = (n_tokens.value(row), n_trained.value(row));
        if revision.value(row) < 0 || trained < 0 || trained > tokens {
            let detail = format!("{}: revision {}, {trained} of {tokens} tokens trained", name(), revision.value(row));
            return Err(Error::BatchShape { table: T, detail });
        }
    }
    Ok(())
}
