//! From a record batch to tensors.

use arrow::array::RecordBatch;
use arrow::datatypes::Float32Type;
use tch::{Kind, TchError, Tensor};

use super::columns::{Columns, TokenList};
use super::error::BatchError;
use super::limits::{ModelLimits, Needs};
use super::place::Place;
use super::tensors::{MicroBatch, PackedTokens, Segment, SegmentNumbers, TrainedTokens, torch};
use super::{check, routes};

impl MicroBatch {
    /// A micro-batch of the stream on the CPU. `place` says which one it is, since one of no rows cannot.
    ///
    /// Columns that training does not read are ignored; `logprobs` and the router choices may be missing.
    ///
    /// # Errors
    /// [`BatchError`], naming the first thing that does not fit the schema, fit together or fit the model.
    pub fn read(batch: &RecordBatch, place: Place, model: &ModelLimits, needs: Needs) -> Result<Self, BatchError> {
        let columns = Columns::of(batch, place)?;
        for row in 0..columns.n_rows() {
            check::segment(&columns, row, model, needs)?;
        }
        let trained = Trained::of(&columns);
        let n_tokens = columns.token_ids.all().len();
        let (routed_experts, route_layers) = routes::packed(&columns, place, model, n_tokens)?;
        let segments = segments(&columns, &trained, &route_layers);
        let logprobs = Logprobs::of(&columns, needs);
        torch(place, Tensors { columns: &columns, trained: &trained, segments: &segments }.make(logprobs)).map(
            |(packed, trained_tokens, numbers)| Self {
                place,
                segments,
                n_unpredicted: trained.n_unpredicted,
                trained_rows: trained.rows,
                packed: PackedTokens { routed_experts, ..packed },
                trained: trained_tokens,
                numbers,
            },
        )
    }
}

/// Which tokens are trained, found on the host: on a device it would make the step wait.
struct Trained {
    rows: Vec<i64>,
    segment_of: Vec<i64>,
    of_segment: Vec<usize>,
    mask: Vec<bool>,
    n_unpredicted: usize,
}

impl Trained {
    fn of(columns: &Columns) -> Self {
        let mut found = Self {
            rows: Vec::new(),
            segment_of: Vec::new(),
            of_segment: Vec::with_capacity(columns.n_rows()),
            mask: columns.loss_mask.all().iter().map(|bit| *bit == 1).collect(),
            n_unpredicted: 0,
        };
        let mut start = 0;
        for row in 0..columns.n_rows() {
            let end = start + columns.loss_mask.row(row).len();
            found.n_unpredicted += usize::from(std::mem::take(&mut found.mask[start]));
            let before = found.rows.len();
            found.rows.extend((start..end).filter(|at| found.mask[*at]).map(|at| at as i64));
            found.of_segment.push(found.rows.len() - before);
            found.segment_of.resize(found.rows.len(), row as i64);
            start = end;
        }
        found
    }
}

fn segments(columns: &Columns, trained: &Trained, route_layers: &[Option<usize>]) -> Vec<Segment> {
    let mut start = 0;
    let of = |row: usize| {
        let n_tokens = columns.token_ids.row(row).len();
        let segment = Segment {
            trajectory_id: columns.trajectory_id(row).into(),
            segment_index: columns.segment_index(row),
            start,
            n_tokens,
            n_trained: trained.of_segment[row],
            response_start: usize::try_from(columns.response_start(row)).unwrap_or(0).min(n_tokens),
            advantage: columns.advantage(row),
            loss_weight: columns.loss_weight(row),
            truncated: columns.truncated(row),
            route_layers: route_layers[row],
        };
        start += n_tokens;
        segment
    };
    (0..columns.n_rows()).map(of).collect()
}

/// The rollout's log-probs over all tokens.
enum Logprobs<'a> {
    /// As they lie in the column.
    AsTheyAre(&'a [f32]),
    /// With NaN on the trained tokens of segments that have none, and 0 on their context.
    Filled(Vec<f32>),
    /// No segment has any.
    None,
}

