//! A plan as it is stored: its row, the versions that it pins, and the places of its samples.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{Float64Type, Int32Type, Int64Type, UInt64Type};
use dressage_schemas::Table;
use dressage_schemas::tables::plans::PlanRow;
use dressage_storage::{Lake, ScanOptions, Snapshot};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use serde::Deserialize;

use super::window::Slot;
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::plan_id::find_plan;

/// A table of so many trajectories is read through, beside the samples: to look its rows up it would have to wait for them.
const NAMES_READ_MAX: usize = 32_768;

/// Of a larger one up to so many are looked up by key.
const KEYS_NAMED_MAX: usize = 512;

/// A sample's place in a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacedSample {
    /// 0-based.
    pub train_step: i32,
    /// 0-based within (train step, rank).
    pub micro_batch: i32,
    /// 0-based within the micro-batch.
    pub position: i32,
    /// The trajectory.
    pub trajectory_key: i64,
    /// The attempt that wrote it.
    pub write_id: i64,
    /// Its text id.
    pub trajectory_id: Arc<str>,
    /// The segment.
    pub segment_index: i32,
    /// Tokens, after the cap.
    pub n_tokens: i64,
    /// Trained tokens.
    pub mask_sum: i64,
    /// The advantage.
    pub advantage: f64,
    /// What its summed token loss is multiplied with.
    pub loss_weight: f64,
    /// Its steps, in order.
    pub step_rows: Vec<u64>,
}

/// What a stream needs of `plans.settings`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct PlanSettings {
    variables: BTreeMap<String, String>,
}

/// Where the rows of `batches` are.
#[derive(Debug, Clone)]
enum Rows {
    /// In the store.
    Stored,
    /// In memory: the plan is new.
    Made(Arc<[RecordBatch]>),
}

/// A plan of a store, with the table versions that it pins.
#[derive(Debug, Clone)]
pub struct StoredPlan {
    row: PlanRow,
    settings: PlanSettings,
    sql: BTreeMap<String, String>,
    rows: Rows,
    newest: Snapshot,
    pinned: Snapshot,
}

impl StoredPlan {
    /// The plan whose id begins like this, at the versions that it pins.
    ///
    /// # Errors
    /// `NotFound` where there is none or its versions are gone, `Invalid` where several begin so.
    pub async fn open(lake: &Lake, id: &str) -> Result<Self> {
        let newest = async { lake.snapshot(None).await.map_err(Error::storage) };
        let (row, newest) = tokio::try_join!(find_plan(lake, id), newest)?;
        let versions: BTreeMap<String, u64> = json(&row, "versions", &row.versions)?;
        let versions = versions.iter().filter_map(|(name, version)| Some((Table::parse(name)?, *version))).collect();
        let pinned = lake.snapshot_of(versions).await.map_err(Error::storage)?;
        Self::of(row, Rows::Stored, newest, pinned)
    }

    /// A plan that was just made, over the snapshot that it was made of: as it will be when it is stored, but for what
    /// only the store knows of its row. Its rows are in memory, so it can be streamed while it is being stored. Nobody
    /// may act on a micro-batch before that is done: after a crash there would be no such plan.
    ///
    /// # Errors
    /// `Corrupt` where the row's settings do not read.
    pub fn made(plan: &Plan, snapshot: &Snapshot) -> Result<Self> {
        let rows = Rows::Made(Arc::from(plan.batches.as_slice()));
        Self::of(plan.row.clone(), rows, snapshot.clone(), snapshot.clone())
    }

    fn of(row: PlanRow, rows: Rows, newest: Snapshot, pinned: Snapshot) -> Result<Self> {
        let settings = json(&row, "settings", &row.settings)?;
        let sql = json(&row, "sql", &row.sql)?;
        Ok(Self { settings, sql, row, rows, newest, pinned })
    }

    /// Its row in table `plans`.
    pub fn row(&self) -> &PlanRow {
        &self.row
    }

    /// The whole id.
    pub fn plan_id(&self) -> &str {
        &self.row.plan_id
    }

