//! What importers produce: one trajectory as a plain value, before hashes, keys and batches.

use std::sync::Arc;

use arrow::buffer::{Buffer, ScalarBuffer};
use dressage_schemas::ids::ContentHash;
use dressage_schemas::message::Content;
use dressage_schemas::spans::{MaskSpans, VersionSpans};
use dressage_schemas::words::{Route, Status};
use serde_json::{Map, Value};

/// One trajectory as its source tells it. Importers fill it; the pipeline checks it at the door (`prepare::door`),
/// hashes it, decides whether the store has it already, and turns it into rows.
#[derive(Debug, Clone)]
pub struct Rollout {
    /// The source's own id where it means something outside its file; else derived from the content
    /// ([`derived_id`]), so that two copies of one file give one trajectory.
    pub trajectory_id: String,
    /// The run, where the source names one; `--run` wins over it.
    pub run_id: Option<String>,
    /// The task or prompt; none where the source does not say (the trajectory is then its own instance).
    pub instance_id: Option<String>,
    /// Trajectories that are compared with each other; none means (run, instance).
    pub group_id: Option<String>,
    /// The trajectory that spawned this one.
    pub parent_trajectory_id: Option<String>,
    /// How it ended.
    pub status: Status,
    /// The policy's name.
    pub model: Option<String>,
    /// The harness, with its version.
    pub agent: Option<String>,
    /// When the interaction began, microseconds.
    pub created_at: Option<i64>,
    /// How much of the interaction this copy holds, in the unit of its format (records, rows): decides which of two
    /// copies is the longer one.
    pub extent: i64,
    /// Whether `steps` are single model calls (true) or whole segments whose calls are unknown (false).
    pub steps_known: bool,
    /// Words of [`flag`](dressage_schemas::words::flag) that concern the whole trajectory.
    pub flags: Vec<&'static str>,
    /// The source's labels; the user's `--label`s are added and win.
    pub labels: Map<String, Value>,
    /// Keys that we have no column for, as they came.
    pub extra: Map<String, Value>,
    /// What was said, in order of recording; each step holds only what it appended.
    pub steps: Vec<RolloutStep>,
    /// Verdicts that came with the trajectory.
    pub rewards: Vec<RolloutReward>,
    /// Files that messages had inlined (kind `data`), named in their bodies as `{"$content": "<hash>"}`.
    pub data: Vec<Content>,
    /// Where it was read.
    pub provenance: Provenance,
}

impl Rollout {
    /// A completed trajectory with an id and nothing else.
    pub fn new(trajectory_id: impl Into<String>) -> Self {
        Self {
            trajectory_id: trajectory_id.into(),
            run_id: None,
            instance_id: None,
            group_id: None,
            parent_trajectory_id: None,
            status: Status::Completed,
            model: None,
            agent: None,
            created_at: None,
            extent: 1,
            steps_known: true,
            flags: Vec::new(),
            labels: Map::new(),
            extra: Map::new(),
            steps: Vec::new(),
            rewards: Vec::new(),
            data: Vec::new(),
            provenance: Provenance::default(),
        }
    }
}

