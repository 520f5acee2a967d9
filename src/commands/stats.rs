//! `dressage stats`: what a store holds, in numbers.

use anyhow::Result;
use clap::Args;
use dressage_segmenter::Session;
use dressage_storage::maintain::{ColumnSize, column_sizes};
use serde_json::{Value, json};

use super::Context;
use super::ls::FilterArgs;
use super::store_access::{NAMED, QueryArgs, block_on, note_unknown};
use crate::failure::Outcome;
use crate::output::{self, Paint, grouped};
use crate::rows::{self, Row};

/// Count what is in the store
///
/// Counts, lengths, rewards, why segments began, what was refused, and the bytes of each column.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dressage stats
  dressage stats --run nightly --where 'reward is not null'
  dressage stats --json | jq .lengths")]
pub(crate) struct StatsArgs {
    #[command(flatten)]
    query: QueryArgs,

    #[command(flatten)]
    filter: FilterArgs,

    /// Leave out the bytes of each column, which have to be read from the files' own footers
    #[arg(long)]
    no_bytes: bool,
}

/// Measures whose spread is shown, with their names on the page.
const LENGTHS: [(&str, &str); 5] = [
    ("n_tokens", "tokens"),
    ("n_trained_tokens", "trained tokens"),
    ("n_messages", "messages"),
    ("n_segments", "segments"),
    ("n_steps", "steps"),
];

struct Stats {
    totals: Row,
    statuses: Vec<Row>,
    formats: Vec<Row>,
    lengths: Vec<Row>,
    rewards: Row,
    boundaries: Vec<Row>,
    quarantine: Vec<Row>,
    columns: Vec<ColumnSize>,
}

pub(crate) fn run(mut context: Context, args: &StatsArgs) -> Result<Outcome> {
    let settings = context.query_settings(&args.query)?;
    let stats = block_on(async {
        let snapshot = context.open_snapshot(&settings, args.query.as_of.as_deref()).await?;
        let wanted = super::store_access::session_settings(&settings, &args.query);
        let session = Session::open(snapshot.clone(), wanted)?;
        note_unknown(context.output, &session, &NAMED).await;
        let mut stats = collect(&session, &args.filter.sql()).await?;
        if !args.no_bytes {
            stats.columns = column_sizes(&snapshot).await?;
        }
        anyhow::Ok(stats)
    })?;
    if context.output.json {
        context.output.json(&as_json(stats))?;
    } else {
        context.output.text(&page(&stats, context.output.paint()))?;
    }
    Ok(Outcome::Done)
}

async fn collect(session: &Session, condition: &str) -> Result<Stats> {
    let of = format!("FROM trajectories WHERE {condition}");
    let totals = format!(
        "SELECT count(*) AS trajectories, count(DISTINCT run_id) AS runs, count(DISTINCT instance_id) AS instances, \
         count(DISTINCT group_id) AS groups, coalesce(sum(n_segments), 0) AS segments, \
         coalesce(sum(n_steps), 0) AS steps, coalesce(sum(n_messages), 0) AS messages, \
         coalesce(sum(n_tokens), 0) AS tokens, coalesce(sum(n_trained_tokens), 0) AS trained_tokens {of}"
    );
    let rewards = format!(
        "SELECT count(reward) AS graded, count(*) - count(reward) AS ungraded, avg(reward) AS mean, \
         stddev_pop(reward) AS std, min(reward) AS min, max(reward) AS max {of}"
    );
    let spread: Vec<String> = LENGTHS
        .iter()
        .map(|(column, name)| {
            format!(
                "SELECT '{name}' AS measure, min({column}) AS min, percentile(CAST({column} AS DOUBLE), 0.5) AS p50, \
                 percentile(CAST({column} AS DOUBLE), 0.9) AS p90, percentile(CAST({column} AS DOUBLE), 0.99) AS p99, \
                 max({column}) AS max, avg({column}) AS mean {of} AND {column} IS NOT NULL"
            )
        })
        .collect();
    let mut lengths = Vec::new();
    for query in spread {
        lengths.push(rows::row(session, &query).await?);
    }
    // a segment's first reason names its kind; those of the filter's trajectories only
    let boundaries = format!(
        "SELECT why, count(*) AS segments, sum(n_tokens) AS tokens FROM (\
         SELECT unnest(reasons) AS why, n_tokens FROM segments \
         WHERE trajectory_key IN (SELECT trajectory_key {of})) GROUP BY why ORDER BY segments DESC, why"
    );
    Ok(Stats {
        totals: rows::row(session, &totals).await?,
        statuses: rows::rows(session, &format!("SELECT status, count(*) AS n {of} GROUP BY status ORDER BY n DESC"))
            .await?,
        formats: rows::rows(
            session,
            &format!(
                "SELECT format, count(*) AS n, sum(n_tokens) AS tokens {of} GROUP BY format ORDER BY n DESC, format"
            ),
        )
        .await?,
        lengths,
        rewards: rows::row(session, &rewards).await?,
        boundaries: rows::rows(session, &boundaries).await?,
        quarantine: rows::rows(
            session,
            "SELECT rule, count(*) AS n FROM quarantine GROUP BY rule ORDER BY n DESC, rule",
        )
        .await?,
        columns: Vec::new(),
    })
}

