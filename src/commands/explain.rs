//! `dressage explain`: where a train step came from, and what reading it takes.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use anyhow::{Context as _, Result};
use arrow::array::AsArray;
use arrow::datatypes::{Float64Type, Int32Type, Int64Type};
use clap::Args;
use dressage_segmenter::{Session, SessionSettings, Spills, StoredPlan, StreamOptions};
use dressage_storage::Lake;
use serde::Serialize;

use super::Context;
use super::batches::{PlanArgs, since};
use super::store_access::block_on;
use crate::failure::Outcome;
use crate::output::{self, Paint, bytes_text, counted, grouped};

/// Show where a train step of a plan came from, and what reading it takes
///
/// Runs the query of the plan's samples again, on the versions that the plan pins, under its settings and with the views
/// as they were then: all of them, and what the files of its estimator and filter said, are stored with the plan. Reads
/// the micro-batches of every rank once. Nothing is written.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dressage explain --plan 4f2a --train-step 7
  dressage explain --plan 4f2a --train-step 7 --sql             with the text of every view behind it
  dressage explain --plan 4f2a --train-step 7 --json | jq '.ranks[].read_bytes'")]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    place: PlanArgs,

    /// Which train step
    #[arg(long, value_name = "N")]
    train_step: u32,

    /// Read the router choices, too
    #[arg(long)]
    with_experts: bool,

    /// Also print the text of every view that the plan was made by
    #[arg(long)]
    sql: bool,
}

/// Where the samples came from.
const QUERY: &str = "SELECT trajectory_key, segment_index, advantage FROM samples";

#[derive(Debug, Serialize)]
struct Explained {
    plan_id: String,
    run_id: Option<String>,
    seed: i64,
    train_step: u32,
    n_train_steps: u32,
    snapshot_id: i64,
    versions: serde_json::Value,
    settings: serde_json::Value,
    /// None where it cannot run again, such as within another memory limit.
    query: Option<QueryRun>,
    #[serde(skip_serializing_if = "Option::is_none")]
    query_problem: Option<String>,
    ranks: Vec<RankRun>,
    sql: BTreeMap<String, String>,
}

/// The query of the samples, run again.
#[derive(Debug, Serialize)]
struct QueryRun {
    text: &'static str,
    /// Which of estimator and filter were files: what they said is run as the plan stores it.
    stored_files: Vec<String>,
    n_rows: u64,
    /// Rows of this train step.
    n_rows_of_train_step: u64,
    /// Of them with the advantage that the plan has.
    n_rows_as_planned: u64,
    read_bytes: u64,
    read_requests: u64,
    spills: Spills,
    seconds: f64,
}

/// What reading one rank's part takes.
#[derive(Debug, Default, Serialize)]
struct RankRun {
    dp_rank: u32,
    n_micro_batches: u64,
    n_empty_micro_batches: u64,
    n_samples: u64,
    n_step_rows: u64,
    n_tokens: i64,
    mask_sum: i64,
    read_bytes: u64,
    read_requests: u64,
    seconds: f64,
}

pub(crate) fn run(context: &Context, args: &ExplainArgs) -> Result<Outcome> {
    let explained = block_on(explain(context, args))?;
    if context.output.json {
        context.output.json(&explained)?;
    } else {
        context.output.text(&shown(&explained, args.sql, context.output.paint()))?;
    }
    Ok(Outcome::Done)
}

async fn explain(context: &Context, args: &ExplainArgs) -> Result<Explained> {
    let (lake, plan) = context.open_plan(&args.place).await?;
    let mut planned: HashMap<(i64, i32), f64> = HashMap::new();
    let mut ranks = Vec::new();
    for rank in 0..plan.world_size() {
        ranks.push(read_rank(&lake, &plan, rank, args, &mut planned).await?);
    }
    let (query, query_problem) = match run_query(context, &lake, &plan, &planned).await {
        Ok(query) => (Some(query), None),
        Err(error) => (None, Some(format!("{error:#}"))),
    };
    let row = plan.row();
    Ok(Explained {
        plan_id: row.plan_id.clone(),
        run_id: row.run_id.clone(),
        seed: row.seed,
        train_step: args.train_step,
        n_train_steps: plan.n_train_steps(),
        snapshot_id: row.snapshot_id,
        versions: serde_json::from_str(&row.versions).context("the plan's versions are no JSON")?,
        settings: serde_json::from_str(&row.settings).context("the plan's settings are no JSON")?,
        query,
        query_problem,
        ranks,
        sql: plan.sql().clone(),
    })
}

