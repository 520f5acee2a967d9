//! Filters of a query as SQL text for the store.
//!
//! Only what every store reads the same way goes down: comparisons, IN, BETWEEN, LIKE, IS [NOT] NULL and AND/OR/NOT,
//! on plain columns and constants. Anything else stays above the scan, where the engine checks it; so what is
//! lowered can be declared exact.

use arrow::datatypes::{DataType, Schema};
use datafusion::logical_expr::{BinaryExpr, Expr, Operator};
use dressage_schemas::tables::steps::PAYLOAD_COLUMNS;

use super::literal::sql_literal;

/// The most constants that an IN list may have to be sent to the store.
const IN_LIST_MAX: usize = 1_000;

/// The filter as SQL text, or nothing where it must stay above the scan.
pub(super) fn sql_predicate(filter: &Expr, schema: &Schema) -> Option<String> {
    match filter {
        Expr::BinaryExpr(binary) => match binary.op {
            Operator::And | Operator::Or => {
                let left = sql_predicate(&binary.left, schema)?;
                let right = sql_predicate(&binary.right, schema)?;
                Some(format!("({left} {} {right})", binary.op))
            }
            _ => comparison(binary, schema),
        },
        Expr::Not(inner) => Some(format!("(NOT {})", sql_predicate(inner, schema)?)),
        Expr::IsNull(inner) => Some(format!("({} IS NULL)", column(inner, schema)?.0)),
        Expr::IsNotNull(inner) => Some(format!("({} IS NOT NULL)", column(inner, schema)?.0)),
        Expr::IsTrue(inner) => Some(format!("({} IS TRUE)", boolean_column(inner, schema)?)),
        Expr::IsFalse(inner) => Some(format!("({} IS FALSE)", boolean_column(inner, schema)?)),
        Expr::Column(_) => boolean_column(filter, schema).map(str::to_owned),
        Expr::InList(list) => {
            if list.list.is_empty() || list.list.len() > IN_LIST_MAX {
                return None;
            }
            let (name, data_type) = column(&list.expr, schema)?;
            let values = list.list.iter().map(|v| constant(v, data_type)).collect::<Option<Vec<_>>>()?;
            let not = if list.negated { "NOT " } else { "" };
            Some(format!("({name} {not}IN ({}))", values.join(", ")))
        }
        Expr::Between(between) => {
            let (name, data_type) = column(&between.expr, schema)?;
            let low = constant(&between.low, data_type)?;
            let high = constant(&between.high, data_type)?;
            let not = if between.negated { "NOT " } else { "" };
            Some(format!("({name} {not}BETWEEN {low} AND {high})"))
        }
        Expr::Like(like) => {
            let (name, data_type) = column(&like.expr, schema)?;
            if like.escape_char.is_some() || like.case_insensitive || !is_text(data_type) {
                return None;
            }
            let pattern = constant(&like.pattern, data_type)?;
            // an engine may or may not take the backslash as an escape
            if pattern.contains('\\') {
                return None;
            }
            let not = if like.negated { "NOT " } else { "" };
            Some(format!("({name} {not}LIKE {pattern})"))
        }
        _ => None,
    }
}

/// How many of a table's rows a filter may keep: a guess for the order of joins, never for a result.
pub(super) fn kept_rows_estimate(filters: &[Expr], rows: usize) -> usize {
    filters.iter().fold(rows, |rows, filter| match filter {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, .. }) if is_key(left) => rows.min(2),
        Expr::InList(list) if !list.negated && is_key(&list.expr) => rows.min(2 * list.list.len()),
        Expr::BinaryExpr(BinaryExpr { op: Operator::Eq, .. }) => rows.div_ceil(10),
        filter if is_flag(filter) => rows,
        _ => rows.div_ceil(3),
    })
}

/// A boolean column by itself, such as `trainable`: it tells exceptions, so most rows pass.
pub(super) fn is_flag(filter: &Expr) -> bool {
    match filter {
        Expr::Column(_) => true,
        Expr::Not(inner) | Expr::IsTrue(inner) | Expr::IsFalse(inner) => matches!(**inner, Expr::Column(_)),
        _ => false,
    }
}

