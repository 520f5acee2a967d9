//! The samples of a plan in memory: scalars only, some tens of bytes each, within the session's memory limit.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::exclude::Trained;
use crate::columns::Columns;
use crate::error::{Error, Result};
use crate::session::Session;

/// One trajectory that has samples.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Trajectory {
    pub(super) key: i64,
    pub(super) write_id: i64,
    /// Index into [`Samples::groups`].
    pub(super) group: u32,
    /// Index into [`Samples::instances`].
    pub(super) instance: u32,
    pub(super) created_at: Option<i64>,
    /// Where its id is in the arena.
    id: (u32, u32),
    /// Where its samples are, once they are sorted.
    samples: (u32, u32),
}

/// One sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sample {
    pub(super) segment_index: i32,
    pub(super) n_tokens: i64,
    pub(super) mask_sum: i64,
    pub(super) advantage: f64,
}

/// A sample with its trajectory's index.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Planned {
    pub(super) trajectory: usize,
    pub(super) sample: Sample,
}

/// A name within a run.
pub(super) type Scoped = (String, String);

/// All samples that a plan may take.
#[derive(Debug, Default)]
pub(super) struct Samples {
    pub(super) trajectories: Vec<Trajectory>,
    /// (run_id, group_id).
    pub(super) groups: Vec<Scoped>,
    /// (run_id, instance_id).
    pub(super) instances: Vec<Scoped>,
    samples: Vec<Sample>,
    ids: String,
    /// Trajectories that an earlier plan has.
    pub(super) already_trained: u64,
}

/// The columns that are read of the view `samples`. `created_at` is the trajectory's.
const SAMPLES: &str = "SELECT s.trajectory_key, s.write_id, s.trajectory_id, s.run_id, s.instance_id, s.group_id, \
     t.created_at, s.segment_index, s.n_tokens, s.mask_sum, s.advantage \
     FROM samples AS s JOIN trajectories AS t ON t.trajectory_key = s.trajectory_key";

impl Samples {
    /// Reads the view `samples` but for the trajectories that an earlier plan has.
    pub(super) async fn read(session: &Session, trained: &Trained) -> Result<Self> {
        let mut reading = Reading { limit_bytes: session.settings().memory_limit_bytes, ..Reading::default() };
        let mut rows = session.sql(SAMPLES).await?;
        while let Some(batch) = rows.next_batch().await? {
            let columns = Columns::of(&batch);
            for row in 0..batch.num_rows() {
                reading.take(&columns, row, trained)?;
            }
            reading.check_memory()?;
        }
        reading.finish()
    }

    /// The samples of a trajectory, by segment.
    pub(super) fn of_trajectory(&self, trajectory: usize) -> impl Iterator<Item = Planned> + '_ {
        let (from, to) = self.trajectories[trajectory].samples;
        self.samples[from as usize..to as usize].iter().map(move |&sample| Planned { trajectory, sample })
    }

    /// The text id of a trajectory.
    pub(super) fn id_of(&self, trajectory: &Trajectory) -> &str {
        &self.ids[trajectory.id.0 as usize..trajectory.id.1 as usize]
    }

    /// How many samples there are.
    pub(super) fn len(&self) -> usize {
        self.samples.len()
    }
}

/// Rows as they come, in any order.
#[derive(Default)]
struct Reading {
    samples: Samples,
    rows: Vec<(u32, Sample)>,
    by_key: HashMap<i64, Option<u32>>,
    groups: HashMap<Scoped, u32>,
    instances: HashMap<Scoped, u32>,
    name_bytes: usize,
    limit_bytes: u64,
}

