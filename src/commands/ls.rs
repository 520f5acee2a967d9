//! `dressage ls`: trajectories of a store, a line each.

use anyhow::Result;
use clap::Args;
use dressage_schemas::words::Status;
use serde_json::Value;

use super::Context;
use super::store_access::{QueryArgs, block_on};
use crate::failure::Outcome;
use crate::output;
use crate::rows::{self, Row, literal};
use crate::settings::key_value;

/// List trajectories
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dressage ls
  dressage ls --status failed --from-format nemo-gym
  dressage ls --where 'reward > 0.5 and n_segments > 1' --sort -n_tokens --limit 10
  dressage ls --label split=train --json | jq -r '.[].trajectory_id'")]
pub(crate) struct LsArgs {
    #[command(flatten)]
    query: QueryArgs,

    #[command(flatten)]
    filter: FilterArgs,

    /// Order by this column; -COLUMN puts the largest first
    #[arg(long, value_name = "COLUMN", default_value = "created_at", allow_hyphen_values = true)]
    sort: String,

    /// At most so many lines; 0 for all
    #[arg(long, short = 'n', value_name = "N", default_value_t = 50)]
    limit: u64,
}

/// Which trajectories: shared by the commands that take several.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Which trajectories")]
pub(crate) struct FilterArgs {
    /// Of this task or prompt
    #[arg(long, value_name = "ID")]
    pub(crate) instance: Option<String>,

    /// Of this group
    #[arg(long, value_name = "ID")]
    pub(crate) group: Option<String>,

    /// That ended so: completed, truncated, aborted, failed
    #[arg(long, value_name = "STATUS", value_parser = status_word)]
    pub(crate) status: Option<String>,

    /// Of this model
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,

    /// Read by this importer
    #[arg(long = "from-format", value_name = "FORMAT")]
    pub(crate) format: Option<String>,

    /// With this label
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) labels: Vec<(String, String)>,

    /// For which this SQL condition on `trajectories` holds
    #[arg(long = "where", value_name = "SQL")]
    pub(crate) condition: Option<String>,
}

/// A status as it is stored: a misspelt one would find nothing, which looks like an answer.
fn status_word(text: &str) -> Result<String, String> {
    match Status::parse(text) {
        Some(status) => Ok(status.as_str().to_owned()),
        None => Err("it is one of completed, truncated, aborted, failed".to_owned()),
    }
}

impl FilterArgs {
    /// The condition, `true` where nothing was asked for.
    pub(crate) fn sql(&self) -> String {
        let mut parts = Vec::new();
        let pairs = [
            ("instance_id", &self.instance),
            ("group_id", &self.group),
            ("status", &self.status),
            ("model", &self.model),
            ("format", &self.format),
        ];
        for (column, value) in pairs {
            if let Some(value) = value {
                parts.push(format!("{column} = {}", literal(value)));
            }
        }
        for (key, value) in &self.labels {
            parts.push(format!("json_get(labels, {}) = {}", literal(key), literal(value)));
        }
        if let Some(condition) = &self.condition {
            parts.push(format!("({condition})"));
        }
        if parts.is_empty() { "true".to_owned() } else { parts.join(" AND ") }
    }
}

const COLUMNS: [&str; 11] = [
    "trajectory_id",
    "run_id",
    "instance_id",
    "status",
    "reward",
    "n_steps",
    "n_segments",
    "n_messages",
    "n_tokens",
    "n_trained_tokens",
    "model",
];

pub(crate) fn run(mut context: Context, args: &LsArgs) -> Result<Outcome> {
    let settings = context.query_settings(&args.query)?;
    let (found, total) = block_on(async {
        let session = context.open_session(&settings, &args.query).await?;
        let condition = args.filter.sql();
        let columns = if context.output.json { "*".to_owned() } else { COLUMNS.join(", ") };
        let (column, direction) = match args.sort.strip_prefix('-') {
            Some(column) => (column, "DESC"),
            None => (args.sort.as_str(), "ASC"),
        };
        let order = format!("{} {direction} NULLS LAST, trajectory_id", column.replace('"', ""));
        let limit = if args.limit == 0 { String::new() } else { format!(" LIMIT {}", args.limit) };
        let sql = format!("SELECT {columns} FROM trajectories WHERE {condition} ORDER BY {order}{limit}");
        let found = rows::rows(&session, &sql).await?;
        let count = rows::row(&session, &format!("SELECT count(*) AS n FROM trajectories WHERE {condition}")).await?;
        anyhow::Ok((found, count.int("n").unwrap_or(0)))
    })?;
    if context.output.json {
        context.output.json(&found.into_iter().map(Row::into_json).collect::<Vec<Value>>())?;
        return Ok(Outcome::Done);
    }
    let shown = found.len() as i64;
    let headers =
        ["trajectory", "run", "instance", "status", "reward", "steps", "segs", "msgs", "tokens", "trained", "model"];
    let table = output::table(&headers, &[4, 5, 6, 7, 8, 9], found.iter().map(line));
    context.output.text(&table)?;
    if shown < total {
        context.output.note(&format!("{} of {} shown; --limit 0 shows all", shown, output::grouped(total)));
    }
    Ok(Outcome::Done)
}

fn line(row: &Row) -> Vec<String> {
    COLUMNS
        .iter()
        .map(|column| match *column {
            "trajectory_id" => row.cell(column),
            "n_tokens" | "n_trained_tokens" => row.int(column).map_or_else(|| "-".to_owned(), output::grouped),
            _ => shortened(&row.cell(column), 28),
        })
        .collect()
}

/// The end of a long name usually tells two apart better than its beginning.
pub(crate) fn shortened(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width {
        return text.to_owned();
    }
    let tail: String = text.chars().skip(count - (width - 1)).collect();
    format!("…{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_become_one_condition() {
        assert_eq!(FilterArgs::default().sql(), "true");
        let filter = FilterArgs {
            status: Some("failed".into()),
            labels: vec![("split".into(), "it's".into())],
            condition: Some("reward > 0 or reward is null".into()),
            ..FilterArgs::default()
        };
        assert_eq!(
            filter.sql(),
            "status = 'failed' AND json_get(labels, 'split') = 'it''s' AND (reward > 0 or reward is null)"
        );
    }

    #[test]
    fn long_names_keep_their_end() {
        assert_eq!(shortened("abcdef", 4), "…def");
        assert_eq!(shortened("abc", 4), "abc");
    }
}
