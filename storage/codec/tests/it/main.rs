//! What the container promises, from outside.

// shared set-up is no test function, and a failure in it is a failure of the test
#![allow(clippy::unwrap_used)]

mod corruption;
mod round_trip;
mod slices;
