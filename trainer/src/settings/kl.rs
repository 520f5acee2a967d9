//! Section `[kl]`: how far the policy may go from the reference.

use serde::{Deserialize, Serialize};

use super::error::{SettingsError, number};

/// How a token's divergence is estimated from its two log-probs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KlEstimator {
    /// The plain log ratio: unbiased, and its gradient pulls nowhere on average.
    K1,
    /// Half its square: biased, with the gradient of the reverse divergence where the policy sampled.
    K2,
    /// `r − 1 − log r`: unbiased and never negative.
    #[default]
    K3,
}

impl KlEstimator {
    /// The word of the settings file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::K1 => "k1",
            Self::K2 => "k2",
            Self::K3 => "k3",
        }
    }
}

/// Section `[kl]`, checked.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct KlSettings {
    /// What a nat of divergence costs. 0 needs no reference weights.
    pub coefficient: f64,
    /// How it is estimated.
    pub estimator: KlEstimator,
}

/// The section as it is written.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    coefficient: f64,
    #[serde(default)]
    estimator: KlEstimator,
}

impl TryFrom<Written> for KlSettings {
    type Error = SettingsError;

    fn try_from(written: Written) -> Result<Self, SettingsError> {
        let coefficient = number("kl", "coefficient", written.coefficient, |v| v >= 0.0, "0 or above")?;
        Ok(Self { coefficient, estimator: written.estimator })
    }
}

impl From<KlSettings> for Written {
    fn from(settings: KlSettings) -> Self {
        Self { coefficient: settings.coefficient, estimator: settings.estimator }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_section_is_read_written_and_checked() {
        let read = |text: &str| toml::from_str::<KlSettings>(text).map_err(|e| e.to_string());
        let settings = read("coefficient = 0.01\nestimator = \"k2\"").unwrap();
        assert_eq!(read(&toml::to_string(&settings).unwrap()).unwrap(), settings);
        assert_eq!(read("").unwrap(), KlSettings::default());
        assert!(read("estimator = \"k4\"").unwrap_err().contains("k3"));
        assert!(read("coefficient = -0.1").unwrap_err().contains("0 or above"));
        assert!(read("beta = 0.1").unwrap_err().contains("coefficient"));
    }
}
