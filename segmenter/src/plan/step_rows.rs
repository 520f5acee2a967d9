//! Where the steps of planned samples are: row addresses in the pinned version of `steps`, from scalar columns only.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::AsArray;
use arrow::datatypes::UInt64Type;
use dressage_schemas::Table;
use futures::StreamExt;

use super::samples::Samples;
use crate::columns::Columns;
use crate::error::{Error, Result};
use crate::lake::{LakeSource, ROW_ADDRESS, ScanRequest};
use crate::session::Session;

/// One step of a planned trajectory.
#[derive(Debug, Clone, Copy)]
struct Place {
    trajectory: u32,
    segment_index: i32,
    step_index: i32,
    address: Option<u64>,
}

/// The steps of planned samples.
#[derive(Debug)]
pub(super) struct StepRows {
    places: Vec<Place>,
}

impl StepRows {
    /// Finds the steps of these trajectories (indices into `samples`).
    pub(super) async fn read(
        session: &Session,
        source: &Arc<dyn LakeSource>,
        samples: &Samples,
        planned: &[bool],
        held_bytes: usize,
    ) -> Result<Self> {
        let owners = Owners::of(samples, planned);
        let room = Room { held_bytes, limit_bytes: session.settings().memory_limit_bytes };
        let recorded = session.catalog().steps_recorded().await.map_err(|e| session.limits().classify(e))?;
        let mut found = match recorded {
            true => Self { places: numbered(session, &owners, room).await? },
            false => Self { places: Vec::new() },
        };
        found.places.sort_unstable_by_key(|p| (p.trajectory, p.step_index));
        found.read_stored(source, &owners, recorded, room).await?;
        let broken = |place: &Place, problem: &str| Error::Assemble {
            trajectory_id: samples.id_of(&samples.trajectories[place.trajectory as usize]).to_owned(),
            problem: format!("step {} {problem}", place.step_index),
        };
        if let Some(lost) = found.places.iter().find(|p| p.address.is_none()) {
            return Err(broken(lost, "has no row in the store"));
        }
        found.places.sort_unstable_by_key(|p| (p.trajectory, p.segment_index, p.step_index));
        let place = |p: &Place| (p.trajectory, p.segment_index, p.step_index);
        match found.places.windows(2).find(|two| place(&two[0]) == place(&two[1])) {
            Some(two) => Err(broken(&two[0], "has two rows in the store")),
            None => Ok(found),
        }
    }

    /// Reads the stored steps: their addresses, and where the source gave it, their segment.
    async fn read_stored(
        &mut self,
        source: &Arc<dyn LakeSource>,
        owners: &Owners,
        numbered: bool,
        room: Room,
    ) -> Result<()> {
        let given = ["trajectory_key", "write_id", "step_index", "segment_index"];
        let request = ScanRequest {
            most_match: false,
            table: Table::Steps,
            columns: given[..if numbered { 3 } else { 4 }].iter().map(|name| (*name).to_owned()).collect(),
            filter: None,
            limit: None,
            fragments: None,
            batch_rows: 8_192,
            row_address: true,
        };
        let failed = |source| Error::Store { source };
        let mut batches = source.scan(request).await.map_err(failed)?;
        while let Some(batch) = batches.next().await {
            let batch = batch.map_err(failed)?;
            let addresses = batch.column_by_name(ROW_ADDRESS).and_then(|c| c.as_primitive_opt::<UInt64Type>());
            let Some(addresses) = addresses else {
                let problem = "is missing from a scan".to_owned();
                return Err(Error::ViewShape { column: ROW_ADDRESS.to_owned(), problem });
            };
            let columns = Columns::of(&batch);
            for row in 0..batch.num_rows() {
                let owner =
                    owners.find(columns.needed_int("trajectory_key", row)?, columns.needed_int("write_id", row)?);
                let Some(trajectory) = owner else { continue };
                let step_index = columns.needed_small("step_index", row)?;
                let address = Some(addresses.value(row));
                if !numbered {
                    let segment_index = columns.needed_small("segment_index", row)?;
                    self.places.push(Place { trajectory, segment_index, step_index, address });
                } else if let Ok(at) =
                    self.places.binary_search_by_key(&(trajectory, step_index), |p| (p.trajectory, p.step_index))
                {
                    self.places[at].address = address;
                }
            }
            room.check(self.places.len())?;
        }
        Ok(())
    }

    /// The addresses of a segment's steps, in order.
    pub(super) fn of_segment(&self, trajectory: usize, segment_index: i32) -> Vec<u64> {
        self.places[self.range(trajectory, segment_index)].iter().filter_map(|p| p.address).collect()
    }

    fn range(&self, trajectory: usize, segment_index: i32) -> Range<usize> {
        let wanted = (u32::try_from(trajectory).unwrap_or(u32::MAX), segment_index);
        let place = |p: &Place| (p.trajectory, p.segment_index);
        self.places.partition_point(|p| place(p) < wanted)..self.places.partition_point(|p| place(p) <= wanted)
    }
}

/// The steps of planned trajectories with the segments that they are numbered into, not yet with their addresses.
async fn numbered(session: &Session, owners: &Owners, room: Room) -> Result<Vec<Place>> {
    let mut places: Vec<Place> = Vec::new();
    let mut rows = session.sql("SELECT trajectory_key, write_id, segment_index, step_index FROM steps").await?;
    while let Some(batch) = rows.next_batch().await? {
        let columns = Columns::of(&batch);
        for row in 0..batch.num_rows() {
            let owner = owners.find(columns.needed_int("trajectory_key", row)?, columns.needed_int("write_id", row)?);
            let Some(trajectory) = owner else { continue };
            let segment_index = columns.needed_small("segment_index", row)?;
            let step_index = columns.needed_small("step_index", row)?;
            places.push(Place { trajectory, segment_index, step_index, address: None });
        }
        room.check(places.len())?;
    }
    Ok(places)
}

/// What the planner may hold.
#[derive(Debug, Clone, Copy)]
struct Room {
    held_bytes: usize,
    limit_bytes: u64,
}

impl Room {
    fn check(self, places: usize) -> Result<()> {
        super::check_memory(self.held_bytes + places * size_of::<Place>(), self.limit_bytes)
    }
}

/// Planned trajectories, to be found by key and attempt.
struct Owners(Vec<(i64, i64, u32)>);

impl Owners {
    fn of(samples: &Samples, planned: &[bool]) -> Self {
        let mut owners: Vec<(i64, i64, u32)> = samples
            .trajectories
            .iter()
            .zip(0_u32..)
            .filter(|(_, index)| planned.get(*index as usize) == Some(&true))
            .map(|(t, index)| (t.key, t.write_id, index))
            .collect();
        owners.sort_unstable();
        Self(owners)
    }

    fn find(&self, key: i64, write_id: i64) -> Option<u32> {
        let at = self.0.binary_search_by_key(&(key, write_id), |(k, w, _)| (*k, *w)).ok()?;
        Some(self.0[at].2)
    }
}
