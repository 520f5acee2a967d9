//! Losses against values that were not made by this crate: PyTorch's, finite differences, gradients derived by hand, the
//! numbers of the documentation; and event files against TensorBoard's own reader.

#![allow(clippy::unwrap_used)]

mod events;
mod gradients;
mod made;
mod metrics;
mod nonfinite;
mod oracle;
mod splits;
mod worked_example;
