//! Section `[step]`: how a train step goes.

use serde::{Deserialize, Serialize};

use super::checked::checked;
use super::error::{SettingsError, number};

/// What is done about a train step in which a number is NaN or infinite. Its weights are never updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnNotFinite {
    /// The run ends with what was found: such a number is a defect of data or model until somebody has looked.
    #[default]
    Stop,
    /// The step is counted and the run goes on with the next one.
    Skip,
}

/// Section `[step]`, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self", default, deny_unknown_fields)]
pub struct StepSettings {
    /// What the caller of a step is to do about a number that is none. The trainer only reports it.
    pub on_not_finite: OnNotFinite,
    /// Train steps whose old log-probs are computed under one set of weights, before the first of them: PPO's mini-batches
    /// of one rollout batch. 1 makes every ratio of a step 1, and needs no second forward pass; above it each micro-batch is
    /// run once more, and rollouts are used while they are older.
    pub train_steps_per_policy: u32,
    /// Whether entropies are computed where only the metric reads them. Off, since it is one more pass over all logits: 7 %
    /// of a step of a model of 25 million parameters with a vocabulary of 32,000 on a CPU, less the larger the model is.
    /// With an entropy coefficient they are computed and reported anyway.
    pub report_entropy: bool,
}

checked!(StepSettings);

impl Default for StepSettings {
    fn default() -> Self {
        Self { on_not_finite: OnNotFinite::default(), train_steps_per_policy: 1, report_entropy: false }
    }
}

impl StepSettings {
    /// Checks the number of steps.
    ///
    /// # Errors
    ///
    /// [`SettingsError::Value`] for none.
    pub fn check(&self) -> Result<(), SettingsError> {
        number("step", "train_steps_per_policy", self.train_steps_per_policy.into(), |v| v >= 1.0, "1 or above")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_section_is_read_written_and_checked() {
        let read = |text: &str| toml::from_str::<StepSettings>(text).map_err(|e| e.to_string());
        assert_eq!(read("").unwrap(), StepSettings::default());
        let settings = read("on_not_finite = \"skip\"\ntrain_steps_per_policy = 4\nreport_entropy = true").unwrap();
        assert_eq!((settings.on_not_finite, settings.train_steps_per_policy), (OnNotFinite::Skip, 4));
        assert_eq!(read(&toml::to_string(&settings).unwrap()).unwrap(), settings);
        for (text, words) in [
            ("train_steps_per_policy = 0", ["[step] train_steps_per_policy = 0", "1 or above"]),
            ("on_not_finite = \"ignore\"", ["ignore", "skip"]),
            ("ppo_epochs = 4", ["ppo_epochs", "train_steps_per_policy"]),
        ] {
            let error = read(text).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
        }
    }
}
