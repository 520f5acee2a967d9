//! `dressage plot`: metrics of training runs over their train steps, as a picture or as a table.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;
use arrow::array::AsArray;
use arrow::datatypes::{Float64Type, Int64Type};
use clap::Args;
use serde_json::json;

use super::Context;
use super::store_access::{QueryArgs, block_on};
use crate::failure::{Failure, Outcome};
use crate::picture::{self, Canvas, FAINT, INK, SERIES, WIDTH};
use crate::rows::literal;

/// Draw metrics of a training run over its train steps
///
/// One panel a metric, one line a training run. Metrics are those of table `train_metrics`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dressage plot -o curves.svg
  dressage plot --train-run a --train-run b --metrics reward_mean,kl,grad_norm -o compare.png
  dressage plot --json | jq '.series[0]'")]
pub(crate) struct PlotArgs {
    /// Training runs, each a line [default: the newest one]
    #[arg(long, value_name = "NAME")]
    train_run: Vec<String>,

    /// Metrics, separated by commas, each a panel [default: those below that there are]
    ///
    /// reward_mean, loss, kl, mismatch_k3, entropy, grad_norm, response_tokens_mean
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    metrics: Vec<String>,

    /// Where to: .svg or .png
    #[arg(long, short = 'o', value_name = "FILE", required_unless_present = "json")]
    output: Option<PathBuf>,
}

/// Drawn where nothing is asked for: what one looks at first.
const USUAL: [&str; 7] = ["reward_mean", "loss", "kl", "mismatch_k3", "entropy", "grad_norm", "response_tokens_mean"];

const PANEL: u32 = 130;
const TITLE: u32 = 28;
const MARGIN: u32 = 72;
const AXIS: u32 = 40;

/// The values of one metric of one run, by train step.
type Values = BTreeMap<i64, f64>;

/// Values by metric and run.
type Found = BTreeMap<String, BTreeMap<String, Values>>;

pub(crate) fn run(mut context: Context, args: &PlotArgs) -> Result<Outcome> {
    let query = QueryArgs::default();
    let settings = context.query_settings(&query)?;
    let (runs, mut found) = block_on(async {
        let session = context.open_session(&settings, &query).await?;
        let runs = match args.train_run.is_empty() {
            true => newest(&session).await?.into_iter().collect(),
            false => args.train_run.clone(),
        };
        if runs.is_empty() {
            return Err(Failure::not_found("table train_metrics is empty: nothing was trained in this store yet"));
        }
        let found = read(&session, &runs).await?;
        anyhow::Ok((runs, found))
    })?;
    if let Some(run) = runs.iter().find(|run| !found.values().any(|of| of.contains_key(*run))) {
        return Err(Failure::not_found(format!(
            "there is no training run `{run}` in table train_metrics; dressage sql \"select distinct train_run from train_metrics\" \
             lists those that there are"
        )));
    }
    let metrics = chosen(args, &found)?;
    found.retain(|metric, _| metrics.contains(metric));
    if context.output.json {
        let series: Vec<_> = metrics
            .iter()
            .filter_map(|metric| Some((metric, found.get(metric)?)))
            .flat_map(|(metric, of)| of.iter().map(move |(run, values)| (metric, run, values)))
            .map(|(metric, run, values)| {
                json!({
                    "metric": metric,
                    "train_run": run,
                    "optimizer_step": values.keys().collect::<Vec<_>>(),
                    "value": values.values().collect::<Vec<_>>(),
                })
            })
            .collect();
        context.output.json(&json!({ "train_runs": runs, "series": series }))?;
    }
    if let Some(file) = &args.output {
        let panels: Vec<Panel<'_>> =
            metrics.iter().filter_map(|m| Some(Panel { metric: m, runs: &runs, of: found.get(m)? })).collect();
        let height = TITLE + panels.len() as u32 * (PANEL + TITLE) + AXIS;
        picture::write(file, height, |canvas| draw(canvas, &panels))?;
        context.output.note(&format!("drawn to {}", file.display()));
    }
    Ok(Outcome::Done)
}

/// The metrics that were asked for, or the usual ones that there are.
fn chosen(args: &PlotArgs, found: &Found) -> Result<Vec<String>> {
    if args.metrics.is_empty() {
        return Ok(USUAL.iter().filter(|m| found.contains_key(**m)).map(|m| (*m).to_owned()).collect());
    }
    let wanted: Vec<String> = args.metrics.iter().map(|name| name.trim().to_owned()).collect();
    match wanted.iter().find(|name| !found.contains_key(*name)) {
        Some(missing) => {
            let known: Vec<&str> = found.keys().map(String::as_str).collect();
            Err(Failure::not_found(format!("no metric `{missing}` was recorded; there are {}", known.join(", "))))
        }
        None => Ok(wanted),
    }
}

/// The training run that was recorded last.
async fn newest(session: &dressage_segmenter::Session) -> Result<Option<String>> {
    let mut rows = session.sql("SELECT train_run FROM train_metrics ORDER BY recorded_at DESC LIMIT 1").await?;
    while let Some(batch) = rows.next_batch().await? {
        if batch.num_rows() > 0 {
            return Ok(Some(batch.column(0).as_string::<i32>().value(0).to_owned()));
        }
    }
    Ok(None)
}

