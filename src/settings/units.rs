//! Humane units: `64MiB`, `500ms`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A number of bytes, written `64MiB`, `1.5 GB` or `4096`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ByteCount(pub(crate) u64);

impl FromStr for ByteCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let number: f64 = number.parse().map_err(|_| format!("`{text}` is no size; write it like 64MiB or 4096"))?;
        let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            other => return Err(format!("`{other}` is no unit of size; use B, KiB, MiB, GiB, TiB, kB, MB, GB or TB")),
        };
        let bytes = number * factor as f64;
        if bytes >= u64::MAX as f64 {
            return Err(format!("`{text}` is more than 64 bits can hold"));
        }
        Ok(Self(bytes as u64))
    }
}

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if self.0 >= 1 << shift && self.0.is_multiple_of(1 << shift) {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}B", self.0)
    }
}

impl Serialize for ByteCount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text_or_number(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// A length of time, written `500ms`, `5s` or `2h 30m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimeSpan(pub(crate) Duration);

impl TimeSpan {
    /// In whole milliseconds.
    pub(crate) fn as_millis(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }
}

impl FromStr for TimeSpan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        humantime::parse_duration(text.trim())
            .map(Self)
            .map_err(|_| format!("`{text}` is no length of time; write it like 500ms, 5s, 2h or 14days"))
    }
}

impl fmt::Display for TimeSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

impl Serialize for TimeSpan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TimeSpan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// A TOML value that may be written as text or as a bare number.
fn text_or_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Text(String),
        Number(u64),
    }
    Ok(match Either::deserialize(deserializer)? {
        Either::Text(text) => text,
        Either::Number(number) => number.to_string(),
    })
}

/// `KEY=VALUE` on the command line.
pub(crate) fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is not of the form KEY=VALUE")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_with_and_without_units() {
        for (text, bytes) in [("4096", 4096), ("64MiB", 64 << 20), ("1.5 GiB", 3 << 29), ("2kB", 2000), ("1g", 1 << 30)]
        {
            assert_eq!(text.parse(), Ok(ByteCount(bytes)), "{text}");
        }
        assert!("64 parsecs".parse::<ByteCount>().unwrap_err().contains("parsecs"));
        assert!("many".parse::<ByteCount>().is_err());
        assert!("99999999TiB".parse::<ByteCount>().is_err());
    }

    #[test]
    fn sizes_are_written_as_they_are_read() {
        for bytes in [0, 1, 1023, 1024, 64 << 20, 3 << 29] {
            assert_eq!(ByteCount(bytes).to_string().parse(), Ok(ByteCount(bytes)));
        }
    }

    #[test]
    fn times_read_in_words() {
        assert_eq!("500ms".parse::<TimeSpan>().map(TimeSpan::as_millis), Ok(500));
        assert!("soon".parse::<TimeSpan>().is_err());
    }

    #[test]
    fn key_value_keeps_later_equals_signs() {
        assert_eq!(key_value("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(key_value("=x").is_err());
        assert!(key_value("plain").is_err());
    }
}