    /// Data-parallel ranks.
    pub fn world_size(&self) -> u32 {
        u32::try_from(self.row.world_size).unwrap_or(0)
    }

    /// Train steps.
    pub fn n_train_steps(&self) -> u32 {
        u32::try_from(self.row.n_train_steps).unwrap_or(0)
    }

    /// The variables that were set in the session it was made in.
    pub fn variables(&self) -> &BTreeMap<String, String> {
        &self.settings.variables
    }

    /// The SQL it was made by: a name and a text each.
    pub fn sql(&self) -> &BTreeMap<String, String> {
        &self.sql
    }

    /// The store at the versions that the plan pins.
    pub fn pinned(&self) -> &Snapshot {
        &self.pinned
    }

    /// The store as it was when the plan was opened.
    pub fn newest(&self) -> &Snapshot {
        &self.newest
    }

    /// The token cap of its segments.
    pub(super) fn max_segment_tokens(&self) -> Result<Option<usize>> {
        let Some(value) = self.variables().get("max_segment_tokens") else { return Ok(None) };
        match value.as_str() {
            "" | "none" => Ok(None),
            number => number.parse().map(Some).map_err(|_| self.damaged(format!("max_segment_tokens is `{number}`"))),
        }
    }

    /// Micro-batches of each of these train steps: the same number on every rank, so that a rank that has fewer has
    /// empty ones.
    pub(super) async fn micro_batch_counts(&self, train_steps: &Range<i32>) -> Result<Vec<i32>> {
        let mut counts = vec![0_i32; train_steps.len()];
        let mut rows = 0;
        let mut found = self.scan(["train_step", "micro_batch"], train_steps, None).await?;
        while let Some(batch) = found.try_next().await? {
            let step = column(&batch, "train_step", |c| c.as_primitive_opt::<Int32Type>())?;
            let micro_batch = column(&batch, "micro_batch", |c| c.as_primitive_opt::<Int32Type>())?;
            rows += batch.num_rows() as i64;
            for (step, micro_batch) in step.values().iter().zip(micro_batch.values()) {
                let at = usize::try_from(step - train_steps.start).unwrap_or(usize::MAX);
                let count = counts.get_mut(at).ok_or_else(|| self.damaged(format!("it has no train step {step}")))?;
                *count = (*count).max(micro_batch + 1);
            }
        }
        if *train_steps == (0..self.row.n_train_steps) && rows != self.row.n_samples {
            return Err(
                self.damaged(format!("it has {} samples, table batches has {rows} of them", self.row.n_samples))
            );
        }
        Ok(counts)
    }

    /// The samples of one rank, in order of train step, micro-batch and position.
    ///
    /// # Errors
    /// What the store says; `Corrupt` where a row names a trajectory that is not in the pinned version.
    pub async fn samples(&self, dp_rank: u32, train_steps: Range<i32>) -> Result<Vec<PlacedSample>> {
        let placed = self.placed(dp_rank, &train_steps);
        if self.pinned.row_count(Table::Trajectories) <= NAMES_READ_MAX {
            let (mut samples, names) = tokio::try_join!(placed, self.names(None))?;
            self.name(&mut samples, &names)?;
            return Ok(samples);
        }
        let mut samples = placed.await?;
        let wanted = samples.iter().map(|s| (s.trajectory_key, s.write_id)).collect();
        let names = self.names(Some(&wanted)).await?;
        self.name(&mut samples, &names)?;
        Ok(samples)
    }

    /// The samples, without the ids of their trajectories.
    async fn placed(&self, dp_rank: u32, train_steps: &Range<i32>) -> Result<Vec<PlacedSample>> {
        let columns = [
            "train_step",
            "micro_batch",
            "position",
            "trajectory_key",
            "write_id",
            "segment_index",
            "n_tokens",
            "mask_sum",
            "advantage",
            "loss_weight",
            "step_rows",
        ];
        let mut found = self.scan(columns, train_steps, Some(dp_rank)).await?;
        let mut samples = Vec::new();
        let nameless: Arc<str> = Arc::from("");
        while let Some(batch) = found.try_next().await? {
            read_samples(&batch, &nameless, &mut samples)?;
        }
        samples.sort_unstable_by_key(|s| (s.train_step, s.micro_batch, s.position));
        Ok(samples)
    }

