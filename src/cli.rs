//! The command line: what can be asked, and its help.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::commands;

/// The trajectory lake for agentic reinforcement learning: real rollouts in, SQL out.
#[derive(Debug, Parser)]
#[command(name = "dressage", version, max_term_width = 110, after_long_help = EXAMPLES)]
pub(crate) struct Cli {
    /// Flags that every command takes.
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Exit codes:
  0  done                        6  the store or service did not answer: try again
  1  a bug of dressage: report   7  a named limit was reached: raise it or ask for less
  2  fix the input or a setting  8  stored data is not what it should be: look
  3  not found: check the name   9  finished, but some records went to quarantine
  4  somebody else changed it: run it again
  130  stopped by Ctrl-C or SIGTERM

Examples:
  dressage ingest ./rollouts                          read every file of a folder into ./store
  dressage sql \"select status, count(*) from trajectories group by 1\"
  dressage show django-11099                          one trajectory, message by message
  dressage --store s3://lake/runs ls --run nightly    the same on a bucket";

/// Flags that every command takes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Everywhere")]
pub(crate) struct GlobalArgs {
    /// The store: a folder, or s3://bucket/prefix [default: ./store, or DRESSAGE_STORE]
    #[arg(long, global = true, value_name = "URI")]
    pub(crate) store: Option<String>,

    /// URL of an S3 server other than AWS
    ///
    /// MinIO, SeaweedFS, Ceph and others; addresses are then path-style. Keys come from AWS_ACCESS_KEY_ID and
    /// AWS_SECRET_ACCESS_KEY, as with every S3 tool.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) s3_endpoint: Option<String>,

    /// S3 region
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) region: Option<String>,

    /// Allow plain HTTP to the S3 server
    ///
    /// Without it an http:// endpoint is refused, because keys and data could be read by anyone on the way.
    #[arg(long, global = true)]
    pub(crate) allow_http: bool,

    /// Settings file [default: ./dressage.toml if there is one, or DRESSAGE_CONFIG]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// One JSON document on stdout instead of text
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// No notes and no progress on stderr
    ///
    /// What was asked for is printed all the same: -q silences remarks about it, never the result.
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,

    /// Colours: only on a terminal and without NO_COLOR, unless told
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: ColorChoice,
}

/// When to use colours.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ColorChoice {
    /// On a terminal, unless `NO_COLOR` is set.
    Auto,
    /// Also into a file or pipe.
    Always,
    /// Not at all.
    Never,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Ingest(commands::ingest::IngestArgs),
    Sql(commands::sql::SqlArgs),
    Ls(commands::ls::LsArgs),
    Show(commands::show::ShowArgs),
    Stats(commands::stats::StatsArgs),
    Export(commands::export::ExportArgs),
    Batches(commands::batches::BatchesArgs),
    Replay(commands::replay::ReplayArgs),
    Explain(commands::explain::ExplainArgs),
    Plan(commands::plan::PlanArgs),
    Train(Box<commands::train_args::TrainArgs>),
    Plot(commands::plot::PlotArgs),
    Store(commands::store::StoreArgs),
    Doctor(commands::doctor::DoctorArgs),
    Synth(commands::synth::SynthArgs),
    Config(commands::config::ConfigArgs),
    Completions(commands::completions::CompletionsArgs),
    #[command(hide = true)]
    ReferencePages(commands::reference_pages::ReferencePagesArgs),
}
