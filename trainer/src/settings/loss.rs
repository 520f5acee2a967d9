//! Section `[loss]`: which loss, its bounds, and what the ratio is over.

use serde::{Deserialize, Serialize};

use super::error::{SettingsError, number};

/// The word of `kind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossKind {
    /// PPO's clipped surrogate; with group advantages this is GRPO.
    #[default]
    PpoClip,
    /// The clipped surrogate over sequence ratios.
    Gspo,
    /// Clipped importance weights over every token's gradient.
    Cispo,
    /// The plain policy gradient.
    Reinforce,
    /// Supervised cross-entropy.
    CrossEntropy,
}

impl LossKind {
    /// The word of the settings file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PpoClip => "ppo_clip",
            Self::Gspo => "gspo",
            Self::Cispo => "cispo",
            Self::Reinforce => "reinforce",
            Self::CrossEntropy => "cross_entropy",
        }
    }
}

/// What the ratio of the new policy is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OldLogprobs {
    /// The trainer's own log-probs under the weights before the update. What the inference engine computed differently
    /// is then not in the ratio, and `[correction]` can weigh it.
    #[default]
    Recomputed,
    /// The rollout's log-probs: no second forward pass, and the ratio holds staleness and engine mismatch together.
    Rollout,
}

/// The loss of a token, without its weight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Policy {
    /// [`LossKind::PpoClip`].
    PpoClip {
        /// ε below 1: the ratio is clipped at `1 − clip_low`.
        clip_low: f64,
        /// ε above 1: the ratio is clipped at `1 + clip_high`.
        clip_high: f64,
        /// With a negative advantage A the loss is at most `−dual_clip · A`.
        dual_clip: Option<f64>,
    },
    /// [`LossKind::Gspo`].
    Gspo {
        /// As above, of the sequence ratio.
        clip_low: f64,
        /// As above, of the sequence ratio.
        clip_high: f64,
    },
    /// [`LossKind::Cispo`].
    Cispo {
        /// As above; 1 is no lower bound.
        clip_low: f64,
        /// As above.
        clip_high: f64,
    },
    /// [`LossKind::Reinforce`].
    Reinforce,
    /// [`LossKind::CrossEntropy`].
    CrossEntropy,
}

impl Policy {
    /// Its word.
    pub fn kind(self) -> LossKind {
        match self {
            Self::PpoClip { .. } => LossKind::PpoClip,
            Self::Gspo { .. } => LossKind::Gspo,
            Self::Cispo { .. } => LossKind::Cispo,
            Self::Reinforce => LossKind::Reinforce,
            Self::CrossEntropy => LossKind::CrossEntropy,
        }
    }

    /// Whether it has a ratio of new over old probability.
    pub fn has_ratio(self) -> bool {
        matches!(self, Self::PpoClip { .. } | Self::Gspo { .. } | Self::Cispo { .. })
    }
}

/// Section `[loss]`, checked.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct LossSettings {
    /// The loss of a token.
    pub policy: Policy,
    /// What the ratio is over. Of no effect for losses without one.
    pub old_logprobs: OldLogprobs,
    /// How much entropy is worth: higher keeps the policy wide. 0 costs nothing.
    pub entropy_coefficient: f64,
}

impl Default for LossSettings {
    fn default() -> Self {
        Self {
            policy: Policy::PpoClip { clip_low: 0.2, clip_high: 0.2, dual_clip: None },
            old_logprobs: OldLogprobs::default(),
            entropy_coefficient: 0.0,
        }
    }
}

/// The section as it is written.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    kind: LossKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    clip_low: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    clip_high: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dual_clip: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    old_logprobs: Option<OldLogprobs>,
    #[serde(default)]
    entropy_coefficient: f64,
}

/// The section's name in the file.
const SECTION: &str = "loss";

impl Written {
    /// Bounds with their defaults. The lower one is at most 1: a ratio is never negative.
    fn clip(&self, low: f64, high: f64) -> Result<(f64, f64), SettingsError> {
        let low = self.clip_low.unwrap_or(low);
        let low = number(SECTION, "clip_low", low, |v| (0.0..=1.0).contains(&v), "between 0 and 1")?;
        let high = self.clip_high.unwrap_or(high);
        Ok((low, number(SECTION, "clip_high", high, |v| v >= 0.0, "0 or above")?))
    }

