//! Section `[optimizer]`: how weights are updated.

use serde::{Deserialize, Serialize};

use super::checked::checked;
use super::error::{SettingsError, number};

/// Section `[optimizer]`, checked: AdamW.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", default, deny_unknown_fields)]
pub struct AdamWSettings {
    /// Learning rate at its full height. Policies are moved in small steps: larger ones leave what was sampled behind.
    pub learning_rate: f64,
    /// Memory of the mean gradient.
    pub beta1: f64,
    /// Memory of the mean square.
    pub beta2: f64,
    /// Added to the root of the mean square.
    pub eps: f64,
    /// Share of a weight that decays per step at learning rate 1, apart from the gradient; matrices only, norms and
    /// biases do not decay.
    pub weight_decay: f64,
    /// Gradients are scaled down to this 2-norm over all parameters; none (0 in a file) leaves them.
    #[serde(with = "zero_is_none")]
    pub grad_norm_max: Option<f64>,
}

checked!(AdamWSettings);

impl Default for AdamWSettings {
    fn default() -> Self {
        Self { learning_rate: 1e-6, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01, grad_norm_max: Some(1.0) }
    }
}

impl AdamWSettings {
    /// Checks every number.
    ///
    /// # Errors
    ///
    /// [`SettingsError::Value`] naming the one that makes no sense.
    pub fn check(&self) -> Result<(), SettingsError> {
        let at_least_0 = |x: f64| x >= 0.0;
        let below_1 = |x: f64| (0.0..1.0).contains(&x);
        let of = |key, value, allowed: &dyn Fn(f64) -> bool, expected| {
            number("optimizer", key, value, allowed, expected).map(|_| ())
        };
        of("learning_rate", self.learning_rate, &at_least_0, "0 or above")?;
        of("beta1", self.beta1, &below_1, "from 0 to below 1")?;
        of("beta2", self.beta2, &below_1, "from 0 to below 1")?;
        of("eps", self.eps, &|x| x > 0.0, "above 0")?;
        of("weight_decay", self.weight_decay, &at_least_0, "0 or above")?;
        match self.grad_norm_max {
            Some(max) => of("grad_norm_max", max, &|x| x > 0.0, "above 0, or 0 to clip nothing"),
            None => Ok(()),
        }
    }
}

/// TOML has no null, and a key that is left out is the default.
mod zero_is_none {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
        value.unwrap_or(0.0).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
        f64::deserialize(deserializer).map(|value| (value != 0.0).then_some(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_section_is_read_written_and_checked() {
        let read = |text: &str| toml::from_str::<AdamWSettings>(text).map_err(|e| e.to_string());
        assert_eq!(read("").unwrap(), AdamWSettings::default());
        let settings = read("learning_rate = 3e-5\ngrad_norm_max = 0").unwrap();
        assert_eq!((settings.learning_rate, settings.grad_norm_max), (3e-5, None));
        assert_eq!(read(&toml::to_string(&settings).unwrap()).unwrap(), settings);
        for (text, words) in [
            ("beta2 = 1.0", ["[optimizer] beta2 = 1", "below 1"]),
            ("eps = 0", ["[optimizer] eps = 0", "above 0"]),
            ("learning_rate = -1e-3", ["[optimizer] learning_rate = -0.001", "0 or above"]),
            ("grad_norm_max = -1", ["[optimizer] grad_norm_max = -1", "clip nothing"]),
            ("lr = 1e-3", ["lr", "learning_rate"]),
        ] {
            let error = read(text).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
        }
    }
}
