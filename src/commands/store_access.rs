//! From settings to an opened store, snapshot or SQL session.

use std::future::Future;
use std::time::SystemTime;

use anyhow::{Context as _, Result};
use clap::Args;
use dressage_segmenter::{Session, SessionSettings, nearest};
use dressage_storage::maintain::{FindingStatus, doctor};
use dressage_storage::{AsOf, Lake, Snapshot, StoreSettings};

use super::Context;
use crate::failure::Failure;
use crate::output::Output;
use crate::rows::{self, literal};
use crate::settings::{ByteCount, Settings, TimeSpan, key_value, set};

/// How a question is asked: what every command that reads takes.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Reading")]
pub(crate) struct QueryArgs {
    /// Only this run
    #[arg(long, value_name = "RUN")]
    pub(crate) run: Option<String>,

    /// Read the store as it was: a snapshot's number or tag, or a time
    ///
    /// `dressage store snapshots` lists what can be named; a time is written 2026-11-30T12:00:00Z or 2026-11-30.
    #[arg(long, value_name = "WHEN")]
    pub(crate) as_of: Option<String>,

    /// Set a variable that views read, such as grader=judge-2 or estimator=rloo
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) variables: Vec<(String, String)>,

    /// How rewards become advantages: grpo, gspo, rloo, dr_grpo, reinforce_plus_plus_baseline, reinforce, ppo, or a file
    ///
    /// A file ends in .sql and holds one query over `anchors`, `groups` or `segments` that gives `trajectory_id`,
    /// `advantage` and, if wanted, `segment_index`: see docs/estimators.md. Short for --set estimator=….
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) estimator: Vec<String>,

    /// Keep only the trajectories or groups that this file's query gives
    ///
    /// A file that ends in .sql and holds one query that gives `trajectory_id` or `group_id`. It changes nobody's
    /// advantage. Short for --set filter=….
    #[arg(long, value_name = "FILE")]
    pub(crate) filter: Option<String>,

    /// Memory that a query's operators may take [default: 512MiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory_limit: Option<ByteCount>,

    /// Stop a query after this long [default: 10m]
    #[arg(long, value_name = "TIME")]
    pub(crate) time_limit: Option<TimeSpan>,

    /// A tokenizer.json (or .zst, or its folder), for text of token ids
    #[arg(long, value_name = "FILE")]
    pub(crate) tokenizer: Option<String>,
}

impl Context {
    /// Settings of the store room: ours, and the variables that every S3 tool reads.
    pub(crate) fn store_settings(&self, settings: &Settings) -> StoreSettings {
        let mut store = StoreSettings::from_env(settings.store.clone());
        if let Some(endpoint) = set(&settings.s3.endpoint) {
            store.s3.endpoint = Some(endpoint.to_owned());
        }
        if let Some(region) = set(&settings.s3.region) {
            store.s3.region = Some(region.to_owned());
        }
        store.s3.allow_http |= settings.s3.allow_http;
        store.retry_timeout_ms = settings.storage.retry_timeout.as_millis();
        store
    }

    /// The settings in force for a command that reads.
    pub(crate) fn query_settings(&mut self, args: &QueryArgs) -> Result<Settings> {
        if args.estimator.len() > 1 {
            return Err(Failure::invalid("name one estimator: several are compared by `dressage plan --dry-run`"));
        }
        self.reading_settings(args)
    }

    /// The same, for a command that takes several estimators.
    pub(crate) fn reading_settings(&mut self, args: &QueryArgs) -> Result<Settings> {
        refuse_twice(args)?;
        self.layers.flag("sql.memory_limit", "--memory-limit", args.memory_limit)?;
        self.layers.flag("sql.time_limit", "--time-limit", args.time_limit)?;
        self.layers.flag("sql.tokenizer", "--tokenizer", args.tokenizer.as_ref())?;
        self.layers.settings()
    }

    /// Opens the store that the settings name, and says what a quick look at its place finds wrong.
    pub(crate) async fn open_lake(&self, settings: &Settings) -> Result<Lake> {
        let lake = Lake::open(self.store_settings(settings)).await?;
        for finding in doctor::quick(&lake).await {
            if matches!(finding.status, FindingStatus::Warning | FindingStatus::Failed) {
                let advice = finding.what_to_do.map(|what| format!("; {what}")).unwrap_or_default();
                self.output.note(&format!("warning: {}: {}{advice}", finding.check, finding.detail));
            }
        }
        Ok(lake)
    }

    /// Pins one version of every table.
    pub(crate) async fn open_snapshot(&self, settings: &Settings, as_of: Option<&str>) -> Result<Snapshot> {
        let as_of = as_of.map(parse_as_of).transpose()?;
        Ok(self.open_lake(settings).await?.snapshot(as_of).await?)
    }

    /// A SQL session over the store as the arguments say.
    pub(crate) async fn open_session(&self, settings: &Settings, args: &QueryArgs) -> Result<Session> {
        let snapshot = self.open_snapshot(settings, args.as_of.as_deref()).await?;
        let session = Session::open(snapshot, session_settings(settings, args))?;
        note_unknown(self.output, &session, &NAMED).await;
        Ok(session)
    }
}

/// Variables that narrow what is seen to a name, with the table and column that have the names.
pub(crate) const NAMED: [(&str, &str, &str); 2] =
    [("run", "stored.trajectories", "run_id"), ("grader", "stored.rewards", "grader")];