async fn read(session: &dressage_segmenter::Session, runs: &[String]) -> Result<Found> {
    let names: Vec<String> = runs.iter().map(|run| literal(run)).collect();
    let mut rows = session
        .sql(&format!(
            "SELECT metric, train_run, optimizer_step, value FROM train_metrics WHERE train_run IN ({})",
            names.join(", ")
        ))
        .await?;
    let mut found = Found::new();
    while let Some(batch) = rows.next_batch().await? {
        let metric = batch.column(0).as_string::<i32>();
        let run = batch.column(1).as_string::<i32>();
        let step = batch.column(2).as_primitive::<Int64Type>();
        let value = batch.column(3).as_primitive::<Float64Type>();
        for row in 0..batch.num_rows() {
            let of =
                found.entry(metric.value(row).to_owned()).or_default().entry(run.value(row).to_owned()).or_default();
            of.insert(step.value(row), value.value(row));
        }
    }
    Ok(found)
}

/// A metric and its lines.
struct Panel<'a> {
    metric: &'a str,
    runs: &'a [String],
    of: &'a BTreeMap<String, Values>,
}

impl Panel<'_> {
    fn values(&self) -> impl Iterator<Item = (i64, f64)> + '_ {
        self.of.values().flatten().map(|(step, value)| (*step, *value)).filter(|(_, value)| value.is_finite())
    }

    /// Smallest and largest value, apart from each other.
    fn range(&self) -> (f64, f64) {
        let low = self.values().map(|(_, v)| v).fold(f64::INFINITY, f64::min);
        let high = self.values().map(|(_, v)| v).fold(f64::NEG_INFINITY, f64::max);
        match low <= high {
            true if low < high => (low, high),
            true => (low - 0.5, high + 0.5),
            false => (0.0, 1.0),
        }
    }
}

fn draw(canvas: &mut dyn Canvas, panels: &[Panel<'_>]) {
    let plot_width = WIDTH - MARGIN - 24;
    let last = panels.iter().flat_map(Panel::values).map(|(step, _)| step).max().unwrap_or(0).max(1);
    let x_of = |step: i64| MARGIN + (step as f64 / last as f64 * f64::from(plot_width)) as u32;
    canvas.text(MARGIN, 10, "training");
    if let Some(panel) = panels.first() {
        let mut x = MARGIN + 80;
        for (nth, run) in panel.runs.iter().enumerate() {
            canvas.rectangle(x, 12, 12, 4, SERIES[nth % SERIES.len()]);
            canvas.text(x + 16, 10, run);
            x += 40 + run.chars().count() as u32 * 8;
        }
    }
    for (nth, panel) in panels.iter().enumerate() {
        let top = TITLE + nth as u32 * (PANEL + TITLE);
        let base = top + TITLE + PANEL - 10;
        let (low, high) = panel.range();
        let y_of = |value: f64| base - ((value - low) / (high - low) * f64::from(PANEL - 20)) as u32;
        canvas.text(MARGIN, top + 8, panel.metric);
        for value in [low, (low + high) / 2.0, high] {
            canvas.rectangle(MARGIN, y_of(value), plot_width, 1, FAINT);
            let label = label(value);
            canvas.text((MARGIN - 6).saturating_sub(label.len() as u32 * 8), y_of(value).saturating_sub(4), &label);
        }
        for (nth, run) in panel.runs.iter().enumerate() {
            let Some(values) = panel.of.get(run) else { continue };
            // a value that is none is a gap
            let mut stretch: Vec<(u32, u32)> = Vec::new();
            for (step, value) in values {
                if value.is_finite() {
                    stretch.push((x_of(*step), y_of(*value)));
                } else {
                    canvas.line(&std::mem::take(&mut stretch), SERIES[nth % SERIES.len()]);
                }
            }
            canvas.line(&stretch, SERIES[nth % SERIES.len()]);
        }
    }
    let base = TITLE + panels.len() as u32 * (PANEL + TITLE);
    for nth in 0..=4_i64 {
        let step = last * nth / 4;
        let label = step.to_string();
        let half = label.len() as u32 * 4;
        canvas.rectangle(x_of(step), base, 1, 6, INK);
        canvas.text(x_of(step).saturating_sub(half).min(WIDTH - 2 * half), base + 12, &label);
    }
}

/// A value in at most eight characters.
fn label(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if !(1e-3..1e5).contains(&size) => format!("{value:.1e}"),
        size if size >= 100.0 => format!("{value:.0}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panel_draws_a_line_a_run_with_gaps_where_values_are_none() {
        let values = |from: f64| -> Values { (0..5).map(|i| (i, from + i as f64)).collect() };
        let mut broken = values(2.0);
        broken.insert(2, f64::NAN);
        let of: BTreeMap<String, Values> = [("a".to_owned(), values(1.0)), ("b<c>".to_owned(), broken)].into();
        let runs = vec!["a".to_owned(), "b<c>".to_owned()];
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("curves.svg");
        let panels = [Panel { metric: "loss", runs: &runs, of: &of }];
        picture::write(&file, 300, |canvas| draw(canvas, &panels)).expect("drawn");
        let text = std::fs::read_to_string(file).expect("there");
        assert!(text.contains(">loss<") && text.contains("b&lt;c&gt;"), "{text}");
        assert_eq!(text.matches("<polyline").count(), 3);
        assert!(!text.contains("NaN"), "{text}");
    }

    #[test]
    fn values_that_are_all_the_same_have_a_range() {
        let of: BTreeMap<String, Values> = [("a".to_owned(), [(0, 3.0)].into())].into();
        let panel = Panel { metric: "loss", runs: &[], of: &of };
        assert_eq!(panel.range(), (2.5, 3.5));
        assert_eq!(
            (label(0.0), label(-1234.5), label(1e-7)),
            ("0".to_owned(), "-1234".to_owned(), "1.0e-7".to_owned())
        );
    }
}
