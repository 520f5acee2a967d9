//! The libtorch trainer: batches in, better weights out, with the same numbers as PyTorch and Hugging Face.
//!
//! Takes a model as Hugging Face lays it out ([`ModelFiles`]) and micro-batches as a plan streams them
//! (`docs/batches.md`), gives log-probs, gradients, updated weights and optimiser state that can be saved. Refuses to
//! query, filter or reorder data: that is the segmenter's work.
//!
//! ```text
//!   config.json, *.safetensors ──▶ Model ◀───────────── AdamW ◀── Schedule
//!                                    │ forward             ▲ gradients
//!   MicroBatch ───▶ PackedRow ──▶ Trace ──▶ TokenScores ──▶│ backward
//!                                              │ ▲ gradients of log-probs and entropies
//!                                              ▼ │
//!                                             loss (the caller's, any function of them)
//! ```
//!
//! Read first: [`Model`], [`PackedRow`], [`Trace`] (one pass, and the way back), [`TokenScores`] (what a loss is built
//! on), [`AdamW`]; then [`micro_batch`] (checked tensors of a batch of the stream), [`loss`] (objectives and
//! corrections) and [`metrics`] (what a train step says of itself).
//!
//! Invariants:
//!
//! 1. A segment's numbers do not depend on what else is in its row.
//! 2. No more of a row's logits is in memory than [`ScoreOptions`] allow.
//! 3. A tensor that the config does not ask for, or that it asks for and is not there, is an error that names it.
//! 4. `unsafe` is in `native` only.
//!
//! ```no_run
//! use dressage_trainer::{
//!     AdamW, AdamWSettings, Folder, ForwardOptions, Model, ModelOptions, PackedRow, ScoreOptions, Segment,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Model::load(&Folder::at("qwen3"), ModelOptions::default())?;
//! let mut optimizer = AdamW::new(&model, AdamWSettings::default())?;
//! let row = PackedRow::new(vec![Segment::of(vec![1, 2, 3]), Segment::of(vec![4, 5])])?;
//! let trace = model.forward(&row, ForwardOptions::default())?;
//! let scores = trace.scores(None, ScoreOptions::default())?;
//! // the likelihood of the row; a policy loss weights each token with its advantage
//! scores.logprobs.f_mean(None)?.f_neg()?.f_backward()?;
//! trace.backward(scores)?;
//! optimizer.step(&model, 1e-6)?;
//! # Ok(())
//! # }
//! ```

#![deny(unsafe_code)]

mod config;
mod error;
mod files;
pub mod loss;
pub mod metrics;
pub mod micro_batch;
mod model;
#[allow(unsafe_code)]
mod native;
mod optimizer;
mod rope;
mod routing;
mod row;
mod scores;
pub mod settings;
mod torch_error;
mod weights;

pub use config::{ExpertsConfig, Family, ModelConfig};
pub use error::{Error, Result};
pub use files::{FileBytes, Folder, ModelFiles, ModelSink};
pub use model::{ForwardOptions, Model, ModelOptions, Parameter, Trace};
pub use native::{DeviceMemory, RngState, device_memory, reset_device_memory};
pub use optimizer::{AdamW, AdamWSettings, NamedState, Schedule, ScheduleShape, StepOutcome};
pub use rope::RopeScaling;
pub use routing::RoutedExperts;
pub use row::{PackedRow, Segment};
pub use scores::{ScoreOptions, TokenScores};
pub use torch_error::TorchError;
