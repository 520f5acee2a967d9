//! What has to be the same on all ranks, and which rank differs in what.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::checkpoint::{flat_settings, model_fingerprint};
use crate::config::ModelConfig;
use crate::settings::TrainerSettings;

/// More differences than that say nothing new.
const DIFFERENCES_MAX: usize = 8;

/// Names and values that every rank puts into the store before it trains: a rank with others is refused.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Fingerprint(Vec<(String, String)>);

impl Fingerprint {
    /// That of nothing; [`Self::with`] adds to it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one value.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.push((name.into(), value.into()));
        self
    }

    /// That of a run: the binary's version, the plan, every size of the model and every setting.
    pub fn of_run(version: &str, plan_id: Option<&str>, model: &ModelConfig, settings: &TrainerSettings) -> Self {
        let start = Self::new().with("version", version).with("plan", plan_id.unwrap_or("none"));
        let shown = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let model = model_fingerprint(model);
        let with_model = model.iter().fold(start, |all, (name, value)| all.with(format!("model {name}"), shown(value)));
        flat_settings(settings).iter().fold(with_model, |all, (name, value)| all.with(name.clone(), shown(value)))
    }

    /// As it is put into the store.
    pub(super) fn to_text(&self) -> String {
        // pairs of words, which JSON can hold
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Back from [`Self::to_text`]; none for what another release wrote otherwise.
    pub(super) fn from_text(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// In what this differs from `other`: name, value here, value there.
    fn differences<'a>(&'a self, other: &'a Self) -> Vec<(&'a str, &'a str, &'a str)> {
        let value =
            |of: &'a Self, name: &str| of.0.iter().find(|(n, _)| n == name).map_or("not set", |(_, v)| v.as_str());
        let extra = other.0.iter().filter(|(name, _)| self.0.iter().all(|(n, _)| n != name));
        let names = self.0.iter().chain(extra).map(|(name, _)| name.as_str());
        names
            .map(|name| (name, value(self, name), value(other, name)))
            .filter(|(_, here, there)| here != there)
            .collect()
    }
}

/// How ranks differ from rank 0; none if they do not.
pub(super) fn differences(all: &[Option<Fingerprint>]) -> Option<String> {
    let (first, others) = all.split_first()?;
    let mut found = Vec::new();
    for (rank, other) in (1..).zip(others) {
        match (other, first) {
            (Some(other), Some(first)) => {
                let of_rank = other.differences(first).into_iter();
                found.extend(of_rank.map(|(n, own, zero)| format!("rank {rank} has {n} = {own}, rank 0 has {zero}")));
            }
            (None, _) => found.push(format!("rank {rank} is of a release that this one cannot read")),
            (_, None) => found.push("rank 0 is of a release that this one cannot read".to_owned()),
        }
    }
    let n_left_out = found.len().saturating_sub(DIFFERENCES_MAX);
    found.truncate(DIFFERENCES_MAX);
    if n_left_out > 0 {
        found.push(format!("and {n_left_out} more differences"));
    }
    (!found.is_empty()).then(|| found.join("; "))
}

/// Whose clock is further than `offset_max` from rank 0's; `clocks_ms` were read at about the same moment.
pub(super) fn clock_differences(clocks_ms: &[i64], offset_max: Duration) -> Option<String> {
    let first = *clocks_ms.first()?;
    let max_ms = i64::try_from(offset_max.as_millis()).unwrap_or(i64::MAX);
    let off = |(rank, clock): (usize, &i64)| {
        let offset_ms = clock.saturating_sub(first);
        let direction = if offset_ms > 0 { "ahead of" } else { "behind" };
        let seconds = offset_ms.unsigned_abs() as f64 / 1e3;
        (offset_ms.saturating_abs() > max_ms).then(|| {
            let max = offset_max.as_secs_f64();
            format!("the clock of rank {rank} is {seconds:.1} s {direction} rank 0's, {max} s are allowed")
        })
    };
    let found: Vec<String> = clocks_ms.iter().enumerate().filter_map(off).collect();
    (!found.is_empty()).then(|| found.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_differs_is_named_with_both_values() {
        let of = |version: &str, plan: &str| Some(Fingerprint::new().with("version", version).with("plan", plan));
        assert_eq!(differences(&[of("1", "a"), of("1", "a")]), None);
        let found = differences(&[of("1", "a"), of("1", "a"), of("2", "b")]).unwrap();
        assert_eq!(found, "rank 2 has version = 2, rank 0 has 1; rank 2 has plan = b, rank 0 has a");
        let longer = of("1", "a").map(|f| f.with("[loss] kind", "gspo"));
        assert_eq!(
            differences(&[of("1", "a"), longer.clone()]).unwrap(),
            "rank 1 has [loss] kind = gspo, rank 0 has not set"
        );
        assert_eq!(differences(&[longer, of("1", "a")]).unwrap(), "rank 1 has [loss] kind = not set, rank 0 has gspo");
        assert!(differences(&[of("1", "a"), None]).unwrap().contains("rank 1"));
    }

    #[test]
    fn every_setting_and_size_of_the_model_counts() {
        let config = |hidden: i64| {
            let mut config = serde_json::json!({
                "model_type": "qwen3", "vocab_size": 24, "hidden_size": 16, "intermediate_size": 24,
                "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
                "max_position_embeddings": 64
            });
            config["hidden_size"] = hidden.into();
            ModelConfig::parse(config).unwrap()
        };
        let mut settings = TrainerSettings::default();
        let first = Fingerprint::of_run("1", Some("plan"), &config(16), &settings);
        assert_eq!(Fingerprint::from_text(&first.to_text()), Some(first.clone()));
        settings.optimizer.learning_rate = 0.5;
        let other = Fingerprint::of_run("1", Some("plan"), &config(32), &settings);
        let found = differences(&[Some(first), Some(other)]).unwrap();
        assert!(found.contains("model hidden_size = 32, rank 0 has 16"), "{found}");
        assert!(found.contains("[optimizer] learning_rate = 0.5, rank 0 has 1e-6"), "{found}");
    }

    #[test]
    fn a_clock_that_is_off_is_named_with_its_direction() {
        let max = Duration::from_secs(5);
        assert_eq!(clock_differences(&[1_000, 5_900, -3_000], max), None);
        let found = clock_differences(&[100_000, 38_000, 100_500, 162_000], max).unwrap();
        assert!(
            found.contains("rank 1 is 62.0 s behind rank 0's") && found.contains("rank 3 is 62.0 s ahead"),
            "{found}"
        );
    }
}
