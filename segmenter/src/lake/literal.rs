//! Constants as SQL text that every SQL engine reads as the same value.

use datafusion::scalar::ScalarValue;

/// The constant as SQL, or nothing where its text could be read differently (floats that are not finite, times,
/// binary, nested values).
pub(super) fn sql_literal(value: &ScalarValue) -> Option<String> {
    Some(match value {
        ScalarValue::Boolean(Some(true)) => "true".to_owned(),
        ScalarValue::Boolean(Some(false)) => "false".to_owned(),
        ScalarValue::Int8(Some(v)) => integer(i64::from(*v))?,
        ScalarValue::Int16(Some(v)) => integer(i64::from(*v))?,
        ScalarValue::Int32(Some(v)) => integer(i64::from(*v))?,
        ScalarValue::Int64(Some(v)) => integer(*v)?,
        ScalarValue::UInt8(Some(v)) => integer(i64::from(*v))?,
        ScalarValue::UInt16(Some(v)) => integer(i64::from(*v))?,
        ScalarValue::UInt32(Some(v)) => integer(i64::from(*v))?,
        // `{:?}` gives the shortest text that reads back as the same double, always with a point or an exponent
        ScalarValue::Float64(Some(v)) if v.is_finite() => format!("{v:?}"),
        ScalarValue::Utf8(Some(v)) | ScalarValue::LargeUtf8(Some(v)) | ScalarValue::Utf8View(Some(v)) => text(v)?,
        _ => return None,
    })
}

/// The smallest integer is refused: its text is a negated number that does not fit by itself.
fn integer(value: i64) -> Option<String> {
    (value != i64::MIN).then(|| value.to_string())
}

/// Control characters are refused: some readers of SQL text trim or stop at them.
fn text(value: &str) -> Option<String> {
    if value.bytes().any(|b| b == 0) {
        return None;
    }
    Some(format!("'{}'", value.replace('\'', "''")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_are_doubled() {
        let literal = sql_literal(&ScalarValue::from("it's; drop"));
        assert_eq!(literal.as_deref(), Some("'it''s; drop'"));
    }

    #[test]
    fn values_whose_text_is_ambiguous_are_refused() {
        assert_eq!(sql_literal(&ScalarValue::Int64(Some(i64::MIN))), None);
        assert_eq!(sql_literal(&ScalarValue::Float64(Some(f64::NAN))), None);
        assert_eq!(sql_literal(&ScalarValue::Utf8(None)), None);
        assert_eq!(sql_literal(&ScalarValue::from("a\0b")), None);
    }
}
