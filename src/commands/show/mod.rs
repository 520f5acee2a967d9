//! `dressage show`: one trajectory, as its segments, turns, messages and tokens.

mod page;
mod tokens;

use anyhow::Result;
use clap::Args;
use dressage_segmenter::Session;
use serde_json::{Value, json};

use super::Context;
use super::store_access::{QueryArgs, block_on};
use crate::failure::{Failure, Outcome};
use crate::rows::{self, Row, literal};
use tokens::StepTokens;

/// Show one trajectory
///
/// Named by its trajectory id, or by any part of it or of its instance id that fits only one.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dressage show django-11099
  dressage show 7f3a --full                                every message to its end
  dressage show 7f3a --tokens --tokenizer qwen3.json       trained tokens green, masked ones dim
  dressage show 7f3a --segment 2 --logprobs --tokenizer qwen3.json
  dressage show 7f3a --json | jq '.segments[].reasons'")]
pub(crate) struct ShowArgs {
    /// The trajectory
    #[arg(value_name = "TRAJECTORY")]
    name: String,

    /// Only this segment
    #[arg(long, value_name = "N")]
    segment: Option<i64>,

    /// Only this step
    #[arg(long, value_name = "N")]
    step: Option<i64>,

    /// Messages to their end, not only their first lines
    #[arg(long)]
    full: bool,

    /// The tokens of each step: trained ones green, masked ones dim (text with --tokenizer, else ids)
    #[arg(long)]
    tokens: bool,

    /// The log-probability of every trained token (implies --tokens)
    #[arg(long)]
    logprobs: bool,

    #[command(flatten)]
    query: QueryArgs,
}

/// A trajectory with all that hangs on it.
#[derive(Debug)]
pub(super) struct Shown {
    trajectory: Row,
    segments: Vec<Row>,
    steps: Vec<Row>,
    messages: Vec<Row>,
    rewards: Vec<Row>,
    /// In the order of `steps`; empty unless tokens were asked for.
    tokens: Vec<StepTokens>,
}

pub(crate) fn run(mut context: Context, args: &ShowArgs) -> Result<Outcome> {
    let settings = context.query_settings(&args.query)?;
    let tokenizer = match crate::settings::set(&settings.sql.tokenizer) {
        Some(path) if args.tokens || args.logprobs => Some(dressage_tokenizer::Tokenizer::load(path)?),
        _ => None,
    };
    let shown = block_on(async {
        let session = context.open_session(&settings, &args.query).await?;
        let trajectory = find(&session, &args.name).await?;
        load(&session, trajectory, args).await
    })?;
    if context.output.json {
        context.output.json(&as_json(shown, tokenizer.as_ref()))?;
    } else {
        let look = page::Look { full: args.full, logprobs: args.logprobs, tokenizer: tokenizer.as_ref() };
        context.output.text(&page::render(&shown, context.output.paint(), &look))?;
    }
    Ok(Outcome::Done)
}

/// The one trajectory that the name fits: exactly, else as a part of its ids.
async fn find(session: &Session, name: &str) -> Result<Row> {
    let exact = format!("SELECT * FROM trajectories WHERE trajectory_id = {} LIMIT 11", literal(name));
    let mut found = rows::rows(session, &exact).await?;
    if found.is_empty() {
        let part = literal(name);
        let loose = format!(
            "SELECT * FROM trajectories WHERE strpos(trajectory_id, {part}) > 0 OR strpos(instance_id, {part}) > 0 \
             ORDER BY trajectory_id LIMIT 11"
        );
        found = rows::rows(session, &loose).await?;
    }
    match found.len() {
        0 => Err(Failure::not_found(format!("no trajectory has `{name}` in its id; `dressage ls` lists them"))),
        1 => Ok(found.swap_remove(0)),
        _ => {
            let names: Vec<String> = found
                .iter()
                .take(10)
                .map(|row| {
                    format!(
                        "  {} (run {}, instance {})",
                        row.cell("trajectory_id"),
                        row.cell("run_id"),
                        row.cell("instance_id")
                    )
                })
                .collect();
            let more = if found.len() > 10 { "\n  …" } else { "" };
            Err(Failure::invalid(format!(
                "`{name}` fits several trajectories; name one in full, or its run with --run:\n{}{more}",
                names.join("\n")
            )))
        }
    }
}

