//! What can be wrong with a setting.

use dressage_schemas::ErrorKind;

/// Why settings are refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A value that cannot be.
    #[error("[{section}] {key} = {value}: must be {expected}")]
    Value {
        /// The section of the file.
        section: &'static str,
        /// The key.
        key: &'static str,
        /// What was given.
        value: f64,
        /// What can be.
        expected: &'static str,
    },
    /// A key that the chosen kind does not read.
    #[error("[{section}] {key}: not read by kind = \"{kind}\", only by {readers}")]
    NotRead {
        /// The section of the file.
        section: &'static str,
        /// The key.
        key: &'static str,
        /// The chosen kind.
        kind: &'static str,
        /// The kinds that read it.
        readers: &'static str,
    },
    /// Bounds the wrong way round.
    #[error("[{section}] lower = {lower}, upper = {upper}: lower must be below upper")]
    Bounds {
        /// The section of the file.
        section: &'static str,
        /// The lower one.
        lower: f64,
        /// The upper one.
        upper: f64,
    },
    /// A word that is none of those that can be.
    #[error("[{section}] {key} = \"{value}\": must be {expected}")]
    Word {
        /// The section of the file.
        section: &'static str,
        /// The key.
        key: &'static str,
        /// What was given.
        value: Box<str>,
        /// What can be.
        expected: &'static str,
    },
    /// A device that this machine does not have, or that this build cannot use.
    #[error(
        "[model] device = \"{device}\": libtorch sees {n_devices} CUDA devices here{loader}; set \"auto\" or \"cpu\", or \
         install libtorch with CUDA (.ci/setup-torch --cuda)"
    )]
    NoDevice {
        /// As set.
        device: Box<str>,
        /// CUDA devices that there are.
        n_devices: usize,
        /// What the loader said of CUDA's half of libtorch, in brackets; empty if it is loaded.
        loader: Box<str>,
    },
    /// A falling learning rate without room to fall.
    #[error(
        "[schedule] total_steps = {total_steps}: must be above warmup_steps = {warmup_steps}, unless shape = \"constant\""
    )]
    NoStepsToFall {
        /// Steps of the run.
        total_steps: u64,
        /// Steps until the full rate.
        warmup_steps: u64,
    },
    /// Old log-probs that nothing reads.
    #[error(
        "[step] train_steps_per_policy = {steps} with [loss] kind = \"{kind}\": no old log-probs are read there; set it to 1, \
         or use ppo_clip, gspo or cispo with old_logprobs = \"recomputed\" (not \"rollout\")"
    )]
    OldLogprobsUnread {
        /// As set.
        steps: u32,
        /// The loss.
        kind: &'static str,
    },
    /// A correction of a ratio that has the rollout's log-probs in its denominator already.
    #[error(
        "[correction] kind = \"{kind}\" with [loss] old_logprobs = \"rollout\": that ratio is over the rollout's log-probs \
         already; set old_logprobs = \"recomputed\" or kind = \"none\""
    )]
    CorrectedTwice {
        /// The correction.
        kind: &'static str,
    },
    /// A correction of a loss that has no policy.
    #[error(
        "[correction] kind = \"{kind}\" with [loss] kind = \"cross_entropy\": supervised loss is not corrected; set kind = \"none\""
    )]
    CorrectsSupervised {
        /// The correction.
        kind: &'static str,
    },
}

impl SettingsError {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Value { .. }
            | Self::NotRead { .. }
            | Self::Bounds { .. }
            | Self::Word { .. }
            | Self::NoDevice { .. }
            | Self::NoStepsToFall { .. }
            | Self::OldLogprobsUnread { .. }
            | Self::CorrectedTwice { .. }
            | Self::CorrectsSupervised { .. } => ErrorKind::Invalid,
        }
    }
}

/// `value` if `allowed` holds for it; never for NaN.
pub(crate) fn number(
    section: &'static str,
    key: &'static str,
    value: f64,
    allowed: impl Fn(f64) -> bool,
    expected: &'static str,
) -> Result<f64, SettingsError> {
    if value.is_finite() && allowed(value) {
        Ok(value)
    } else {
        Err(SettingsError::Value { section, key, value, expected })
    }
}
