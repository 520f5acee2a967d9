//! `json_get(text, path)` and `json_number(text, path)`: a value inside JSON text, for `labels`, `extra`, `parts`,
//! `detail`, `body` and `tool_calls`.
//!
//! A path is keys and indices: `judge.score`, `calls[0].function.name`, `["odd.key"][-1]`; a leading `$` may stand.
//! Text that is no JSON, and paths that lead nowhere, give NULL: labels are the user's, and one odd row must not end
//! a query.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Float64Builder, StringBuilder};
use arrow::datatypes::DataType;
use datafusion::common::{exec_err, plan_err};
use datafusion::error::Result;
use datafusion::logical_expr::ScalarUDF;
use serde_json::Value;

use super::simple::Simple;
use super::views::{is_text, texts};

pub(super) fn functions() -> Vec<ScalarUDF> {
    vec![
        Simple::function(
            "json_get",
            2,
            |types| two_texts("json_get", types, DataType::Utf8),
            |args, rows| {
                let mut out = StringBuilder::new();
                for_each(args, rows, |value| match value {
                    None | Some(Value::Null) => out.append_null(),
                    Some(Value::String(text)) => out.append_value(text),
                    Some(other) => out.append_value(other.to_string()),
                })?;
                Ok(Arc::new(out.finish()))
            },
        ),
        Simple::function(
            "json_number",
            2,
            |types| two_texts("json_number", types, DataType::Float64),
            |args, rows| {
                let mut out = Float64Builder::with_capacity(rows);
                for_each(args, rows, |value| {
                    out.append_option(match value {
                        Some(Value::Number(number)) => number.as_f64(),
                        Some(Value::String(text)) => text.trim().parse().ok(),
                        Some(Value::Bool(truth)) => Some(f64::from(u8::from(*truth))),
                        _ => None,
                    });
                })?;
                Ok(Arc::new(out.finish()))
            },
        ),
    ]
}

fn two_texts(name: &str, types: &[DataType], result: DataType) -> Result<DataType> {
    match types {
        [text, path] if is_text(text) && is_text(path) => Ok(result),
        _ => plan_err!("{name} takes JSON text and a path, such as {name}(labels, 'judge.score')"),
    }
}

/// One step of a path.
#[derive(Debug, Clone, PartialEq)]
enum Step {
    Key(String),
    Index(i64),
}

fn for_each(args: &[ArrayRef], rows: usize, mut found: impl FnMut(Option<&Value>)) -> Result<()> {
    let (documents, paths) = (texts(&args[0])?, texts(&args[1])?);
    let mut known: Option<(String, Vec<Step>)> = None;
    for row in 0..rows {
        if documents.is_null(row) || paths.is_null(row) {
            found(None);
            continue;
        }
        let path = paths.value(row);
        // the path is nearly always one constant
        if known.as_ref().is_none_or(|(text, _)| text != path) {
            known = Some((path.to_owned(), parse_path(path)?));
        }
        let steps = known.as_ref().map_or(&[][..], |(_, steps)| steps);
        match serde_json::from_str::<Value>(documents.value(row)) {
            Ok(document) => found(follow(&document, steps)),
            Err(_) => found(None),
        }
    }
    Ok(())
}

fn follow<'a>(document: &'a Value, steps: &[Step]) -> Option<&'a Value> {
    steps.iter().try_fold(document, |value, step| match (step, value) {
        (Step::Key(key), Value::Object(map)) => map.get(key),
        (Step::Index(i), Value::Array(list)) => {
            let i = if *i < 0 { i64::try_from(list.len()).ok()?.checked_add(*i)? } else { *i };
            list.get(usize::try_from(i).ok()?)
        }
        _ => None,
    })
}

fn parse_path(path: &str) -> Result<Vec<Step>> {
    let mut steps = Vec::new();
    let mut rest = path.strip_prefix('$').unwrap_or(path);
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let quoted = inner.strip_prefix('"').and_then(|q| q.split_once("\"]"));
            if let Some((key, after)) = quoted {
                steps.push(Step::Key(key.to_owned()));
                rest = after;
                continue;
            }
            let Some((index, after)) = inner.split_once(']') else {
                return exec_err!("json path `{path}`: no closing ]");
            };
            let Ok(index) = index.trim().parse() else {
                return exec_err!("json path `{path}`: `{index}` is neither a number nor a key in double quotes");
            };
            steps.push(Step::Index(index));
            rest = after;
        } else {
            let key_start = rest.strip_prefix('.').unwrap_or(rest);
            let end = key_start.find(['.', '[']).unwrap_or(key_start.len());
            if end == 0 {
                return exec_err!("json path `{path}`: an empty key");
            }
            steps.push(Step::Key(key_start[..end].to_owned()));
            rest = &key_start[end..];
        }
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(document: &str, path: &str) -> Option<String> {
        let document: Value = serde_json::from_str(document).unwrap();
        follow(&document, &parse_path(path).unwrap()).map(Value::to_string)
    }

    #[test]
    fn paths_lead_through_keys_and_indices() {
        let document = r#"{"a":{"b.c":[1,{"d":"x"}]}}"#;
        assert_eq!(get(document, r#"a["b.c"][1].d"#).as_deref(), Some("\"x\""));
        assert_eq!(get(document, r#"$.a["b.c"][-2]"#).as_deref(), Some("1"));
        assert_eq!(get(document, "a.missing[0]"), None);
        assert_eq!(get(document, r#"a["b.c"][-3]"#), None);
        assert_eq!(get("7", "$").as_deref(), Some("7"));
    }

    #[test]
    fn a_broken_path_is_an_error() {
        for path in ["a[", "a[x]", "a..b", "."] {
            assert!(parse_path(path).is_err(), "{path}");
        }
    }
}
