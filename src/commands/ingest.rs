//! `dressage ingest`: rollouts that people already have, into the store.

use std::io::{IsTerminal, stderr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use dressage_ingest::{IngestReport, IngestSettings, Progress, ProgressNow};
use dressage_schemas::ErrorKind;
use dressage_storage::Lake;
use indicatif::{ProgressBar, ProgressStyle};

use super::Context;
use super::store_access::block_on;
use crate::failure::Outcome;
use crate::interrupt;
use crate::output::{Output, bytes_text, counted, grouped};
use crate::settings::{ByteCount, Settings, TimeSpan, key_value, set};

/// Read rollouts into the store
///
/// Reads files, folders, globs, `-` (standard input) and s3:// objects; .gz, .zst and zip members are opened on the
/// way. What a file is, is told by its content. A store that does not exist yet is made. Reading the same thing again
/// changes nothing; a longer copy of a trajectory replaces the shorter one. What cannot be read goes to the
/// `quarantine` table with its reason, and the exit code is then 9. Ctrl-C commits what was read and ends with 130; the
/// same command goes on from there.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dressage ingest ~/.claude/projects                        Claude Code transcripts, into ./store
  dressage ingest runs/*.jsonl.zst --run nightly --label split=train
  dressage ingest s3://logs/rollouts/ --store s3://lake/runs --memory-limit 1GiB
  producer | dressage ingest - --format dressage            a stream of our own format
  dressage ingest logs --json | jq .quarantined")]
pub(crate) struct IngestArgs {
    /// Files, folders, globs, `-`, s3:// objects
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<String>,

    /// The format, where it should not be told by content (a wrong name lists the right ones)
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    format: String,

    /// The run of all trajectories [default: the source's, or `default`]
    #[arg(long, value_name = "RUN")]
    run: Option<String>,

    /// What makes a group: a field, or a key of labels or extra keys, such as `labels.task`
    #[arg(long, value_name = "KEY")]
    group_by: Option<String>,

    /// A label for every trajectory
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = key_value)]
    labels: Vec<(String, String)>,

    /// Tokenise text that has no token ids with this tokenizer.json (or .zst)
    ///
    /// Such tokens are marked as retokenised and are never trained on: they are not what the policy sampled.
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,

    /// Memory of the whole ingest [default: 2GiB]
    #[arg(long, value_name = "SIZE")]
    memory_limit: Option<ByteCount>,

    /// Threads that parse and encode [default: one a core]
    #[arg(long, short = 'j', value_name = "N")]
    jobs: Option<usize>,

    /// Stop at the first record that would go to quarantine
    #[arg(long)]
    strict: bool,

    /// Commit after this many bytes of rows [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    commit_bytes: Option<ByteCount>,

    /// Commit when the oldest waiting row is this old [default: 30s]
    #[arg(long, value_name = "TIME")]
    commit_interval: Option<TimeSpan>,

    /// Store routed experts as sets, without the rank order inside a top-k
    ///
    /// About a quarter smaller, and enough where the trainer gathers its own router's weights at those ids.
    #[arg(long)]
    experts_as_sets: bool,
}

pub(crate) fn run(mut context: Context, args: &IngestArgs) -> Result<Outcome> {
    context.layers.flag("ingest.memory_limit", "--memory-limit", args.memory_limit)?;
    context.layers.flag("ingest.jobs", "--jobs", args.jobs)?;
    context.layers.flag("ingest.commit_bytes", "--commit-bytes", args.commit_bytes)?;
    context.layers.flag("ingest.commit_interval", "--commit-interval", args.commit_interval)?;
    context.layers.flag("ingest.run", "--run", args.run.as_ref())?;
    context.layers.flag("ingest.tokenizer", "--tokenizer", args.tokenizer.as_ref().map(|p| p.display()))?;
    let settings = context.layers.settings()?;
    let wanted = ingest_settings(&settings, args);
    wanted.check()?;
    let output = context.output;
    let report = block_on(async {
        let lake = open_or_init(&context, &settings).await?;
        let bar = Bar::new(output);
        let stop = interrupt::listen(output, "stopping: committing what was read (once more ends it at once)", None);
        let report = dressage_ingest::ingest(&lake, wanted, &bar, stop.asked()).await;
        bar.finish();
        report.map_err(goes_on)
    })?;
    if output.json {
        output.json(&report)?;
    } else {
        output.text(&summary(&report))?;
        if report.quarantined > 0 {
            // with the store as it was named: the hint is there to be pasted
            let store = if settings.store == Settings::default().store {
                String::new()
            } else {
                format!(" --store {}", shell_word(&settings.store))
            };
            output.note(&format!(
                "what was refused and why: dressage sql{store} \"select source, line, rule, reason from quarantine limit 20\""
            ));
        }
    }
    if report.stopped {
        output.note(
            "stopped before the end; what is counted here is in the store, and the same command goes on from there",
        );
        return Ok(Outcome::Stopped);
    }
    Ok(if report.quarantined > 0 { Outcome::Quarantined } else { Outcome::Done })
}

/// An error that is not about the command says what became of what was read before it.
fn goes_on(error: dressage_ingest::Error) -> anyhow::Error {
    let mendable = matches!(error.kind(), ErrorKind::Exhausted | ErrorKind::Unavailable | ErrorKind::Conflict);
    let error = anyhow::Error::from(error);
    if !mendable {
        return error;
    }
    error.context(
        "the ingest stopped before the end: what was committed is in the store; once the cause is mended, the same \
         command goes on from there",
    )
}

fn ingest_settings(settings: &Settings, args: &IngestArgs) -> IngestSettings {
    let mut wanted = IngestSettings {
        sources: args.sources.clone(),
        format: args.format.clone(),
        run: set(&settings.ingest.run).map(str::to_owned),
        group_by: args.group_by.clone(),
        labels: args.labels.iter().cloned().collect(),
        tokenizer: set(&settings.ingest.tokenizer).map(PathBuf::from),
        memory_limit_bytes: settings.ingest.memory_limit.0,
        strict: args.strict,
        commit_bytes: settings.ingest.commit_bytes.0,
        commit_interval_ms: settings.ingest.commit_interval.as_millis(),
        expert_ranks: !args.experts_as_sets,
        ..IngestSettings::default()
    };
    if settings.ingest.jobs > 0 {
        wanted.jobs = settings.ingest.jobs;
    }
    wanted
}

/// Opens the store, or makes it where there is none: the first ingest of a user should not need a second command.
async fn open_or_init(context: &Context, settings: &Settings) -> Result<Lake> {
    let store = context.store_settings(settings);
    match Lake::open(store.clone()).await {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let lake = Lake::init(store).await?;
            context.output.note(&format!("made a store at {}", lake.uri()));
            Ok(lake)
        }
        other => Ok(other?),
    }
}

/// The progress bar on stderr; nothing where stderr is no terminal.
struct Bar(Option<ProgressBar>);

impl Bar {
    fn new(output: Output) -> Self {
        if output.quiet || !stderr().is_terminal() {
            return Self(None);
        }
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(Some(bar))
    }

    fn finish(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

impl Progress for Bar {
    fn update(&self, now: &ProgressNow) {
        let Some(bar) = &self.0 else { return };
        let known = "{bar:24} {bytes}/{total_bytes}  {bytes_per_sec}  ETA {eta}  {msg}";
        let unknown = "{spinner} {bytes}  {bytes_per_sec}  {msg}";
        let template = if now.bytes_total.is_some() { known } else { unknown };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        if let Some(total) = now.bytes_total {
            bar.set_length(total);
        }
        bar.set_position(now.bytes_done);
        let mut message = counted(now.trajectories, "trajectory");
        if now.quarantined > 0 {
            message.push_str(&format!(", {} quarantined", grouped(now.quarantined)));
        }
        bar.set_message(message);
    }
}

fn summary(report: &IngestReport) -> String {
    let rate = if report.seconds > 0.0 { report.bytes_in as f64 / report.seconds } else { 0.0 };
    let mut text = format!(
        "read {} in {} ({}, {}/s)\n",
        counted(report.records, "record"),
        counted(report.files, "file"),
        bytes_text(report.bytes_in),
        bytes_text(rate as u64),
    );
    text.push_str(&format!(
        "  trajectories  {} new, {} updated, {} unchanged\n",
        grouped(report.trajectories_new),
        grouped(report.trajectories_updated),
        grouped(report.trajectories_unchanged)
    ));
    text.push_str(&format!(
        "  stored        {}, {}, {}\n",
        counted(report.steps, "step"),
        counted(report.tokens, "token"),
        bytes_text(report.bytes_stored)
    ));
    let mut formats: Vec<String> = report.formats.iter().map(|(name, n)| format!("{name} {}", grouped(*n))).collect();
    formats.sort();
    if !formats.is_empty() {
        text.push_str(&format!("  formats       {}\n", formats.join(", ")));
    }
    if report.quarantined > 0 {
        let rules: Vec<String> =
            report.quarantined_by_rule.iter().map(|(rule, n)| format!("{rule} {}", grouped(*n))).collect();
        text.push_str(&format!("  quarantined   {}: {}\n", grouped(report.quarantined), rules.join(", ")));
    }
    text.push_str(&format!(
        "  took          {:.1} s, peak memory {}\n",
        report.seconds,
        bytes_text(report.peak_rss_bytes)
    ));
    text
}

/// A word as a shell takes it.
fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | ':' | '@' | '%' | '+' | '=');
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}
