//! `dressage store`: making, looking at and keeping up a store.

mod page;

use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand};
use dressage_schemas::Table;
use dressage_storage::maintain::{self, CheckOptions, CompactOptions, GcOptions, snapshots};
use dressage_storage::{Lake, checkpoints};
use serde::Serialize;

use super::Context;
use super::store_access::block_on;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::settings::TimeSpan;

/// Make, look at and keep up a store
#[derive(Debug, Args)]
pub(crate) struct StoreArgs {
    #[command(subcommand)]
    command: StoreCommand,
}

#[derive(Debug, Subcommand)]
enum StoreCommand {
    /// Make a store, or look at the one that is there
    ///
    /// Creates the tables and races 32 conditional writes of one key: a server that ignores the condition would lose
    /// rows of two writers without an error, and is refused.
    #[command(after_long_help = "\
Examples:
  dressage store init --store ./lake
  dressage store init --store s3://bucket/lake --s3-endpoint http://127.0.0.1:9000 --allow-http")]
    Init,
    /// Say what a store is and what its tables hold
    Info,
    /// List the versions of the tables
    Versions {
        /// Only this table
        #[arg(long, value_name = "TABLE", value_parser = table)]
        table: Option<Table>,
    },
    /// Name the versions of now, for --as-of; tagged ones are never collected
    #[command(after_long_help = "\
Examples:
  dressage store snapshot --tag before-regrade
  dressage sql --as-of before-regrade \"select avg(reward) from trajectories\"")]
    Snapshot {
        /// A name to come back to
        #[arg(long, value_name = "NAME")]
        tag: Option<String>,
    },
    /// List the snapshots
    Snapshots,
    /// Verify checksums, references and lengths; exit code 8 if something is wrong
    ///
    /// --repair removes what interrupted writers left behind, rows stored twice, and files that no version names; it
    /// never touches what a reader can see. What is younger than an hour may belong to a write that is still going on
    /// and stays.
    #[command(after_long_help = "\
Examples:
  dressage store check
  dressage store check --repair --json | jq .rows_removed")]
    Check {
        /// Remove leftovers
        #[arg(long)]
        repair: bool,
        /// Read only the scalar columns: fast, but payload is not compared with its checksums
        #[arg(long)]
        scalars_only: bool,
    },
    /// Join small files; readers of pinned versions are not disturbed
    Compact {
        /// Only this table
        #[arg(long, value_name = "TABLE", value_parser = table)]
        table: Option<Table>,
    },
    /// Bring an older store to this release's schemas
    Migrate,
    /// Collect old versions and the files that only they need
    ///
    /// Says what would go; --yes does it. Versions that a tagged snapshot names stay, and so does the newest. A reader
    /// that has pinned an older untagged version loses it.
    #[command(after_long_help = "\
Examples:
  dressage store gc --keep-versions 10
  dressage store gc --older-than 7days --yes")]
    Gc {
        /// Keep the newest N versions of each table
        #[arg(long, value_name = "N")]
        keep_versions: Option<u64>,
        /// Keep everything younger
        #[arg(long, value_name = "TIME")]
        older_than: Option<TimeSpan>,
        /// Do it, instead of saying what would be done
        #[arg(long)]
        yes: bool,
    },
    /// Remove a run: its trajectories, steps and rewards
    ///
    /// Says what would go; --yes does it. `compact` and `gc` then free the bytes.
    RmRun {
        /// The run
        run: String,
        /// Do it, instead of saying what would be done
        #[arg(long)]
        yes: bool,
    },
    /// Remove a plan, with its batches, its record of what was streamed and the snapshot that it pins
    ///
    /// Says what would go; --yes does it. Trajectories stay. A plan that another one goes on after, or of which something
    /// was streamed within the last hour, is kept unless --force is given. `compact` and `gc` then free the bytes.
    #[command(after_long_help = "\
Examples:
  dressage store rm-plan 4f2a
  dressage store rm-plan 4f2a --yes")]
    RmPlan {
        /// The plan's id, or as much of it as no other plan begins with
        #[arg(value_name = "ID")]
        plan: String,
        /// Also where a later plan goes on after it, or somebody may be training on it
        #[arg(long)]
        force: bool,
        /// Do it, instead of saying what would be done
        #[arg(long)]
        yes: bool,
    },
    /// Remove one checkpoint of a training run
    ///
    /// Says what would go; --yes does it. Without its newest checkpoint a run goes on from the one before, and trains again
    /// what came after: the way out where files of the newest one are damaged.
    #[command(after_long_help = "\
