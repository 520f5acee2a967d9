//! Section `[model]`: how the model is kept and run.

use std::fmt;

use serde::{Deserialize, Serialize};
use tch::{Cuda, Device, Kind};

use super::checked::checked;
use super::error::{SettingsError, number};
use crate::model::{ForwardOptions, ModelOptions};
use crate::native::load_cuda;
use crate::scores::ScoreOptions;

/// The section's name in the file.
const SECTION: &str = "model";

/// Less than this is no chunk but a single token.
const LOGITS_CHUNK_BYTES_MIN: u64 = 1 << 20;

/// The numbers of weights and activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum WeightKind {
    /// 32 bits: weights, moments and gradients take 16 bytes a parameter.
    #[default]
    #[serde(rename = "f32")]
    F32,
    /// 16 bits, with 32-bit weights beside them in the optimiser: 20 bytes a parameter, half the activations, and several
    /// times as fast where the device has bf16 units.
    #[serde(rename = "bf16")]
    Bf16,
}

impl WeightKind {
    /// The word of the settings file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }
}

impl From<WeightKind> for Kind {
    fn from(kind: WeightKind) -> Self {
        match kind {
            WeightKind::F32 => Self::Float,
            WeightKind::Bf16 => Self::BFloat16,
        }
    }
}

/// Where a model runs, as it is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DeviceChoice {
    /// The first CUDA device if there is one, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// A CUDA device by its number.
    Cuda(usize),
}

