//! The libtorch trainer: batches in, better weights out, with the same numbers as PyTorch and Hugging Face.
//!
//! Takes a model as Hugging Face lays it out ([`ModelFiles`]) and micro-batches as a plan streams them
//! (`docs/batches.md`), gives log-probs, updated weights, metrics and checkpoints. Refuses to query, filter or reorder data:
//! that is the segmenter's work.
//!
//! ```text
//!   config.json, *.safetensors ──▶ Model ─────────────┐            TrainerSettings
//!                                                     ▼                  │
//!   RecordBatch ─▶ MicroBatch ─▶ TrainStep ◀─────── Trainer ◀────────────┘
//!                                  │ forward, loss, backward      ▲  │
//!                                  ▼                              │  ▼
//!                                StepReport (metrics; or which    checkpoint: the model's files,
//!                                number was none, and where)      trainer/ (optimiser, state)
//!
//!   inside of a step:
//!
//!     MicroBatch ──▶ PackedRow ──▶ Trace ──▶ TokenScores ──▶ Objective
//!                                    ▲ backward    ▲ gradients of log-probs and entropies
//!                                    └─────────────┴──────────────┘        ─▶ AdamW ◀── Schedule
//! ```
//!
//! Several processes train one model as one: [`Trainer::parallel`] over a [`collective::ProcessGroup`], with gradients summed up
//! while backward runs, and optimiser, gradients and weights shared out as `[parallel] shard` says.
//!
//! Read first: [`Trainer`] and [`step`] (a train step), [`TrainerSettings`] and [`settings`], [`micro_batch`] (checked tensors of
//! a batch of the stream), [`checkpoint`]; then what a step is made of: [`Model`], [`PackedRow`], [`Trace`] (one pass, and the
//! way back), [`TokenScores`] (what a loss is built on), [`loss`] (objectives and corrections), [`AdamW`], [`metrics`] (what a
//! train step says of itself); [`collective`] (how ranks meet). [`Model::sample`] closes the loop in tests.
//!
//! Invariants:
//!
//! 1. A segment's numbers do not depend on what else is in its row.
//! 2. No more of a row's logits is in memory than [`ScoreOptions`] allow.
//! 3. A tensor that the config does not ask for, or that it asks for and is not there, is an error that names it.
//! 4. `unsafe` is in `native` only.
//! 5. The loss, the gradients and the update of a train step do not depend on how it was split into micro-batches.
//! 6. Weights are never updated from a number that is NaN or infinite.
//! 7. A restored run gives the same bits as the one that went on.
//! 8. Ranks that train together take the same steps with the same weights, or none of them goes on.
//!
//! ```no_run
//! use dressage_trainer::micro_batch::{MicroBatch, Place};
//! use dressage_trainer::{Error, Folder, Model, Progress, Trainer, TrainerSettings};
//!
//! # fn batches() -> Vec<(arrow::array::RecordBatch, Place)> { Vec::new() }
//! # fn main() -> Result<(), Error> {
//! let settings = TrainerSettings::default();
//! let model = Model::load(&Folder::at("qwen3"), settings.model.options(true)?)?;
//! let mut trainer = Trainer::new(model, None, settings)?;
//! // one train step of the stream; place says which micro-batch it is
//! let mut step = trainer.begin_step();
//! for (batch, place) in batches() {
//!     let batch = MicroBatch::read(&batch, place, &step.limits(), step.needs())?;
//!     step.micro_batch(&batch, None)?;
//! }
//! let report = step.finish()?;
//! if let Some(number) = report.not_finite() {
//!     println!("no update: {number}");
//! }
//! let progress = Progress { train_run: "first".to_owned(), next_train_step: 1, ..Progress::default() };
//! trainer.save(&mut Folder::at("checkpoints/1"), &progress)?;
//! # Ok(())
//! # }
//! ```

#![deny(unsafe_code)]

pub mod checkpoint;
pub mod collective;
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
mod parallel;
mod rope;
mod routing;
mod row;
mod sample;
mod scores;
pub mod settings;
pub mod step;
mod torch_error;
mod weights;

pub use checkpoint::Progress;
pub use config::{ExpertsConfig, Family, ModelConfig};
pub use error::{Error, Result};
pub use files::{FileBytes, Folder, ModelFiles, ModelSink};
pub use model::{ForwardOptions, Model, ModelOptions, Parameter, Trace};
pub use native::{DeviceMemory, RngState, device_memory, reset_device_memory, seed};
pub use optimizer::{AdamW, NamedState, Schedule, ScheduleShape, StepOutcome};
pub use rope::RopeScaling;
pub use routing::RoutedExperts;
pub use row::{PackedRow, Segment};
pub use sample::{SampleOptions, Sampled};
pub use scores::{ScoreOptions, TokenScores};
pub use settings::{AdamWSettings, TrainerSettings};
pub use step::{MicroBatchOutcome, NotFiniteReport, SegmentLogprobs, StepReport, TrainStep, TrainStepOutcome, Trainer};
pub use torch_error::TorchError;
