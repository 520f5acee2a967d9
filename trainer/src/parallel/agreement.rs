//! What ranks decide together before an update: whether there is one.

use tch::{Device, Tensor};

use super::DataParallel;
use crate::collective::{CollectiveError, Collectives, Reduce, exchange_text};
use crate::error::Result;
use crate::loss::LossStats;
use crate::step::NotFiniteReport;

/// What one rank has of a step.
#[derive(Debug)]
pub(crate) struct StepSoFar<'a> {
    pub(crate) train_steps: u64,
    pub(crate) n_micro_batches: u64,
    pub(crate) stats: &'a LossStats,
    pub(crate) has_gradients: bool,
    pub(crate) not_finite: Option<&'a NotFiniteReport>,
}

/// What all ranks together have of it.
#[derive(Debug)]
pub(crate) struct Agreed {
    pub(crate) stats: LossStats,
    pub(crate) has_gradients: bool,
    /// That of the first rank with one.
    pub(crate) not_finite: Option<NotFiniteReport>,
}

/// Counts behind the sums of a loss.
const N_COUNTS: i64 = 2;

impl DataParallel {
    /// Sums up what ranks have, after making sure that all are at the end of the same step.
    pub(crate) fn agree(&self, own: &StepSoFar<'_>) -> Result<Agreed> {
        let group = &*self.group;
        let device = own.stats.sums().device();
        let numbers = |numbers: &[f64]| Ok::<_, crate::Error>(Tensor::f_from_slice(numbers)?.f_to_device(device)?);
        // a count and its negative: their maxima are equal if all counts are
        let (steps, parts) = (own.train_steps as f64, own.n_micro_batches as f64);
        let maxima = Tensor::f_cat(&[own.stats.maxima(), &numbers(&[steps, -steps, parts, -parts])?], 0)?;
        group.all_reduce(&maxima, Reduce::Max)?;
        let n = own.stats.maxima().size()[0];
        let counts = Vec::<f64>::try_from(maxima.f_narrow(0, n, 4)?.f_to_device(Device::Cpu)?)?;
        let [steps_max, steps_min, parts_max, parts_min] = counts[..] else { return Err(out_of_step(group, "counts")) };
        if steps_max != -steps_min {
            let problem = format!("some ranks have taken {steps_max} train steps, others {}", -steps_min);
            return Err(out_of_step(group, &problem));
        }
        if parts_max != -parts_min {
            let problem =
                format!("some ranks have {parts_max} micro-batches in this train step, others {}", -parts_min);
            return Err(out_of_step(group, &problem));
        }

        let flags = [f64::from(u8::from(own.has_gradients)), f64::from(u8::from(own.not_finite.is_some()))];
        let sums = Tensor::f_cat(&[own.stats.sums(), &numbers(&flags)?], 0)?;
        group.all_reduce(&sums, Reduce::Sum)?;
        let n_sums = own.stats.sums().size()[0];
        let flags = Vec::<f64>::try_from(sums.f_narrow(0, n_sums, N_COUNTS)?.f_to_device(Device::Cpu)?)?;
        let not_finite = if flags[1] > 0.0 { self.first_report(own.not_finite)? } else { None };
        let stats = LossStats::of(sums.f_narrow(0, 0, n_sums)?, maxima.f_narrow(0, 0, n)?);
        Ok(Agreed { stats, has_gradients: flags[0] > 0.0, not_finite })
    }

    /// Makes one report of those of several ranks: that of the first rank with one.
    fn first_report(&self, own: Option<&NotFiniteReport>) -> Result<Option<NotFiniteReport>> {
        let text = own.map(|report| serde_json::to_string(report).unwrap_or_default()).unwrap_or_default();
        let all = exchange_text(&*self.group, &text)?;
        let report = all.iter().find(|text| !text.is_empty()).map(|text| serde_json::from_str(text));
        match report {
            Some(Ok(report)) => Ok(Some(report)),
            // of ranks of one release it can always be read
            _ => Err(out_of_step(&*self.group, "a number is NaN or infinite on a rank that does not say which")),
        }
    }
}

fn out_of_step(group: &dyn Collectives, problem: &str) -> crate::Error {
    let (rank, world_size) = (group.rank(), group.world_size());
    CollectiveError::OutOfStep { rank, world_size, problem: problem.into() }.into()
}
