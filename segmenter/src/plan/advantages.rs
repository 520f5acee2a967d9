//! How the advantages of a plan are spread: what two estimators over the same history are compared by.

use serde::Serialize;

use super::samples::Planned;

/// The advantages of all planned samples, and how many trajectories carry a gradient.
#[derive(Debug, Clone, PartialEq)]
pub struct Advantages {
    /// Ascending.
    sorted: Vec<f64>,
    trajectories_with_gradient: u64,
    n_train_steps: u64,
}

/// The spread in numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AdvantageReport {
    /// Samples.
    pub n_samples: u64,
    /// Samples whose advantage is 0: nothing is learnt from them.
    pub n_zero: u64,
    /// Mean.
    pub mean: f64,
    /// Population standard deviation.
    pub std: f64,
    /// Smallest.
    pub min: f64,
    /// A tenth is below.
    pub p10: f64,
    /// A quarter is below.
    pub p25: f64,
    /// Half is below.
    pub p50: f64,
    /// A quarter is above.
    pub p75: f64,
    /// A tenth is above.
    pub p90: f64,
    /// Largest.
    pub max: f64,
    /// Trajectories with a trained token whose advantage is not 0.
    pub trajectories_with_gradient: u64,
    /// Of those, as many as an average train step has.
    pub effective_batch_size: f64,
}

impl Advantages {
    pub(super) fn of(steps: &[Vec<Planned>]) -> Self {
        let mut sorted: Vec<f64> = steps.iter().flatten().map(|p| p.sample.advantage).collect();
        sorted.sort_by(f64::total_cmp);
        // samples of a trajectory are neighbours
        let mut with_gradient = 0;
        let mut last = None;
        for planned in steps.iter().flatten() {
            let pulls = planned.sample.advantage != 0.0 && planned.sample.mask_sum > 0;
            if pulls && last != Some(planned.trajectory) {
                with_gradient += 1;
                last = Some(planned.trajectory);
            }
        }
        Self { sorted, trajectories_with_gradient: with_gradient, n_train_steps: steps.len() as u64 }
    }

    /// The spread in numbers.
    pub fn report(&self) -> AdvantageReport {
        let n = self.sorted.len() as f64;
        let mean = if n > 0.0 { self.sorted.iter().sum::<f64>() / n } else { 0.0 };
        let variance = if n > 0.0 { self.sorted.iter().map(|a| (a - mean) * (a - mean)).sum::<f64>() / n } else { 0.0 };
        AdvantageReport {
            n_samples: self.sorted.len() as u64,
            n_zero: self.sorted.iter().filter(|a| **a == 0.0).count() as u64,
            mean,
            std: variance.sqrt(),
            min: self.quantile(0.0),
            p10: self.quantile(0.1),
            p25: self.quantile(0.25),
            p50: self.quantile(0.5),
            p75: self.quantile(0.75),
            p90: self.quantile(0.9),
            max: self.quantile(1.0),
            trajectories_with_gradient: self.trajectories_with_gradient,
            effective_batch_size: self.trajectories_with_gradient as f64 / self.n_train_steps.max(1) as f64,
        }
    }

    /// The advantage that a share of all is at or below; 0 where there are none.
    fn quantile(&self, share: f64) -> f64 {
        let last = self.sorted.len().saturating_sub(1);
        let at = (share * last as f64).round() as usize;
        self.sorted.get(at.min(last)).copied().unwrap_or(0.0)
    }

    /// Smallest and largest.
    pub fn range(&self) -> (f64, f64) {
        (self.quantile(0.0), self.quantile(1.0))
    }

    /// How many are in each of `bins` equal parts of a range; what is outside counts in the outermost.
    pub fn histogram(&self, (low, high): (f64, f64), bins: usize) -> Vec<u64> {
        let mut counts = vec![0; bins.max(1)];
        let width = (high - low).max(f64::MIN_POSITIVE) / counts.len() as f64;
        for advantage in &self.sorted {
            let bin = (((advantage - low) / width).max(0.0) as usize).min(counts.len() - 1);
            counts[bin] += 1;
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advantages(sorted: &[f64]) -> Advantages {
        Advantages { sorted: sorted.to_vec(), trajectories_with_gradient: 3, n_train_steps: 2 }
    }

    #[test]
    fn quantiles_are_values_that_are_there() {
        let report = advantages(&[-1.0, -1.0, 0.0, 0.0, 2.0]).report();
        assert_eq!((report.min, report.p50, report.max, report.n_zero), (-1.0, 0.0, 2.0, 2));
        assert_eq!((report.mean, report.effective_batch_size), (0.0, 1.5));
    }

    #[test]
    fn a_histogram_counts_every_sample_once() {
        let all = advantages(&[-1.0, -0.5, 0.0, 0.5, 1.0]);
        assert_eq!(all.histogram((-1.0, 1.0), 4), [1, 1, 1, 2]);
        assert_eq!(all.histogram((0.0, 0.0), 3), [3, 0, 2]);
        assert_eq!(all.histogram(all.range(), 1), [5]);
    }
}
