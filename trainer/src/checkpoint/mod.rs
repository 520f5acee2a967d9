//! Checkpoints: what a run needs to go on as if it had never stopped, and the weights as everybody else reads them.
//!
//! Takes a [`Trainer`] and the caller's [`Progress`], gives files through a [`ModelSink`], one after the other, and takes them
//! back through [`ModelFiles`]. Refuses to publish: that files become visible together is the caller's work, and
//! `trainer/state.json` is written last.
//!
//! ```text
//!   config.json, model.safetensors (or shards and their index)     as transformers, vLLM and SGLang read them
//!   trainer/optimizer.safetensors    moments, counts of updates; under bf16 the f32 weights
//!   trainer/old_logprobs.safetensors log-probs that later steps need; only in the middle of a window of steps
//!   trainer/state.json               steps taken, progress, settings, random generators, sizes of the other files
//! ```
//!
//! A restored run gives bit-identical losses and weights to the one that went on, on the CPU with the same number of threads.
//! What else is guaranteed: `docs/checkpoints.md`.
//!
//! Read first: [`Progress`], [`Trainer::save`], [`Trainer::restore`], [`CheckpointState`], [`differences`].
//!
//! [`ModelFiles`]: crate::ModelFiles
//! [`ModelSink`]: crate::ModelSink
//! [`Trainer`]: crate::Trainer
//! [`Trainer::save`]: crate::Trainer::save
//! [`Trainer::restore`]: crate::Trainer::restore

mod differences;
mod fingerprint;
mod progress;
mod random;
mod restore;
mod save;
mod state;
mod tokenizer_files;

pub use differences::differences;
pub(crate) use differences::flat as flat_settings;
pub(crate) use fingerprint::fingerprint as model_fingerprint;
pub use progress::Progress;
pub use state::CheckpointState;
pub use tokenizer_files::{TOKENIZER_FILES, copy_tokenizer_files};

/// The optimiser's state.
const OPTIMIZER: &str = "trainer/optimizer.safetensors";
/// Log-probs that later steps need.
const OLD_LOGPROBS: &str = "trainer/old_logprobs.safetensors";
/// Everything else, and what the other files are.
const STATE: &str = "trainer/state.json";
