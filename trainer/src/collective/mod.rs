//! Several processes that train one model: how they find each other, and what they do together.
//!
//! Takes tensors on each rank, gives their sum, maximum, parts or copies on all of them. Refuses to carry rollouts: data comes
//! from the store, and only gradients, weights and numbers of a step go between ranks. The transport is libtorch's own (c10d:
//! gloo on the CPU), the same as PyTorch's.
//!
//! ```text
//!   torchrun, srun, …                                      ProcessGroup (a Collectives)
//!     variables ──▶ Rendezvous ── join ──▶ TCP store ──▶     all_reduce  reduce_scatter  all_gather
//!                                  fingerprints, clocks       broadcast   barrier
//!                                  a sign of life of each ────▶ who is named when an operation fails
//! ```
//!
//! A rank that dies, stalls or differs is an error on every other one within [`Collectives::timeout`]: the error says which rank
//! reports it, in which operation and phase, and which ranks gave no sign of life. Nothing is tried again: a group that failed
//! stays failed, and its ranks start anew from a checkpoint.
//!
//! Read first: [`Collectives`], [`Rendezvous`], [`CollectiveError`].

mod alone;
mod collectives;
mod error;
mod fingerprint;
mod life;
mod nodelist;
mod process_group;
mod rendezvous;
mod text;

pub use alone::Alone;
pub use collectives::{Collectives, Pending, Reduce};
pub use error::{CollectiveError, Operation};
pub use fingerprint::Fingerprint;
pub use process_group::{GroupOptions, ProcessGroup};
pub use rendezvous::{Launcher, Rendezvous};
pub(crate) use text::exchange_text;
