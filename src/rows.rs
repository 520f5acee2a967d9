//! Small query results as rows of named values, for the commands that print pages and summaries.

use anyhow::{Context, Result};
use arrow::array::RecordBatch;
use arrow::json::WriterBuilder;
use arrow::json::writer::JsonArray;
use dressage_segmenter::Session;
use serde_json::{Map, Value};

/// One row by column name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Row(Map<String, Value>);

impl Row {
    /// The value as it is in JSON; null where there is no such column.
    pub(crate) fn value(&self, column: &str) -> &Value {
        self.0.get(column).unwrap_or(&Value::Null)
    }

    /// Text of a text column, or nothing.
    pub(crate) fn text(&self, column: &str) -> Option<&str> {
        self.value(column).as_str()
    }

    /// A whole number, or nothing.
    pub(crate) fn int(&self, column: &str) -> Option<i64> {
        self.value(column).as_i64()
    }

    /// A number, or nothing.
    pub(crate) fn number(&self, column: &str) -> Option<f64> {
        self.value(column).as_f64()
    }

    /// A truth value; false where it is null.
    pub(crate) fn truth(&self, column: &str) -> bool {
        self.value(column).as_bool().unwrap_or(false)
    }

    /// The texts of a list of text; empty where it is null.
    pub(crate) fn texts(&self, column: &str) -> Vec<&str> {
        self.value(column).as_array().map(|list| list.iter().filter_map(Value::as_str).collect()).unwrap_or_default()
    }

    /// For a table cell: numbers and text as they are, null as a dash.
    pub(crate) fn cell(&self, column: &str) -> String {
        match self.value(column) {
            Value::Null => "-".to_owned(),
            Value::String(text) => text.clone(),
            Value::Number(n) if n.is_f64() => {
                format!("{:.4}", n.as_f64().unwrap_or(f64::NAN)).trim_end_matches('0').trim_end_matches('.').to_owned()
            }
            other => other.to_string(),
        }
    }

    /// As one JSON object.
    pub(crate) fn into_json(self) -> Value {
        Value::Object(self.0)
    }
}

/// Runs a query whose result is small.
pub(crate) async fn rows(session: &Session, sql: &str) -> Result<Vec<Row>> {
    rows_of(&session.sql(sql).await?.collect().await?)
}

/// Runs a query that gives one row.
pub(crate) async fn row(session: &Session, sql: &str) -> Result<Row> {
    Ok(rows(session, sql).await?.into_iter().next().unwrap_or_default())
}

fn rows_of(batches: &[RecordBatch]) -> Result<Vec<Row>> {
    let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, JsonArray>(Vec::new());
    for batch in batches {
        writer.write(batch).context("a result has a type that JSON cannot hold")?;
    }
    writer.finish().context("a result has a type that JSON cannot hold")?;
    let text = writer.into_inner();
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let rows: Vec<Map<String, Value>> = serde_json::from_slice(&text).context("the JSON of a result does not parse")?;
    Ok(rows.into_iter().map(Row).collect())
}

/// Text as a SQL literal.
pub(crate) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Float64Array, StringArray};

    use super::*;

    #[test]
    fn cells_show_nulls_as_dashes_and_floats_short() {
        let batch = RecordBatch::try_from_iter_with_nullable([
            ("name", Arc::new(StringArray::from(vec![Some("a"), None])) as _, true),
            ("reward", Arc::new(Float64Array::from(vec![Some(0.5), Some(1.0)])) as _, true),
        ])
        .expect("batch");
        let rows = rows_of(&[batch]).expect("rows");
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[0].cell("name"), rows[0].cell("reward")), ("a".into(), "0.5".into()));
        assert_eq!((rows[1].cell("name"), rows[1].cell("reward")), ("-".into(), "1".into()));
        assert_eq!(rows[1].cell("nothing"), "-");
    }

    #[test]
    fn literals_cannot_be_left() {
        assert_eq!(literal("o'clock"), "'o''clock'");
    }
}
