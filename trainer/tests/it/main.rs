//! The trainer against what transformers and torch make of the same tiny models (`tests/oracle`), and against itself.

mod cases;
mod files;
mod logprobs;
mod losses;
mod parity;
mod precision;
mod recompute;
mod replay;
mod resume;
mod training;
