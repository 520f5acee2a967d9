//! All sections together, and what does not go together.

use serde::{Deserialize, Serialize};

use super::checked::checked;
use super::error::SettingsError;
use super::{
    AdamWSettings, CorrectionSettings, KlSettings, LossSettings, ModelSettings, ParallelSettings, StepSettings,
};
use crate::loss::Objective;
use crate::optimizer::Schedule;

/// Everything that a user tunes about training.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(remote = "Self", default, deny_unknown_fields)]
pub struct TrainerSettings {
    /// How the model is kept and run.
    pub model: ModelSettings,
    /// How weights are updated.
    pub optimizer: AdamWSettings,
    /// How the learning rate goes over the run.
    pub schedule: Schedule,
    /// Which loss.
    pub loss: LossSettings,
    /// What is done about rollouts that were sampled under other log-probs.
    pub correction: CorrectionSettings,
    /// How far the policy may go from the reference.
    pub kl: KlSettings,
    /// How a train step goes.
    pub step: StepSettings,
    /// What ranks share out.
    pub parallel: ParallelSettings,
}

checked!(TrainerSettings);

impl TrainerSettings {
    /// Checks every section, and that they go together.
    ///
    /// # Errors
    ///
    /// [`SettingsError`], naming section, key, value and what is allowed.
    pub fn check(&self) -> Result<(), SettingsError> {
        self.model.check()?;
        self.optimizer.check()?;
        self.schedule.check()?;
        self.step.check()?;
        self.parallel.check()?;
        let objective = self.objective()?;
        let steps = self.step.train_steps_per_policy;
        if steps > 1 && !objective.reads_old_logprobs() {
            return Err(SettingsError::OldLogprobsUnread { steps, kind: self.loss.policy.kind().as_str() });
        }
        Ok(())
    }

    /// The loss of these settings.
    ///
    /// # Errors
    ///
    /// [`SettingsError`] where they do not go together.
    pub fn objective(&self) -> Result<Objective, SettingsError> {
        Objective::new(self.loss, self.correction, self.kl)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<TrainerSettings, String> {
        toml::from_str(text).map_err(|e| e.to_string())
    }

    const EVERY_SECTION: &str = r#"
        [model]
        kind = "bf16"
        [optimizer]
        learning_rate = 1e-5
        [schedule]
        shape = "linear"
        total_steps = 100
        [loss]
        kind = "gspo"
        [correction]
        kind = "truncate"
        [kl]
        coefficient = 0.01
        [step]
        train_steps_per_policy = 4
        [parallel]
        shard = "gradients"
    "#;

    #[test]
    fn every_section_survives_writing_and_reading() {
        let settings = read(EVERY_SECTION).unwrap();
        assert_eq!(settings.step.train_steps_per_policy, 4);
        assert_eq!(read(&toml::to_string(&settings).unwrap()).unwrap(), settings);
        let json = serde_json::to_string(&settings).unwrap();
        assert_eq!(serde_json::from_str::<TrainerSettings>(&json).unwrap(), settings);
        assert_eq!(read("").unwrap(), TrainerSettings::default());
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        for (text, words) in [
            ("[step]\ntrain_steps_per_policy = 2\n[loss]\nkind = \"reinforce\"", ["= 2", "reinforce"]),
            ("[step]\ntrain_steps_per_policy = 2\n[loss]\nold_logprobs = \"rollout\"", ["= 2", "\"rollout\""]),
            ("[loss]\nkind = \"cross_entropy\"\n[correction]\nkind = \"mask\"", ["mask", "cross_entropy"]),
            ("[schedule]\nshape = \"cosine\"", ["[schedule] total_steps = 0", "warmup_steps"]),
            ("[schedule]\nfinal_share = 2", ["[schedule] final_share = 2", "from 0 to 1"]),
            ("[schedule]\nwarm_up = 2", ["warm_up", "warmup_steps"]),
            ("[losses]", ["losses", "correction"]),
        ] {
            let error = read(text).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
        }
        // a correction reads them whatever the policy's loss is
        let text = "[step]\ntrain_steps_per_policy = 2\n[loss]\nkind = \"reinforce\"\n[correction]\nkind = \"mask\"";
        assert!(read(text).is_ok());
    }
}
