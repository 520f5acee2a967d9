//! `dressage batches`: the micro-batches of one rank, as a stream that any Arrow tool reads.

mod give;
pub(crate) mod record;

use std::io::{IsTerminal, stderr, stdout};
use std::ops::Range;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use clap::{Args, ValueEnum};
use dressage_segmenter::{BatchColumn, Ledger, StoredPlan, StreamOptions};
use dressage_storage::{IoStats, Lake};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::Context;
use super::store_access::block_on;
use crate::destination::{self, is_stdout};
use crate::failure::Outcome;
use crate::interrupt;
use crate::output::{Output, bytes_text, counted};
use crate::settings::ByteCount;
use give::Giver;
pub(crate) use give::Told;
pub(crate) use record::Recorder;

const STOPPING: &str = "stopping after this micro-batch";

/// Stream the micro-batches of one rank of a plan
///
/// One record batch a micro-batch, one row a sample, in plan order; a micro-batch in which this rank has nothing to do is
/// a batch of no rows. Only this rank's rows are read, ahead of the consumer, within --prefetch-bytes. What a
/// micro-batch was when it was first streamed is recorded as a hash in the store: `dressage replay` compares with it.
/// A file (-o) is there with everything in it or not at all: after a failure or Ctrl-C (exit code 130) an older one is as
/// it was.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dressage batches --plan 4f2a --rank 0 --world-size 8 | python train.py     pyarrow.ipc.open_stream(sys.stdin.buffer)
  dressage batches --plan 4f2a --rank 3 --world-size 8 --train-step 10..20 -o part.arrows
  dressage batches --plan 4f2a --rank 0 --world-size 8 --format summary      sizes and hashes, no payload
  dressage batches --plan 4f2a --rank 0 --world-size 8 --columns token_ids,loss_mask --format json | head -1")]
pub(crate) struct BatchesArgs {
    #[command(flatten)]
    place: PlanArgs,

    /// The data-parallel rank, counted from 0
    #[arg(long, value_name = "R")]
    rank: u32,

    /// Ranks of the job: must be what the plan was made for
    #[arg(long, value_name = "W")]
    world_size: u32,

    /// Only these train steps: one (7) or several (7..12, without the last)
    #[arg(long, value_name = "N|A..B", value_parser = train_steps)]
    train_step: Option<Range<u32>>,

    /// Only these columns, separated by commas; hashes are then not recorded
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    columns: Vec<String>,

    /// Also the router choices, decoded
    #[arg(long)]
    with_experts: bool,

    /// How to give them [default: arrow into a pipe or file, summary on a terminal]
    #[arg(long, value_name = "FORMAT")]
    format: Option<BatchFormat>,

    /// Where to: a file, or - for standard output
    #[arg(long, short = 'o', value_name = "FILE", default_value = "-")]
    output: PathBuf,

    /// Bytes of micro-batches to hold ahead of the consumer [default: 256MiB]
    ///
    /// More hides a slower store; less takes less memory. A micro-batch that is larger by itself is read alone.
    #[arg(long, value_name = "SIZE")]
    prefetch_bytes: Option<ByteCount>,
}

/// Which plan: what every command over a plan takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct PlanArgs {
    /// The plan's id, or as much of it as no other plan begins with
    #[arg(long, value_name = "ID")]
    pub(crate) plan: String,
}

/// How micro-batches are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BatchFormat {
    /// An Arrow IPC stream, one record batch each.
    Arrow,
    /// One JSON object a line, one line each, for people.
    Json,
    /// A line each: sizes and hash; nothing of what is in them.
    Summary,
}

/// `7` or `7..12`.
pub(crate) fn train_steps(text: &str) -> Result<Range<u32>, String> {
    let number = |part: &str| part.trim().parse::<u32>();
    let range = match text.split_once("..") {
        None => number(text).map(|n| n..n.saturating_add(1)),
        Some((from, to)) => number(from).and_then(|from| Ok(from..number(to)?)),
    };
    match range {
        Ok(range) if range.start < range.end => Ok(range),
        _ => Err("it is a train step like 7, or several like 7..12".to_owned()),
    }
}

impl Context {
    /// The plan that is meant, and the store it is in.
    pub(crate) async fn open_plan(&self, place: &PlanArgs) -> Result<(Lake, StoredPlan)> {
        let settings = self.layers.settings()?;
        let lake = self.open_lake(&settings).await?;
        let plan = StoredPlan::open(&lake, &place.plan).await?;
        Ok((lake, plan))
    }
}

/// What was given, all in all.
#[derive(Debug, Default, Serialize)]
struct Report {
    plan_id: String,
    dp_rank: u32,
    world_size: u32,
    n_micro_batches: u64,
    n_samples: u64,
    n_tokens: i64,
    mask_sum: i64,
    read_bytes: u64,
    read_requests: u64,
    seconds: f64,
    peak_rss_bytes: u64,
    /// Whether each micro-batch was compared with its record, or recorded.
    hashes_recorded: bool,
    stopped: bool,
    micro_batches: Vec<Told>,
}

