//! The columns of a micro-batch as typed arrays. Names and types are those of `docs/batches.md`.

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, Float64Array, Int32Array, LargeBinaryArray, ListArray,
    PrimitiveArray, RecordBatch, StringArray,
};
use arrow::datatypes::{Float32Type, Float64Type, Int8Type, Int32Type};

use super::error::BatchError;
use super::place::{Place, SegmentPlace, TokenPlace};

/// All columns that training reads.
#[derive(Debug)]
pub(super) struct Columns {
    place: Place,
    trajectory_id: StringArray,
    segment_index: Int32Array,
    n_tokens: Int32Array,
    response_start: Int32Array,
    advantage: Float64Array,
    loss_weight: Float64Array,
    truncated: BooleanArray,
    pub(super) token_ids: TokenList<Int32Type>,
    pub(super) position_ids: TokenList<Int32Type>,
    pub(super) loss_mask: TokenList<Int8Type>,
    /// None where the stream has no such column, which reads as null in every row.
    pub(super) logprobs: Option<TokenList<Float32Type>>,
    /// None where the stream has no router choices.
    pub(super) routes: Option<RouteColumns>,
}

/// The columns of router choices.
#[derive(Debug)]
pub(super) struct RouteColumns {
    pub(super) bytes: LargeBinaryArray,
    pub(super) dtype: StringArray,
    pub(super) layers: Int32Array,
    pub(super) top_k: Int32Array,
}

/// A token-aligned list.
#[derive(Debug)]
pub(super) struct TokenList<T: ArrowPrimitiveType> {
    pub(super) column: &'static str,
    list: ListArray,
    values: PrimitiveArray<T>,
}

impl<T: ArrowPrimitiveType> TokenList<T> {
    /// The items of a row, null or not.
    pub(super) fn row(&self, row: usize) -> &[T::Native] {
        let offsets = self.list.value_offsets();
        &self.values.values()[offsets[row] as usize..offsets[row + 1] as usize]
    }

    /// Whether the row has a list.
    pub(super) fn is_valid(&self, row: usize) -> bool {
        self.list.is_valid(row)
    }

    /// The items of all rows, end to end.
    pub(super) fn all(&self) -> &[T::Native] {
        let offsets = self.list.value_offsets();
        let (from, to) = (offsets.first().copied().unwrap_or(0), offsets.last().copied().unwrap_or(0));
        &self.values.values()[from as usize..to as usize]
    }

    /// Whether an item of a row is null.
    pub(super) fn is_null_item(&self, row: usize, item: usize) -> bool {
        self.values.is_null(self.list.value_offsets()[row] as usize + item)
    }

    /// Whether any item of any row is null.
    pub(super) fn has_null_items(&self) -> bool {
        self.values.null_count() > 0
    }
}

impl Columns {
    pub(super) fn of(batch: &RecordBatch, place: Place) -> Result<Self, BatchError> {
        let find = Finder { batch, place };
        let routes = match batch.column_by_name("routed_experts") {
            None => None,
            Some(_) => Some(RouteColumns {
                bytes: find.typed("routed_experts", "LargeBinary", |a| a.as_binary_opt::<i64>())?,
                dtype: find.typed("routed_experts_dtype", "Utf8", |a| a.as_string_opt::<i32>())?,
                layers: find.typed("routed_experts_layers", "Int32", |a| a.as_primitive_opt())?,
                top_k: find.typed("routed_experts_topk", "Int32", |a| a.as_primitive_opt())?,
            }),
        };
        let columns = Self {
            place,
            trajectory_id: find.typed("trajectory_id", "Utf8", |a| a.as_string_opt::<i32>())?,
            segment_index: find.typed("segment_index", "Int32", |a| a.as_primitive_opt())?,
            n_tokens: find.typed("n_tokens", "Int32", |a| a.as_primitive_opt())?,
            response_start: find.typed("response_start", "Int32", |a| a.as_primitive_opt())?,
            advantage: find.typed("advantage", "Float64", |a| a.as_primitive_opt::<Float64Type>())?,
            loss_weight: find.typed("loss_weight", "Float64", |a| a.as_primitive_opt::<Float64Type>())?,
            truncated: find.typed("truncated", "Boolean", |a| a.as_boolean_opt())?,
            token_ids: find.list("token_ids", "List(Int32)")?,
            position_ids: find.list("position_ids", "List(Int32)")?,
            loss_mask: find.list("loss_mask", "List(Int8)")?,
            logprobs: match batch.column_by_name("logprobs") {
                None => None,
                Some(_) => Some(find.list("logprobs", "List(Float32)")?),
            },
            routes,
        };
        columns.refuse_null_cells()?;
        Ok(columns)
    }

