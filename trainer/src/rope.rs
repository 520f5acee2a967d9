//! Rotary position embeddings: the angles of a row's positions, and turning queries and keys by them.

use tch::{Device, Kind, Tensor};

use crate::config::ModelConfig;
use crate::error::Result;

/// How the rotary frequencies of a model are stretched for longer contexts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// What they are divided by.
        factor: f64,
    },
    /// As Llama 3.1: low frequencies are divided by `factor`, high ones are kept, those between are blended.
    Llama3 {
        /// What low frequencies are divided by.
        factor: f64,
        /// Turns within the original context below which a frequency is low.
        low_freq_factor: f64,
        /// Turns above which it is high.
        high_freq_factor: f64,
        /// The original context, in positions.
        original_positions: f64,
    },
}

/// Cosines and sines of a row's positions, `[T, 1, head_dim / 2]` each: to be multiplied with `[T, heads, half]`.
#[derive(Debug)]
pub(crate) struct Angles {
    cos: Tensor,
    sin: Tensor,
}

impl Angles {
    /// Computed in f32 whatever the model's kind is, and rounded to it afterwards.
    pub(crate) fn of(config: &ModelConfig, positions: &[i64], kind: Kind, device: Device) -> Result<Self> {
        let frequencies = Tensor::f_from_slice(&frequencies(config)?)?.f_to_device(device)?;
        let positions = Tensor::f_from_slice(positions)?.f_to_device(device)?.f_to_kind(Kind::Float)?;
        let angles = positions.f_unsqueeze(1)?.f_mul(&frequencies)?.f_unsqueeze(1)?;
        Ok(Self { cos: angles.f_cos()?.f_to_kind(kind)?, sin: angles.f_sin()?.f_to_kind(kind)? })
    }

    /// Turns `x` of `[T, heads, head_dim]`: the first half of a head with the second, as Hugging Face lays them out.
    pub(crate) fn turn(&self, x: &Tensor) -> Result<Tensor> {
        let halves = x.f_chunk(2, -1)?;
        let (first, second) = (&halves[0], &halves[1]);
        let turned_first = first.f_mul(&self.cos)?.f_sub(&second.f_mul(&self.sin)?)?;
        let turned_second = second.f_mul(&self.cos)?.f_add(&first.f_mul(&self.sin)?)?;
        Ok(Tensor::f_cat(&[turned_first, turned_second], -1)?)
    }
}

/// Radians per position, `head_dim / 2` of them. In f32 and by the same operations as Hugging Face: rounded
/// differently, angles at position 10,000 would differ by a thousandth.
fn frequencies(config: &ModelConfig) -> Result<Vec<f32>> {
    let pairs = Tensor::f_arange_start_step(0, config.head_dim, 2, (Kind::Float, Device::Cpu))?;
    let exponents = pairs.f_div_scalar(config.head_dim as f64)?;
    let frequencies = Tensor::f_pow_scalar(config.rope_theta, &exponents)?.f_reciprocal()?;
    let frequencies = Vec::<f32>::try_from(frequencies)?;
    Ok(frequencies.into_iter().map(|f| scaled(f64::from(f), config.rope_scaling) as f32).collect())
}

fn scaled(frequency: f64, scaling: RopeScaling) -> f64 {
    match scaling {
        RopeScaling::None => frequency,
        RopeScaling::Linear { factor } => frequency / factor,
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_positions } => {
            let turns = original_positions * frequency / std::f64::consts::TAU;
            if turns < low_freq_factor {
                frequency / factor
            } else if turns > high_freq_factor {
                frequency
            } else {
                let blend = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                (1.0 - blend) * frequency / factor + blend * frequency
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA3: RopeScaling =
        RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_positions: 8192.0 };

    #[test]
    fn llama3_keeps_fast_frequencies_and_stretches_slow_ones() {
        assert_eq!(scaled(1.0, LLAMA3), 1.0);
        assert_eq!(scaled(1e-6, LLAMA3), 1e-6 / 8.0);
        let between = scaled(2.0 * std::f64::consts::TAU / 8192.0, LLAMA3) / (2.0 * std::f64::consts::TAU / 8192.0);
        assert!(between > 1.0 / 8.0 && between < 1.0, "{between}");
    }
}
