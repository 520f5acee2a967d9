//! Filters that appear while a query runs: a join that has read its small side tells the scan of the other side
//! which keys can match. They are hints (the join still checks), so parts that have no SQL text are left out.
//!
//! This is what makes "the steps of these few trajectories" an index look-up and not a scan of all steps.

use std::sync::Arc;

use arrow::array::Array;
use arrow::datatypes::Schema;
use datafusion::common::tree_node::TreeNode;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::ScalarFunctionExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, CaseExpr, Column, InListExpr, Literal};
use datafusion::physical_expr_common::physical_expr::snapshot_physical_expr;
use datafusion::physical_plan::PhysicalExpr;
use datafusion::scalar::ScalarValue;

use super::literal::sql_literal;
use super::predicate::is_comparable;

/// Distinct keys of an IN list that is sent to the store.
const KEYS_MAX: usize = 1_000;

/// What a lowered filter says.
pub(super) enum Lowered {
    /// Nothing is known: every row may match.
    Anything,
    /// No row can match.
    Nothing,
    /// Rows that match satisfy this.
    Sql(String),
}

/// What the filters say by now, all together.
pub(super) fn dynamic_predicate(filters: &[Arc<dyn PhysicalExpr>], schema: &Schema) -> Lowered {
    filters.iter().fold(Lowered::Anything, |said, filter| match snapshot_physical_expr(Arc::clone(filter)) {
        Ok(current) => both(said, lower(&current, schema)),
        // a hint that cannot be read is no hint
        Err(_) => said,
    })
}

fn lower(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Lowered {
    if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
        return match binary.op() {
            Operator::And => both(lower(binary.left(), schema), lower(binary.right(), schema)),
            Operator::Or => either(vec![lower(binary.left(), schema), lower(binary.right(), schema)]),
            _ => comparison(binary, schema),
        };
    }
    if let Some(literal) = expr.downcast_ref::<Literal>() {
        return match literal.value() {
            ScalarValue::Boolean(Some(true)) => Lowered::Anything,
            ScalarValue::Boolean(_) => Lowered::Nothing,
            _ => Lowered::Anything,
        };
    }
    if let Some(list) = expr.downcast_ref::<InListExpr>() {
        return membership(list, schema);
    }
    // a partitioned join routes by hash: a row may satisfy any of its branches
    if let Some(case) = expr.downcast_ref::<CaseExpr>() {
        let mut branches: Vec<_> = case.when_then_expr().iter().map(|(_, then)| lower(then, schema)).collect();
        branches.push(case.else_expr().map_or(Lowered::Nothing, |e| lower(e, schema)));
        return either(branches);
    }
    Lowered::Anything
}

fn both(left: Lowered, right: Lowered) -> Lowered {
    match (left, right) {
        (Lowered::Nothing, _) | (_, Lowered::Nothing) => Lowered::Nothing,
        (Lowered::Anything, other) | (other, Lowered::Anything) => other,
        (Lowered::Sql(a), Lowered::Sql(b)) => Lowered::Sql(format!("{a} AND {b}")),
    }
}

fn either(parts: Vec<Lowered>) -> Lowered {
    let mut sql = Vec::new();
    for part in parts {
        match part {
            Lowered::Anything => return Lowered::Anything,
            Lowered::Nothing => {}
            Lowered::Sql(part) => sql.push(format!("({part})")),
        }
    }
    if sql.is_empty() { Lowered::Nothing } else { Lowered::Sql(format!("({})", sql.join(" OR "))) }
}

fn comparison(binary: &BinaryExpr, schema: &Schema) -> Lowered {
    let (Some(column), Some(literal)) =
        (binary.left().downcast_ref::<Column>(), binary.right().downcast_ref::<Literal>())
    else {
        return Lowered::Anything;
    };
    // not the least and the largest key of a join's small side: keys are hashes, so nearly all rows lie between, and
    // the store would look for those rows first and read their other columns one by one
    if *binary.op() != Operator::Eq {
        return Lowered::Anything;
    }
    match (column_name(column, schema), sql_literal(literal.value())) {
        (Some(name), Some(value)) => Lowered::Sql(format!("{name} {} {value}", binary.op())),
        _ => Lowered::Anything,
    }
}

/// `key IN (…)`, and `(key, other) IN (…)` as one list for each column (wider, but the join checks pairs).
fn membership(list: &InListExpr, schema: &Schema) -> Lowered {
    if list.negated() || list.list().len() > KEYS_MAX {
        return Lowered::Anything;
    }
    let mut values = Vec::with_capacity(list.list().len());
    for item in list.list() {
        let Some(literal) = item.downcast_ref::<Literal>() else { return Lowered::Anything };
        values.push(literal.value());
    }
    if let Some(column) = list.expr().downcast_ref::<Column>() {
        return in_list(column, &values.into_iter().cloned().collect::<Vec<_>>(), schema);
    }
    let Some(pair) = list.expr().downcast_ref::<ScalarFunctionExpr>().filter(|f| f.name() == "struct") else {
        return Lowered::Anything;
    };
    let mut lowered = Lowered::Anything;
    for (i, arg) in pair.args().iter().enumerate() {
        let Some(column) = arg.downcast_ref::<Column>() else { continue };
        let fields: Option<Vec<_>> = values.iter().map(|v| struct_field(v, i)).collect();
        let Some(fields) = fields else { continue };
        lowered = both(lowered, in_list(column, &fields, schema));
    }
    lowered
}

fn struct_field(value: &ScalarValue, index: usize) -> Option<ScalarValue> {
    let ScalarValue::Struct(array) = value else { return None };
    if array.is_null(0) {
        return None;
    }
    let column = array.columns().get(index)?;
    ScalarValue::try_from_array(column, 0).ok()
}

fn in_list(column: &Column, values: &[ScalarValue], schema: &Schema) -> Lowered {
    let Some(name) = column_name(column, schema) else { return Lowered::Anything };
    let mut texts = Vec::with_capacity(values.len());
    for value in values {
        if value.is_null() {
            continue; // a null key joins with nothing
        }
        let Some(text) = sql_literal(value) else { return Lowered::Anything };
        texts.push(text);
    }
    if texts.is_empty() {
        return Lowered::Nothing;
    }
    texts.sort_unstable();
    texts.dedup();
    Lowered::Sql(format!("{name} IN ({})", texts.join(", ")))
}

fn column_name<'a>(column: &Column, schema: &'a Schema) -> Option<&'a str> {
    let field = schema.field_with_name(column.name()).ok()?;
    is_comparable(field.name(), field.data_type()).then(|| field.name().as_str())
}

/// Whether the filter refers to columns of the scan only; anything else must not be kept.
pub(super) fn refers_to(filter: &Arc<dyn PhysicalExpr>, schema: &Schema) -> bool {
    let mut known = true;
    let visited = filter.apply(|node| {
        if let Some(column) = node.downcast_ref::<Column>() {
            known &= schema.field_with_name(column.name()).is_ok();
        }
        Ok(datafusion::common::tree_node::TreeNodeRecursion::Continue)
    });
    known && visited.is_ok()
}
