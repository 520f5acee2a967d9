//! What a person sees of a training run: a bar while it goes, a table when it has ended.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use dressage_segmenter::StoredPlan;
use dressage_trainer::metrics::{StepMetrics, names};
use indicatif::{ProgressBar, ProgressStyle};

use super::run::{Done, Ended};
use crate::output::{self, Output, Paint, grouped};

/// Without a terminal, a line this often.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Progress on stderr.
pub(super) struct Bar {
    output: Output,
    bar: Option<ProgressBar>,
    said_at: Option<Instant>,
    of_plan: i32,
    done: i32,
    /// What there is to say of the last train step.
    last: Option<String>,
}

impl Bar {
    pub(super) fn new(output: Output) -> Self {
        let bar = (!output.quiet && stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new(0);
            if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos}/{len}  ETA {eta}  {msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Self { output, bar, said_at: None, of_plan: 0, done: 0, last: None }
    }

    /// A plan begins, or goes on at a train step.
    pub(super) fn plan(&mut self, plan: &StoredPlan, next_train_step: i32) {
        (self.of_plan, self.done) = (plan.row().n_train_steps, next_train_step);
        let left = self.of_plan - next_train_step;
        let id: String = plan.plan_id().chars().take(8).collect();
        self.note(&format!(
            "plan {id}: {} of {} train steps, {} tokens in all",
            grouped(left),
            grouped(self.of_plan),
            grouped(plan.row().n_tokens)
        ));
        if let Some(bar) = &self.bar {
            bar.set_length(self.of_plan.unsigned_abs().into());
            bar.set_position(next_train_step.unsigned_abs().into());
        }
    }

    /// A train step is done.
    pub(super) fn step(&mut self, metrics: &StepMetrics) {
        self.done += 1;
        let line = line(metrics);
        match &self.bar {
            Some(bar) => {
                bar.inc(1);
                bar.set_message(line.clone());
            }
            None if self.said_at.is_none_or(|at| at.elapsed() >= LINE_INTERVAL) => {
                self.said_at = Some(Instant::now());
                self.output.note(&format!("{} of {} train steps  {line}", self.done, self.of_plan));
            }
            None => {}
        }
        self.last = Some(line);
    }

    /// A remark that does not tear the bar.
    pub(super) fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => self.output.note(text),
        }
    }

    pub(super) fn finish(&self) {
        match (&self.bar, &self.last) {
            (Some(bar), _) => bar.finish_and_clear(),
            (None, Some(line)) => self.output.note(&format!("{} of {} train steps  {line}", self.done, self.of_plan)),
            (None, None) => {}
        }
    }
}

/// The numbers that one looks at while it goes.
fn line(metrics: &StepMetrics) -> String {
    let wanted = [
        ("loss", names::LOSS, 4),
        ("reward", names::REWARD_MEAN, 3),
        ("kl", names::KL, 4),
        ("mismatch", names::MISMATCH_K3, 4),
        ("|g|", names::GRAD_NORM, 3),
    ];
    let mut parts: Vec<String> = wanted
        .iter()
        .filter_map(|(label, name, digits)| metrics.get(name).map(|value| format!("{label} {value:.digits$}")))
        .collect();
    if let Some(rate) = metrics.get(names::TOKENS_PER_SECOND) {
        parts.push(format!("{} tok/s", grouped(rate as i64)));
    }
    if let Some(stall) = metrics.get(names::INPUT_STALL_FRACTION) {
        parts.push(format!("stall {:.1} %", stall * 100.0));
    }
    parts.join("  ")
}

/// Metrics that are told of the first train step and of the last.
const TOLD: [&str; 10] = [
    names::LOSS,
    names::REWARD_MEAN,
    names::ENTROPY,
    names::KL,
    names::UPDATE_KL,
    names::MISMATCH_K3,
    names::CLIP_FRACTION_HIGH,
    names::GRAD_NORM,
    names::RESPONSE_TOKENS_MEAN,
    names::TOKENS_PER_SECOND,
];

/// What a run did.
pub(super) fn summary(done: &Done, ended: Ended, paint: Paint) -> String {
    let mut text = format!(
        "{} train steps over {} plan{}, {} tokens ({} trained) in {:.1} s of stepping, input stall {:.2} %\n",
        grouped(done.train_steps),
        done.plans.len(),
        if done.plans.len() == 1 { "" } else { "s" },
        grouped(done.tokens as i64),
        grouped(done.trained_tokens as i64),
        done.seconds,
        if done.seconds > 0.0 { 100.0 * done.input_stall_seconds / done.seconds } else { 0.0 },
    );
    if done.skipped > 0 {
        text.push_str(&paint.yellow(&format!(
            "{} train steps were skipped: their numbers were none; see table quarantine\n",
            grouped(done.skipped)
        )));
    }
    if done.train_steps > 0 && done.with_gradient == 0 {
        text.push_str(&paint.yellow(
            "warning: no train step had a gradient: every advantage or mask was 0; `dressage plan --dry-run` shows advantages\n",
        ));
    }
    if let (Some(first), Some(last)) = (&done.first, &done.last) {
        let rows = TOLD.iter().filter_map(|name| {
            let (first, last) = (first.get(name)?, last.get(name)?);
            Some(vec![(*name).to_owned(), number(first), number(last)])
        });
        text.push_str(&output::table(&["", "first step", "last step"], &[1, 2], rows));
        text.push('\n');
    }
    let why = match ended {
        Ended::NothingLeft if done.train_steps == 0 => "nothing is left to train: every planned rollout was trained on",
        Ended::NothingLeft => "all that could be planned was trained on",
        Ended::StepsMax => "train_steps_max was reached",
        Ended::Stopped => "stopped; the same command goes on from the checkpoint",
    };
    text.push_str(why);
    if done.carried > 0 {
        text.push_str(&format!(
            "; {} trajectories wait for a plan that they fill a train step of",
            grouped(done.carried)
        ));
    }
    text.push('\n');
    text
}

fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 1000.0 => grouped(value as i64),
        size if size >= 0.01 => format!("{value:.4}"),
        _ => format!("{value:.3e}"),
    }
}