    fn refuse_null_cells(&self) -> Result<(), BatchError> {
        let columns: [(&'static str, &dyn Array); 10] = [
            ("trajectory_id", &self.trajectory_id),
            ("segment_index", &self.segment_index),
            ("n_tokens", &self.n_tokens),
            ("response_start", &self.response_start),
            ("advantage", &self.advantage),
            ("loss_weight", &self.loss_weight),
            ("truncated", &self.truncated),
            ("token_ids", &self.token_ids.list),
            ("position_ids", &self.position_ids.list),
            ("loss_mask", &self.loss_mask.list),
        ];
        for (column, array) in columns {
            if let Some(row) = (0..array.len()).find(|row| array.is_null(*row)) {
                return Err(BatchError::NullCell { place: self.place, column, row });
            }
        }
        Ok(())
    }

    pub(super) fn n_rows(&self) -> usize {
        self.trajectory_id.len()
    }

    pub(super) fn trajectory_id(&self, row: usize) -> &str {
        self.trajectory_id.value(row)
    }

    pub(super) fn segment_index(&self, row: usize) -> i32 {
        self.segment_index.value(row)
    }

    pub(super) fn n_tokens(&self, row: usize) -> i32 {
        self.n_tokens.value(row)
    }

    pub(super) fn response_start(&self, row: usize) -> i32 {
        self.response_start.value(row)
    }

    pub(super) fn advantage(&self, row: usize) -> f64 {
        self.advantage.value(row)
    }

    pub(super) fn loss_weight(&self, row: usize) -> f64 {
        self.loss_weight.value(row)
    }

    pub(super) fn truncated(&self, row: usize) -> bool {
        self.truncated.value(row)
    }

    /// How messages name a row.
    pub(super) fn segment(&self, row: usize) -> SegmentPlace {
        SegmentPlace {
            place: self.place,
            trajectory_id: self.trajectory_id(row).into(),
            segment_index: self.segment_index(row),
        }
    }

    /// How messages name a token of a row.
    pub(super) fn token(&self, row: usize, token: usize) -> TokenPlace {
        TokenPlace { segment: self.segment(row), token }
    }
}

/// Columns by name and type.
struct Finder<'a> {
    batch: &'a RecordBatch,
    place: Place,
}

impl Finder<'_> {
    fn column(&self, column: &'static str) -> Result<&ArrayRef, BatchError> {
        self.batch.column_by_name(column).ok_or(BatchError::MissingColumn { place: self.place, column })
    }

    fn wrong_type(&self, column: &'static str, array: &ArrayRef, expected: &'static str) -> BatchError {
        let found = array.data_type().to_string().into();
        BatchError::ColumnType { place: self.place, column, found, expected }
    }

    fn typed<A: Clone>(
        &self,
        column: &'static str,
        expected: &'static str,
        cast: impl Fn(&ArrayRef) -> Option<&A>,
    ) -> Result<A, BatchError> {
        let array = self.column(column)?;
        cast(array).cloned().ok_or_else(|| self.wrong_type(column, array, expected))
    }

    fn list<T: ArrowPrimitiveType>(
        &self,
        column: &'static str,
        expected: &'static str,
    ) -> Result<TokenList<T>, BatchError> {
        let array = self.column(column)?;
        let list = array.as_list_opt::<i32>();
        let values = list.and_then(|list| list.values().as_primitive_opt::<T>());
        match (list, values) {
            (Some(list), Some(values)) => Ok(TokenList { column, list: list.clone(), values: values.clone() }),
            _ => Err(self.wrong_type(column, array, expected)),
        }
    }
}
