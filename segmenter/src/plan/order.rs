//! Groups into train steps: whole groups, in order, and what is left at the end.

use std::cmp::Ordering;

use super::samples::{Planned, Samples, Trajectory};
use super::settings::{GroupOrder, PlanSettings, Remainder};

/// The train steps of a plan, and what the last one lacked.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Steps {
    /// For each train step the trajectories of its groups, in order.
    pub(super) trajectories: Vec<Vec<usize>>,
    /// Groups at the end that do not fill a train step.
    pub(super) remainder_groups: usize,
    /// Their trajectories: those of the last train step, or the ones that are carried.
    pub(super) remainder_trajectories: Vec<usize>,
}

/// Takes whole groups in order until the next one would exceed the global batch size; a larger group is a step of its
/// own.
pub(super) fn train_steps(samples: &Samples, settings: &PlanSettings) -> Steps {
    let groups = ordered_groups(samples, settings);
    let most = usize::try_from(settings.global_batch_size).unwrap_or(usize::MAX);
    let mut steps = Steps::default();
    let mut open: Vec<usize> = Vec::new();
    let mut open_groups = 0;
    for group in groups {
        if !open.is_empty() && open.len() + group.len() > most {
            steps.trajectories.push(std::mem::take(&mut open));
            open_groups = 0;
        }
        open.extend(group);
        open_groups += 1;
    }
    if open.len() >= most {
        steps.trajectories.push(open);
    } else if !open.is_empty() {
        steps.remainder_groups = open_groups;
        steps.remainder_trajectories.clone_from(&open);
        if settings.remainder == Remainder::SmallerStep {
            steps.trajectories.push(open);
        }
    }
    steps
}

/// The trajectories of each group, groups and trajectories in order, whatever order they were read in.
fn ordered_groups(samples: &Samples, settings: &PlanSettings) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = vec![Vec::new(); samples.groups.len()];
    for (index, trajectory) in samples.trajectories.iter().enumerate() {
        groups[trajectory.group as usize].push(index);
    }
    let of = |index: &usize| &samples.trajectories[*index];
    for group in &mut groups {
        group.sort_by(|a, b| by_time(of(a), of(b)).then_with(|| samples.id_of(of(a)).cmp(samples.id_of(of(b)))));
    }
    let mut order: Vec<usize> = (0..groups.len()).filter(|&g| !groups[g].is_empty()).collect();
    order.sort_by(|&a, &b| {
        let (first_a, first_b) = (of(&groups[a][0]), of(&groups[b][0]));
        by_time(first_a, first_b).then_with(|| samples.groups[a].cmp(&samples.groups[b]))
    });
    if settings.order == GroupOrder::Shuffled {
        shuffle(&mut order, settings.seed);
    }
    order.into_iter().map(|g| std::mem::take(&mut groups[g])).collect()
}

/// Earlier first; those without a time last.
fn by_time(a: &Trajectory, b: &Trajectory) -> Ordering {
    (a.created_at.is_none(), a.created_at).cmp(&(b.created_at.is_none(), b.created_at))
}

/// Fisher–Yates with SplitMix64: the same on every machine and in every release.
fn shuffle(order: &mut [usize], seed: i64) {
    let mut state = seed as u64;
    let mut next = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    for i in (1..order.len()).rev() {
        // the high half of a wide product: no modulo, a bias of 2^-64 per place
        let j = ((u128::from(next()) * (i as u128 + 1)) >> 64) as usize;
        order.swap(i, j);
    }
}

/// The samples of a train step, in plan order: by trajectory as ordered, then by segment.
pub(super) fn samples_of(step: &[usize], samples: &Samples) -> Vec<Planned> {
    step.iter().flat_map(|&trajectory| samples.of_trajectory(trajectory)).collect()
}
