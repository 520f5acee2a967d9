//! One rank, for which every exchange is one with itself.

use std::time::Duration;

use tch::{Tensor, no_grad};

use super::collectives::{Collectives, Pending, Reduce};
use super::error::{CollectiveError, Operation};

/// The only rank: nothing is sent anywhere, and nothing is waited for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Alone;

impl Collectives for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn world_size(&self) -> usize {
        1
    }

    fn timeout(&self) -> Duration {
        Duration::MAX
    }

    fn enter(&self, _: &str) {}

    fn give_up(&self, _: &str) {}

    fn start_all_reduce(&self, _: &Tensor, _: Reduce) -> Result<Pending, CollectiveError> {
        Ok(Pending::done())
    }

    fn start_reduce_scatter(&self, part: &Tensor, whole: &Tensor) -> Result<Pending, CollectiveError> {
        copy(part, whole, Operation::ReduceScatter)
    }

    fn start_all_gather(&self, whole: &Tensor, part: &Tensor) -> Result<Pending, CollectiveError> {
        copy(whole, part, Operation::AllGather)
    }

    fn start_broadcast(&self, _: &Tensor, _: usize) -> Result<Pending, CollectiveError> {
        Ok(Pending::done())
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        Ok(())
    }
}

fn copy(to: &Tensor, from: &Tensor, operation: Operation) -> Result<Pending, CollectiveError> {
    let copied = no_grad(|| to.shallow_clone().f_copy_(from));
    copied.map(|()| Pending::done()).map_err(|error| CollectiveError::Failed {
        rank: 0,
        world_size: 1,
        operation,
        phase: Box::default(),
        after_ms: 0,
        peers: Box::default(),
        said: error.to_string().lines().next().unwrap_or_default().into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_rank_gets_back_what_it_gives() {
        let (given, part) = (Tensor::from_slice(&[1f32, 2.0]), Tensor::from_slice(&[0f32, 0.0]));
        Alone.all_reduce(&given, Reduce::Sum).unwrap();
        Alone.reduce_scatter(&part, &given).unwrap();
        assert_eq!(part, Tensor::from_slice(&[1f32, 2.0]));
        let whole = Tensor::from_slice(&[0f32, 0.0]);
        Alone.all_gather(&whole, &part).unwrap();
        assert_eq!(whole, given);
        assert!(Alone.all_gather(&Tensor::from_slice(&[0f32]), &part).is_err());
    }
}
