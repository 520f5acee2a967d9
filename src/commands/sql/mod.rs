//! `dressage sql`: a query, a file of them, or a prompt.

mod completion;
mod describe;
mod prompt;
mod result;
mod text;

use std::io::{self, IsTerminal, Read};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use dressage_segmenter::{Outcome as StatementOutcome, Session};

use super::Context;
use super::store_access::{NAMED, QueryArgs, block_on, note_unknown, session_settings};
use crate::destination::{self, is_stdout};
use crate::failure::{Failure, Outcome};
use crate::interrupt;
use crate::output::counted;
use crate::settings::{Settings, key_value};

const STOPPING: &str = "stopping: what was written is thrown away, and what was there before stays";

/// Ask questions in SQL
///
/// Tables: trajectories, steps, segments, messages, groups, anchors, samples, drops, rewards, contents,
/// weight_versions, plans, batches, snapshots, ingest_log, quarantine; `\d` lists them, `\d NAME` the columns of one.
/// Read-only: CREATE VIEW lasts for the session.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dressage sql \"select status, count(*), avg(reward) from trajectories group by status\"
  dressage sql                                             the prompt: history, completion, \\d, \\timing, \\?
  dressage sql -f views.sql \"select * from hard_ones\" --format csv > hard.csv
  dressage sql --attach tasks=tasks.parquet \"select * from trajectories join tasks using (instance_id)\"
  dressage sql --as-of nightly-7 --set grader=judge-2 \"select avg(reward) from trajectories\"
  dressage sql --estimator rloo --set global_batch_size=128 \"select * from samples limit 5\"
  dressage sql --tokenizer qwen3.json \"select decode(token_ids) from steps limit 1\"")]
pub(crate) struct SqlArgs {
    /// The query; without one, a prompt (or standard input, if that is no terminal)
    query: Option<String>,

    /// Run the statements of this file first; may be given several times
    #[arg(long = "file", short = 'f', value_name = "FILE")]
    files: Vec<PathBuf>,

    /// How to print [default: table; --json is --format json]
    #[arg(long, value_name = "FORMAT")]
    format: Option<ResultFormat>,

    /// Write the result to this file, which is there with all of it or not at all
    #[arg(long, short = 'o', value_name = "FILE")]
    output: Option<PathBuf>,

    /// Also join another file: NAME=PATH.parquet, .csv, .json or .ndjson
    #[arg(long, value_name = "NAME=PATH", value_parser = key_value)]
    attach: Vec<(String, String)>,

    /// Stop after so many rows
    #[arg(long, value_name = "N")]
    row_limit: Option<u64>,

    /// Say how long each query took
    #[arg(long)]
    timing: bool,

    #[command(flatten)]
    asking: QueryArgs,
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ResultFormat {
    /// Columns side by side, for people.
    Table,
    /// One JSON array of objects.
    Json,
    /// One JSON object a line.
    Ndjson,
    /// Comma-separated values with a header.
    Csv,
    /// An Apache Parquet file (with --output, or into a pipe).
    Parquet,
}

pub(crate) fn run(mut context: Context, args: &SqlArgs) -> Result<Outcome> {
    let settings = context.query_settings(&args.asking)?;
    let format = match args.format {
        Some(format) => format,
        None if context.output.json => ResultFormat::Json,
        None => ResultFormat::Table,
    };
    let at_prompt = args.query.is_none() && io::stdin().is_terminal() && args.output.is_none();
    let mut text = String::new();
    for file in &args.files {
        let part = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        text.push_str(&part);
        text.push_str("\n;\n");
    }
    match &args.query {
        Some(query) => text.push_str(query),
        None if !at_prompt && args.files.is_empty() => {
            io::stdin().read_to_string(&mut text).context("cannot read the query from standard input")?;
        }
        None => {}
    }
    if format == ResultFormat::Parquet && args.output.is_none() && io::stdout().is_terminal() {
        return Err(Failure::invalid("Parquet is no text: name a file with --output"));
    }
    if at_prompt {
        return prompt::run(&context, &settings, args, &text, format);
    }
    let query = async {
        let session = open(&context, &settings, args, args.row_limit).await?;
        let mut sink = result::Sink::new(format, args.output.clone());
        let timing = args.timing;
        let output = context.output;
        for part in text::parts(&text) {
            let statements = match part {
                text::Part::Statements(statements) => statements,
                text::Part::Command(command) => {
                    let said = describe::command(&session, command).await?.ok_or_else(|| not_here(command))?;
                    output.text(&said)?;
                    continue;
                }
            };
            session
                .script::<anyhow::Error>(statements, async |outcome| {
                    match outcome {
                        StatementOutcome::Rows(rows) => {
                            let started = std::time::Instant::now();
                            let printed = sink.write(rows).await?;
                            if printed.truncated {
                                output.note(&format!("cut after {} (--row-limit)", counted(printed.rows, "row")));
                            }
                            if timing {
                                output.note(&result::timing(printed.rows, started.elapsed()));
                            }
                        }
                        StatementOutcome::Done(what) => output.note(&what),
                    }
                    Ok(())
                })
                .await?;
        }
        Ok(Outcome::Done)
    };
    block_on(async {
        let Some(file) = args.output.as_deref().filter(|file| !is_stdout(file)) else { return query.await };
        let stop = interrupt::listen(context.output, STOPPING, destination::patience(file));
        tokio::select! {
            done = query => done,
            () = stop.asked() => Ok(Outcome::Stopped),
        }
    })
}

fn not_here(command: &str) -> anyhow::Error {
    let name = command.split_whitespace().next().unwrap_or_default();
    Failure::invalid(format!(
        "\\{name} is no SQL, and not one of the commands that work outside of the prompt: \\d, \\d NAME, \\df and \\set; \
         `dressage sql` without a query is the prompt"
    ))
}

async fn open(context: &Context, settings: &Settings, args: &SqlArgs, row_limit: Option<u64>) -> Result<Session> {
    let snapshot = context.open_snapshot(settings, args.asking.as_of.as_deref()).await?;
    let mut wanted = session_settings(settings, &args.asking);
    wanted.row_limit = row_limit;
    let session = Session::open(snapshot, wanted)?;
    note_unknown(context.output, &session, &NAMED).await;
    for (name, path) in &args.attach {
        if path.starts_with("s3://") {
            session.attach_object(name, path, &context.store_settings(settings).s3).await?;
        } else {
            session.attach(name, path).await?;
        }
    }
    Ok(session)
}