Examples:
  dressage sql \"select checkpoint_id, optimizer_step, created_at from checkpoints\"
  dressage store rm-checkpoint nightly-00000120 --yes")]
    RmCheckpoint {
        /// The checkpoint's id, or as much of it as no other begins with
        #[arg(value_name = "ID")]
        checkpoint: String,
        /// Do it, instead of saying what would be done
        #[arg(long)]
        yes: bool,
    },
}

fn table(name: &str) -> Result<Table, String> {
    let names: Vec<&str> = Table::ALL.iter().map(|t| t.name()).collect();
    Table::parse(name).ok_or_else(|| format!("there is no table `{name}`; the tables are {}", names.join(", ")))
}

pub(crate) fn run(context: &Context, args: &StoreArgs) -> Result<Outcome> {
    let settings = context.layers.settings()?;
    let output = context.output;
    block_on(async {
        if matches!(args.command, StoreCommand::Init) {
            let lake = Lake::init(context.store_settings(&settings)).await?;
            let info = maintain::info(&lake).await?;
            print(output, &info, page::info)?;
            return Ok(Outcome::Done);
        }
        let lake = context.open_lake(&settings).await?;
        command(&lake, &args.command, output).await
    })
}

async fn command(lake: &Lake, command: &StoreCommand, output: Output) -> Result<Outcome> {
    match command {
        StoreCommand::Init | StoreCommand::Info => print(output, &maintain::info(lake).await?, page::info)?,
        StoreCommand::Versions { table } => {
            print(output, &maintain::versions(lake, *table).await?, |v| page::versions(v))?;
        }
        StoreCommand::Snapshot { tag } => {
            if tag.as_deref().is_some_and(|tag| tag.is_empty() || tag.parse::<i64>().is_ok()) {
                return Err(Failure::invalid(
                    "a tag may not be empty or a number: --as-of could not tell it from an id",
                ));
            }
            let snapshot = lake.snapshot(None).await?;
            let named = snapshots::create(&snapshot, tag.as_deref()).await?;
            print(output, &named, |named| page::snapshots(std::slice::from_ref(named)))?;
        }
        StoreCommand::Snapshots => print(output, &snapshots::list(lake).await?, |all| page::snapshots(all))?,
        StoreCommand::Check { repair, scalars_only } => {
            let options = CheckOptions { repair: *repair, payload: !scalars_only, ..CheckOptions::default() };
            let report = maintain::check(lake, &options).await?;
            print(output, &report, page::check)?;
            if !report.is_sound() {
                return Ok(Outcome::Findings);
            }
        }
        StoreCommand::Compact { table } => {
            let options = CompactOptions { table: *table, ..CompactOptions::default() };
            print(output, &maintain::compact(lake, &options).await?, page::compact)?;
        }
        StoreCommand::Migrate => print(output, &maintain::migrate(lake).await?, page::migrate)?,
        StoreCommand::Gc { keep_versions, older_than, yes } => {
            let options = GcOptions {
                keep_versions: *keep_versions,
                older_than: older_than.map(|t| -> Duration { t.0 }),
                dry_run: !yes,
            };
            print(output, &maintain::gc(lake, &options).await?, page::gc)?;
            dry_run_note(output, *yes);
        }
        StoreCommand::RmRun { run, yes } => {
            print(output, &maintain::rm_run(lake, run, !yes).await?, page::rm_run)?;
            dry_run_note(output, *yes);
        }
        StoreCommand::RmPlan { plan, force, yes } => {
            let report = maintain::rm_plan(lake, plan, *force, !yes).await?;
            print(output, &report, page::rm_plan)?;
            if *yes && report.dry_run {
                return Err(Failure::conflict(format!(
                    "plan {} was not removed: {}; --force removes it all the same",
                    report.plan_id,
                    page::needed(&report).join("; ")
                )));
            }
            dry_run_note(output, *yes);
        }
        StoreCommand::RmCheckpoint { checkpoint, yes } => {
            print(output, &checkpoints::remove(lake, checkpoint, !yes).await?, page::rm_checkpoint)?;
            dry_run_note(output, *yes);
        }
    }
    Ok(Outcome::Done)
}

fn dry_run_note(output: Output, done: bool) {
    if !done {
        output.note("nothing was changed; --yes does it");
    }
}

/// The report as JSON, or as a page.
fn print<T: Serialize>(output: Output, report: &T, page: impl Fn(&T) -> String) -> Result<()> {
    if output.json { output.json(report) } else { output.text(&page(report)) }
}
