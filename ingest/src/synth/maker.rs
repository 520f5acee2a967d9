//! The content of the made-up trajectories, the same for every format.

use std::fmt::Write;

use dressage_codec::Dtype;
use dressage_codec::synthetic::{RouterShape, SeededRandom, SyntheticRouter};
use dressage_schemas::words::CONTEXT_VERSION;
use serde_json::json;

use super::SynthSettings;
use crate::error::{Error, Result};

/// Words of the made-up messages.
const WORDS: [&str; 32] = [
    "the", "test", "fails", "because", "of", "a", "missing", "import", "run", "again", "file", "line", "value",
    "returns", "none", "expected", "check", "path", "patch", "function", "class", "and", "then", "open", "search",
    "result", "in", "module", "error", "at", "fixed", "now",
];
/// Tokens that every prompt begins with, as a system prompt does.
const SHARED_PREFIX_TOKENS: usize = 256;
/// Tokens of a turn, at most.
const TURN_TOKENS_MAX: usize = 900;

/// One trajectory.
#[derive(Debug, Clone, PartialEq)]
pub struct SynthTrajectory {
    /// Unique in its run.
    pub trajectory_id: String,
    /// Shared by a group.
    pub instance_id: String,
    /// `completed`, `truncated`, `failed` or `aborted`.
    pub status: &'static str,
    /// None where nobody graded it.
    pub reward: Option<f64>,
    /// The version that finished it, where versions are asked for.
    pub weight_version: Option<String>,
    /// Microseconds since 1970.
    pub created_at: i64,
    /// In order.
    pub segments: Vec<SynthSegment>,
}

/// One segment.
#[derive(Debug, Clone, PartialEq)]
pub struct SynthSegment {
    /// Token ids.
    pub tokens: Vec<i32>,
    /// 1 on what the model produced.
    pub mask: Vec<i8>,
    /// 0.0 on context.
    pub logprobs: Vec<f32>,
    /// One a token, or empty.
    pub versions: Vec<String>,
    /// `[tokens - 1][layers][topk]`, little-endian, or empty.
    pub routed_experts: Vec<u8>,
    /// JSON list of chat messages.
    pub messages: Option<String>,
    /// `stop` or `length`.
    pub finish_reason: &'static str,
}

/// Makes trajectories.
#[derive(Debug)]
pub struct Maker {
    settings: SynthSettings,
    router: Option<SyntheticRouter>,
    prefix: Vec<i32>,
}

fn bad(setting: &'static str, problem: impl Into<String>) -> Error {
    Error::BadSetting { setting, problem: problem.into() }
}

impl Maker {
    /// Checks the settings and fixes what all trajectories share.
    ///
    /// # Errors
    /// [`Error::BadSetting`].
    pub fn new(settings: &SynthSettings) -> Result<Self> {
        let s = settings;
        for (setting, share) in [
            ("context_share", s.context_share),
            ("cluster_share", s.cluster_share),
            ("ungraded_share", s.ungraded_share),
            ("dead_share", s.dead_share),
        ] {
            if !(0.0..=1.0).contains(&share) {
                return Err(bad(setting, format!("{share} is not between 0 and 1")));
            }
        }
        for (setting, spread) in [("length_spread", s.length_spread), ("skew", s.skew)] {
            if !(0.0..=4.0).contains(&spread) {
                return Err(bad(setting, format!("{spread} is not between 0 and 4")));
            }
        }
        if s.group_size == 0 || s.segments == 0 {
            return Err(bad("group_size", "group size and segments must be at least 1"));
        }
        if s.tokens < 2 * s.segments {
            return Err(bad("tokens", format!("{} segments need at least two tokens each", s.segments)));
        }
        if !(2..=1 << 24).contains(&s.vocabulary) {
            return Err(bad("vocabulary", format!("{} is not between 2 and 16777216", s.vocabulary)));
        }
        let router = (s.layers > 0)
            .then(|| {
                let shape = RouterShape {
                    layers: s.layers as usize,
                    topk: s.topk as usize,
                    n_experts: s.experts,
                    skew: s.skew,
                    cluster_share: s.cluster_share,
                    ..RouterShape::default()
                };
                SyntheticRouter::new(shape, s.seed).map_err(|error| bad("layers", error.to_string()))
            })
            .transpose()?;
        let mut random = SeededRandom::stream(s.seed, 1);
        let prefix = (0..SHARED_PREFIX_TOKENS).map(|_| token(&mut random, s.vocabulary)).collect();
        Ok(Self { settings: settings.clone(), router, prefix })
    }

    /// The settings.
    pub fn settings(&self) -> &SynthSettings {
        &self.settings
    }

    /// The type of the router choices; none where there are none.
    pub fn experts_dtype(&self) -> Option<Dtype> {
        self.router.as_ref().map(SyntheticRouter::dtype)
    }

