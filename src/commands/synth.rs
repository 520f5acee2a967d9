//! `dressage synth`: rollouts made up to order.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};
use dressage_ingest::synth::{SynthFormat, SynthReport, SynthSettings, synth};

use super::Context;
use super::store_access::block_on;
use crate::destination::{self, Destination, is_stdout};
use crate::failure::Outcome;
use crate::interrupt;
use crate::output::{bytes_text, counted};

const STOPPING: &str = "stopping: what was made is thrown away, and what was there before stays";

/// Make up rollouts, as a load for tests and benchmarks
///
/// The same seed gives the same bytes, and a longer load begins with the shorter one. The file is there with everything in
/// it or not at all: after a failure or Ctrl-C (exit code 130) an older one is as it was.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dressage synth load.jsonl --trajectories 1000 --tokens 2000
  dressage synth r3.arrow --trajectories 64 --tokens 16384 --layers 40 --topk 8 --experts 128
  dressage synth - --trajectories 10000 | dressage ingest -")]
pub(crate) struct SynthArgs {
    /// The file (.jsonl, .arrow, .parquet), or - for standard output
    #[arg(value_name = "PATH")]
    path: PathBuf,

    /// The format [default: by the file's name]
    #[arg(long, value_name = "FORMAT")]
    format: Option<LoadFormat>,

    /// Trajectories
    #[arg(long, value_name = "N", default_value_t = SynthSettings::default().trajectories)]
    trajectories: u64,

    /// Trajectories of a group (and instance)
    #[arg(long, value_name = "N", default_value_t = SynthSettings::default().group_size)]
    group_size: u32,

    /// Segments of a trajectory
    #[arg(long, value_name = "N", default_value_t = SynthSettings::default().segments)]
    segments: u32,

    /// Tokens of a trajectory, over all its segments
    #[arg(long, value_name = "N", default_value_t = SynthSettings::default().tokens)]
    tokens: u32,

    /// Spread of the lengths: standard deviation of their logarithm
    #[arg(long, value_name = "X", default_value_t = SynthSettings::default().length_spread)]
    length_spread: f64,

    /// Part of the tokens that is context, 0 to 1
    #[arg(long, value_name = "X", default_value_t = SynthSettings::default().context_share)]
    context_share: f64,

    /// Token ids lie below this
    #[arg(long, value_name = "N", default_value_t = SynthSettings::default().vocabulary)]
    vocabulary: u32,

    /// Layers with router choices; 0 leaves them out
    #[arg(long, value_name = "N", default_value_t = SynthSettings::default().layers)]
    layers: u32,

    /// Experts a token and layer
    #[arg(long, value_name = "N", default_value_t = SynthSettings::default().topk)]
    topk: u32,

    /// Experts a layer
    #[arg(long, value_name = "N", default_value_t = SynthSettings::default().experts)]
    experts: u32,

    /// Skew of the experts' popularity: standard deviation of its logarithm
    #[arg(long, value_name = "X", default_value_t = SynthSettings::default().skew)]
    skew: f64,

    /// Part of the choices that follows a cluster of tokens, 0 to 1
    #[arg(long, value_name = "X", default_value_t = SynthSettings::default().cluster_share)]
    cluster_share: f64,

    /// Part of the trajectories that nobody graded, 0 to 1
    #[arg(long, value_name = "X", default_value_t = SynthSettings::default().ungraded_share)]
    ungraded_share: f64,

    /// Part of the trajectories that failed or were aborted, 0 to 1
    #[arg(long, value_name = "X", default_value_t = SynthSettings::default().dead_share)]
    dead_share: f64,

    /// Versions that the policy went through; 0 leaves them out
    #[arg(long, value_name = "N", default_value_t = SynthSettings::default().weight_versions)]
    weight_versions: u32,

    /// Tokens only, no messages
    #[arg(long)]
    no_messages: bool,

    /// The run's id
    #[arg(long, value_name = "RUN", default_value_t = SynthSettings::default().run_id)]
    run: String,

    /// Equal seeds give equal bytes
    #[arg(long, value_name = "N", default_value_t = SynthSettings::default().seed)]
    seed: u64,
}

/// What `synth` writes.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum LoadFormat {
    /// Our JSON lines, one trajectory a line.
    Jsonl,
    /// An Arrow IPC file.
    Arrow,
    /// A Parquet file.
    Parquet,
}

pub(crate) fn run(context: &Context, args: &SynthArgs) -> Result<Outcome> {
    let settings = SynthSettings {
        trajectories: args.trajectories,
        group_size: args.group_size,
        segments: args.segments,
        tokens: args.tokens,
        length_spread: args.length_spread,
        context_share: args.context_share,
        vocabulary: args.vocabulary,
        layers: args.layers,
        topk: args.topk,
        experts: args.experts,
        skew: args.skew,
        cluster_share: args.cluster_share,
        ungraded_share: args.ungraded_share,
        dead_share: args.dead_share,
        weight_versions: args.weight_versions,
        messages: !args.no_messages,
        run_id: args.run.clone(),
        seed: args.seed,
    };
    let format = match args.format {
        Some(LoadFormat::Jsonl) => SynthFormat::Jsonl,
        Some(LoadFormat::Arrow) => SynthFormat::Arrow,
        Some(LoadFormat::Parquet) => SynthFormat::Parquet,
        None => SynthFormat::of_name(&args.path.to_string_lossy()),
    };
    let to_stdout = is_stdout(&args.path);
    let out = Destination::create_binary(&args.path)?;
    let made = block_on(async {
        let stop = interrupt::listen(context.output, STOPPING, destination::patience(&args.path));
        let halt = out.halt();
        let mut making = tokio::task::spawn_blocking(move || make(&settings, format, out));
        tokio::select! {
            made = &mut making => made?.map(Some),
            () = stop.asked() => {
                halt.set();
                // its next write fails, and what it holds goes with it
                let _ = making.await;
                Ok(None)
            }
        }
    })?;
    let Some(report) = made else { return Ok(Outcome::Stopped) };
    // standard output may be the load itself
    if context.output.json && !to_stdout {
        context.output.json(&report)?;
    } else {
        context.output.note(&format!(
            "made {}, {}, {}: {}",
            counted(report.trajectories, "trajectory"),
            counted(report.segments, "segment"),
            counted(report.tokens, "token"),
            bytes_text(report.bytes)
        ));
    }
    Ok(Outcome::Done)
}

fn make(settings: &SynthSettings, format: SynthFormat, mut out: Destination) -> Result<SynthReport> {
    let witness = out.witness();
    let report = witness.judge(synth(settings, format, &mut out).map_err(Into::into))?;
    out.keep()?;
    Ok(report)
}
