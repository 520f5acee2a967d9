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
//! Of several ranks that share out the optimiser each writes its part, and its own log-probs:
//!
//! ```text
//!   trainer/optimizer-00001-of-00004.safetensors, …      rank 0's numbers of each parameter, counted through, …
//!   trainer/old_logprobs-00001-of-00004.safetensors, …
//! ```
//!
//! Any number of ranks restores it, at any level of `[parallel] shard`; each reads only its own numbers of them.
//!
//! A restored run gives bit-identical losses and weights to the one that went on, on the CPU with the same number of threads and
//! of ranks.
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
mod optimizer_files;
mod progress;
mod random;
mod restore;
mod save;
mod state;
mod together;
mod tokenizer_files;

pub use differences::differences;
pub(crate) use differences::flat as flat_settings;
pub(crate) use fingerprint::fingerprint as model_fingerprint;
pub use progress::Progress;
pub use state::CheckpointState;
pub use tokenizer_files::{TOKENIZER_FILES, copy_tokenizer_files};

/// The optimiser's state.
const OPTIMIZER: &str = "trainer/optimizer";
/// Log-probs that later steps need.
const OLD_LOGPROBS: &str = "trainer/old_logprobs";
/// Everything else, and what the other files are.
const STATE: &str = "trainer/state.json";

/// A file's name, of one or of a rank's among several.
fn file_of(stem: &str, rank: usize, n_files: usize) -> String {
    match n_files {
        1 => format!("{stem}.safetensors"),
        _ => format!("{stem}-{:05}-of-{n_files:05}.safetensors", rank + 1),
    }
}
