//! `steps`: one model call a row, holding only what that call appended. A segment is an ordered list of steps.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Int32Array, Int32Builder, Int64Array, LargeBinaryBuilder, ListBuilder, RecordBatch,
    StringArray, StringBuilder, StructBuilder,
};
use arrow::datatypes::{DataType, Field, Fields, SchemaRef};
use arrow::error::ArrowError;

use super::{int_list_type, schema_of, text_list_type, text_lists, timestamp_type, timestamps};
use crate::spans::{MaskSpans, VersionSpans};

/// The heavy columns: read only by those who ask for them by name.
pub const PAYLOAD_COLUMNS: [&str; 3] = ["token_ids", "logprobs", "routed_experts"];

fn version_span_fields() -> Fields {
    Fields::from(vec![
        Field::new("weight_version", DataType::Utf8, true),
        Field::new("n_tokens", DataType::Int32, true),
    ])
}

/// The columns of `steps`.
pub fn schema() -> SchemaRef {
    use DataType::{Boolean, Int32, Int64, LargeBinary, Utf8};
    let version_spans = Field::new_list_field(DataType::Struct(version_span_fields()), true);
    schema_of(vec![
        Field::new("trajectory_key", Int64, false),
        Field::new("write_id", Int64, false),
        Field::new("revision", Int32, false),
        Field::new("step_index", Int32, false),
        Field::new("segment_index", Int32, true),
        Field::new("turn_id", Utf8, true),
        Field::new("lineage_id", Utf8, true),
        Field::new("lineage_index", Int32, false),
        Field::new("route", Utf8, false),
        Field::new("base_step", Int32, true),
        Field::new("boundary", Boolean, false),
        Field::new("boundary_reasons", text_list_type(), false),
        Field::new("finish_reason", Utf8, true),
        Field::new("model", Utf8, true),
        Field::new("weight_version", Utf8, true),
        Field::new("n_context_tokens", Int32, false),
        Field::new("n_output_tokens", Int32, false),
        Field::new("mask_spans", int_list_type(), false),
        Field::new("version_spans", DataType::List(Arc::new(version_spans)), true),
        Field::new("mask_nonlast_version", Boolean, false),
        Field::new("trainable", Boolean, false),
        Field::new("flags", text_list_type(), false),
        Field::new("usage_input_tokens", Int64, true),
        Field::new("usage_output_tokens", Int64, true),
        Field::new("created_at", timestamp_type(), true),
        Field::new("messages", text_list_type(), false),
        Field::new("n_context_messages", Int32, false),
        Field::new("tools", Utf8, true),
        Field::new("extra", Utf8, true),
        Field::new("token_ids", LargeBinary, true),
        Field::new("logprobs", LargeBinary, true),
        Field::new("routed_experts", LargeBinary, true),
    ])
}

/// One model call. `n_context_tokens + n_output_tokens` is the number of tokens in `token_ids`, `logprobs`,
/// `mask_spans` and `version_spans` where these are present.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepRow {
    /// Hash of (run_id, trajectory_id).
    pub trajectory_key: i64,
    /// The attempt that wrote it: the same as its trajectory row's.
    pub write_id: i64,
    /// The trajectory's revision.
    pub revision: i32,
    /// 0-based, in order of recording over the whole trajectory.
    pub step_index: i32,
    /// Set where the source gives segments; null where steps are known and segments are islands between boundaries.
    pub segment_index: Option<i32>,
    /// The agent's call by its harness.
    pub turn_id: Option<String>,
    /// The source's name of the chain, where it has one.
    pub lineage_id: Option<String>,
    /// 0-based number of the chain of steps, in order of creation.
    pub lineage_index: i32,
    /// A [`Route`](crate::words::Route) word.
    pub route: String,
    /// `step_index` of the step that this one extends or branches from.
    pub base_step: Option<i32>,
    /// Whether a segment starts here.
    pub boundary: bool,
    /// Words of [`boundary`](crate::words::boundary); empty where `boundary` is false.
    pub boundary_reasons: Vec<String>,
    /// As the engine gave it; `length` means truncated.
    pub finish_reason: Option<String>,
    /// The model of this call, where it may differ from the trajectory's.
    pub model: Option<String>,
    /// The weights that answered (the last ones, if they changed meanwhile).
    pub weight_version: Option<String>,
    /// Tokens of context that this step appended.
    pub n_context_tokens: i32,
    /// Tokens that the model produced.
    pub n_output_tokens: i32,
    /// The loss mask of the appended tokens.
    pub mask_spans: MaskSpans,
    /// The version of each appended token, where recorded.
    pub version_spans: Option<VersionSpans>,
    /// Whether tokens of other than the last version are to be masked (semantics 4.3).
    pub mask_nonlast_version: bool,
    /// False for abandoned branches and for tokens that the policy did not sample; `flags` says why.
    pub trainable: bool,
    /// Words of [`flag`](crate::words::flag).
    pub flags: Vec<String>,
    /// Prompt tokens as the provider counted them.
    pub usage_input_tokens: Option<i64>,
    /// Output tokens as the provider counted them.
    pub usage_output_tokens: Option<i64>,
    /// When the call was made, microseconds.
    pub created_at: Option<i64>,
    /// Content hashes of the messages that this step appended: context first, then the reply.
    pub messages: Vec<String>,
    /// How many of `messages` are context.
    pub n_context_messages: i32,
    /// Content hash of the tool schemas of this call.
    pub tools: Option<String>,
    /// JSON object of keys that we have no column for.
    pub extra: Option<String>,
    /// Appended token ids, 32-bit little-endian.
    pub token_ids: Option<Vec<u8>>,
    /// Log-probabilities under the sampling policy, 32-bit little-endian floats, one a token, 0.0 on context; NaN
    /// where the source had none.
    pub logprobs: Option<Vec<u8>>,
    /// Router choices in the codec's container (`docs/format.md`); rows as semantics 8.3 counts them.
    pub routed_experts: Option<Vec<u8>>,
}

