//! What the container promises, from outside.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests may")]

mod corruption;
mod round_trip;
mod slices;
