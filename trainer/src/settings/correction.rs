//! Section `[correction]`: what is done about rollouts that were sampled under other log-probs than the trainer's own.

use serde::{Deserialize, Serialize};

use super::error::{SettingsError, number};

/// Over what the importance ratio is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RatioLevel {
    /// Each token's own ratio. Biased, of low variance.
    #[default]
    Token,
    /// The product over the trained tokens of a segment, the same for each of them. Unbiased, and for long segments of so
    /// much variance that most are cut.
    Sequence,
    /// The geometric mean over the trained tokens of a segment: the same bounds for short and long ones.
    Geometric,
}

impl RatioLevel {
    /// The word of the settings file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Sequence => "sequence",
            Self::Geometric => "geometric",
        }
    }
}

/// Ratios that are trusted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RatioBounds {
    /// From here; 0 for no lower bound.
    pub lower: f64,
    /// To here.
    pub upper: f64,
}

/// What is done with a ratio.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Correction {
    /// Nothing: the policy loss is as if the trainer had sampled.
    #[default]
    None,
    /// The loss is weighed with the ratio, clamped to the bounds.
    Truncate {
        /// Over what.
        level: RatioLevel,
        /// The bounds.
        bounds: RatioBounds,
    },
    /// The loss is weighed with the ratio inside of the bounds, and with 0 outside.
    Mask {
        /// Over what.
        level: RatioLevel,
        /// The bounds.
        bounds: RatioBounds,
    },
}

/// The words of `kind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    #[default]
    None,
    Truncate,
    Mask,
}

/// Section `[correction]`, checked.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct CorrectionSettings {
    /// What is done.
    pub correction: Correction,
}

impl CorrectionSettings {
    /// The word of `kind`.
    pub fn kind(&self) -> &'static str {
        match self.correction {
            Correction::None => "none",
            Correction::Truncate { .. } => "truncate",
            Correction::Mask { .. } => "mask",
        }
    }

    /// Whether anything is done.
    pub fn is_on(&self) -> bool {
        self.correction != Correction::None
    }
}

/// The section as it is written.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    kind: Kind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    level: Option<RatioLevel>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lower: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    upper: Option<f64>,
}

/// The section's name in the file.
const SECTION: &str = "correction";

impl Written {
    fn bounds(&self, lower: f64, upper: f64) -> Result<RatioBounds, SettingsError> {
        let lower = number(SECTION, "lower", self.lower.unwrap_or(lower), |v| v >= 0.0, "0 or above")?;
        let upper = number(SECTION, "upper", self.upper.unwrap_or(upper), |v| v > 0.0, "above 0")?;
        if lower >= upper {
            return Err(SettingsError::Bounds { section: SECTION, lower, upper });
        }
        Ok(RatioBounds { lower, upper })
    }
}

impl TryFrom<Written> for CorrectionSettings {
    type Error = SettingsError;

    fn try_from(written: Written) -> Result<Self, SettingsError> {
        let level = written.level.unwrap_or_default();
        let correction = match written.kind {
            Kind::None => {
                let given = [
                    ("level", written.level.is_some()),
                    ("lower", written.lower.is_some()),
                    ("upper", written.upper.is_some()),
                ];
                if let Some((key, _)) = given.into_iter().find(|(_, given)| *given) {
                    let readers = "truncate and mask";
                    return Err(SettingsError::NotRead { section: SECTION, key, kind: "none", readers });
                }
                Correction::None
            }
            Kind::Truncate => Correction::Truncate { level, bounds: written.bounds(0.0, 2.0)? },
            Kind::Mask => Correction::Mask { level, bounds: written.bounds(0.5, 2.0)? },
        };
        Ok(Self { correction })
    }
}

impl From<CorrectionSettings> for Written {
    fn from(settings: CorrectionSettings) -> Self {
        let of = |kind, level, bounds: RatioBounds| Self {
            kind,
            level: Some(level),
            lower: Some(bounds.lower),
            upper: Some(bounds.upper),
        };
        match settings.correction {
            Correction::None => Self::default(),
            Correction::Truncate { level, bounds } => of(Kind::Truncate, level, bounds),
            Correction::Mask { level, bounds } => of(Kind::Mask, level, bounds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<CorrectionSettings, String> {
        toml::from_str(text).map_err(|e| e.to_string())
    }

    #[test]
    fn every_kind_survives_writing_and_reading() {
        for text in
            ["", "kind = \"truncate\"\nlevel = \"sequence\"\nupper = 5.0", "kind = \"mask\"\nlower = 0.9\nupper = 1.1"]
        {
            let settings = read(text).unwrap();
            assert_eq!(read(&toml::to_string(&settings).unwrap()).unwrap(), settings);
        }
        assert!(!read("").unwrap().is_on());
    }

    #[test]
    fn what_is_refused_is_told_with_what_is_allowed() {
        for (text, words) in [
            ("kind = \"clip\"", ["clip", "truncate"]),
            ("upper = 2.0", ["upper", "truncate and mask"]),
            ("kind = \"mask\"\nlower = 2.0\nupper = 1.0", ["lower = 2", "below upper"]),
            ("kind = \"mask\"\nlower = -1.0", ["lower = -1", "0 or above"]),
            ("kind = \"truncate\"\nupper = 0.0", ["upper = 0", "above 0"]),
            ("kind = \"truncate\"\nlevel = \"batch\"", ["batch", "geometric"]),
            ("cap = 2.0", ["cap", "upper"]),
        ] {
            let error = read(text).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
        }
    }
}