/// Columns of which a value names one row or a few.
fn is_key(expr: &Expr) -> bool {
    matches!(expr, Expr::Column(c) if matches!(c.name.as_str(), "trajectory_id" | "trajectory_key" | "write_id" | "content_hash" | "quarantine_key" | "snapshot_id"))
}

fn comparison(binary: &BinaryExpr, schema: &Schema) -> Option<String> {
    use Operator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
    if !matches!(binary.op, Eq | NotEq | Lt | LtEq | Gt | GtEq) {
        return None;
    }
    if let Some((name, data_type)) = column(&binary.left, schema) {
        let value = constant(&binary.right, data_type)?;
        return Some(format!("({name} {} {value})", binary.op));
    }
    let (name, data_type) = column(&binary.right, schema)?;
    let value = constant(&binary.left, data_type)?;
    Some(format!("({name} {} {value})", binary.op.swap()?))
}

/// A column whose values have a text that every store compares alike.
fn column<'a>(expr: &Expr, schema: &'a Schema) -> Option<(&'a str, &'a DataType)> {
    let Expr::Column(column) = expr else { return None };
    let field = schema.field_with_name(&column.name).ok()?;
    is_comparable(field.name(), field.data_type()).then(|| (field.name().as_str(), field.data_type()))
}

pub(super) fn is_comparable(name: &str, data_type: &DataType) -> bool {
    use DataType::{Boolean, Float64, Int32, Int64, LargeUtf8, Utf8};
    matches!(data_type, Boolean | Int32 | Int64 | Float64 | Utf8 | LargeUtf8) && !PAYLOAD_COLUMNS.contains(&name)
}

fn boolean_column<'a>(expr: &Expr, schema: &'a Schema) -> Option<&'a str> {
    column(expr, schema).filter(|(_, t)| **t == DataType::Boolean).map(|(name, _)| name)
}

fn is_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8)
}

/// A constant of the column's own type: another type would be cast, and stores cast differently.
fn constant(expr: &Expr, data_type: &DataType) -> Option<String> {
    let Expr::Literal(value, _) = expr else { return None };
    let same = value.data_type() == *data_type || (is_text(&value.data_type()) && is_text(data_type));
    if same { sql_literal(value) } else { None }
}

#[cfg(test)]
mod tests {
    use datafusion::logical_expr::{col, lit};
    use dressage_schemas::Table;

    use super::*;

    fn lowered(filter: Expr) -> Option<String> {
        sql_predicate(&filter, &Table::Steps.schema())
    }

    #[test]
    fn plain_predicates_become_sql_text() {
        let filter = col("finish_reason").eq(lit("length")).and(lit(5).lt(col("n_output_tokens")));
        assert_eq!(lowered(filter).as_deref(), Some("((finish_reason = 'length') AND (n_output_tokens > 5))"));
        assert_eq!(
            lowered(col("route").in_list(vec![lit("given"), lit("append")], true)).as_deref(),
            Some("(route NOT IN ('given', 'append'))")
        );
        assert_eq!(lowered(col("boundary").is_true()).as_deref(), Some("(boundary IS TRUE)"));
        assert_eq!(lowered(!col("boundary")).as_deref(), Some("(NOT boundary)"));
    }

    #[test]
    fn what_a_store_may_read_differently_stays_above() {
        assert_eq!(lowered(col("n_output_tokens").eq(lit(5_i64))), None, "another integer width");
        assert_eq!(lowered(col("token_ids").is_not_null()), None, "a payload column");
        assert_eq!(lowered(col("route").like(lit("a\\_%"))), None, "an escape");
        assert_eq!(lowered((col("step_index") + lit(1)).eq(lit(5))), None, "arithmetic");
        let half = col("finish_reason").eq(lit("x")).or((col("step_index") + lit(1)).eq(lit(5)));
        assert_eq!(lowered(half), None, "half of an OR");
    }
}
