//! What a user tunes about training: one section of `train.toml` a file, and [`TrainerSettings`] for all of them.
//!
//! Unknown keys are refused, so are values that cannot be and keys that the chosen kind does not read, each with what is
//! allowed: a setting that silently does nothing costs a training run. Formulas beside settings: `docs/losses.md`.
//!
//! ```toml
//! [model]
//! kind = "f32"                  # bf16
//! device = "auto"               # cpu, cuda, cuda:N
//! recompute = false
//! logits_chunk_bytes_max = 134217728
//! temperature = 1.0
//!
//! [optimizer]
//! learning_rate = 1e-6
//! beta1 = 0.9
//! beta2 = 0.999
//! eps = 1e-8
//! weight_decay = 0.01
//! grad_norm_max = 1.0           # 0 clips nothing
//!
//! [schedule]
//! shape = "constant"            # linear, cosine
//! warmup_steps = 0
//! total_steps = 0               # of the run, for a falling rate
//! final_share = 0.0
//!
//! [step]
//! on_not_finite = "stop"        # skip
//! train_steps_per_policy = 1
//! report_entropy = false
//!
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
//!
//! [parallel]                    # not read by a rank that trains alone
//! shard = "none"                # optimizer, gradients, parameters
//! bucket_bytes_max = 26214400
//! collective_timeout_s = 600
//! ```
//!
//! Read first: [`TrainerSettings`], then the section in question.

mod checked;
mod correction;
mod error;
mod kl;
mod loss;
mod model;
mod optimizer;
mod parallel;
mod step;
mod trainer;

pub(crate) use checked::checked;
pub use correction::{Correction, CorrectionSettings, RatioBounds, RatioLevel};
pub use error::SettingsError;
pub(crate) use error::number;
pub use kl::{KlEstimator, KlSettings};
pub use loss::{LossKind, LossSettings, OldLogprobs, Policy};
pub use model::{DeviceChoice, ModelSettings, WeightKind};
pub use optimizer::AdamWSettings;
pub use parallel::{ParallelSettings, ShardLevel};
pub use step::{OnNotFinite, StepSettings};
pub use trainer::TrainerSettings;
