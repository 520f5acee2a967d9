//! The trainer as a whole: steps, what stops them, windows of steps, checkpoints, sampling, and that it learns.

#![allow(clippy::unwrap_used)]

mod checkpoint_files;
mod learning;
mod made;
mod not_finite;
mod ppo;
mod resume;
mod routes;
mod sampling;
mod setting_up;
mod splits;

#[path = "../../../src/micro_batch/made.rs"]
mod rows;
