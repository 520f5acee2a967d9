//! From the gradients of each rank to their sum, while the backward pass still runs.

use std::collections::VecDeque;

use tch::{Kind, Tensor, no_grad};

use super::DataParallel;
use crate::collective::{Pending, Reduce};
use crate::error::Result;
use crate::model::Model;
use crate::optimizer::AdamW;
use crate::settings::ShardLevel;

/// Buckets under way at most where ranks have parts: each is a copy, and gloo makes another.
const UNDER_WAY_MAX: usize = 2;

/// The sums of one step, or of one micro-batch where gradients are shared out.
#[derive(Debug, Default)]
pub(crate) struct Reduction {
    /// The bucket that is sent next; none before the first.
    next: Option<usize>,
    under_way: VecDeque<UnderWay>,
    /// Norms of this rank's own gradients, with the place of the parameter.
    norms: Vec<(usize, Tensor)>,
    /// This rank's parts of the sums, by parameter: for [`ShardLevel::Optimizer`].
    parts: Vec<Option<Tensor>>,
}

/// A bucket that was sent.
#[derive(Debug)]
struct UnderWay {
    bucket: usize,
    /// All of its gradients, or this rank's parts of their sums.
    numbers: Tensor,
    pending: Pending,
}

impl Reduction {
    /// Whether something was sent.
    pub(crate) fn has_begun(&self) -> bool {
        self.next.is_some()
    }

    /// Looks at what backward left on a unit's parameters, and sends the buckets that are ready with it.
    pub(crate) fn unit_done(
        &mut self,
        parallel: &DataParallel,
        unit: usize,
        model: &Model,
        optimizer: &mut AdamW,
    ) -> Result<()> {
        for at in &parallel.units[unit] {
            if let Some(gradient) = model.all_parameters()[*at].gradient()? {
                self.norms.push((*at, gradient.f_norm()?.f_to_kind(Kind::Float)?));
            }
        }
        self.send(parallel, model, optimizer, |ready_after| ready_after <= unit)
    }

    /// As [`Self::unit_done`], of a rank that has no gradient of its own in this pass.
    pub(crate) fn unit_left_out(
        &mut self,
        parallel: &DataParallel,
        unit: usize,
        model: &Model,
        optimizer: &mut AdamW,
    ) -> Result<()> {
        self.send(parallel, model, optimizer, |ready_after| ready_after <= unit)
    }

    /// Sends what was not sent yet: of a rank that had nothing to compute, or of a step whose end was not known before.
    pub(crate) fn send_rest(&mut self, parallel: &DataParallel, model: &Model, optimizer: &mut AdamW) -> Result<()> {
        self.send(parallel, model, optimizer, |_| true)
    }

    /// The norm of this rank's own gradients, and the first parameter whose gradient is no number. To be asked once after a
    /// backward pass; waits for the device.
    pub(crate) fn own_norm(&mut self) -> Result<(f64, Option<usize>)> {
        let mut norms = std::mem::take(&mut self.norms);
        if norms.is_empty() {
            return Ok((0.0, None));
        }
        norms.sort_by_key(|(at, _)| *at);
        let stacked = Tensor::f_stack(&norms.iter().map(|(_, norm)| norm).collect::<Vec<_>>(), 0)?;
        let norm = stacked.f_norm()?.f_double_value(&[])?;
        if norm.is_finite() {
            return Ok((norm, None));
        }
        let each = Vec::<f32>::try_from(stacked)?;
        let first = norms.iter().zip(each).find(|(_, norm)| !norm.is_finite()).map(|((at, _), _)| *at);
        Ok((norm, first))
    }

    /// Waits until all is summed up, and makes ready for the next time.
    pub(crate) fn wait(&mut self, parallel: &DataParallel, model: &Model, optimizer: &mut AdamW) -> Result<()> {
        while let Some(under_way) = self.under_way.pop_front() {
            self.take(under_way, parallel, model, optimizer)?;
        }
        self.next = None;
        Ok(())
    }

    /// This rank's parts of the sums, by parameter.
    pub(crate) fn take_parts(&mut self) -> Vec<Option<Tensor>> {
        std::mem::take(&mut self.parts)
    }

    fn send(
        &mut self,
        parallel: &DataParallel,
        model: &Model,
        optimizer: &mut AdamW,
        is_ready: impl Fn(usize) -> bool,
    ) -> Result<()> {
        let mut next = self.next.unwrap_or(0);
        while parallel.buckets.get(next).is_some_and(|bucket| is_ready(bucket.ready_after)) {
            if parallel.shares_optimizer()
                && self.under_way.len() >= UNDER_WAY_MAX
                && let Some(first) = self.under_way.pop_front()
            {
                self.take(first, parallel, model, optimizer)?;
            }
            let under_way = no_grad(|| start(parallel, next, model, optimizer))?;
            self.under_way.push_back(under_way);
            next += 1;
            self.next = Some(next);
        }
        Ok(())
    }

    /// Puts the numbers of a bucket that came back where they belong.
    fn take(&mut self, sent: UnderWay, parallel: &DataParallel, model: &Model, optimizer: &mut AdamW) -> Result<()> {
        let UnderWay { bucket, numbers, pending } = sent;
        pending.wait()?;
        self.parts.resize_with(model.all_parameters().len(), || None);
        let mut start = 0;
        for at in &parallel.buckets[bucket].parameters {
            let numel = model.all_parameters()[*at].tensor().numel() as i64;
            if parallel.level == ShardLevel::None {
                optimizer.put_gradient(model, *at, &numbers.f_narrow(0, start, numel)?)?;
                start += numel;
                continue;
            }
            let part = numbers.f_narrow(0, start, parallel.shard.len(numel))?;
            if parallel.shares_gradients() {
                optimizer.add_to_part(*at, &part)?;
            } else {
                optimizer.drop_gradient(*at)?;
                self.parts[*at] = Some(part);
            }
            start += parallel.shard.padded_len(numel);
        }
        Ok(())
    }
}

fn start(parallel: &DataParallel, bucket: usize, model: &Model, optimizer: &mut AdamW) -> Result<UnderWay> {
    let gradients = parallel.buckets[bucket].parameters.iter().map(|at| optimizer.take_gradient(model, *at));
    let gradients = gradients.collect::<Result<Vec<Tensor>>>()?;
    if parallel.level == ShardLevel::None {
        let numbers = match gradients.as_slice() {
            [one] => one.f_contiguous()?.f_view([-1])?,
            _ => {
                let flat = gradients.iter().map(|g| g.f_reshape([-1])).collect::<Result<Vec<_>, _>>()?;
                Tensor::f_cat(&flat, 0)?
            }
        };
        let pending = parallel.group.start_all_reduce(&numbers, Reduce::Sum)?;
        return Ok(UnderWay { bucket, numbers, pending });
    }
    let rows = gradients.iter().map(|gradient| parallel.shard.rows(gradient)).collect::<Result<Vec<_>>>()?;
    let whole = match rows.as_slice() {
        [one] => one.f_contiguous()?,
        _ => Tensor::f_cat(&rows, 1)?,
    };
    let len = whole.size()[1];
    let numbers = whole.f_new_empty([len], (whole.f_kind()?, whole.device()))?;
    let pending = parallel.group.start_reduce_scatter(&numbers, &whole.f_view([-1])?)?;
    Ok(UnderWay { bucket, numbers, pending })
}
