//! `dressage replay`: micro-batches made again, and compared with what was streamed.

use std::fmt::Write as _;
use std::ops::Range;

use anyhow::Result;
use clap::Args;
use dressage_segmenter::{Ledger, MicroBatch, Recorded, StreamOptions};
use serde::Serialize;

use super::Context;
use super::batches::{PlanArgs, Told, train_steps};
use super::store_access::block_on;
use crate::failure::Outcome;
use crate::output::{self, counted, grouped};

/// Make the micro-batches of a plan again, and compare them with what was streamed
///
/// Reads the table versions that the plan pins, so that later ingests, compactions, collections of old versions and
/// other plans change nothing. Exits with 8 where a micro-batch is not what it was when it was first streamed.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dressage replay --plan 4f2a --train-step 7                all ranks of one train step
  dressage replay --plan 4f2a --train-step 0..100 --rank 3 --json | jq .n_different")]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    place: PlanArgs,

    /// Which train steps: one (7) or several (7..12, without the last) [default: all]
    #[arg(long, value_name = "N|A..B", value_parser = train_steps)]
    train_step: Option<Range<u32>>,

    /// Only this rank [default: all]
    #[arg(long, value_name = "R")]
    rank: Option<u32>,

    /// Also the router choices; they are looked at anyway where they were streamed
    #[arg(long)]
    with_experts: bool,
}

/// How a micro-batch compares with its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Comparison {
    /// As it was streamed.
    Same,
    /// Never streamed.
    NotRecorded,
    /// Another one.
    Different,
}

#[derive(Debug, Serialize)]
struct Replayed {
    #[serde(flatten)]
    told: Told,
    recorded_hash: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded_experts_hash: Option<String>,
    comparison: Comparison,
}

#[derive(Debug, Default, Serialize)]
struct Report {
    plan_id: String,
    n_same: usize,
    n_not_recorded: usize,
    n_different: usize,
    micro_batches: Vec<Replayed>,
}

pub(crate) fn run(context: &Context, args: &ReplayArgs) -> Result<Outcome> {
    let report = block_on(replay(context, args))?;
    if context.output.json {
        context.output.json(&report)?;
    } else {
        context.output.text(&shown(&report))?;
    }
    if report.n_different > 0 {
        context.output.note(&format!(
            "error: {} of {} {} not what was streamed first; run `dressage store check`",
            grouped(report.n_different as u64),
            counted(report.micro_batches.len() as u64, "micro-batch"),
            if report.n_different == 1 { "is" } else { "are" },
        ));
        return Ok(Outcome::Findings);
    }
    if report.n_not_recorded > 0 {
        context.output.note(&format!(
            "{} never streamed: there is nothing to compare with",
            counted(report.n_not_recorded as u64, "micro-batch")
        ));
    }
    Ok(Outcome::Done)
}

async fn replay(context: &Context, args: &ReplayArgs) -> Result<Report> {
    let (_, plan) = context.open_plan(&args.place).await?;
    let ledger = Ledger::of(&plan, args.rank, args.train_step.clone()).await?;
    let mut report = Report { plan_id: plan.plan_id().to_owned(), ..Report::default() };
    let world_size = plan.world_size();
    let ranks = args.rank.map_or(0..world_size, |rank| rank..rank + 1);
    for rank in ranks {
        let mut stream = plan
            .stream(StreamOptions {
                train_steps: args.train_step.clone(),
                with_experts: args.with_experts || ledger.has_experts(),
                prefetch_bytes: context.layers.settings()?.batches.prefetch_bytes.0,
                ..StreamOptions::of_rank(rank, world_size)
            })
            .await?;
        while let Some(micro_batch) = stream.next().await? {
            let recorded = ledger.recorded(&micro_batch);
            let comparison = compare(&micro_batch, recorded);
            match comparison {
                Comparison::Same => report.n_same += 1,
                Comparison::NotRecorded => report.n_not_recorded += 1,
                Comparison::Different => report.n_different += 1,
            }
            report.micro_batches.push(Replayed {
                told: Told::of(&micro_batch),
                recorded_hash: recorded.map(|r| r.content_hash.clone()),
                recorded_experts_hash: recorded.and_then(|r| r.experts_hash.clone()),
                comparison,
            });
        }
    }
    report.micro_batches.sort_by_key(|m| (m.told.train_step, m.told.dp_rank, m.told.micro_batch));
    Ok(report)
}

fn compare(micro_batch: &MicroBatch, recorded: Option<&Recorded>) -> Comparison {
    let Some(recorded) = recorded else { return Comparison::NotRecorded };
    let text = |hash: Option<dressage_segmenter::ContentHash>| hash.map(|hash| hash.to_string());
    let values = text(micro_batch.content_hash).as_deref() == Some(recorded.content_hash.as_str());
    let experts = match (&recorded.experts_hash, text(micro_batch.experts_hash)) {
        (Some(recorded), Some(made)) => *recorded == made,
        _ => true,
    };
    if values && experts { Comparison::Same } else { Comparison::Different }
}

fn shown(report: &Report) -> String {
    let headers = ["train_step", "rank", "micro_batch", "samples", "tokens", "hash", ""];
    let rows = report.micro_batches.iter().map(|m| {
        let said = match m.comparison {
            Comparison::Same => "as streamed".to_owned(),
            Comparison::NotRecorded => "never streamed".to_owned(),
            Comparison::Different => {
                let mut said = format!("DIFFERENT: {} was streamed", m.recorded_hash.as_deref().unwrap_or("-"));
                if let Some(experts) = &m.recorded_experts_hash {
                    // a missing hash cannot differ
                    let _ = write!(said, ", router choices {experts}");
                }
                said
            }
        };
        vec![
            m.told.train_step.to_string(),
            m.told.dp_rank.to_string(),
            m.told.micro_batch.to_string(),
            grouped(m.told.n_samples as u64),
            grouped(m.told.n_tokens),
            m.told.content_hash.clone().unwrap_or_default(),
            said,
        ]
    });
    output::table(&headers, &[0, 1, 2, 3, 4], rows)
}
