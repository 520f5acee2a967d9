//! How the learning rate goes over a run.

use serde::{Deserialize, Serialize};

use crate::settings::{SettingsError, checked, number};

/// What the learning rate does after warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleShape {
    /// Stays.
    Constant,
    /// Falls in a straight line.
    Linear,
    /// Falls along half a cosine.
    Cosine,
}

/// Section `[schedule]`, checked: warm-up in a straight line, then a shape.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", default, deny_unknown_fields)]
pub struct Schedule {
    /// What follows the warm-up. Constant is usual for reinforcement learning, where nobody knows how long a run will
    /// be worth its while.
    pub shape: ScheduleShape,
    /// Steps until the full learning rate is reached: step `s` of the warm-up (from 0) has `(s + 1) / warmup_steps` of
    /// it, so that the first step trains, too.
    pub warmup_steps: u64,
    /// Steps of the whole run: where a falling rate arrives. Not used by `constant`.
    pub total_steps: u64,
    /// What a falling rate arrives at, as a share of the full one.
    pub final_share: f64,
}

checked!(Schedule);

impl Default for Schedule {
    fn default() -> Self {
        Self { shape: ScheduleShape::Constant, warmup_steps: 0, total_steps: 0, final_share: 0.0 }
    }
}

impl Schedule {
    /// Checks that the numbers fit each other.
    ///
    /// # Errors
    ///
    /// [`SettingsError`] naming the one that does not.
    pub fn check(&self) -> Result<(), SettingsError> {
        number("schedule", "final_share", self.final_share, |v| (0.0..=1.0).contains(&v), "from 0 to 1")?;
        if self.shape != ScheduleShape::Constant && self.total_steps <= self.warmup_steps {
            let (total_steps, warmup_steps) = (self.total_steps, self.warmup_steps);
            return Err(SettingsError::NoStepsToFall { total_steps, warmup_steps });
        }
        Ok(())
    }

    /// What the learning rate of train step `step` (from 0) is multiplied with. The last step of the run is the last
    /// above `final_share`; later ones stay at it.
    pub fn share(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return (step + 1) as f64 / self.warmup_steps as f64;
        }
        let falling_steps = self.total_steps.saturating_sub(self.warmup_steps).max(1);
        let progress = ((step - self.warmup_steps) as f64 / falling_steps as f64).min(1.0);
        let left = match self.shape {
            ScheduleShape::Constant => return 1.0,
            ScheduleShape::Linear => 1.0 - progress,
            ScheduleShape::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * progress).cos()),
        };
        self.final_share + (1.0 - self.final_share) * left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(shape: ScheduleShape, steps: impl IntoIterator<Item = u64>) -> Vec<f64> {
        let schedule = Schedule { shape, warmup_steps: 4, total_steps: 14, final_share: 0.1 };
        schedule.check().expect("valid");
        steps.into_iter().map(|s| schedule.share(s)).collect()
    }

    #[test]
    fn warm_up_trains_from_the_first_step_and_arrives() {
        assert_eq!(shares(ScheduleShape::Constant, 0..6), [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]);
    }

    #[test]
    fn falling_rates_begin_at_one_and_stay_at_their_final_share() {
        for shape in [ScheduleShape::Linear, ScheduleShape::Cosine] {
            let found = shares(shape, [4, 9, 14, 1000]);
            for (found, expected) in found.into_iter().zip([1.0, 0.55, 0.1, 0.1]) {
                assert!((found - expected).abs() < 1e-12, "{shape:?}: {found} for {expected}");
            }
        }
    }

    #[test]
    fn a_run_that_ends_in_its_warm_up_is_refused() {
        let schedule = Schedule { shape: ScheduleShape::Cosine, warmup_steps: 5, total_steps: 5, final_share: 0.0 };
        assert!(schedule.check().expect_err("too short").to_string().contains("total_steps"));
    }
}