impl DeviceChoice {
    /// The device on this machine.
    ///
    /// # Errors
    ///
    /// [`SettingsError::NoDevice`] if the machine does not have it.
    pub fn resolve(self) -> Result<Device, SettingsError> {
        if self == Self::Cpu {
            return Ok(Device::Cpu);
        }
        let loaded = load_cuda();
        let n_devices = usize::try_from(Cuda::device_count()).unwrap_or(0);
        match self {
            Self::Auto => Ok(if n_devices > 0 { Device::Cuda(0) } else { Device::Cpu }),
            Self::Cpu => Ok(Device::Cpu),
            Self::Cuda(index) if index < n_devices => Ok(Device::Cuda(index)),
            Self::Cuda(_) => Err(SettingsError::NoDevice {
                device: self.to_string().into(),
                n_devices,
                loader: loaded.err().map(|said| format!(" ({said})")).unwrap_or_default().into(),
            }),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

impl TryFrom<String> for DeviceChoice {
    type Error = SettingsError;

    fn try_from(text: String) -> Result<Self, SettingsError> {
        match text.as_str() {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            other => match other.strip_prefix("cuda:").and_then(|index| index.parse().ok()) {
                Some(index) => Ok(Self::Cuda(index)),
                None => Err(SettingsError::Word {
                    section: SECTION,
                    key: "device",
                    value: text.into(),
                    expected: "\"auto\", \"cpu\", \"cuda\" or \"cuda:N\"",
                }),
            },
        }
    }
}

impl From<DeviceChoice> for String {
    fn from(choice: DeviceChoice) -> Self {
        choice.to_string()
    }
}

/// Section `[model]`, checked.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", default, deny_unknown_fields)]
pub struct ModelSettings {
    /// The numbers that it computes in, whatever the files have.
    pub kind: WeightKind,
    /// Where it runs.
    pub device: DeviceChoice,
    /// Whether layers are run again on the way back instead of kept: a third more work, and of all layers' activations
    /// only one's at a time in memory.
    pub recompute: bool,
    /// Logits of one chunk, in f32: 1 MiB or above. About three times as much is in use; larger chunks keep a matrix product
    /// busy.
    pub logits_chunk_bytes_max: u64,
    /// Log-probs of the vocabulary that are kept for the way back, in f32, while they fit: what is not kept is computed
    /// again. 0 keeps none.
    pub logits_kept_bytes_max: u64,
    /// What logits are divided by: that of the sampler, if its log-probs are to be met.
    pub temperature: f64,
}

checked!(ModelSettings);

impl Default for ModelSettings {
    fn default() -> Self {
        let scores = ScoreOptions::default();
        Self {
            kind: WeightKind::default(),
            device: DeviceChoice::default(),
            recompute: false,
            logits_chunk_bytes_max: scores.chunk_bytes_max,
            logits_kept_bytes_max: scores.kept_bytes_max,
            temperature: scores.temperature,
        }
    }
}

impl ModelSettings {
    /// Checks every number.
    ///
    /// # Errors
    ///
    /// [`SettingsError::Value`] naming the one that cannot be.
    pub fn check(&self) -> Result<(), SettingsError> {
        let chunk = self.logits_chunk_bytes_max as f64;
        let chunk_min = LOGITS_CHUNK_BYTES_MIN as f64;
        number(SECTION, "logits_chunk_bytes_max", chunk, |v| v >= chunk_min, "1048576 or above")?;
        number(SECTION, "temperature", self.temperature, |v| v > 0.0, "above 0")?;
        Ok(())
    }

    /// How [`crate::Model::load`] is to keep a model: the trained one, or a reference.
    ///
    /// # Errors
    ///
    /// [`SettingsError::NoDevice`] if this machine does not have the device.
    pub fn options(&self, trainable: bool) -> Result<ModelOptions, SettingsError> {
        Ok(ModelOptions { device: self.device.resolve()?, kind: self.kind.into(), trainable })
    }

    /// How a row is run with gradients.
    pub(crate) fn forward_options(&self) -> ForwardOptions {
        ForwardOptions { gradients: true, recompute: self.recompute }
    }

    /// How log-probs are computed.
    pub(crate) fn score_options(&self, entropy: bool) -> ScoreOptions {
        ScoreOptions {
            chunk_bytes_max: self.logits_chunk_bytes_max,
            kept_bytes_max: self.logits_kept_bytes_max,
            entropy,
            temperature: self.temperature,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ModelSettings, String> {
        toml::from_str(text).map_err(|e| e.to_string())
    }

    #[test]
    fn the_section_is_read_and_written() {
        assert_eq!(read("").unwrap(), ModelSettings::default());
        let text = "kind = \"bf16\"\ndevice = \"cuda:3\"\nrecompute = true\nlogits_chunk_bytes_max = 33554432\ntemperature = 0.7";
        let settings = read(text).unwrap();
        assert_eq!((settings.kind, settings.device), (WeightKind::Bf16, DeviceChoice::Cuda(3)));
        assert_eq!(read(&toml::to_string(&settings).unwrap()).unwrap(), settings);
        assert_eq!(read("device = \"cuda\"").unwrap().device, DeviceChoice::Cuda(0));
    }

    #[test]
    fn what_is_refused_is_told_with_what_is_allowed() {
        for (text, words) in [
            ("kind = \"f16\"", ["f16", "bf16"]),
            ("device = \"gpu\"", ["[model] device = \"gpu\"", "cuda:N"]),
            ("device = \"cuda:x\"", ["[model] device = \"cuda:x\"", "cuda:N"]),
            ("temperature = 0", ["[model] temperature = 0", "above 0"]),
            ("temperature = nan", ["[model] temperature = NaN", "above 0"]),
            ("logits_chunk_bytes_max = 0", ["[model] logits_chunk_bytes_max = 0", "1048576 or above"]),
            ("dtype = \"f32\"", ["dtype", "kind"]),
        ] {
            let error = read(text).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
        }
    }

    #[test]
    fn a_device_that_is_not_there_is_named_and_auto_is_always_there() {
        assert_eq!(DeviceChoice::Cpu.resolve().unwrap(), Device::Cpu);
        assert!(DeviceChoice::Auto.resolve().is_ok());
        let error = DeviceChoice::Cuda(4096).resolve().unwrap_err().to_string();
        assert!(error.contains("cuda:4096") && error.contains("auto"), "{error}");
    }
}
