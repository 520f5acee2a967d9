//! `plan --dry-run`: what a plan would be, under one estimator or several beside each other.

use anyhow::{Context as _, Result};
use dressage_segmenter::plan::{Advantages, Plan};
use serde_json::{Value, json};

use super::page::percent;
use super::{Asked, Context, Outcome, page, plot};
use crate::output::{self, Paint, grouped};

/// Parts of a histogram.
const BINS: usize = 40;

/// One estimator, with what came of it.
struct Trial {
    name: String,
    result: Result<Plan, String>,
}

/// Plans under each estimator and prints them beside each other.
pub(super) async fn run(context: &Context, asked: &Asked<'_>) -> Result<Outcome> {
    let mut trials = Vec::new();
    let names = &asked.args.query.estimator;
    let estimators: Vec<Option<&str>> =
        if names.is_empty() { vec![None] } else { names.iter().map(|e| Some(e.as_str())).collect() };
    for estimator in &estimators {
        let session = asked.session(*estimator)?;
        let planner = asked.planner(&session).await?;
        let name = estimator
            .map_or_else(|| session.settings_in_force().remove("estimator").unwrap_or_default(), str::to_owned);
        match planner.plan().await {
            Ok(plan) => trials.push(Trial { name, result: Ok(plan) }),
            // one of several that leaves nothing over is a result, too
            Err(error @ dressage_segmenter::Error::NothingToPlan { .. }) if estimators.len() > 1 => {
                trials.push(Trial { name, result: Err(error.to_string()) });
            }
            Err(error) => return Err(error).with_context(|| format!("with estimator {name}")),
        }
    }
    let range = common_range(&trials);
    if let Some(file) = &asked.args.plot {
        let series: Vec<plot::Series> = trials
            .iter()
            .filter_map(|t| Some(plot::Series { name: &t.name, counts: t.plan()?.advantages.histogram(range, BINS) }))
            .collect();
        plot::write(file, range, &series)?;
        context.output.note(&format!("drawn to {}", file.display()));
    }
    if context.output.json {
        let estimators = trials.iter().map(|t| t.as_json(range)).collect::<Result<Vec<_>>>()?;
        let read_bytes = super::read_bytes(asked).await?;
        context.output.json(&json!({ "stored": false, "read_bytes": read_bytes, "estimators": estimators }))?;
    } else {
        context.output.text(&text(&trials, range, context.output.paint())?)?;
        context.output.note("nothing was stored: without --dry-run it is");
    }
    Ok(Outcome::Done)
}

impl Trial {
    fn plan(&self) -> Option<&Plan> {
        self.result.as_ref().ok()
    }

    fn as_json(&self, range: (f64, f64)) -> Result<Value> {
        let plan = match &self.result {
            Ok(plan) => plan,
            Err(reason) => return Ok(json!({ "estimator": self.name, "nothing_to_plan": reason })),
        };
        let mut document = serde_json::to_value(&plan.report).context("the report has no JSON")?;
        document["estimator"] = json!(self.name);
        document["train_steps"] = json!(plan.steps);
        document["advantages"] = json!(plan.advantages.report());
        document["histogram"] =
            json!({ "low": range.0, "high": range.1, "counts": plan.advantages.histogram(range, BINS) });
        Ok(document)
    }
}

/// A range that holds the advantages of all, so that histograms can be laid over each other.
fn common_range(trials: &[Trial]) -> (f64, f64) {
    let ranges = trials.iter().filter_map(Trial::plan).map(|p| p.advantages.range());
    let (low, high) = ranges.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), (a, b)| (low.min(a), high.max(b)));
    match (low.is_finite(), low < high) {
        (true, true) => (low, high),
        (true, false) => (low - 0.5, low + 0.5),
        _ => (-1.0, 1.0),
    }
}

fn text(trials: &[Trial], range: (f64, f64), paint: Paint) -> Result<String> {
    let mut out = String::new();
    if let [Trial { result: Ok(plan), .. }] = trials {
        let summary = serde_json::to_value(&plan.report).context("the report has no JSON")?;
        let steps = serde_json::to_value(&plan.steps).context("the report has no JSON")?;
        out.push_str(&page::plan(&summary, Some(&steps), paint));
        out.push('\n');
    }
    let headers = ["estimator", "train steps", "trajectories", "left out", "with gradient", "a step", "full"];
    let rows = trials.iter().map(|t| match t.plan() {
        None => vec![t.name.clone()],
        Some(plan) => {
            let gone = plan.report.dropped.iter().filter(|d| !d.has_samples);
            let left_out: u64 = gone.map(|d| d.n_trajectories).sum();
            let spread = plan.advantages.report();
            vec![
                t.name.clone(),
                grouped(plan.report.n_train_steps),
                grouped(plan.report.n_trajectories),
                grouped(left_out),
                grouped(spread.trajectories_with_gradient),
                format!("{:.1}", spread.effective_batch_size),
                percent(&json!(plan.report.packing_efficiency)),
            ]
        }
    });
    out.push_str(&format!("{}\n", output::table(&headers, &[1, 2, 3, 4, 5, 6], rows)));
    for trial in trials {
        if let Err(reason) = &trial.result {
            out.push_str(&format!("{}: {reason}\n", trial.name));
        }
    }
    out.push_str(&format!("\n{}\n{}\n", paint.bold("advantages, a sample each"), spreads(trials)));
    for trial in trials {
        let Some(plan) = trial.plan() else { continue };
        out.push_str(&format!("{:>9.3} {} {:<9.3} {}\n", range.0, bars(&plan.advantages, range), range.1, trial.name));
        if trials.len() > 1 {
            let summary = serde_json::to_value(&plan.report).context("the report has no JSON")?;
            out.push_str(&page::dropped(&summary, paint));
        }
    }
    Ok(out)
}

fn spreads(trials: &[Trial]) -> String {
    let headers = ["estimator", "mean", "std", "zero", "min", "p10", "p25", "p50", "p75", "p90", "max"];
    let rows = trials.iter().filter_map(|t| Some((t, t.plan()?.advantages.report()))).map(|(t, a)| {
        let zero = 100.0 * a.n_zero as f64 / a.n_samples.max(1) as f64;
        let mut row = vec![t.name.clone(), format!("{:.3}", a.mean), format!("{:.3}", a.std), format!("{zero:.1} %")];
        row.extend([a.min, a.p10, a.p25, a.p50, a.p75, a.p90, a.max].map(|v| format!("{v:.3}")));
        row
    });
    output::table(&headers, &(1..headers.len()).collect::<Vec<_>>(), rows)
}

/// A histogram in one line.
fn bars(advantages: &Advantages, range: (f64, f64)) -> String {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let counts = advantages.histogram(range, BINS);
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    // what is there at all is seen
    counts.iter().map(|&n| BARS[(n * 8).div_ceil(most).min(8) as usize]).collect()
}