/// One model call (or one given segment): only what it appended to the steps before it in its lineage.
#[derive(Debug, Clone)]
pub struct RolloutStep {
    /// Set where the source gives segments; none where steps are known and segments are islands between boundaries.
    pub segment_index: Option<i32>,
    /// The agent's call by its harness.
    pub turn_id: Option<String>,
    /// The source's name of the chain.
    pub lineage_id: Option<String>,
    /// 0-based number of the chain, in order of creation.
    pub lineage_index: i32,
    /// How the step was attached.
    pub route: Route,
    /// Index (in [`Rollout::steps`]) of the step that this one extends or branches from.
    pub base_step: Option<i32>,
    /// Whether a segment starts here.
    pub boundary: bool,
    /// Words of [`boundary`](dressage_schemas::words::boundary), or the source's own; empty where `boundary` is false.
    pub boundary_reasons: Vec<String>,
    /// As the engine gave it.
    pub finish_reason: Option<String>,
    /// The model of this call, where it differs from the trajectory's.
    pub model: Option<String>,
    /// The weights that answered; the pipeline takes the last of `versions` where this is none.
    pub weight_version: Option<String>,
    /// Appended messages: context first, then the reply. Shared, because a segment repeats its prompt.
    pub messages: Vec<Arc<Content>>,
    /// How many of `messages` are context.
    pub n_context_messages: usize,
    /// The tool schemas of this call (kind `tools`), where it has any.
    pub tools: Option<Arc<Content>>,
    /// Appended token ids: context, then output. None where the source has no ids.
    pub token_ids: Option<ScalarBuffer<i32>>,
    /// How many of `token_ids` the model produced; the rest is context. In a given segment: the mask sum.
    pub n_output_tokens: usize,
    /// Which of `token_ids` receive gradient. [`MaskSpans::context_then_output`] in the common case.
    pub mask: MaskSpans,
    /// One a token where known: 0.0 on context, NaN where the source had null, NaN or an infinity.
    pub logprobs: Option<ScalarBuffer<f32>>,
    /// The version of each token, where recorded; context is [`CONTEXT_VERSION`](dressage_schemas::words::CONTEXT_VERSION).
    pub versions: Option<VersionSpans>,
    /// Router choices.
    pub routed_experts: Option<RoutedExperts>,
    /// Whether tokens of other than the last version are to be masked.
    pub mask_nonlast_version: bool,
    /// False for abandoned branches and tokens that the policy did not sample; `flags` says why.
    pub trainable: bool,
    /// Words of [`flag`](dressage_schemas::words::flag).
    pub flags: Vec<&'static str>,
    /// Prompt tokens as the provider counted them.
    pub usage_input_tokens: Option<i64>,
    /// Output tokens as the provider counted them.
    pub usage_output_tokens: Option<i64>,
    /// When the call was made, microseconds.
    pub created_at: Option<i64>,
    /// Keys that we have no column for.
    pub extra: Map<String, Value>,
}

impl Default for RolloutStep {
    fn default() -> Self {
        Self {
            segment_index: None,
            turn_id: None,
            lineage_id: None,
            lineage_index: 0,
            route: Route::Append,
            base_step: None,
            boundary: false,
            boundary_reasons: Vec::new(),
            finish_reason: None,
            model: None,
            weight_version: None,
            messages: Vec::new(),
            n_context_messages: 0,
            tools: None,
            token_ids: None,
            n_output_tokens: 0,
            mask: MaskSpans::default(),
            logprobs: None,
            versions: None,
            routed_experts: None,
            mask_nonlast_version: false,
            trainable: true,
            flags: Vec::new(),
            usage_input_tokens: None,
            usage_output_tokens: None,
            created_at: None,
            extra: Map::new(),
        }
    }
}

impl RolloutStep {
    /// Adds a flag once.
    pub fn flag(&mut self, flag: &'static str) {
        if !self.flags.contains(&flag) {
            self.flags.push(flag);
        }
    }
}

/// One verdict that came with its trajectory.
#[derive(Debug, Clone, Default)]
pub struct RolloutReward {
    /// Who graded; none means the default grader.
    pub grader: Option<String>,
    /// The scalar; none where there is none. None is not 0.
    pub value: Option<f64>,
    /// Named parts.
    pub parts: Option<Map<String, Value>>,
    /// When it was graded, microseconds.
    pub graded_at: Option<i64>,
    /// The verdict as it came, where it is more than a number.
    pub detail: Option<Value>,
}

/// Width of one expert id in [`RoutedExperts`], little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExpertDtype {
    /// One byte.
    Uint8,
    /// Two bytes.
    Uint16,
    /// Four bytes.
    Int32,
}

impl ExpertDtype {
    /// Bytes of one id.
    pub fn width(self) -> usize {
        match self {
            Self::Uint8 => 1,
            Self::Uint16 => 2,
            Self::Int32 => 4,
        }
    }

    /// The name that sources use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Uint8 => "uint8",
            Self::Uint16 => "uint16",
            Self::Int32 => "int32",
        }
    }

    /// The type of that name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Uint8, Self::Uint16, Self::Int32].into_iter().find(|d| d.as_str() == name)
    }
}