pub(crate) fn run(mut context: Context, args: &BatchesArgs) -> Result<Outcome> {
    context.layers.flag("batches.prefetch_bytes", "--prefetch-bytes", args.prefetch_bytes)?;
    let columns = args.columns.iter().map(|name| BatchColumn::parse(name.trim())).collect::<Result<Vec<_>, _>>()?;
    let to_stdout = is_stdout(&args.output);
    let format = match args.format {
        Some(format) => format,
        None if to_stdout && (context.output.json || stdout().is_terminal()) => BatchFormat::Summary,
        None => BatchFormat::Arrow,
    };
    let options = StreamOptions {
        train_steps: args.train_step.clone(),
        columns: (!columns.is_empty()).then_some(columns),
        with_experts: args.with_experts,
        prefetch_bytes: context.layers.settings()?.batches.prefetch_bytes.0,
        ..StreamOptions::of_rank(args.rank, args.world_size)
    };
    let output = context.output;
    let report = block_on(stream(&context, args, options, format))?;
    if format == BatchFormat::Summary && output.json {
        output.json(&report)?;
    }
    output.note(&format!(
        "{}, {}, {} in {:.2} s; read {}",
        counted(report.n_micro_batches, "micro-batch"),
        counted(report.n_samples, "sample"),
        counted(report.n_tokens, "token"),
        report.seconds,
        bytes_text(report.read_bytes),
    ));
    Ok(if report.stopped { Outcome::Stopped } else { Outcome::Done })
}

async fn stream(context: &Context, args: &BatchesArgs, options: StreamOptions, format: BatchFormat) -> Result<Report> {
    let (lake, plan) = context.open_plan(&args.place).await?;
    let started = Instant::now();
    let before = lake.io_stats().await?;
    let ledger = Ledger::of(&plan, Some(args.rank), options.train_steps.clone()).await?;
    let mut recorder = Recorder::new(lake.clone(), ledger, context.output);
    let mut stream = plan.stream(options).await?;
    let mut giver = Giver::create(format, context.output.json, &args.output, &plan, &stream)?;
    let bar = bar(context.output, stream.micro_batch_counts().iter().map(|n| *n as u64).sum());
    let stop = interrupt::listen(context.output, STOPPING, destination::patience(&args.output));
    let mut report = Report {
        plan_id: plan.plan_id().to_owned(),
        dp_rank: args.rank,
        world_size: args.world_size,
        ..Report::default()
    };
    let mut hashed = true;
    let given = async {
        loop {
            let next = tokio::select! {
                next = stream.next() => next?,
                () = stop.asked() => {
                    report.stopped = true;
                    None
                }
            };
            let Some(micro_batch) = next else { return anyhow::Ok(()) };
            // one that is not what it was is not given out
            hashed &= recorder.check(&micro_batch)?;
            giver.give(&micro_batch)?;
            report.n_micro_batches += 1;
            report.n_samples += micro_batch.batch.num_rows() as u64;
            report.n_tokens += micro_batch.n_tokens;
            report.mask_sum += micro_batch.mask_sum;
            if format == BatchFormat::Summary && context.output.json {
                report.micro_batches.push(Told::of(&micro_batch));
            }
            bar.inc(1);
            recorder.write_if_due().await;
        }
    }
    .await;
    bar.finish_and_clear();
    // also where the consumer went away: what it got, it got
    let recorded = recorder.finish().await;
    given?;
    giver.finish(report.stopped)?;
    let read = since(lake.io_stats().await?, before);
    report.read_bytes = read.read_bytes;
    report.read_requests = read.read_requests;
    report.seconds = started.elapsed().as_secs_f64();
    report.peak_rss_bytes = dressage_ingest::peak_rss_bytes();
    report.hashes_recorded = recorded && hashed;
    Ok(report)
}

/// What was read since.
pub(crate) fn since(now: IoStats, before: IoStats) -> IoStats {
    IoStats {
        read_requests: now.read_requests.saturating_sub(before.read_requests),
        read_bytes: now.read_bytes.saturating_sub(before.read_bytes),
        written_bytes: now.written_bytes.saturating_sub(before.written_bytes),
    }
}

/// Progress on stderr, where a person looks at it and stdout is not the same terminal.
fn bar(output: Output, total: u64) -> ProgressBar {
    if output.quiet || !stderr().is_terminal() || stdout().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(total);
    if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos}/{len} micro-batches  {per_sec}  ETA {eta}") {
        bar.set_style(style);
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn train_steps_are_one_or_a_range() {
        assert_eq!(train_steps("7"), Ok(7..8));
        assert_eq!(train_steps("7..12"), Ok(7..12));
        for bad in ["", "7..7", "9..7", "-1", "a..b", "7.."] {
            assert!(train_steps(bad).is_err(), "{bad}");
        }
    }
}
