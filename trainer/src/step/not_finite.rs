//! Which number of a step is none, and the search for it among those of a micro-batch.

use std::fmt;

use serde::{Deserialize, Serialize};
use tch::{TchError, Tensor};

use crate::error::{Error, Result};
use crate::loss::{NonFinite, Quantity, check_trained};
use crate::micro_batch::{MicroBatch, Place, TokenPlace};

/// A number that is NaN or infinite, for which a train step was left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NotFiniteReport {
    /// The micro-batch. Of a gradient that only the whole step's sum made infinite: its last one.
    pub place: Place,
    /// Trajectory, segment and token. None if no segment by itself has such a number, and for the gradient of parameters that
    /// ranks share out.
    pub at: Option<Box<TokenPlace>>,
    /// Of what.
    pub quantity: Quantity,
    /// NaN or infinite. For the gradient of parameters, their norm.
    #[serde(with = "as_text")]
    pub value: f64,
    /// The first parameter with such a gradient, where that was looked at.
    pub parameter: Option<String>,
}

/// JSON has no NaN and no infinity.
mod as_text {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

    pub(super) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        value.to_string().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl fmt::Display for NotFiniteReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.at {
            Some(at) => write!(f, "{at}")?,
            None => write!(f, "{}", self.place)?,
        }
        write!(f, ": the {} is {}", self.quantity, self.value)?;
        match &self.parameter {
            Some(parameter) => write!(f, " (first in {parameter})"),
            None => Ok(()),
        }
    }
}

/// Looks at numbers of the trained tokens, `[N]` each, and names the first that is none, in this order. Where all are
/// numbers it waits for the device once.
pub(super) fn first_not_finite(
    looked_at: &[(Quantity, &Tensor)],
    batch: &MicroBatch,
) -> Result<Option<NotFiniteReport>> {
    if all_finite(looked_at)? {
        return Ok(None);
    }
    for (quantity, values) in looked_at {
        let (at, quantity, value) = match check_trained(values, *quantity, batch) {
            Ok(()) => continue,
            Err(NonFinite::Token { at, quantity, value }) => (Some(at), quantity, value),
            Err(NonFinite::Whole { quantity, value, .. }) => (None, quantity, value),
            Err(error @ NonFinite::Torch { .. }) => return Err(Error::from(error)),
        };
        return Ok(Some(NotFiniteReport { place: batch.place(), at, quantity, value, parameter: None }));
    }
    Ok(None)
}

fn all_finite(looked_at: &[(Quantity, &Tensor)]) -> Result<bool, TchError> {
    let flags = looked_at.iter().map(|(_, values)| values.f_isfinite()?.f_all()).collect::<Result<Vec<_>, _>>()?;
    if flags.is_empty() {
        return Ok(true);
    }
    Ok(Tensor::f_stack(&flags, 0)?.f_all()?.f_int64_value(&[])? != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_reaches_the_other_ranks_as_it_is() {
        let segment = crate::micro_batch::SegmentPlace {
            place: Place { train_step: 3, dp_rank: 1, micro_batch: 2 },
            trajectory_id: "a \"b\"".into(),
            segment_index: 4,
        };
        for value in [f64::INFINITY, f64::NEG_INFINITY, 1.5e300] {
            let report = NotFiniteReport {
                place: segment.place,
                at: Some(Box::new(TokenPlace { segment: segment.clone(), token: 7 })),
                quantity: Quantity::OldLogprobs,
                value,
                parameter: Some("model.norm.weight".to_owned()),
            };
            let text = serde_json::to_string(&report).unwrap();
            assert_eq!(serde_json::from_str::<NotFiniteReport>(&text).unwrap(), report);
        }
        let report = NotFiniteReport { value: f64::NAN, ..serde_json::from_str(r#"{"place":{"train_step":0,"dp_rank":0,"micro_batch":0},"at":null,"quantity":"Loss","value":"inf","parameter":null}"#).unwrap() };
        let text = serde_json::to_string(&report).unwrap();
        assert!(serde_json::from_str::<NotFiniteReport>(&text).unwrap().value.is_nan());
    }
}