    /// The text ids of trajectories, by key and attempt: of those wanted, or of all.
    async fn names(&self, wanted: Option<&HashSet<(i64, i64)>>) -> Result<Names> {
        let mut names = Names::new();
        let mut options = ScanOptions::columns(["trajectory_key", "write_id", "trajectory_id"]);
        match wanted {
            Some(wanted) if wanted.is_empty() => return Ok(names),
            Some(wanted) if wanted.len() <= KEYS_NAMED_MAX => {
                let keys: Vec<String> = wanted.iter().map(|(key, _)| key.to_string()).collect();
                options = options.filter(format!("trajectory_key IN ({})", keys.join(", ")));
            }
            _ => {}
        }
        let mut found = self.pinned.scan(Table::Trajectories, options).await.map_err(Error::storage)?;
        while let Some(batch) = found.try_next().await.map_err(Error::storage)? {
            let key = column(&batch, "trajectory_key", |c| c.as_primitive_opt::<Int64Type>())?;
            let write_id = column(&batch, "write_id", |c| c.as_primitive_opt::<Int64Type>())?;
            let id = column(&batch, "trajectory_id", |c| c.as_string_opt::<i32>())?;
            for row in 0..batch.num_rows() {
                let place = (key.value(row), write_id.value(row));
                if wanted.is_none_or(|wanted| wanted.contains(&place)) {
                    names.entry(place).or_insert_with(|| Arc::from(id.value(row)));
                }
            }
        }
        Ok(names)
    }

    /// Gives the samples the text ids of their trajectories.
    fn name(&self, samples: &mut [PlacedSample], names: &Names) -> Result<()> {
        for sample in samples {
            let name = names.get(&(sample.trajectory_key, sample.write_id));
            sample.trajectory_id = Arc::clone(name.ok_or_else(|| {
                self.damaged(format!("the trajectory with key {:016x} is not in its versions", sample.trajectory_key))
            })?);
        }
        Ok(())
    }

    /// The samples of a rank, and its micro-batches, empty ones too.
    pub(super) async fn share(&self, dp_rank: u32, train_steps: &Range<i32>) -> Result<(Vec<PlacedSample>, Vec<Slot>)> {
        let samples = self.samples(dp_rank, train_steps.clone());
        let (samples, counts) = tokio::try_join!(samples, self.micro_batch_counts(train_steps))?;
        let slots = slots(&samples, train_steps, counts);
        Ok((samples, slots))
    }

    /// Rows of the plan: of some train steps, of one rank or all.
    async fn scan<const N: usize>(
        &self,
        columns: [&str; N],
        train_steps: &Range<i32>,
        dp_rank: Option<u32>,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let batches = match &self.rows {
            Rows::Made(batches) => batches,
            Rows::Stored => {
                let options = ScanOptions::columns(columns).filter(self.filter(train_steps, dp_rank));
                let found = self.newest.scan(Table::Batches, options).await.map_err(Error::storage)?;
                return Ok(found.map_err(Error::storage).boxed());
            }
        };
        let mut chosen = Vec::with_capacity(batches.len());
        for batch in batches.iter() {
            let step = column(batch, "train_step", |c| c.as_primitive_opt::<Int32Type>())?;
            let rank = column(batch, "dp_rank", |c| c.as_primitive_opt::<Int32Type>())?;
            let of_rank = |rank: i32| dp_rank.is_none_or(|wanted| i64::from(wanted) == i64::from(rank));
            let rows = step.values().iter().zip(rank.values());
            let keep: BooleanArray =
                rows.map(|(step, rank)| Some(train_steps.contains(step) && of_rank(*rank))).collect();
            let kept = filter_record_batch(batch, &keep);
            chosen.push(kept.map_err(|e| Error::Internal { source: Box::new(e.into()) })?);
        }
        Ok(futures::stream::iter(chosen.into_iter().map(Ok)).boxed())
    }