/// Router choices of a step as raw ids, `[rows][layers][top_k]` in the order of the chunks. Rows: tokens - 1 for the
/// first step of a segment, as many as tokens for a step that extends one (semantics 8.3).
#[derive(Debug, Clone)]
pub struct RoutedExperts {
    /// Raw little-endian ids, one or more pieces that follow each other.
    pub chunks: Vec<Buffer>,
    /// Width of an id.
    pub dtype: ExpertDtype,
    /// Layers a row; 0 where the source does not say (the row is then kept as one layer).
    pub layers: u32,
    /// Experts a layer; 0 where the source does not say.
    pub top_k: u32,
    /// Rows, as the source counts them.
    pub rows: usize,
}

impl RoutedExperts {
    /// Bytes of all chunks.
    pub fn byte_length(&self) -> usize {
        self.chunks.iter().map(Buffer::len).sum()
    }
}

/// Where a rollout was read: byte range in the decompressed source, and the hash of those bytes. The pipeline knows
/// the source's name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Provenance {
    /// Where its bytes start.
    pub byte_offset: u64,
    /// How many; for records spread over a file, to the end of the last one.
    pub byte_length: u64,
    /// BLAKE3 of its records' bytes, 32 hex digits. For a record reader the pipeline fills all three.
    pub record_hash: String,
    /// 1-based line of the first record, where the source has lines.
    pub line: Option<u64>,
}

/// Builds the [`Provenance`] of a rollout whose records are spread over a file.
#[derive(Debug, Clone, Default)]
pub struct ProvenanceBuilder {
    start: Option<(u64, Option<u64>)>,
    end: u64,
    hasher: blake3::Hasher,
}

impl ProvenanceBuilder {
    /// Adds one record's bytes.
    pub fn add(&mut self, bytes: &[u8], byte_offset: u64, line: Option<u64>) {
        self.start.get_or_insert((byte_offset, line));
        self.end = self.end.max(byte_offset + bytes.len() as u64);
        self.hasher.update(bytes);
    }

    /// The range from the first record's start to the last one's end, and the hash of all records added.
    pub fn build(&self) -> Provenance {
        let (byte_offset, line) = self.start.unwrap_or((0, None));
        Provenance {
            byte_offset,
            byte_length: self.end - byte_offset.min(self.end),
            record_hash: hex16(&self.hasher.finalize()),
            line,
        }
    }
}

/// The name of a content: 32 hex digits of BLAKE3 over its canonical bytes.
pub fn content_hash(content: &Content) -> ContentHash {
    ContentHash(hex16(&blake3::hash(&content.canonical_bytes())))
}

/// A trajectory id for a source that has none of its own: the format's name and a hash of what identifies the
/// trajectory (its first messages, its whole record), so that a renamed copy of the file gives the same id.
pub fn derived_id(format: &str, identity: &[u8]) -> String {
    format!("{format}-{}", hex16(&blake3::hash(identity)))
}

pub(crate) fn hex16(hash: &blake3::Hash) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut out = String::with_capacity(32);
    for byte in &hash.as_bytes()[..16] {
        out.push(DIGITS[usize::from(byte >> 4)] as char);
        out.push(DIGITS[usize::from(byte & 15)] as char);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contents_name_is_32_hex_digits_and_depends_on_every_field() {
        let plain = Content::plain("user", "hi");
        let named = Content { tool_call_id: Some("c1".into()), ..plain.clone() };
        assert_eq!(content_hash(&plain).0.len(), 32);
        assert_ne!(content_hash(&plain), content_hash(&named));
    }

    #[test]
    fn provenance_spans_first_to_last_record() {
        let mut builder = ProvenanceBuilder::default();
        builder.add(b"abc", 10, Some(2));
        builder.add(b"de", 40, Some(5));
        let provenance = builder.build();
        assert_eq!((provenance.byte_offset, provenance.byte_length, provenance.line), (10, 32, Some(2)));
        assert_eq!(provenance.record_hash, hex16(&blake3::hash(b"abcde")));
    }
}