    /// Trajectory number `index`.
    pub fn trajectory(&self, index: u64) -> SynthTrajectory {
        let s = &self.settings;
        // Streams 0 and 1 are the router's and the shared prefix's; instances and trajectories alternate.
        let instance = index / u64::from(s.group_size);
        let mut of_instance = SeededRandom::stream(s.seed, 2 + 2 * instance);
        let mut random = SeededRandom::stream(s.seed, 3 + 2 * index);
        let difficulty = of_instance.unit();
        let dead = random.unit() < s.dead_share;
        let graded = random.unit() >= s.ungraded_share;
        let passed = random.unit() >= difficulty;
        // The factor keeps the mean where it was asked for.
        let spread = (random.normal() * s.length_spread - s.length_spread * s.length_spread / 2.0).exp();
        let tokens = ((f64::from(s.tokens) * spread) as usize).max(2 * s.segments as usize);
        let version = (s.weight_versions > 0)
            .then(|| index as u128 * u128::from(s.weight_versions) / u128::from(s.trajectories.max(1)));
        let segments: Vec<SynthSegment> = (0..s.segments as usize)
            .map(|segment| {
                let of_all = s.segments as usize;
                let length = tokens * (segment + 1) / of_all - tokens * segment / of_all;
                self.segment(length, version, &mut of_instance.clone(), &mut random)
            })
            .collect();
        let cut = segments.last().is_some_and(|segment| segment.finish_reason == "length");
        SynthTrajectory {
            trajectory_id: format!("{}-{}-{index:08}", s.run_id, s.seed),
            instance_id: format!("task-{instance:06}"),
            status: match (dead, cut) {
                (true, _) if index.is_multiple_of(2) => "failed",
                (true, _) => "aborted",
                (false, true) => "truncated",
                (false, false) => "completed",
            },
            reward: (graded && !dead).then_some(f64::from(u8::from(passed))),
            weight_version: version.map(|version| version.to_string()),
            created_at: 1_760_000_000_000_000 + index as i64 * 250_000,
            segments,
        }
    }

    fn segment(
        &self,
        length: usize,
        version: Option<u128>,
        of_instance: &mut SeededRandom,
        random: &mut SeededRandom,
    ) -> SynthSegment {
        let s = &self.settings;
        let n_context = ((length as f64 * s.context_share) as usize).min(length - 1);
        // A third of the context is the prompt, the same for the whole group; the rest are tool results between turns.
        let n_prompt = (n_context / 3).max(n_context.min(1));
        let mut tokens = Vec::with_capacity(length);
        tokens.extend(self.prefix.iter().take(n_prompt));
        while tokens.len() < n_prompt {
            tokens.push(token(of_instance, s.vocabulary));
        }
        let mut mask = vec![0; n_prompt];
        while tokens.len() < length {
            let missing = length - tokens.len();
            let missing_context = n_context - mask.iter().filter(|m| **m == 0).count();
            let turn = (1 + random.below(TURN_TOKENS_MAX as u64) as usize).min(missing);
            // Context and output share each turn as they share the whole; the last token is the model's.
            let context = (turn as f64 * missing_context as f64 / missing as f64).round() as usize;
            let context = context.min(missing_context).min(turn.saturating_sub(1));
            mask.resize(mask.len() + turn - context, 1);
            mask.resize(mask.len() + context, 0);
            tokens.extend((0..turn).map(|_| token(random, s.vocabulary)));
        }
        // A segment ends in output: what the turns left over as context moves to the front of the last turn.
        if let Some(last_output) = mask.iter().rposition(|m| *m == 1) {
            let trailing = mask.len() - 1 - last_output;
            let first = mask[..=last_output].iter().rposition(|m| *m == 0).map_or(0, |at| at + 1);
            mask[first..].rotate_right(trailing);
        }
        let logprobs = mask.iter().map(|m| if *m == 1 { logprob(random) } else { 0.0 }).collect();
        let versions = version
            .map(|version| {
                let version = version.to_string();
                mask.iter().map(|m| if *m == 1 { version.clone() } else { CONTEXT_VERSION.to_owned() }).collect()
            })
            .unwrap_or_default();
        let mut routed_experts = Vec::new();
        if let Some(router) = &self.router {
            router.append(length - 1, random, &mut routed_experts);
        }
        SynthSegment {
            messages: s.messages.then(|| messages(of_instance, random)),
            finish_reason: if random.below(20) == 0 { "length" } else { "stop" },
            tokens,
            mask,
            logprobs,
            versions,
            routed_experts,
        }
    }
}

/// Log-uniform ranks are frequent as words of a text are; the multiplication spreads them over the vocabulary.
fn token(random: &mut SeededRandom, vocabulary: u32) -> i32 {
    let rank = f64::from(vocabulary).powf(random.unit()) as u64 - 1;
    ((rank * 2_654_435_761) % u64::from(vocabulary)) as i32
}

/// Most tokens are near certain, a few are not.
fn logprob(random: &mut SeededRandom) -> f32 {
    let surprise = -(1.0 - random.unit()).ln();
    -(surprise * surprise * 0.25) as f32
}

fn sentence(random: &mut SeededRandom, words: u64) -> String {
    let mut text = String::new();
    for index in 0..words {
        let word = WORDS[random.below(WORDS.len() as u64) as usize];
        let _ = write!(text, "{}{word}", if index == 0 { "" } else { " " });
    }
    text
}

fn messages(of_instance: &mut SeededRandom, random: &mut SeededRandom) -> String {
    let task = sentence(of_instance, 40);
    let mut list = vec![
        json!({"role": "system", "content": "You are a careful engineer. Use the tools."}),
        json!({"role": "user", "content": task}),
    ];
    for call in 0..1 + random.below(3) {
        let id = format!("call_{call}");
        let command = sentence(random, 4);
        list.push(json!({
            "role": "assistant", "content": sentence(random, 20),
            "tool_calls": [{"id": id, "type": "function",
                "function": {"name": "bash", "arguments": json!({"command": command}).to_string()}}],
        }));
        list.push(json!({"role": "tool", "tool_call_id": id, "content": sentence(random, 60)}));
    }
    list.push(json!({"role": "assistant", "content": sentence(random, 30)}));
    serde_json::Value::Array(list).to_string()
}