impl<'a> Logprobs<'a> {
    /// None only where they are not needed: a micro-batch in which nothing is trained, or of no rows, has none to miss.
    fn of(columns: &'a Columns, needs: Needs) -> Self {
        let list = columns.logprobs.as_ref();
        let valid = |row: &usize| list.is_some_and(|list| list.is_valid(*row));
        let n_valid = (0..columns.n_rows()).filter(valid).count();
        match list {
            Some(list) if n_valid == columns.n_rows() && !list.has_null_items() => Self::AsTheyAre(list.all()),
            _ if n_valid == 0 && !needs.logprobs => Self::None,
            _ => Self::Filled(Self::filled(columns, list)),
        }
    }

    fn filled(columns: &Columns, list: Option<&TokenList<Float32Type>>) -> Vec<f32> {
        let mut values = Vec::with_capacity(columns.token_ids.all().len());
        for row in 0..columns.n_rows() {
            let unknown = |bit: &i8| if *bit == 1 { f32::NAN } else { 0.0 };
            let mask = columns.loss_mask.row(row);
            match list.filter(|list| list.is_valid(row)) {
                Some(list) => {
                    let value = |(at, (value, bit)): (usize, (&f32, &i8))| {
                        if list.is_null_item(row, at) { unknown(bit) } else { *value }
                    };
                    values.extend(list.row(row).iter().zip(mask).enumerate().map(value));
                }
                None => values.extend(mask.iter().map(unknown)),
            }
        }
        values
    }

    fn tensor(&self) -> Result<Option<Tensor>, TchError> {
        match self {
            Self::AsTheyAre(values) => Tensor::f_from_slice(values).map(Some),
            Self::Filled(values) => Tensor::f_from_slice(values).map(Some),
            Self::None => Ok(None),
        }
    }
}

struct Tensors<'a> {
    columns: &'a Columns,
    trained: &'a Trained,
    segments: &'a [Segment],
}

impl Tensors<'_> {
    fn make(&self, logprobs: Logprobs<'_>) -> Result<(PackedTokens, TrainedTokens, SegmentNumbers), TchError> {
        let ids = |values: &[i32]| Tensor::f_from_slice(values)?.f_to_kind(Kind::Int64);
        let token_ids = ids(self.columns.token_ids.all())?;
        let logprobs = logprobs.tensor()?;
        let mut cu_seqlens = vec![0_i32];
        let mut segment_of = Vec::with_capacity(self.trained.mask.len());
        for (at, segment) in self.segments.iter().enumerate() {
            segment_of.resize(segment_of.len() + segment.n_tokens, at as i64);
            // an Arrow list holds at most i32::MAX items
            cu_seqlens.push(segment_of.len() as i32);
        }
        let rows = Tensor::f_from_slice(&self.trained.rows)?;
        let numbers =
            |get: fn(&Segment) -> f64| Tensor::f_from_slice(&self.segments.iter().map(get).collect::<Vec<_>>());
        let trained = TrainedTokens {
            predictors: rows.f_sub_scalar(1)?,
            token_ids: token_ids.f_index_select(0, &rows)?,
            segment_of: Tensor::f_from_slice(&self.trained.segment_of)?,
            logprobs: logprobs.as_ref().map(|l| l.f_index_select(0, &rows)).transpose()?,
            rows,
        };
        let packed = PackedTokens {
            token_ids,
            position_ids: ids(self.columns.position_ids.all())?,
            cu_seqlens: Tensor::f_from_slice(&cu_seqlens)?,
            segment_of: Tensor::f_from_slice(&segment_of)?,
            loss_mask: Tensor::f_from_slice(&self.trained.mask)?,
            logprobs,
            routed_experts: None,
        };
        let numbers =
            SegmentNumbers { advantages: numbers(|s| s.advantage)?, loss_weights: numbers(|s| s.loss_weight)? };
        Ok((packed, trained, numbers))
    }
}
