//! Aggregates that give the same bits for any order of rows: they gather what they need of every row, put it in order,
//! and only then compute.
//!
//! Sums of doubles depend on their order, and the order of rows in a parallel query is left to chance; a plan must not.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, BooleanArray};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::exec_err;
use datafusion::error::Result;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, EmitTo, GroupsAccumulator, Signature, Volatility,
};
use datafusion::scalar::ScalarValue;

/// Takes the arguments, the group of each row (none for a row that is filtered out), and the bytes of each group.
pub(super) type TakeRows = fn(&[ArrayRef], &mut dyn FnMut(usize) -> Option<usize>, &mut [Vec<u8>]) -> Result<usize>;

/// What makes one of these aggregates.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) arity: usize,
    /// The type of the result, or why the arguments are not right.
    pub(super) returns: fn(&[DataType]) -> Result<DataType>,
    /// Adds what is needed of each kept row to its group's bytes; gives the number of bytes added.
    pub(super) gather: TakeRows,
    /// The result of each group.
    pub(super) finish: fn(&mut [Vec<u8>]) -> Result<ArrayRef>,
}

impl Kind {
    pub(super) fn function(self) -> AggregateUDF {
        let signature = Signature::any(self.arity, Volatility::Immutable);
        AggregateUDF::new_from_impl(Gather { kind: self, signature })
    }
}

/// The aggregate.
struct Gather {
    kind: Kind,
    signature: Signature,
}

impl fmt::Debug for Gather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gather").field("name", &self.kind.name).finish()
    }
}

impl PartialEq for Gather {
    fn eq(&self, other: &Self) -> bool {
        self.kind.name == other.kind.name
    }
}

impl Eq for Gather {}

impl Hash for Gather {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.kind.name.hash(state);
    }
}

impl AggregateUDFImpl for Gather {
    fn name(&self) -> &str {
        self.kind.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        (self.kind.returns)(types)
    }

    fn accumulator(&self, _args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(One(Groups::new(self.kind))))
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        Ok(vec![Arc::new(Field::new(format_state_name(args.name, "gathered"), DataType::Binary, true))])
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        !args.is_distinct
    }

    fn create_groups_accumulator(&self, _args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(Box::new(Groups::new(self.kind)))
    }
}

/// What was gathered, group by group.
struct Groups {
    kind: Kind,
    groups: Vec<Vec<u8>>,
    gathered_bytes: usize,
}

impl Groups {
    fn new(kind: Kind) -> Self {
        Self { kind, groups: Vec::new(), gathered_bytes: 0 }
    }

    fn take(&mut self, emit_to: EmitTo) -> Vec<Vec<u8>> {
        let taken = emit_to.take_needed(&mut self.groups);
        self.gathered_bytes -= taken.iter().map(Vec::len).sum::<usize>();
        taken
    }
}

/// The group of each row that the aggregate's filter keeps.
fn kept<'a>(groups: &'a [usize], filter: Option<&'a BooleanArray>) -> impl FnMut(usize) -> Option<usize> + 'a {
    move |row| match filter {
        Some(filter) if !(filter.is_valid(row) && filter.value(row)) => None,
        _ => groups.get(row).copied(),
    }
}

impl GroupsAccumulator for Groups {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.groups.resize_with(total_num_groups, Vec::new);
        let mut kept = kept(group_indices, opt_filter);
        self.gathered_bytes += (self.kind.gather)(values, &mut kept, &mut self.groups)?;
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        (self.kind.finish)(&mut self.take(emit_to))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        Ok(vec![Arc::new(BinaryArray::from_iter_values(self.take(emit_to)))])
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.groups.resize_with(total_num_groups, Vec::new);
        let Some(parts) = values.first().and_then(|v| v.as_binary_opt::<i32>()) else {
            return exec_err!("{}: partial results are no bytes", self.kind.name);
        };
        let mut kept = kept(group_indices, opt_filter);
        for row in 0..parts.len() {
            if let Some(group) = kept(row).filter(|_| parts.is_valid(row)) {
                self.groups[group].extend_from_slice(parts.value(row));
                self.gathered_bytes += parts.value(row).len();
            }
        }
        Ok(())
    }

    fn size(&self) -> usize {
        // a vector that grows holds up to twice its length
        self.groups.capacity() * size_of::<Vec<u8>>() + 2 * self.gathered_bytes
    }
}

/// The same for one group, as windows and ungrouped queries want it.
struct One(Groups);

impl fmt::Debug for One {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("One").field(&self.0.kind.name).finish()
    }
}

impl Accumulator for One {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let rows = values.first().map_or(0, |v| v.len());
        self.0.update_batch(values, &vec![0; rows], None, 1)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        // a window asks again after every row, so what was gathered must stay
        self.0.groups.resize_with(1, Vec::new);
        let result = (self.0.kind.finish)(&mut self.0.groups.clone())?;
        ScalarValue::try_from_array(&result, 0)
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.0.groups.resize_with(1, Vec::new);
        Ok(vec![ScalarValue::Binary(Some(self.0.groups[0].clone()))])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let rows = states.first().map_or(0, |v| v.len());
        self.0.merge_batch(states, &vec![0; rows], None, 1)
    }
}
