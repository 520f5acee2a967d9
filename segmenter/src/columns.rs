//! Reading typed values out of query results, whatever width of text or integer the engine chose.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, Field, Float32Type, Float64Type, Int32Type, Int64Type, TimeUnit, TimestampMicrosecondType,
};

use crate::error::{Error, Result};

/// The columns of a batch. Each is read as one type only, and cast to it once.
pub(crate) struct Columns<'a> {
    batch: &'a RecordBatch,
    casts: RefCell<HashMap<&'static str, ArrayRef>>,
}

impl<'a> Columns<'a> {
    pub(crate) fn of(batch: &'a RecordBatch) -> Self {
        Self { batch, casts: RefCell::default() }
    }

    pub(crate) fn text(&self, name: &'static str, row: usize) -> Result<Option<String>> {
        let column = self.cast(name, &DataType::LargeUtf8)?;
        let column = column.as_string::<i64>();
        Ok(column.is_valid(row).then(|| column.value(row).to_owned()))
    }

    pub(crate) fn needed_text(&self, name: &'static str, row: usize) -> Result<String> {
        self.text(name, row)?.ok_or_else(|| shape(name, "is null"))
    }

    pub(crate) fn int(&self, name: &'static str, row: usize) -> Result<Option<i64>> {
        let column = self.cast(name, &DataType::Int64)?;
        let column = column.as_primitive::<Int64Type>();
        Ok(column.is_valid(row).then(|| column.value(row)))
    }

    pub(crate) fn needed_int(&self, name: &'static str, row: usize) -> Result<i64> {
        self.int(name, row)?.ok_or_else(|| shape(name, "is null"))
    }

    /// An integer that must fit 32 bits, such as an index.
    pub(crate) fn needed_small(&self, name: &'static str, row: usize) -> Result<i32> {
        i32::try_from(self.needed_int(name, row)?).map_err(|_| shape(name, "is out of range"))
    }

    pub(crate) fn number(&self, name: &'static str, row: usize) -> Result<Option<f64>> {
        let column = self.cast(name, &DataType::Float64)?;
        let column = column.as_primitive::<Float64Type>();
        Ok(column.is_valid(row).then(|| column.value(row)))
    }

    pub(crate) fn truth(&self, name: &'static str, row: usize) -> Result<bool> {
        let column = self.cast(name, &DataType::Boolean)?;
        let column = column.as_boolean();
        Ok(column.is_valid(row) && column.value(row))
    }

    pub(crate) fn time(&self, name: &'static str, row: usize) -> Result<Option<i64>> {
        let column = self.cast(name, &DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())))?;
        let column = column.as_primitive::<TimestampMicrosecondType>();
        Ok(column.is_valid(row).then(|| column.value(row)))
    }

    pub(crate) fn bytes(&self, name: &'static str, row: usize) -> Result<Option<Vec<u8>>> {
        let column = self.cast(name, &DataType::LargeBinary)?;
        let column = column.as_binary::<i64>();
        Ok(column.is_valid(row).then(|| column.value(row).to_vec()))
    }

    pub(crate) fn ints(&self, name: &'static str, row: usize) -> Result<Option<Vec<i32>>> {
        Ok(self.list(name, row, DataType::Int32)?.map(|l| l.as_primitive::<Int32Type>().values().to_vec()))
    }

    pub(crate) fn floats(&self, name: &'static str, row: usize) -> Result<Option<Vec<f32>>> {
        Ok(self.list(name, row, DataType::Float32)?.map(|l| l.as_primitive::<Float32Type>().values().to_vec()))
    }

    pub(crate) fn texts(&self, name: &'static str, row: usize) -> Result<Vec<String>> {
        let list = self.list(name, row, DataType::Utf8)?;
        Ok(list.map(|l| l.as_string::<i32>().iter().flatten().map(str::to_owned).collect()).unwrap_or_default())
    }

    /// `version_spans`: (version, tokens) runs.
    pub(crate) fn version_spans(&self, name: &'static str, row: usize) -> Result<Option<Vec<(String, i32)>>> {
        let column = self.column(name)?;
        if column.is_null(row) {
            return Ok(None);
        }
        let list = column.as_list_opt::<i32>().ok_or_else(|| shape(name, "is no list"))?.value(row);
        let runs = list.as_struct_opt().ok_or_else(|| shape(name, "is no list of runs"))?;
        let runs = RecordBatch::from(runs.clone());
        let inner = Columns::of(&runs);
        let run = |i| {
            let n = i32::try_from(inner.needed_int("n_tokens", i)?).unwrap_or(0);
            Ok((inner.needed_text("weight_version", i)?, n))
        };
        (0..runs.num_rows()).map(run).collect::<Result<Vec<_>>>().map(Some)
    }

    fn list(&self, name: &'static str, row: usize, item: DataType) -> Result<Option<ArrayRef>> {
        let column = self.cast(name, &DataType::LargeList(Arc::new(Field::new_list_field(item, true))))?;
        let column = column.as_list::<i64>();
        Ok(column.is_valid(row).then(|| column.value(row)))
    }

    fn column(&self, name: &'static str) -> Result<&ArrayRef> {
        self.batch.column_by_name(name).ok_or_else(|| shape(name, "is missing"))
    }

    fn cast(&self, name: &'static str, to: &DataType) -> Result<ArrayRef> {
        if let Some(done) = self.casts.borrow().get(name) {
            return Ok(Arc::clone(done));
        }
        let done = cast(self.column(name)?, to).map_err(|e| shape(name, &e.to_string()))?;
        self.casts.borrow_mut().insert(name, Arc::clone(&done));
        Ok(done)
    }
}

fn shape(column: &str, problem: &str) -> Error {
    Error::ViewShape { column: column.to_owned(), problem: problem.to_owned() }
}