/// Names that a note lists at most.
const NAMES_SHOWN: usize = 8;

/// Says where a run or grader that was asked for is not in the store: no rows would look like an answer.
pub(crate) async fn note_unknown(output: Output, session: &Session, named: &[(&str, &str, &str)]) {
    if output.quiet {
        return;
    }
    let variables = session.variables();
    for (variable, table, column) in named {
        let Some(asked) = variables.get(*variable) else { continue };
        // a store that cannot be asked says so when it is asked what the user wants to know
        if let Ok(Some(note)) = unknown(session, asked, (variable, table, column)).await {
            output.note(&note);
        }
    }
}

async fn unknown(session: &Session, asked: &str, (what, table, column): (&str, &str, &str)) -> Result<Option<String>> {
    let here = format!("SELECT {column} FROM {table} WHERE {column} = {} LIMIT 1", literal(asked));
    if !rows::rows(session, &here).await?.is_empty() {
        return Ok(None);
    }
    let all = format!("SELECT DISTINCT {column} FROM {table} WHERE {column} IS NOT NULL ORDER BY {column}");
    let names: Vec<String> =
        rows::rows(session, &all).await?.iter().filter_map(|row| row.text(column).map(str::to_owned)).collect();
    let instead = match nearest(asked, names.iter().map(String::as_str)) {
        Some(near) => format!("did you mean `{near}`?"),
        None if names.is_empty() => format!("it has no {what} at all"),
        None => {
            let more = if names.len() > NAMES_SHOWN { ", …" } else { "" };
            format!("it has {}{more}", names[..names.len().min(NAMES_SHOWN)].join(", "))
        }
    };
    Ok(Some(format!("note: no {what} `{asked}` is in this store: {instead}")))
}

/// Refuses what a flag and `--set` both say: one of them would be ignored.
fn refuse_twice(args: &QueryArgs) -> Result<()> {
    let flags = [
        ("run", args.run.is_some()),
        ("estimator", !args.estimator.is_empty()),
        ("filter", args.filter.is_some()),
        ("tokenizer", args.tokenizer.is_some()),
    ];
    for (name, _) in flags.into_iter().filter(|(_, given)| *given) {
        if args.variables.iter().any(|(variable, _)| variable == name) {
            return Err(Failure::invalid(format!("--{name} and --set {name}=… say the same thing: leave one out")));
        }
    }
    Ok(())
}

/// Settings of the SQL room: ours, and the variables given with `--set`, `--run` and `--tokenizer`.
pub(crate) fn session_settings(settings: &Settings, args: &QueryArgs) -> SessionSettings {
    let mut session = SessionSettings {
        memory_limit_bytes: settings.sql.memory_limit.0,
        time_limit_ms: Some(settings.sql.time_limit.as_millis()),
        ..SessionSettings::default()
    };
    if let Some(tokenizer) = set(&settings.sql.tokenizer) {
        session.set.insert("tokenizer".to_owned(), tokenizer.to_owned());
    }
    session.set.extend(settings.training_variables());
    if let Some(run) = &args.run {
        session.set.insert("run".to_owned(), run.clone());
    }
    session.set.extend(args.variables.iter().cloned());
    for (name, value) in [("estimator", args.estimator.last()), ("filter", args.filter.as_ref())] {
        session.set.extend(value.map(|value| (name.to_owned(), value.clone())));
    }
    session
}

/// `3` is a snapshot's number, `2026-11-30…` a time, anything else a tag.
pub(crate) fn parse_as_of(text: &str) -> Result<AsOf> {
    if let Ok(id) = text.parse::<i64>() {
        return Ok(AsOf::Snapshot(id));
    }
    let looks_like_time = text.len() >= 10
        && text
            .bytes()
            .take(10)
            .enumerate()
            .all(|(i, b)| if i == 4 || i == 7 { b == b'-' } else { b.is_ascii_digit() });
    if !looks_like_time {
        return Ok(AsOf::Tag(text.to_owned()));
    }
    let whole = if text.len() == 10 { format!("{text}T00:00:00Z") } else { text.to_owned() };
    let time = humantime::parse_rfc3339_weak(&whole).map_err(|_| {
        Failure::invalid(format!(
            "--as-of {text}: write a time like 2026-11-30T12:00:00Z, a snapshot's number or a tag"
        ))
    })?;
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_err(|_| Failure::invalid(format!("--as-of {text} is before 1970")))?;
    Ok(AsOf::Time(i64::try_from(since.as_micros()).unwrap_or(i64::MAX)))
}

/// Runs a command's future on a runtime of its own.
pub(crate) fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    runtime()?.block_on(future)
}

/// The runtime of a command.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the threads of the async runtime")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_of_tells_numbers_times_and_tags_apart() {
        assert_eq!(parse_as_of("3").expect("number"), AsOf::Snapshot(3));
        assert_eq!(parse_as_of("before-fix").expect("tag"), AsOf::Tag("before-fix".into()));
        assert_eq!(parse_as_of("1970-01-02").expect("day"), AsOf::Time(86_400_000_000));
        assert_eq!(parse_as_of("1970-01-01T00:00:01Z").expect("time"), AsOf::Time(1_000_000));
        assert!(parse_as_of("2026-13-45").is_err());
    }
}