async fn load(session: &Session, trajectory: Row, args: &ShowArgs) -> Result<Shown> {
    let key = trajectory.int("trajectory_key").unwrap_or_default();
    let mut own = format!("trajectory_key = {key}");
    if let Some(segment) = args.segment {
        own.push_str(&format!(" AND segment_index = {segment}"));
    }
    let mut of_step = own.clone();
    if let Some(step) = args.step {
        of_step.push_str(&format!(" AND step_index = {step}"));
    }
    let segments = rows::rows(session, &format!("SELECT * FROM segments WHERE {own} ORDER BY segment_index")).await?;
    if segments.is_empty()
        && let Some(segment) = args.segment
    {
        return Err(Failure::not_found(format!(
            "{} has no segment {segment}; it has {}",
            trajectory.cell("trajectory_id"),
            trajectory.cell("n_segments")
        )));
    }
    let steps = rows::rows(
        session,
        &format!(
            "SELECT step_index, segment_index, lineage_index, turn_id, route, base_step, boundary, boundary_reasons, \
             finish_reason, model, weight_version, n_context_tokens, n_output_tokens, n_trained_tokens, trainable, \
             flags, usage_input_tokens, usage_output_tokens, created_at \
             FROM steps WHERE {of_step} ORDER BY step_index"
        ),
    )
    .await?;
    let messages = rows::rows(
        session,
        &format!(
            "SELECT step_index, segment_index, position, role, text, reasoning, tool_calls, tool_call_id, is_output, \
             n_bytes, content_hash FROM messages WHERE {of_step} ORDER BY position"
        ),
    )
    .await?;
    let rewards = rows::rows(
        session,
        &format!(
            "SELECT grader, stage, value, parts, graded_at, visible_at, detail FROM rewards \
             WHERE trajectory_key = {key} ORDER BY graded_at NULLS FIRST, visible_at"
        ),
    )
    .await?;
    let mut tokens = Vec::new();
    if args.tokens || args.logprobs {
        let sql = format!(
            "SELECT token_ids, logprobs, mask(mask_spans) AS mask FROM steps WHERE {of_step} ORDER BY step_index"
        );
        tokens = tokens::of_batches(&session.sql(&sql).await?.collect().await?)?;
    }
    Ok(Shown { trajectory, segments, steps, messages, rewards, tokens })
}

/// Segments hold their steps, steps their messages.
fn as_json(shown: Shown, tokenizer: Option<&dressage_tokenizer::Tokenizer>) -> Value {
    let mut tokens = shown.tokens.into_iter();
    let mut steps: Vec<(Option<i64>, Value)> = Vec::new();
    for step in shown.steps {
        let index = step.int("step_index");
        let segment = step.int("segment_index");
        let messages: Vec<Value> =
            shown.messages.iter().filter(|m| m.int("step_index") == index).cloned().map(Row::into_json).collect();
        let mut value = step.into_json();
        value["messages"] = Value::Array(messages);
        if let Some(step_tokens) = tokens.next() {
            value["tokens"] = step_tokens.into_json(tokenizer);
        }
        steps.push((segment, value));
    }
    let segments: Vec<Value> = shown
        .segments
        .into_iter()
        .map(|segment| {
            let index = segment.int("segment_index");
            let own: Vec<Value> = steps.iter().filter(|(s, _)| *s == index).map(|(_, v)| v.clone()).collect();
            let mut value = segment.into_json();
            value["steps"] = Value::Array(own);
            value
        })
        .collect();
    json!({
        "trajectory": shown.trajectory.into_json(),
        "segments": segments,
        "rewards": shown.rewards.into_iter().map(Row::into_json).collect::<Vec<_>>(),
    })
}