fn page(stats: &Stats, paint: Paint) -> String {
    let mut out = String::new();
    let n = |row: &Row, column: &str| grouped(row.int(column).unwrap_or(0));
    let t = &stats.totals;
    let many = |column: &str, what: &str| output::counted(t.int(column).unwrap_or(0), what);
    out.push_str(&format!(
        "{}; runs {}, instances {}, groups {}\n{}, {}, {}, {}, {} of them trained\n",
        paint.bold(&many("trajectories", "trajectory")),
        n(t, "runs"),
        n(t, "instances"),
        n(t, "groups"),
        many("segments", "segment"),
        many("steps", "step"),
        many("messages", "message"),
        many("tokens", "token"),
        n(t, "trained_tokens"),
    ));
    if t.int("trajectories") == Some(0) && stats.quarantine.is_empty() {
        out.push_str("nothing here yet: `dressage ingest` reads rollouts\n");
        return out;
    }
    let counts = |rows: &[Row], name: &str| {
        rows.iter().map(|r| format!("{} {}", r.cell(name), n(r, "n"))).collect::<Vec<_>>().join(", ")
    };
    out.push_str(&format!(
        "status: {}\nformat: {}\n",
        counts(&stats.statuses, "status"),
        counts(&stats.formats, "format")
    ));
    section(
        &mut out,
        paint.bold("length of a trajectory"),
        &["", "min", "p50", "p90", "p99", "max", "mean"],
        stats.lengths.iter().filter(|r| r.int("max").is_some()).map(|r| {
            let whole = |c: &str| r.number(c).map_or_else(|| "-".to_owned(), |v| grouped(v.round() as i64));
            let mean = r.number("mean").map_or_else(|| "-".to_owned(), |v| format!("{v:.1}"));
            vec![r.cell("measure"), whole("min"), whole("p50"), whole("p90"), whole("p99"), whole("max"), mean]
        }),
    );
    let r = &stats.rewards;
    out.push_str(&format!(
        "\n{}\n{} graded, {} not; mean {}, std {}, min {}, max {}\n",
        paint.bold("rewards"),
        n(r, "graded"),
        n(r, "ungraded"),
        r.cell("mean"),
        r.cell("std"),
        r.cell("min"),
        r.cell("max")
    ));
    section(
        &mut out,
        paint.bold("why segments began"),
        &["reason", "segments", "tokens"],
        stats.boundaries.iter().map(|r| vec![r.cell("why"), n(r, "segments"), n(r, "tokens")]),
    );
    if !stats.quarantine.is_empty() {
        section(
            &mut out,
            paint.bold("quarantine"),
            &["rule", "records"],
            stats.quarantine.iter().map(|r| vec![r.cell("rule"), n(r, "n")]),
        );
    }
    if !stats.columns.is_empty() {
        let total: u64 = stats.columns.iter().map(|c| c.bytes).sum();
        section(
            &mut out,
            paint.bold("bytes by column"),
            &["column", "stored", "share"],
            stats.columns.iter().filter(|c| c.bytes > 0).take(15).map(|c| {
                let share = 100.0 * c.bytes as f64 / total.max(1) as f64;
                vec![format!("{}.{}", c.table, c.column), output::bytes_text(c.bytes), format!("{share:.1} %")]
            }),
        );
    }
    out
}

fn section(out: &mut String, title: String, headers: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let numbers: Vec<usize> = (1..headers.len()).collect();
    out.push_str(&format!("\n{title}\n{}\n", output::table(headers, &numbers, rows)));
}

fn as_json(stats: Stats) -> Value {
    let list = |rows: Vec<Row>| rows.into_iter().map(Row::into_json).collect::<Vec<_>>();
    json!({
        "totals": stats.totals.into_json(),
        "statuses": list(stats.statuses),
        "formats": list(stats.formats),
        "lengths": list(stats.lengths),
        "rewards": stats.rewards.into_json(),
        "boundaries": list(stats.boundaries),
        "quarantine": list(stats.quarantine),
        "columns": stats.columns,
    })
}
