//! What `dressage train` is told on its command line.

use std::path::PathBuf;

use clap::Args;

use crate::settings::key_value;

/// Train a model on the rollouts of a store
///
/// Plans what was not trained on yet (or takes --plan), streams it, steps, and writes metrics, checkpoints and, at the
/// end, weights that transformers, vLLM and SGLang load. The same command goes on where it was stopped or killed:
/// a train step counts as trained when its checkpoint is published, and nothing is trained twice or left out. SIGTERM or
/// Ctrl-C finishes the train step, makes a checkpoint and ends. Every setting of --config is explained in docs/train.md.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dressage train --config train.toml --model models/qwen3-0.6b --out weights
  dressage train --model m --out w --global-batch-size 64 --max-tokens-per-micro-batch 16384 --estimator rloo
  dressage train --config train.toml --plan 4f2a --set optimizer.learning_rate=2e-6 --set loss.clip_high=0.28
  dressage sql \"select train_step, metric, value from train_metrics where metric in ('loss', 'reward_mean')\"
  dressage plot --train-run w -o curves.svg")]
pub(crate) struct TrainArgs {
    /// The model to begin with: a folder or s3://… as Hugging Face lays it out
    #[arg(long, value_name = "DIR|URI")]
    pub(crate) model: Option<String>,

    /// Where the weights go at the end: a folder or s3://…
    #[arg(long, value_name = "DIR|URI")]
    pub(crate) out: Option<String>,

    /// Name of the training run [default: the last part of --out]
    ///
    /// Checkpoints and metrics are found under it, and a run of that name is gone on with.
    #[arg(long, value_name = "NAME")]
    pub(crate) train_run: Option<String>,

    /// Train this plan instead of making plans
    #[arg(long, value_name = "ID")]
    pub(crate) plan: Option<String>,

    /// Only this run of rollouts
    #[arg(long, value_name = "RUN", conflicts_with = "plan")]
    pub(crate) run: Option<String>,

    /// Trajectories of a train step
    #[arg(long, value_name = "N", conflicts_with = "plan")]
    pub(crate) global_batch_size: Option<u64>,

    /// Tokens of a micro-batch; a longer sample has one to itself
    #[arg(long, value_name = "N", conflicts_with = "plan")]
    pub(crate) max_tokens_per_micro_batch: Option<u64>,

    /// How rewards become advantages: a name, or a .sql file
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "plan")]
    pub(crate) estimator: Option<String>,

    /// Keep only the trajectories or groups that this file's query gives
    #[arg(long, value_name = "FILE", conflicts_with = "plan")]
    pub(crate) filter: Option<String>,

    /// End after so many train steps of the run
    #[arg(long, value_name = "N")]
    pub(crate) train_steps_max: Option<u64>,

    /// Folder of TensorBoard event files
    #[arg(long, value_name = "DIR")]
    pub(crate) tensorboard: Option<PathBuf>,

    /// cpu, cuda, cuda:N or auto
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Option<String>,

    /// Set a key of docs/train.md (optimizer.learning_rate=1e-6) or a variable of SQL (grader=judge-2)
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) set: Vec<(String, String)>,
}
