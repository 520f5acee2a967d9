//! What can go wrong in a loss, and where a number stopped being one.

use std::fmt;

use dressage_schemas::ErrorKind;
use serde::{Deserialize, Serialize};
use tch::TchError;

use crate::micro_batch::{Place, TokenPlace};
use crate::torch_error::TorchError;

/// Why a loss was not computed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LossError {
    /// The settings ask for something that was not given.
    #[error("the loss needs {what}, which were not given")]
    Missing {
        /// What.
        what: &'static str,
    },
    /// Inputs of different lengths.
    #[error("{what} is of shape {found:?}, needed is [{expected}]")]
    Shape {
        /// Which input.
        what: &'static str,
        /// Its shape.
        found: Vec<i64>,
        /// The length that it should have.
        expected: i64,
    },
    /// libtorch refused.
    #[error("the loss could not be computed")]
    Torch {
        /// What it said.
        #[source]
        source: TorchError,
    },
}

impl LossError {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Missing { .. } | Self::Shape { .. } => ErrorKind::Internal,
            Self::Torch { source } => source.kind(),
        }
    }
}

impl From<TchError> for LossError {
    fn from(error: TchError) -> Self {
        Self::Torch { source: error.into() }
    }
}

/// Which numbers were looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Quantity {
    /// The trainer's log-probs.
    TrainerLogprobs,
    /// The trainer's log-probs under the weights before the update.
    OldLogprobs,
    /// The reference's log-probs.
    RefLogprobs,
    /// Entropies.
    Entropy,
    /// Losses.
    Loss,
    /// Gradients of the loss.
    Gradient,
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TrainerLogprobs => "trainer's logprob",
            Self::OldLogprobs => "old logprob",
            Self::RefLogprobs => "reference's logprob",
            Self::Entropy => "entropy",
            Self::Loss => "loss",
            Self::Gradient => "gradient",
        })
    }
}

/// A number that is NaN or infinite: the step must stop before the update.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NonFinite {
    /// Of a token.
    #[error("{at}: the {quantity} is {value}")]
    Token {
        /// The first such token.
        at: Box<TokenPlace>,
        /// Of what.
        quantity: Quantity,
        /// NaN or infinite.
        value: f64,
    },
    /// Of a whole micro-batch.
    #[error("{place}: the {quantity} is {value}")]
    Whole {
        /// The micro-batch.
        place: Place,
        /// Of what.
        quantity: Quantity,
        /// NaN or infinite.
        value: f64,
    },
    /// It was not looked at, because libtorch refused.
    #[error("{place}: the {quantity} could not be looked at")]
    Torch {
        /// The micro-batch.
        place: Place,
        /// Of what.
        quantity: Quantity,
        /// What libtorch said.
        #[source]
        source: TorchError,
    },
}

impl NonFinite {
    /// What the caller should do: `Corrupt` where a number is none.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Token { .. } | Self::Whole { .. } => ErrorKind::Corrupt,
            Self::Torch { source, .. } => source.kind(),
        }
    }
}