impl Reading {
    fn take(&mut self, columns: &Columns<'_>, row: usize, trained: &Trained) -> Result<()> {
        let key = columns.needed_int("trajectory_key", row)?;
        let next = u32::try_from(self.samples.trajectories.len()).unwrap_or(u32::MAX);
        let trajectory = match self.by_key.entry(key) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) if trained.contains(key) => {
                self.samples.already_trained += 1;
                *new.insert(None)
            }
            Entry::Vacant(new) => *new.insert(Some(next)),
        };
        let Some(trajectory) = trajectory else { return Ok(()) };
        if trajectory == next {
            let run = columns.needed_text("run_id", row)?;
            let group = (run.clone(), columns.needed_text("group_id", row)?);
            let instance = (run, columns.needed_text("instance_id", row)?);
            let from = self.samples.ids.len();
            self.samples.ids.push_str(&columns.needed_text("trajectory_id", row)?);
            let id = (arena(from)?, arena(self.samples.ids.len())?);
            let group = named(&mut self.groups, &mut self.samples.groups, group, &mut self.name_bytes);
            let instance = named(&mut self.instances, &mut self.samples.instances, instance, &mut self.name_bytes);
            self.samples.trajectories.push(Trajectory {
                key,
                write_id: columns.needed_int("write_id", row)?,
                group,
                instance,
                created_at: columns.time("created_at", row)?,
                id,
                samples: (0, 0),
            });
        }
        let segment_index = columns.needed_small("segment_index", row)?;
        let sample = Sample {
            segment_index,
            n_tokens: columns.needed_int("n_tokens", row)?,
            mask_sum: columns.needed_int("mask_sum", row)?,
            advantage: columns.number("advantage", row)?.unwrap_or(f64::NAN),
        };
        // what is planned is trained on: nothing that is no number may get there
        if !sample.advantage.is_finite() {
            let id = self.samples.id_of(&self.samples.trajectories[trajectory as usize]).to_owned();
            return Err(Error::BadAdvantage { trajectory_id: id, segment_index: segment_index.into() });
        }
        if sample.n_tokens < 0 || sample.mask_sum < 0 {
            return Err(out_of_range("n_tokens or mask_sum"));
        }
        self.rows.push((trajectory, sample));
        Ok(())
    }

    fn check_memory(&self) -> Result<()> {
        // a map entry takes about twice its size, and what is read is sorted into a second copy
        let rows = self.rows.len() * (size_of::<(u32, Sample)>() + size_of::<Sample>() + PLANNED_BYTES);
        let trajectories = self.samples.trajectories.len() * (size_of::<Trajectory>() + 2 * size_of::<(i64, u64)>());
        super::check_memory(rows + trajectories + self.samples.ids.len() + self.name_bytes, self.limit_bytes)
    }

    fn finish(mut self) -> Result<Samples> {
        self.rows.sort_by_key(|(trajectory, sample)| (*trajectory, sample.segment_index));
        let repeated = self.rows.windows(2).find(|w| w[0].0 == w[1].0 && w[0].1.segment_index == w[1].1.segment_index);
        if let Some([(trajectory, sample), _]) = repeated {
            let id = self.samples.id_of(&self.samples.trajectories[*trajectory as usize]).to_owned();
            return Err(Error::RepeatedSample { trajectory_id: id, segment_index: sample.segment_index.into() });
        }
        let mut samples = self.samples;
        samples.samples = Vec::with_capacity(self.rows.len());
        for (trajectory, sample) in self.rows {
            let at = arena(samples.samples.len())?;
            let place = &mut samples.trajectories[trajectory as usize].samples;
            if place.1 == 0 {
                *place = (at, at);
            }
            place.1 = at + 1;
            samples.samples.push(sample);
        }
        Ok(samples)
    }
}

/// Bytes that a planned sample takes later on: its place and its steps.
const PLANNED_BYTES: usize = 96;

fn named(known: &mut HashMap<Scoped, u32>, names: &mut Vec<Scoped>, name: Scoped, bytes: &mut usize) -> u32 {
    if let Some(&index) = known.get(&name) {
        return index;
    }
    let index = u32::try_from(names.len()).unwrap_or(u32::MAX);
    *bytes += 2 * (name.0.len() + name.1.len() + 2 * size_of::<Scoped>());
    names.push(name.clone());
    known.insert(name, index);
    index
}

fn arena(at: usize) -> Result<u32> {
    u32::try_from(at).map_err(|_| out_of_range("trajectory_id (all together)"))
}

fn out_of_range(column: &str) -> Error {
    Error::ViewShape { column: column.to_owned(), problem: "is out of range".to_owned() }
}
