//! The weight of each sample within its train step: SQL over the relation `planned`.

use std::sync::Arc;

use arrow::array::{Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::datasource::MemTable;

use super::samples::{Planned, Samples};
use crate::catalog::Origin;
use crate::columns::Columns;
use crate::error::{Error, Result};
use crate::session::Session;

/// How the losses of samples become the loss of a train step: one SQL file each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LossWeights {
    pub(super) name: &'static str,
    pub(super) sql: &'static str,
}

const ALL: [LossWeights; 5] = [
    LossWeights { name: "prompt_mean", sql: include_str!("../../sql/loss_weights/prompt_mean.sql") },
    LossWeights { name: "trajectory_mean", sql: include_str!("../../sql/loss_weights/trajectory_mean.sql") },
    LossWeights { name: "sequence_mean", sql: include_str!("../../sql/loss_weights/sequence_mean.sql") },
    LossWeights { name: "token_mean", sql: include_str!("../../sql/loss_weights/token_mean.sql") },
    LossWeights { name: "constant", sql: include_str!("../../sql/loss_weights/constant.sql") },
];

impl LossWeights {
    /// The aggregation of a setting's value: its name, or `constant:c`.
    pub(super) fn of(aggregation: &str) -> Result<Self> {
        let name = aggregation.split_once(':').map_or(aggregation, |(name, _)| name);
        ALL.into_iter().find(|w| w.name == name).ok_or_else(|| Error::InvalidSetting {
            key: "loss_aggregation".to_owned(),
            value: aggregation.to_owned(),
            expected: "prompt_mean, trajectory_mean, sequence_mean, token_mean, or constant:c",
        })
    }
}

/// Name of the relation, for the time of the query only.
const PLANNED: &str = "planned";

/// The weight of every planned sample, in the order given. Samples without a trained token weigh nothing.
pub(super) async fn loss_weights(
    session: &Session,
    weights: LossWeights,
    samples: &Samples,
    steps: &[Vec<Planned>],
) -> Result<Vec<Vec<f64>>> {
    let failed = |source| Error::Internal { source: Box::new(source) };
    let batches =
        steps.iter().zip(0_i32..).map(|(step, index)| relation(index, step, samples)).collect::<Result<_>>()?;
    let table = MemTable::try_new(schema(), vec![batches]).map_err(failed)?;
    session.catalog().public().put(PLANNED.to_owned(), Origin::Stored, Arc::new(table));
    let found = read(session, weights).await;
    session.catalog().public().remove(PLANNED);
    let found = found?;
    let of = |planned: &Planned| {
        let key = (samples.trajectories[planned.trajectory].key, planned.sample.segment_index);
        let at = found.binary_search_by_key(&key, |(k, s, _)| (*k, *s)).ok();
        at.map(|at| found[at].2).ok_or_else(|| Error::ViewShape {
            column: "loss_weight".to_owned(),
            problem: format!("is missing for trajectory {:016x}, segment {}", key.0, key.1),
        })
    };
    steps.iter().map(|step| step.iter().map(of).collect()).collect()
}

async fn read(session: &Session, weights: LossWeights) -> Result<Vec<(i64, i32, f64)>> {
    let mut found: Vec<(i64, i32, f64)> = Vec::new();
    let mut rows = session.sql(weights.sql).await?;
    while let Some(batch) = rows.next_batch().await? {
        let columns = Columns::of(&batch);
        for row in 0..batch.num_rows() {
            let weight = columns.number("loss_weight", row)?.unwrap_or(f64::NAN);
            let key = columns.needed_int("trajectory_key", row)?;
            let segment_index = columns.needed_int("segment_index", row)?;
            if !weight.is_finite() || weight < 0.0 {
                return Err(Error::ViewShape {
                    column: "loss_weight".to_owned(),
                    problem: format!("is {weight} for trajectory {key:016x}, segment {segment_index}"),
                });
            }
            found.push((key, i32::try_from(segment_index).unwrap_or(i32::MAX), weight));
        }
    }
    found.sort_unstable_by_key(|(key, segment_index, _)| (*key, *segment_index));
    Ok(found)
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("train_step", DataType::Int32, false),
        Field::new("run_id", DataType::Utf8, false),
        Field::new("instance_id", DataType::Utf8, false),
        Field::new("trajectory_key", DataType::Int64, false),
        Field::new("segment_index", DataType::Int32, false),
        Field::new("mask_sum", DataType::Int64, false),
    ]))
}

fn relation(train_step: i32, step: &[Planned], samples: &Samples) -> Result<RecordBatch> {
    let trajectory = |p: &Planned| &samples.trajectories[p.trajectory];
    let instance = |p: &Planned| &samples.instances[trajectory(p).instance as usize];
    let columns: Vec<arrow::array::ArrayRef> = vec![
        Arc::new(Int32Array::from_value(train_step, step.len())),
        Arc::new(StringArray::from_iter_values(step.iter().map(|p| &instance(p).0))),
        Arc::new(StringArray::from_iter_values(step.iter().map(|p| &instance(p).1))),
        Arc::new(Int64Array::from_iter_values(step.iter().map(|p| trajectory(p).key))),
        Arc::new(Int32Array::from_iter_values(step.iter().map(|p| p.sample.segment_index))),
        Arc::new(Int64Array::from_iter_values(step.iter().map(|p| p.sample.mask_sum))),
    ];
    RecordBatch::try_new(schema(), columns)
        .map_err(|e| Error::ViewShape { column: PLANNED.to_owned(), problem: e.to_string() })
}
