//! The random generators' states as text.

use serde::{Deserialize, Serialize};
use tch::Device;

use super::STATE;
use crate::error::{Error, Result};
use crate::native::RngState;

/// The states of the generators that a trainer uses, in hexadecimal.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Generators {
    cpu: String,
    /// That of the model's device, where it is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    device: Option<String>,
}

impl Generators {
    /// As they are now.
    pub(super) fn now(device: Device) -> Result<Self> {
        let state = |device| RngState::of(device).map(|state| hex(&state.0));
        Ok(Self { cpu: state(Device::Cpu)?, device: if device == Device::Cpu { None } else { Some(state(device)?) } })
    }

    /// Puts the generators into these states; none is changed if one cannot be. A device's that was not saved, or that is not
    /// used any more, stays as it is.
    pub(super) fn restore(&self, device: Device, place: &str) -> Result<()> {
        let damaged = |whose: &str| Error::CheckpointDamaged {
            place: place.to_owned(),
            name: STATE.to_owned(),
            problem: format!("`rng` has no state of {whose}'s random generator"),
        };
        let cpu = unhex(&self.cpu).ok_or_else(|| damaged("the CPU"))?;
        let before = RngState::of(Device::Cpu)?;
        cpu.restore(Device::Cpu).map_err(|_| damaged("the CPU"))?;
        let Some(text) = self.device.as_ref().filter(|_| device != Device::Cpu) else { return Ok(()) };
        let restored = unhex(text).is_some_and(|state| state.restore(device).is_ok());
        if restored {
            return Ok(());
        }
        before.restore(Device::Cpu)?;
        Err(damaged("the device"))
    }
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn unhex(text: &str) -> Option<RngState> {
    let digits = text.bytes().map(|digit| char::from(digit).to_digit(16)).collect::<Option<Vec<_>>>()?;
    let (pairs, []) = digits.as_chunks::<2>() else { return None };
    // two digits are below 256
    Some(RngState(pairs.iter().map(|[high, low]| (high * 16 + low) as u8).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_hexadecimal() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(unhex(&hex(&bytes)), Some(RngState(bytes)));
        assert_eq!((unhex("0"), unhex("0g"), unhex("é")), (None, None, None));
    }

    #[test]
    fn a_state_that_is_none_is_refused_by_name() {
        for cpu in ["zz", "00ff"] {
            let error = Generators { cpu: cpu.to_owned(), device: None }.restore(Device::Cpu, "here").unwrap_err();
            assert!(error.to_string().contains("trainer/state.json of here is damaged"), "{error}");
        }
    }
}
