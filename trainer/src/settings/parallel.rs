//! Section `[parallel]`: what ranks share out among each other.

use serde::{Deserialize, Serialize};

use super::checked::checked;
use super::error::{SettingsError, number};

/// What each rank keeps only its part of. The numbers of a step are the same for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShardLevel {
    /// Nothing: every rank has everything, and gradients are summed with one message each way.
    #[default]
    None,
    /// The optimiser's state (ZeRO-1): 8 bytes a parameter less 8 / ranks, 12 under bf16. Gradients go one way and weights the
    /// other.
    Optimizer,
    /// The summed gradients, too (ZeRO-2): 4 bytes a parameter less 4 / ranks. They are shared out after every micro-batch, so
    /// that with more than one a step more is sent.
    Gradients,
    /// The weights, too (ZeRO-3): a layer's are put together when it runs, and twice for one that trains.
    Parameters,
}

impl ShardLevel {
    /// The word of the settings file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Optimizer => "optimizer",
            Self::Gradients => "gradients",
            Self::Parameters => "parameters",
        }
    }
}

/// Section `[parallel]`, checked. A rank that trains alone reads none of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self", default, deny_unknown_fields)]
pub struct ParallelSettings {
    /// What each rank keeps only its part of.
    pub shard: ShardLevel,
    /// Gradients are sent in pieces of about this size: smaller ones begin earlier in the backward pass, and cost more each.
    pub bucket_bytes_max: u64,
    /// After how many seconds a rank that does not come is an error on all others. More than the longest micro-batch takes, or
    /// a checkpoint.
    pub collective_timeout_s: u64,
}

checked!(ParallelSettings);

impl Default for ParallelSettings {
    fn default() -> Self {
        Self { shard: ShardLevel::default(), bucket_bytes_max: 25 << 20, collective_timeout_s: 600 }
    }
}

impl ParallelSettings {
    /// Checks sizes and times.
    ///
    /// # Errors
    ///
    /// [`SettingsError`] for a value that cannot be.
    pub fn check(&self) -> Result<(), SettingsError> {
        let at_least_1 = |v: f64| v >= 1.0;
        number("parallel", "bucket_bytes_max", self.bucket_bytes_max as f64, at_least_1, "1 or above")?;
        number("parallel", "collective_timeout_s", self.collective_timeout_s as f64, at_least_1, "1 or above")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_section_is_read_written_and_checked() {
        let read = |text: &str| toml::from_str::<ParallelSettings>(text).map_err(|e| e.to_string());
        assert_eq!(read("").unwrap(), ParallelSettings::default());
        let settings = read("shard = \"gradients\"\nbucket_bytes_max = 1024\ncollective_timeout_s = 30").unwrap();
        assert_eq!((settings.shard, settings.bucket_bytes_max), (ShardLevel::Gradients, 1024));
        assert_eq!(read(&toml::to_string(&settings).unwrap()).unwrap(), settings);
        for (text, words) in [
            ("bucket_bytes_max = 0", ["[parallel] bucket_bytes_max = 0", "1 or above"]),
            ("collective_timeout_s = 0", ["[parallel] collective_timeout_s = 0", "1 or above"]),
            ("shard = \"zero1\"", ["zero1", "optimizer"]),
            ("zero_stage = 1", ["zero_stage", "shard"]),
        ] {
            let error = read(text).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
        }
    }

    #[test]
    fn each_level_shares_out_what_the_one_before_it_does() {
        let levels = [ShardLevel::None, ShardLevel::Optimizer, ShardLevel::Gradients, ShardLevel::Parameters];
        assert!(levels.is_sorted());
        assert_eq!(levels.map(ShardLevel::as_str), ["none", "optimizer", "gradients", "parameters"]);
    }
}