    fn refuse_unread(&self) -> Result<(), SettingsError> {
        let has_clip = matches!(self.kind, LossKind::PpoClip | LossKind::Gspo | LossKind::Cispo);
        let unread = [
            ("clip_low", self.clip_low.is_some() && !has_clip, "ppo_clip, gspo and cispo"),
            ("clip_high", self.clip_high.is_some() && !has_clip, "ppo_clip, gspo and cispo"),
            ("dual_clip", self.dual_clip.is_some() && self.kind != LossKind::PpoClip, "ppo_clip"),
            ("old_logprobs", self.old_logprobs.is_some() && !has_clip, "ppo_clip, gspo and cispo"),
        ];
        match unread.into_iter().find(|(_, given, _)| *given) {
            Some((key, _, readers)) => {
                Err(SettingsError::NotRead { section: SECTION, key, kind: self.kind.as_str(), readers })
            }
            None => Ok(()),
        }
    }
}

impl TryFrom<Written> for LossSettings {
    type Error = SettingsError;

    fn try_from(written: Written) -> Result<Self, SettingsError> {
        written.refuse_unread()?;
        let policy = match written.kind {
            LossKind::PpoClip => {
                let (clip_low, clip_high) = written.clip(0.2, 0.2)?;
                let dual = |value| number(SECTION, "dual_clip", value, |v| v > 1.0, "above 1, such as 3");
                Policy::PpoClip { clip_low, clip_high, dual_clip: written.dual_clip.map(dual).transpose()? }
            }
            LossKind::Gspo => {
                // sequence ratios are means over tokens and move a thousand times less than a token's
                let (clip_low, clip_high) = written.clip(3e-4, 4e-4)?;
                Policy::Gspo { clip_low, clip_high }
            }
            LossKind::Cispo => {
                let (clip_low, clip_high) = written.clip(1.0, 4.0)?;
                Policy::Cispo { clip_low, clip_high }
            }
            LossKind::Reinforce => Policy::Reinforce,
            LossKind::CrossEntropy => Policy::CrossEntropy,
        };
        let entropy = written.entropy_coefficient;
        Ok(Self {
            policy,
            old_logprobs: written.old_logprobs.unwrap_or_default(),
            entropy_coefficient: number(SECTION, "entropy_coefficient", entropy, |v| v >= 0.0, "0 or above")?,
        })
    }
}

impl From<LossSettings> for Written {
    fn from(settings: LossSettings) -> Self {
        let (clip, dual_clip) = match settings.policy {
            Policy::PpoClip { clip_low, clip_high, dual_clip } => (Some((clip_low, clip_high)), dual_clip),
            Policy::Gspo { clip_low, clip_high } | Policy::Cispo { clip_low, clip_high } => {
                (Some((clip_low, clip_high)), None)
            }
            Policy::Reinforce | Policy::CrossEntropy => (None, None),
        };
        Self {
            kind: settings.policy.kind(),
            clip_low: clip.map(|(low, _)| low),
            clip_high: clip.map(|(_, high)| high),
            dual_clip,
            old_logprobs: clip.map(|_| settings.old_logprobs),
            entropy_coefficient: settings.entropy_coefficient,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<LossSettings, String> {
        toml::from_str(text).map_err(|e| e.to_string())
    }

    #[test]
    fn an_empty_section_is_the_default() {
        assert_eq!(read("").unwrap(), LossSettings::default());
    }

    #[test]
    fn every_kind_survives_writing_and_reading() {
        for text in [
            "kind = \"ppo_clip\"\nclip_low = 0.1\nclip_high = 0.28\ndual_clip = 3.0\nold_logprobs = \"rollout\"",
            "kind = \"gspo\"",
            "kind = \"cispo\"\nclip_high = 5.0",
            "kind = \"reinforce\"\nentropy_coefficient = 0.01",
            "kind = \"cross_entropy\"",
        ] {
            let settings = read(text).unwrap();
            assert_eq!(read(&toml::to_string(&settings).unwrap()).unwrap(), settings);
        }
    }

    #[test]
    fn what_is_refused_is_told_with_what_is_allowed() {
        for (text, words) in [
            ("clip_hihg = 0.3", ["clip_hihg", "clip_high"]),
            ("kind = \"dpo\"", ["dpo", "cispo"]),
            ("clip_low = 1.5", ["clip_low = 1.5", "between 0 and 1"]),
            ("clip_high = -0.1", ["clip_high = -0.1", "0 or above"]),
            ("clip_high = nan", ["clip_high = NaN", "0 or above"]),
            ("dual_clip = 1.0", ["dual_clip = 1", "above 1"]),
            ("kind = \"gspo\"\ndual_clip = 3.0", ["dual_clip", "only by ppo_clip"]),
            ("kind = \"reinforce\"\nclip_low = 0.1", ["kind = \"reinforce\"", "gspo"]),
            ("kind = \"cross_entropy\"\nold_logprobs = \"rollout\"", ["old_logprobs", "cispo"]),
            ("old_logprobs = \"fresh\"", ["fresh", "recomputed"]),
            ("entropy_coefficient = -1.0", ["entropy_coefficient", "0 or above"]),
        ] {
            let error = read(text).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
        }
    }
}
