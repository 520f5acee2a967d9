//! What a user tunes about the loss: the sections `[loss]`, `[correction]` and `[kl]` of `train.toml`.
//!
//! Unknown keys are refused, so are values that cannot be and keys that the chosen kind does not read, each with what is
//! allowed: a setting that silently does nothing costs a training run. Formulas beside settings: `docs/losses.md`.
//!
//! ```toml
//! [loss]
//! kind = "ppo_clip"             # gspo, cispo, reinforce, cross_entropy
//! clip_low = 0.2
//! clip_high = 0.28
//! old_logprobs = "recomputed"   # or "rollout"
//! entropy_coefficient = 0.0
//!
//! [correction]
//! kind = "truncate"             # none, mask
//! level = "token"               # sequence, geometric
//! upper = 2.0
//!
//! [kl]
//! coefficient = 0.001
//! estimator = "k3"              # k1, k2
//! ```
//!
//! Read first: [`LossSettings`], [`CorrectionSettings`], [`KlSettings`].

mod correction;
mod error;
mod kl;
mod loss;

pub use correction::{Correction, CorrectionSettings, RatioBounds, RatioLevel};
pub use error::SettingsError;
pub use kl::{KlEstimator, KlSettings};
pub use loss::{LossKind, LossSettings, OldLogprobs, Policy};