async fn read_rank(
    lake: &Lake,
    plan: &StoredPlan,
    dp_rank: u32,
    args: &ExplainArgs,
    planned: &mut HashMap<(i64, i32), f64>,
) -> Result<RankRun> {
    let options = StreamOptions {
        train_steps: Some(args.train_step..args.train_step.saturating_add(1)),
        with_experts: args.with_experts,
        hashes: false,
        ..StreamOptions::of_rank(dp_rank, plan.world_size())
    };
    let started = Instant::now();
    let before = lake.io_stats().await?;
    let mut stream = plan.stream(options).await?;
    let mut run = RankRun { dp_rank, ..RankRun::default() };
    for sample in stream.samples() {
        run.n_step_rows += sample.step_rows.len() as u64;
        planned.insert((sample.trajectory_key, sample.segment_index), sample.advantage);
    }
    while let Some(micro_batch) = stream.next().await? {
        run.n_micro_batches += 1;
        run.n_empty_micro_batches += u64::from(micro_batch.batch.num_rows() == 0);
        run.n_samples += micro_batch.batch.num_rows() as u64;
        run.n_tokens += micro_batch.n_tokens;
        run.mask_sum += micro_batch.mask_sum;
    }
    let read = since(lake.io_stats().await?, before);
    (run.read_bytes, run.read_requests) = (read.read_bytes, read.read_requests);
    run.seconds = started.elapsed().as_secs_f64();
    Ok(run)
}

async fn run_query(
    context: &Context,
    lake: &Lake,
    plan: &StoredPlan,
    planned: &HashMap<(i64, i32), f64>,
) -> Result<QueryRun> {
    let settings = context.layers.settings()?;
    let session = Session::as_planned(
        plan,
        SessionSettings {
            memory_limit_bytes: settings.sql.memory_limit.0,
            time_limit_ms: Some(settings.sql.time_limit.as_millis()),
            ..SessionSettings::default()
        },
    )?;
    let started = Instant::now();
    let before = lake.io_stats().await?;
    let mut rows = session.sql(QUERY).await?;
    let (mut n_rows, mut n_rows_of_train_step, mut n_rows_as_planned) = (0, 0, 0);
    while let Some(batch) = rows.next_batch().await? {
        let key = batch.column(0).as_primitive::<Int64Type>();
        let segment = batch.column(1).as_primitive::<Int32Type>();
        let advantage = batch.column(2).as_primitive::<Float64Type>();
        n_rows += batch.num_rows() as u64;
        for row in 0..batch.num_rows() {
            if let Some(as_planned) = planned.get(&(key.value(row), segment.value(row))) {
                n_rows_of_train_step += 1;
                n_rows_as_planned += u64::from(*as_planned == advantage.value(row));
            }
        }
    }
    let read = since(lake.io_stats().await?, before);
    // where a file lay is no part of a plan, what it said is
    let files = plan.variables().iter().filter(|(_, value)| *value == "file").map(|(name, _)| name.clone()).collect();
    Ok(QueryRun {
        text: QUERY,
        stored_files: files,
        n_rows,
        n_rows_of_train_step,
        n_rows_as_planned,
        read_bytes: read.read_bytes,
        read_requests: read.read_requests,
        spills: rows.spills(),
        seconds: started.elapsed().as_secs_f64(),
    })
}

fn shown(e: &Explained, with_sql: bool, paint: Paint) -> String {
    let mut text = format!(
        "plan {}, {}, snapshot {}, seed {}\ntrain step {} of {}\nsettings {}\nversions {}\n\n",
        e.plan_id,
        e.run_id.as_ref().map_or_else(|| "all runs".to_owned(), |run| format!("run {run}")),
        e.snapshot_id,
        e.seed,
        e.train_step,
        e.n_train_steps,
        e.settings,
        e.versions,
    );
    text.push_str(&format!("{}\n  {QUERY}\n", paint.bold("query")));
    if let Some(problem) = &e.query_problem {
        text.push_str(&format!("  cannot run again: {problem}\n\n"));
    }
    if let Some(q) = &e.query {
        text.push_str(&query_text(q));
    }
    let headers =
        ["rank", "micro-batches", "empty", "samples", "step rows", "tokens", "trained", "read", "requests", "seconds"];
    let rows = e.ranks.iter().map(|r| {
        vec![
            r.dp_rank.to_string(),
            grouped(r.n_micro_batches),
            grouped(r.n_empty_micro_batches),
            grouped(r.n_samples),
            grouped(r.n_step_rows),
            grouped(r.n_tokens),
            grouped(r.mask_sum),
            bytes_text(r.read_bytes),
            grouped(r.read_requests),
            format!("{:.3}", r.seconds),
        ]
    });
    text.push_str(&format!(
        "{}\n{}\n",
        paint.bold("reads"),
        output::table(&headers, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], rows)
    ));
    if with_sql {
        for (name, sql) in &e.sql {
            text.push_str(&format!("\n{}\n{}\n", paint.bold(name), sql.trim_end()));
        }
    } else {
        let names: Vec<&str> = e.sql.keys().map(String::as_str).collect();
        text.push_str(&format!("\nviews behind it (--sql prints them): {}\n", names.join(", ")));
    }
    text
}

fn query_text(q: &QueryRun) -> String {
    let mut text = String::new();
    for name in &q.stored_files {
        text.push_str(&format!("  its {name} was a file: run as the plan stores it (--sql prints it)\n"));
    }
    text.push_str(&format!(
        "  {}, {} of this train step, {} of them with the planned advantage\n  read {} in {}, {:.3} s; spilled {} in {}\n\n",
        counted(q.n_rows, "row"),
        grouped(q.n_rows_of_train_step),
        grouped(q.n_rows_as_planned),
        bytes_text(q.read_bytes),
        counted(q.read_requests, "request"),
        q.seconds,
        bytes_text(q.spills.bytes),
        counted(q.spills.count, "file"),
    ));
    text
}
