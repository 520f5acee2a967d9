//! The names of metrics: one spelling for SQL, TensorBoard, logs and plots. Units last.

/// The loss that was minimised: the sum of all its parts over the train step.
pub const LOSS: &str = "loss";
/// The policy's part of the loss.
pub const POLICY_LOSS: &str = "policy_loss";
/// The reference's part of the loss.
pub const KL_LOSS: &str = "kl_loss";
/// The entropy's part of the loss: not above 0.
pub const ENTROPY_LOSS: &str = "entropy_loss";
/// Tokens with gradient.
pub const TRAINED_TOKENS: &str = "trained_tokens";
/// Segments with a token with gradient.
pub const TRAINED_SEGMENTS: &str = "trained_segments";
/// Mean entropy of the trained tokens, in nats.
pub const ENTROPY: &str = "entropy";
/// Mean divergence from the reference by the estimator that is set, in nats.
pub const KL: &str = "kl";
/// Mean ratio of new over old probability.
pub const RATIO_MEAN: &str = "ratio_mean";
/// Largest ratio of new over old probability.
pub const RATIO_MAX: &str = "ratio_max";
/// Share of tokens that the lower bound took the gradient from.
pub const CLIP_FRACTION_LOW: &str = "clip_fraction_low";
/// Share of tokens that the upper bound took the gradient from.
pub const CLIP_FRACTION_HIGH: &str = "clip_fraction_high";
/// Share of tokens that the dual clip took the gradient from.
pub const DUAL_CLIP_FRACTION: &str = "dual_clip_fraction";
/// Mean divergence of the new policy from the one that the ratio is over (k3), in nats.
pub const UPDATE_KL: &str = "update_kl";
/// Mean of log μ − log π, over the tokens that μ sampled: the divergence of trainer from rollout, in nats.
pub const MISMATCH_K1: &str = "mismatch_k1";
/// The same by k3: never negative.
pub const MISMATCH_K3: &str = "mismatch_k3";
/// Mean distance of trainer's and rollout's log-probs, in nats.
pub const MISMATCH_ABS_MEAN: &str = "mismatch_abs_mean";
/// Largest distance of trainer's and rollout's log-probs, in nats.
pub const MISMATCH_ABS_MAX: &str = "mismatch_abs_max";
/// Mean ratio of trainer's over rollout's probability.
pub const MISMATCH_RATIO_MEAN: &str = "mismatch_ratio_mean";
/// Largest ratio of trainer's over rollout's probability.
pub const MISMATCH_RATIO_MAX: &str = "mismatch_ratio_max";
/// Mean ratio of trainer's over rollout's probability at the level of the correction, before its bounds.
pub const CORRECTION_RATIO_MEAN: &str = "correction_ratio_mean";
/// Largest such ratio.
pub const CORRECTION_RATIO_MAX: &str = "correction_ratio_max";
/// Mean weight of the correction.
pub const CORRECTION_MEAN: &str = "correction_mean";
/// Share of tokens whose ratio was outside of the correction's bounds: truncated or masked.
pub const CORRECTION_FRACTION: &str = "correction_fraction";
/// Mean advantage of segments.
pub const ADVANTAGE_MEAN: &str = "advantage_mean";
/// Population deviation of the advantages of segments.
pub const ADVANTAGE_STD: &str = "advantage_std";
/// Smallest advantage.
pub const ADVANTAGE_MIN: &str = "advantage_min";
/// Largest advantage.
pub const ADVANTAGE_MAX: &str = "advantage_max";
/// Mean reward of the step's trajectories.
pub const REWARD_MEAN: &str = "reward_mean";
/// Population deviation of the rewards.
pub const REWARD_STD: &str = "reward_std";
/// Smallest reward.
pub const REWARD_MIN: &str = "reward_min";
/// Largest reward.
pub const REWARD_MAX: &str = "reward_max";
/// Norm of the gradient over all parameters, before clipping.
pub const GRAD_NORM: &str = "grad_norm";
/// Learning rate of the update.
pub const LEARNING_RATE: &str = "learning_rate";
/// Tokens of the step, context too.
pub const TOKENS: &str = "tokens";
/// Mean tokens of a segment.
pub const SEGMENT_TOKENS_MEAN: &str = "segment_tokens_mean";
/// Mean tokens of a segment from the first trained one.
pub const RESPONSE_TOKENS_MEAN: &str = "response_tokens_mean";
/// Share of segments that ended at their length limit.
pub const TRUNCATED_FRACTION: &str = "truncated_fraction";
/// Tokens with mask 1 that nothing predicts, since their segment begins with them.
pub const UNPREDICTED_TOKENS: &str = "unpredicted_tokens";
/// Micro-batches of the step that were left out, since a number of one of them was none: 0, or all.
pub const SKIPPED_MICRO_BATCHES: &str = "skipped_micro_batches";
/// Train steps of the training run so far that were left out for such a number.
pub const SKIPPED_TRAIN_STEPS: &str = "skipped_train_steps";
/// Tokens of the step, context too, a second.
pub const TOKENS_PER_SECOND: &str = "tokens_per_second";
/// Duration of the step.
pub const STEP_SECONDS: &str = "step_seconds";
/// Of it, time that the step waited for its micro-batches.
pub const INPUT_STALL_SECONDS: &str = "input_stall_seconds";
/// The same as a share of the step.
pub const INPUT_STALL_FRACTION: &str = "input_stall_fraction";
/// Most memory held so far: of the device, or of the process on a CPU.
pub const PEAK_MEMORY_BYTES: &str = "peak_memory_bytes";