/// `version_spans` of many rows as its Arrow list.
fn version_spans_array<'a>(rows: impl Iterator<Item = Option<&'a VersionSpans>>) -> ArrayRef {
    let structs =
        StructBuilder::new(version_span_fields(), vec![Box::new(StringBuilder::new()), Box::new(Int32Builder::new())]);
    let mut list = ListBuilder::new(structs);
    for row in rows {
        let Some(spans) = row else {
            list.append(false);
            continue;
        };
        for (version, n_tokens) in &spans.0 {
            let values = list.values();
            if let Some(builder) = values.field_builder::<StringBuilder>(0) {
                builder.append_value(version);
            }
            if let Some(builder) = values.field_builder::<Int32Builder>(1) {
                builder.append_value(*n_tokens);
            }
            values.append(true);
        }
        list.append(true);
    }
    Arc::new(list.finish())
}

/// Rows to a batch under [`schema`].
///
/// # Errors
/// Arrow's, if the arrays do not fit the schema (a bug of ours).
pub fn batch(rows: &[StepRow]) -> Result<RecordBatch, ArrowError> {
    let maybe = |get: fn(&StepRow) -> Option<&str>| Arc::new(StringArray::from_iter(rows.iter().map(get)));
    let int = |get: fn(&StepRow) -> i64| Arc::new(Int64Array::from_iter_values(rows.iter().map(get)));
    let maybe_int = |get: fn(&StepRow) -> Option<i64>| Arc::new(Int64Array::from_iter(rows.iter().map(get)));
    let small = |get: fn(&StepRow) -> i32| Arc::new(Int32Array::from_iter_values(rows.iter().map(get)));
    let maybe_small = |get: fn(&StepRow) -> Option<i32>| Arc::new(Int32Array::from_iter(rows.iter().map(get)));
    let truth = |get: fn(&StepRow) -> bool| Arc::new(BooleanArray::from_iter(rows.iter().map(|r| Some(get(r)))));
    // sized beforehand: payload is most of what is written, and growing the buffer would copy it again
    let bytes = |get: fn(&StepRow) -> Option<&[u8]>| {
        let length = rows.iter().filter_map(get).map(<[u8]>::len).sum();
        let mut builder = LargeBinaryBuilder::with_capacity(rows.len(), length);
        builder.extend(rows.iter().map(get));
        Arc::new(builder.finish())
    };
    let mut masks = ListBuilder::new(Int32Builder::new());
    for row in rows {
        masks.values().append_slice(row.mask_spans.as_slice());
        masks.append(true);
    }
    RecordBatch::try_new(
        schema(),
        vec![
            int(|r| r.trajectory_key),
            int(|r| r.write_id),
            small(|r| r.revision),
            small(|r| r.step_index),
            maybe_small(|r| r.segment_index),
            maybe(|r| r.turn_id.as_deref()),
            maybe(|r| r.lineage_id.as_deref()),
            small(|r| r.lineage_index),
            Arc::new(StringArray::from_iter_values(rows.iter().map(|r| &r.route))),
            maybe_small(|r| r.base_step),
            truth(|r| r.boundary),
            text_lists(rows.iter().map(|r| r.boundary_reasons.as_slice())),
            maybe(|r| r.finish_reason.as_deref()),
            maybe(|r| r.model.as_deref()),
            maybe(|r| r.weight_version.as_deref()),
            small(|r| r.n_context_tokens),
            small(|r| r.n_output_tokens),
            Arc::new(masks.finish()),
            version_spans_array(rows.iter().map(|r| r.version_spans.as_ref())),
            truth(|r| r.mask_nonlast_version),
            truth(|r| r.trainable),
            text_lists(rows.iter().map(|r| r.flags.as_slice())),
            maybe_int(|r| r.usage_input_tokens),
            maybe_int(|r| r.usage_output_tokens),
            timestamps(rows.iter().map(|r| r.created_at)),
            text_lists(rows.iter().map(|r| r.messages.as_slice())),
            small(|r| r.n_context_messages),
            maybe(|r| r.tools.as_deref()),
            maybe(|r| r.extra.as_deref()),
            bytes(|r| r.token_ids.as_deref()),
            bytes(|r| r.logprobs.as_deref()),
            bytes(|r| r.routed_experts.as_deref()),
        ],
    )
}
