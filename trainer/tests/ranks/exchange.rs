//! What every operation makes of the tensors of 1, 2 and 4 ranks.

use dressage_trainer::collective::{Collectives, Reduce, Rendezvous};
use tch::{Device, Kind, Tensor};

use crate::processes::{Part, Ranks, join, options};

pub(crate) const PARTS: &[(&str, Part)] = &[("every_operation", every_operation), ("many_at_once", many_at_once)];

fn every_operation(rendezvous: &Rendezvous) -> String {
    let group = join(rendezvous, &options()).unwrap();
    let (rank, world_size) = (group.rank() as i64, group.world_size() as i64);
    let all = world_size * (world_size + 1) / 2;
    for kind in [Kind::Float, Kind::BFloat16, Kind::Double, Kind::Int64] {
        let numbers = |values: &[i64]| Tensor::from_slice(values).to_kind(kind);
        let sum = numbers(&[rank + 1, 2 * (rank + 1)]);
        group.all_reduce(&sum, Reduce::Sum).unwrap();
        assert_eq!(sum, numbers(&[all, 2 * all]), "{kind:?}");
        let max = numbers(&[rank, -rank]);
        group.all_reduce(&max, Reduce::Max).unwrap();
        assert_eq!(max, numbers(&[world_size - 1, 0]), "{kind:?}");

        let whole = Tensor::arange(3 * world_size, (Kind::Int64, Device::Cpu)).to_kind(kind) * (rank + 1);
        let part = Tensor::zeros([3], (kind, Device::Cpu));
        group.reduce_scatter(&part, &whole).unwrap();
        assert_eq!(part, numbers(&[3 * rank * all, (3 * rank + 1) * all, (3 * rank + 2) * all]), "{kind:?}");

        let gathered = Tensor::zeros([2 * world_size], (kind, Device::Cpu));
        group.all_gather(&gathered, &numbers(&[rank, 10 + rank])).unwrap();
        let expected: Vec<i64> = (0..world_size).flat_map(|other| [other, 10 + other]).collect();
        assert_eq!(gathered, numbers(&expected), "{kind:?}");

        let copied = numbers(&[rank, rank + 7]);
        group.broadcast(&copied, group.world_size() - 1).unwrap();
        assert_eq!(copied, numbers(&[world_size - 1, world_size + 6]), "{kind:?}");
    }
    group.barrier().unwrap();
    let turned = Tensor::zeros([4, 4], (Kind::Float, Device::Cpu)).transpose(0, 1).narrow(0, 0, 2);
    let refused = group.all_reduce(&turned, Reduce::Sum).unwrap_err().to_string();
    assert!(refused.contains("not contiguous"), "{refused}");
    format!("{rank} of {world_size}")
}

/// Several under way, waited for in another order than they were begun.
fn many_at_once(rendezvous: &Rendezvous) -> String {
    let group = join(rendezvous, &options()).unwrap();
    let tensors: Vec<Tensor> =
        (0..20).map(|n| Tensor::full([1000 * (n + 1)], n + group.rank() as i64, (Kind::Float, Device::Cpu))).collect();
    let pending: Vec<_> = tensors.iter().map(|t| group.start_all_reduce(t, Reduce::Sum).unwrap()).collect();
    pending.into_iter().rev().for_each(|pending| pending.wait().unwrap());
    let ranks = group.world_size() as i64;
    for (n, tensor) in (0..).zip(&tensors) {
        let expected = Tensor::full([1000 * (n + 1)], n * ranks + ranks * (ranks - 1) / 2, (Kind::Float, Device::Cpu));
        assert_eq!(*tensor, expected);
    }
    "summed".to_owned()
}

#[test]
fn every_operation_gives_what_it_says_for_every_kind_of_number() {
    for world_size in [1, 2, 4] {
        let expected: Vec<String> = (0..world_size).map(|rank| format!("{rank} of {world_size}")).collect();
        assert_eq!(Ranks::start("every_operation", world_size).said(), expected);
    }
}

#[test]
fn operations_that_run_beside_each_other_do_not_mix() {
    assert_eq!(Ranks::start("many_at_once", 2).said(), ["summed", "summed"]);
}
