//! The values of the word-valued columns: statuses, routes, boundary reasons, flags, rules.

/// How a trajectory ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// The agent finished by itself.
    Completed,
    /// The last segment's `finish_reason` is `length`.
    Truncated,
    /// Stopped from outside; has no samples.
    Aborted,
    /// An error ended it; has no samples.
    Failed,
}

impl Status {
    /// The stored word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Truncated => "truncated",
            Self::Aborted => "aborted",
            Self::Failed => "failed",
        }
    }

    /// The word back; `None` for anything else.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Completed, Self::Truncated, Self::Aborted, Self::Failed].into_iter().find(|s| s.as_str() == word)
    }
}

/// How a step was attached to the session's steps (semantics 3.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Route {
    /// Starts a lineage.
    Create,
    /// Extends the latest step of its lineage.
    Append,
    /// Starts a lineage from a step that is not its lineage's latest.
    Branch,
    /// The source gave a whole segment, not its steps.
    Given,
}

impl Route {
    /// The stored word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Append => "append",
            Self::Branch => "branch",
            Self::Given => "given",
        }
    }
}

/// Why a step starts a new segment (column `boundary_reasons`). Words of semantics 3.4 where it has one.
pub mod boundary {
    /// First step of its lineage.
    pub const INITIAL: &str = "initial";
    /// The prompt rewrote history that an earlier step of the same turn had sent.
    pub const HISTORY_REWRITE: &str = "history_rewrite";
    /// The prompt's messages do not extend any earlier step's.
    pub const MESSAGE_PREFIX_MISMATCH: &str = "message_prefix_mismatch";
    /// The prompt's token ids do not extend the ids so far.
    pub const TOKEN_PREFIX_MISMATCH: &str = "token_prefix_mismatch";
    /// The tool schemas changed.
    pub const TOOLS_CHANGED: &str = "tools_changed";
    /// The harness replaced the history by a summary.
    pub const COMPACTION: &str = "compaction";
    /// The user went back to an earlier message.
    pub const REWIND: &str = "rewind";
    /// A sub-agent of the same session.
    pub const SUBAGENT: &str = "subagent";
}

/// What is odd about a step or trajectory that was stored all the same (column `flags`).
pub mod flag {
    /// A log-probability was NaN, infinite or null; stored as NaN. Not trainable.
    pub const NONFINITE_LOGPROB: &str = "nonfinite_logprob";
    /// Token ids were made here from text; they are not what the policy sampled. Not trainable.
    pub const RETOKENISED: &str = "retokenised";
    /// Output token ids without prompt ids. Not trainable.
    pub const PROMPT_IDS_MISSING: &str = "prompt_ids_missing";
    /// The harness cleared old tool results in place; the exact prompt is unknown.
    pub const PROMPT_INEXACT: &str = "prompt_inexact";
    /// A tool result had no `tool_call_id`; paired by order.
    pub const TOOL_CALL_ID_INFERRED: &str = "tool_call_id_inferred";
    /// A tool call was never answered.
    pub const TOOL_CALL_UNANSWERED: &str = "tool_call_unanswered";
    /// The same `tool_call_id` twice in one step; paired by order.
    pub const TOOL_CALL_ID_DUPLICATE: &str = "tool_call_id_duplicate";
    /// Text held a lone surrogate; U+FFFD stands for it, the raw bytes are in `extra`.
    pub const LONE_SURROGATE: &str = "lone_surrogate";
    /// A branch that the user abandoned. Not trainable by default.
    pub const ABANDONED: &str = "abandoned";
    /// No token receives gradient.
    pub const NO_TRAINED_TOKENS: &str = "no_trained_tokens";
    /// A link to a row that was never written.
    pub const DANGLING_PARENT: &str = "dangling_parent";
    /// Tool-call arguments that are not JSON; kept as they came.
    pub const ARGUMENTS_NOT_JSON: &str = "arguments_not_json";
    /// Log-probabilities of another tokenisation were dropped.
    pub const LOGPROBS_DROPPED: &str = "logprobs_dropped";
}

/// The version of context tokens, which no policy produced (semantics 3.11).
pub const CONTEXT_VERSION: &str = "-1";

/// Whether a version names weights: it is not empty, `-1`, `unknown` or `none` in any spelling.
pub fn is_real_version(weight_version: &str) -> bool {
    let word = weight_version.trim();
    !(word.is_empty()
        || word == CONTEXT_VERSION
        || word.eq_ignore_ascii_case("unknown")
        || word.eq_ignore_ascii_case("none"))
}

/// `rewards.stage` of a verdict that came with its trajectory.
pub const STAGE_RECORDED: &str = "recorded";

/// `rewards.grader` where the source does not name one.
pub const DEFAULT_GRADER: &str = "default";
