//! `dressage export`: trajectories out of the store, one whole segment a row.

mod files;
mod json_lines;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, ValueEnum};
use dressage_segmenter::RolloutOptions;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::Context;
use super::ls::FilterArgs;
use super::store_access::{QueryArgs, block_on};
use crate::destination::{self, is_stdout};
use crate::failure::{Failure, Outcome};
use crate::interrupt;
use crate::output::{bytes_text, counted};

const STOPPING: &str = "stopping: what was written is thrown away, and what was there before stays";

/// Write trajectories to files that other tools read
///
/// One row is one segment with its tokens in one piece. `parquet`, `arrow` and `jsonl` can be ingested again and give
/// the same segments; `hf-chat` is `messages` for supervised fine-tuning. A file or folder is there with everything in
/// it or not at all: after a failure or Ctrl-C (exit code 130) an older file is as it was.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dressage export --to parquet out/                        out/run=<run>/part-0000.parquet
  duckdb -c \"select run_id, count(*) from 'out/**/*.parquet' group by 1\"
  dressage export --to jsonl - --where 'reward > 0' | zstd > good.jsonl.zst
  dressage export --to hf-chat sft.jsonl --run nightly --status completed
  dressage export --to arrow all.arrow && dressage ingest all.arrow --store copy")]
pub(crate) struct ExportArgs {
    /// Where to: a folder for parquet, a file (or - for standard output) for the others
    #[arg(value_name = "PATH")]
    path: PathBuf,

    /// The format
    #[arg(long, value_name = "FORMAT")]
    to: ExportFormat,

    #[command(flatten)]
    filter: FilterArgs,

    #[command(flatten)]
    query: QueryArgs,
}

/// What `export` writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// Parquet files in a folder a run: for DuckDB, Polars, pandas, PyTorch.
    Parquet,
    /// Our JSON lines, one trajectory a line.
    Jsonl,
    /// One Arrow IPC file.
    Arrow,
    /// JSON lines with `messages` (and `tools`), one segment a line; files that messages inline are left out.
    HfChat,
}

/// Where rows go.
pub(super) trait RowSink {
    /// Takes some rows of the interchange schema; those of one trajectory are adjacent, over calls too.
    fn write(&mut self, rows: &arrow::array::RecordBatch) -> Result<()>;
    /// Ends the files and says how many bytes they have.
    fn finish(self: Box<Self>) -> Result<u64>;
}

pub(crate) fn run(mut context: Context, args: &ExportArgs) -> Result<Outcome> {
    let settings = context.query_settings(&args.query)?;
    let to_stdout = is_stdout(&args.path);
    if to_stdout && args.to == ExportFormat::Parquet {
        return Err(Failure::invalid("Parquet is a folder of files: name one"));
    }
    let output = context.output;
    let progress = if output.quiet { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
    progress.set_style(ProgressStyle::with_template("{spinner} {msg}")?);
    let options = RolloutOptions {
        condition: args.filter.sql(),
        tokens: args.to != ExportFormat::HfChat,
        plain_messages: args.to == ExportFormat::HfChat,
        ..RolloutOptions::default()
    };
    let write = async {
        let session = context.open_session(&settings, &args.query).await?;
        let mut rollouts = session.rollouts(options).await?;
        // only now: a query that is not valid leaves nothing behind
        let mut sink = create(args.to, &args.path)?;
        let mut segments = 0_u64;
        while let Some(batch) = rollouts.next_batch().await? {
            segments += batch.num_rows() as u64;
            sink.write(&batch)?;
            progress.set_message(counted(segments, "segment"));
        }
        anyhow::Ok(Some((segments, sink.finish()?)))
    };
    let written = block_on(async {
        let stop = interrupt::listen(output, STOPPING, destination::patience(&args.path));
        tokio::select! {
            written = write => written,
            () = stop.asked() => Ok(None),
        }
    })?;
    progress.finish_and_clear();
    let Some((segments, bytes)) = written else { return Ok(Outcome::Stopped) };
    // standard output may be the export itself
    if output.json && !to_stdout {
        output.json(&json!({ "path": args.path, "segments": segments, "bytes": bytes }))?;
    } else {
        output.note(&format!("wrote {}, {}", counted(segments, "segment"), bytes_text(bytes)));
    }
    Ok(Outcome::Done)
}

fn create(format: ExportFormat, path: &Path) -> Result<Box<dyn RowSink>> {
    Ok(match format {
        ExportFormat::Parquet => Box::new(files::ParquetFolder::create(path)?),
        ExportFormat::Arrow => Box::new(files::ArrowFile::create(path)?),
        ExportFormat::Jsonl => Box::new(json_lines::Trajectories::create(path)?),
        ExportFormat::HfChat => Box::new(json_lines::Chats::create(path)?),
    })
}
