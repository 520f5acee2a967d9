//! What the container promises, from outside.

mod corruption;
mod round_trip;
mod slices;
