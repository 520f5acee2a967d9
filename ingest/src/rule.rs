//! Names of the rules that a quarantined record broke (column `rule`).

/// No importer knows the source; the reason says what it looks like.
pub const UNRECOGNISED: &str = "unrecognised";
/// Not JSON, and no JSON value could be found in it.
pub const NOT_JSON: &str = "not_json";
/// A record that ends in the middle.
pub const CUT_RECORD: &str = "cut_record";
/// NUL bytes to the end of a source: room made before it was filled, or what a crash left in the place of records.
pub const NUL_BYTES: &str = "nul_bytes";
/// A key that the format requires is missing.
pub const MISSING_FIELD: &str = "missing_field";
/// A value has another type than the format says.
pub const WRONG_TYPE: &str = "wrong_type";
/// A value is not one of the words that the format allows.
pub const UNKNOWN_WORD: &str = "unknown_word";
/// Loss mask and token ids differ in length.
pub const MASK_LENGTH_MISMATCH: &str = "mask_length_mismatch";
/// Log-probabilities and token ids differ in length.
pub const LOGPROBS_LENGTH_MISMATCH: &str = "logprobs_length_mismatch";
/// Versions and token ids differ in length.
pub const VERSIONS_LENGTH_MISMATCH: &str = "versions_length_mismatch";
/// Rows of routed experts do not fit the tokens.
pub const ROUTED_EXPERTS_ROWS: &str = "routed_experts_rows";
/// Bytes of routed experts do not fit their shape, or an id does not fit its type.
pub const ROUTED_EXPERTS_SHAPE: &str = "routed_experts_shape";
/// A token id is negative or larger than any vocabulary.
pub const TOKEN_ID_RANGE: &str = "token_id_range";
/// A mask value is neither 0 nor 1.
pub const MASK_VALUE: &str = "mask_value";
/// A number of tokens, context and output that do not add up.
pub const TOKEN_COUNT_MISMATCH: &str = "token_count_mismatch";
/// A trajectory without any step.
pub const EMPTY_TRAJECTORY: &str = "empty_trajectory";
/// Segment indices are not exactly 0..N-1.
pub const SEGMENT_INDICES: &str = "segment_indices";
/// An id is empty or too long.
pub const BAD_ID: &str = "bad_id";
/// A step refers to a step that is not before it.
pub const BAD_BASE_STEP: &str = "bad_base_step";
/// Larger than the limit that the reason names.
pub const TOO_LARGE: &str = "too_large";
/// A compressed source or archive member is damaged.
pub const DAMAGED: &str = "damaged";
/// Another trajectory of this run has its id, and says other things.
pub const ID_CONFLICT: &str = "id_conflict";
/// The source, or the rest of it, could not be read; its bytes are unknown.
pub const UNREADABLE: &str = "unreadable";
/// An event stream ended before its trajectory's `finish`.
pub const UNFINISHED: &str = "unfinished";
/// An event for a trajectory that it cannot belong to.
pub const EVENT_ORDER: &str = "event_order";
/// A record that is known not to be a rollout by itself and refers to one that is not there.
pub const ORPHAN: &str = "orphan";