    fn filter(&self, train_steps: &Range<i32>, dp_rank: Option<u32>) -> String {
        let mut filter = format!("plan_id = '{}' AND plan_write_id = {}", self.row.plan_id, self.row.plan_write_id);
        if let Some(rank) = dp_rank {
            filter.push_str(&format!(" AND dp_rank = {rank}"));
        }
        if *train_steps != (0..self.row.n_train_steps) {
            filter.push_str(&format!(" AND train_step >= {} AND train_step < {}", train_steps.start, train_steps.end));
        }
        filter
    }

    pub(super) fn damaged(&self, problem: String) -> Error {
        Error::PlanDamaged { plan_id: self.row.plan_id.clone(), problem }
    }
}

/// Trajectory key and attempt to text id.
type Names = HashMap<(i64, i64), Arc<str>>;

/// A rank's micro-batches, empty ones too, from how many there are in each train step.
fn slots(samples: &[PlacedSample], train_steps: &Range<i32>, counts: Vec<i32>) -> Vec<Slot> {
    let mut slots = Vec::new();
    let mut next = 0;
    for (train_step, count) in train_steps.clone().zip(counts) {
        for micro_batch in 0..count {
            let here = |s: &PlacedSample| (s.train_step, s.micro_batch) == (train_step, micro_batch);
            let n = samples[next..].iter().take_while(|s| here(s)).count();
            slots.push(Slot { train_step, micro_batch, samples: next..next + n });
            next += n;
        }
    }
    slots
}

fn read_samples(batch: &RecordBatch, nameless: &Arc<str>, samples: &mut Vec<PlacedSample>) -> Result<()> {
    let int = |name| column(batch, name, |c| c.as_primitive_opt::<Int32Type>());
    let long = |name| column(batch, name, |c| c.as_primitive_opt::<Int64Type>());
    let float = |name| column(batch, name, |c| c.as_primitive_opt::<Float64Type>());
    let (train_step, micro_batch, position) = (int("train_step")?, int("micro_batch")?, int("position")?);
    let (key, write_id, segment) = (long("trajectory_key")?, long("write_id")?, int("segment_index")?);
    let (n_tokens, mask_sum) = (long("n_tokens")?, long("mask_sum")?);
    let (advantage, loss_weight) = (float("advantage")?, float("loss_weight")?);
    let step_rows = column(batch, "step_rows", |c| c.as_list_opt::<i32>())?;
    for row in 0..batch.num_rows() {
        let addresses = step_rows.value(row);
        let addresses = column_of("step_rows", &addresses, |c| c.as_primitive_opt::<UInt64Type>())?;
        samples.push(PlacedSample {
            train_step: train_step.value(row),
            micro_batch: micro_batch.value(row),
            position: position.value(row),
            trajectory_key: key.value(row),
            write_id: write_id.value(row),
            trajectory_id: Arc::clone(nameless),
            segment_index: segment.value(row),
            n_tokens: n_tokens.value(row),
            mask_sum: mask_sum.value(row),
            advantage: advantage.value(row),
            loss_weight: loss_weight.value(row),
            step_rows: addresses.values().to_vec(),
        });
    }
    Ok(())
}

fn column<A: Clone>(batch: &RecordBatch, name: &'static str, get: impl Fn(&ArrayRef) -> Option<&A>) -> Result<A> {
    let missing = || Error::ViewShape { column: name.to_owned(), problem: "is missing".to_owned() };
    column_of(name, batch.column_by_name(name).ok_or_else(missing)?, get)
}

fn column_of<A: Clone>(name: &str, array: &ArrayRef, get: impl Fn(&ArrayRef) -> Option<&A>) -> Result<A> {
    get(array)
        .cloned()
        .ok_or_else(|| Error::ViewShape { column: name.to_owned(), problem: format!("has type {}", array.data_type()) })
}

fn json<T: serde::de::DeserializeOwned>(plan: &PlanRow, name: &str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|e| Error::PlanDamaged {
        plan_id: plan.plan_id.clone(),
        problem: format!("its {name} do not read: {e}"),
    })
}
