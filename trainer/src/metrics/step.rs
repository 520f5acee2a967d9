//! The metrics of one train step.

use std::borrow::Cow;

use dressage_schemas::tables::train_metrics::TrainMetricRow;

use super::names;
use crate::micro_batch::MicroBatch;

/// Names and values in the order in which they were first set.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepMetrics {
    values: Vec<(Cow<'static, str>, f64)>,
}

/// Sums over the micro-batches of a step, so that none of them has to be kept until its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchTotals {
    tokens: usize,
    segments: usize,
    response: usize,
    truncated: usize,
    unpredicted: usize,
}

impl BatchTotals {
    /// Adds a micro-batch.
    pub fn add(&mut self, batch: &MicroBatch) {
        self.tokens += batch.n_tokens();
        self.segments += batch.segments().len();
        self.unpredicted += batch.n_unpredicted();
        for segment in batch.segments() {
            self.response += segment.n_tokens - segment.response_start;
            self.truncated += usize::from(segment.truncated);
        }
    }
}

/// Which step the metrics are of, as a table row says it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RowContext {
    /// The training run.
    pub train_run: String,
    /// The plan; none where batches came from none.
    pub plan_id: Option<String>,
    /// 0-based within the plan.
    pub train_step: i32,
    /// Updates of the training run before this one.
    pub optimizer_step: i64,
    /// The weights that the step began with.
    pub weight_version: Option<String>,
    /// When, microseconds since 1970.
    pub recorded_at: i64,
}

impl StepMetrics {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a metric; one that is there already keeps its place.
    pub fn set(&mut self, name: impl Into<Cow<'static, str>>, value: f64) {
        let name = name.into();
        match self.values.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => self.values.push((name, value)),
        }
    }

    /// Sets several.
    pub fn extend(&mut self, values: impl IntoIterator<Item = (&'static str, f64)>) {
        values.into_iter().for_each(|(name, value)| self.set(name, value));
    }

    /// The value of a metric.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.values.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.values.iter().map(|(name, value)| (name.as_ref(), *value))
    }

    /// Mean, population deviation, smallest and largest reward of the step's trajectories; nothing where there is none.
    pub fn rewards(&mut self, rewards: &[f64]) {
        if rewards.is_empty() {
            return;
        }
        let n = rewards.len() as f64;
        let mean = rewards.iter().sum::<f64>() / n;
        let variance = rewards.iter().map(|reward| (reward - mean).powi(2)).sum::<f64>() / n;
        self.extend([
            (names::REWARD_MEAN, mean),
            (names::REWARD_STD, variance.sqrt()),
            (names::REWARD_MIN, rewards.iter().copied().fold(f64::INFINITY, f64::min)),
            (names::REWARD_MAX, rewards.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
        ]);
    }

    /// Tokens, lengths and truncation of the step's micro-batches. Over one rank: with several, gather before.
    pub fn batches(&mut self, totals: &BatchTotals) {
        self.set(names::TOKENS, totals.tokens as f64);
        self.set(names::UNPREDICTED_TOKENS, totals.unpredicted as f64);
        if totals.segments > 0 {
            let mean = |sum: usize| sum as f64 / totals.segments as f64;
            self.set(names::SEGMENT_TOKENS_MEAN, mean(totals.tokens));
            self.set(names::RESPONSE_TOKENS_MEAN, mean(totals.response));
            self.set(names::TRUNCATED_FRACTION, mean(totals.truncated));
        }
    }

    /// How long the step took and how much of it was waiting for input.
    pub fn times(&mut self, step_seconds: f64, input_stall_seconds: f64) {
        self.set(names::STEP_SECONDS, step_seconds);
        self.set(names::INPUT_STALL_SECONDS, input_stall_seconds);
        if step_seconds > 0.0 {
            self.set(names::INPUT_STALL_FRACTION, input_stall_seconds / step_seconds);
            if let Some(tokens) = self.get(names::TOKENS) {
                self.set(names::TOKENS_PER_SECOND, tokens / step_seconds);
            }
        }
    }

    /// One row of `train_metrics` a metric.
    pub fn rows(&self, context: &RowContext) -> Vec<TrainMetricRow> {
        let row = |(metric, value): (&str, f64)| TrainMetricRow {
            train_run: context.train_run.clone(),
            plan_id: context.plan_id.clone(),
            train_step: context.train_step,
            optimizer_step: context.optimizer_step,
            metric: metric.to_owned(),
            value,
            weight_version: context.weight_version.clone(),
            recorded_at: context.recorded_at,
        };
        self.iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_keep_their_order_and_their_last_value() {
        let mut metrics = StepMetrics::new();
        metrics.extend([(names::LOSS, 1.0), (names::KL, 2.0)]);
        metrics.set(names::LOSS, 3.0);
        metrics.rewards(&[]);
        assert_eq!(metrics.iter().collect::<Vec<_>>(), [("loss", 3.0), ("kl", 2.0)]);
        metrics.rewards(&[0.0, 1.0, 1.0, 0.0]);
        assert_eq!((metrics.get("reward_mean"), metrics.get("reward_std")), (Some(0.5), Some(0.5)));
        assert_eq!((metrics.get("reward_min"), metrics.get("reward_max")), (Some(0.0), Some(1.0)));
    }

    #[test]
    fn rates_are_over_the_step() {
        let mut metrics = StepMetrics::new();
        metrics.set(names::TOKENS, 500.0);
        metrics.times(2.0, 0.5);
        assert_eq!(metrics.get(names::TOKENS_PER_SECOND), Some(250.0));
        assert_eq!(metrics.get(names::INPUT_STALL_FRACTION), Some(0.25));
    }

    #[test]
    fn a_row_says_which_step_its_metric_is_of() {
        let mut metrics = StepMetrics::new();
        metrics.set("custom".to_owned(), f64::NAN);
        let context = RowContext { train_run: "r".into(), train_step: 3, optimizer_step: 40, ..Default::default() };
        let rows = metrics.rows(&context);
        assert_eq!((rows.len(), rows[0].metric.as_str(), rows[0].optimizer_step), (1, "custom", 40));
        assert!(rows[0].value.is_nan());
    }
}
