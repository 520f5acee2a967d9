//! Times as sources write them, in microseconds since 1970 UTC.

use chrono::{DateTime, NaiveDateTime};
use serde_json::Value;

/// ISO 8601 with or without a zone (UTC is meant), or seconds, milliseconds or microseconds since 1970 as a number.
/// None for anything else, and for 0, which writers use for "unknown".
pub(crate) fn micros(value: Option<&Value>) -> Option<i64> {
    match value? {
        Value::String(text) => from_text(text),
        Value::Number(number) => from_number(number.as_f64()?),
        _ => None,
    }
}

fn from_text(text: &str) -> Option<i64> {
    if let Ok(time) = DateTime::parse_from_rfc3339(text) {
        return Some(time.timestamp_micros());
    }
    ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f"]
        .iter()
        .find_map(|form| NaiveDateTime::parse_from_str(text, form).ok())
        .map(|time| time.and_utc().timestamp_micros())
}

fn from_number(number: f64) -> Option<i64> {
    // seconds of the year 5138 are milliseconds of 1973: the ranges do not meet in this century
    let factor = match number {
        n if n <= 0.0 || !n.is_finite() => return None,
        n if n < 1e11 => 1e6,
        n if n < 1e14 => 1e3,
        n if n < 1e17 => 1.0,
        _ => return None,
    };
    Some((number * factor).round() as i64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_spelling_of_one_moment_is_the_same_number() {
        let expected = Some(1_767_225_600_250_000);
        for value in [
            json!("2026-01-01T00:00:00.250Z"),
            json!("2026-01-01T01:00:00.25+01:00"),
            json!("2026-01-01T00:00:00.250"),
            json!("2026-01-01 00:00:00.250000"),
            json!(1_767_225_600.25),
            json!(1_767_225_600_250_i64),
            json!(1_767_225_600_250_000_i64),
        ] {
            assert_eq!(micros(Some(&value)), expected, "{value}");
        }
    }

    #[test]
    fn unknown_times_are_none() {
        for value in [json!(0.0), json!(-1), json!("[trimmed for fixture]"), json!(null), json!(1e300)] {
            assert_eq!(micros(Some(&value)), None, "{value}");
        }
        assert_eq!(micros(None), None);
    }
}
