//! Arrays of a JSON line straight into the form that is stored: no value is built for a token.

use std::borrow::Cow;
use std::fmt;

use dressage_schemas::spans::{MaskSpans, VersionSpans};
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, SeqAccess, Visitor};

/// Token ids. A number that is no 32-bit integer is an error with its place.
#[derive(Debug, Default)]
pub(crate) struct Tokens(pub(crate) Vec<i32>);

impl<'de> Deserialize<'de> for Tokens {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TokensVisitor;
        impl<'de> Visitor<'de> for TokensVisitor {
            type Value = Tokens;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of token ids")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Tokens, A::Error> {
                let mut ids = Vec::with_capacity(seq.size_hint().unwrap_or(0).min(1 << 16));
                while let Some(id) = seq.next_element::<i64>()? {
                    // out of range ids become negative ones, which the door refuses with their place
                    ids.push(i32::try_from(id).unwrap_or(-1));
                }
                Ok(Tokens(ids))
            }
        }
        deserializer.deserialize_seq(TokensVisitor)
    }
}

/// Log-probabilities; null (which is what a NaN becomes on many ways) is NaN.
#[derive(Debug, Default)]
pub(crate) struct Logprobs(pub(crate) Vec<f32>);

impl<'de> Deserialize<'de> for Logprobs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LogprobsVisitor;
        impl<'de> Visitor<'de> for LogprobsVisitor {
            type Value = Logprobs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of numbers or nulls")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Logprobs, A::Error> {
                let mut values = Vec::with_capacity(seq.size_hint().unwrap_or(0).min(1 << 16));
                while let Some(value) = seq.next_element::<Option<f64>>()? {
                    values.push(value.map_or(f32::NAN, |v| v as f32));
                }
                Ok(Logprobs(values))
            }
        }
        deserializer.deserialize_seq(LogprobsVisitor)
    }
}

/// A loss mask as runs. Values other than 0 and 1 are remembered, not read as one of them.
#[derive(Debug, Default)]
pub(crate) struct Mask {
    pub(crate) spans: MaskSpans,
    /// Position and value of the first entry that is neither 0 nor 1.
    pub(crate) bad: Option<(usize, String)>,
}

/// One mask entry.
enum MaskValue {
    Known(bool),
    Bad(String),
}

impl<'de> Deserialize<'de> for MaskValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MaskVisitor;
        impl Visitor<'_> for MaskVisitor {
            type Value = MaskValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("0 or 1")
            }

            fn visit_bool<E>(self, value: bool) -> Result<MaskValue, E> {
                Ok(MaskValue::Known(value))
            }

            fn visit_u64<E>(self, value: u64) -> Result<MaskValue, E> {
                Ok(if value <= 1 { MaskValue::Known(value == 1) } else { MaskValue::Bad(value.to_string()) })
            }

            fn visit_i64<E>(self, value: i64) -> Result<MaskValue, E> {
                match u64::try_from(value) {
                    Ok(value @ (0 | 1)) => Ok(MaskValue::Known(value == 1)),
                    _ => Ok(MaskValue::Bad(value.to_string())),
                }
            }

            fn visit_f64<E>(self, value: f64) -> Result<MaskValue, E> {
                let known = value == 0.0 || value == 1.0;
                Ok(if known { MaskValue::Known(value == 1.0) } else { MaskValue::Bad(value.to_string()) })
            }

            fn visit_unit<E>(self) -> Result<MaskValue, E> {
                Ok(MaskValue::Bad("null".to_owned()))
            }
        }
        deserializer.deserialize_any(MaskVisitor)
    }
}

impl<'de> Deserialize<'de> for Mask {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListVisitor;
        impl<'de> Visitor<'de> for ListVisitor {
            type Value = Mask;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of 0 and 1")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Mask, A::Error> {
                let mut mask = Mask::default();
                let mut run = (false, 0_usize);
                let mut position = 0;
                while let Some(value) = seq.next_element::<MaskValue>()? {
                    let trained = match value {
                        MaskValue::Known(trained) => trained,
                        MaskValue::Bad(text) => {
                            mask.bad.get_or_insert((position, text));
                            false
                        }
                    };
                    if trained != run.0 {
                        mask.spans.push(run.0, run.1);
                        run = (trained, 0);
                    }
                    run.1 += 1;
                    position += 1;
                }
                mask.spans.push(run.0, run.1);
                Ok(mask)
            }
        }
        deserializer.deserialize_seq(ListVisitor)
    }
}

/// Weight versions as runs: text or numbers.
#[derive(Debug, Default)]
pub(crate) struct Versions(pub(crate) VersionSpans);

/// A version: text, a number, or null (unknown).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version<'a>(pub(crate) Cow<'a, str>);

/// What the reference calls a version that nobody recorded.
const UNKNOWN_VERSION: &str = "unknown";

impl<'de> Deserialize<'de> for Version<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct VersionVisitor;
        impl<'de> Visitor<'de> for VersionVisitor {
            type Value = Version<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a version as text or a number")
            }

            fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Version<'de>, E> {
                Ok(Version(Cow::Borrowed(value)))
            }

            fn visit_str<E>(self, value: &str) -> Result<Version<'de>, E> {
                Ok(Version(Cow::Owned(value.to_owned())))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Version<'de>, E> {
                Ok(Version(Cow::Owned(value.to_string())))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Version<'de>, E> {
                Ok(Version(Cow::Owned(value.to_string())))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Version<'de>, E> {
                Ok(Version(Cow::Owned(value.to_string())))
            }

            fn visit_unit<E>(self) -> Result<Version<'de>, E> {
                Ok(Version(Cow::Borrowed(UNKNOWN_VERSION)))
            }
        }
        deserializer.deserialize_any(VersionVisitor)
    }
}

impl<'de> Deserialize<'de> for Versions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListVisitor;
        impl<'de> Visitor<'de> for ListVisitor {
            type Value = Versions;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of versions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Versions, A::Error> {
                let mut spans = VersionSpans::default();
                while let Some(version) = seq.next_element::<Version<'de>>()? {
                    spans.push(&version.0, 1);
                }
                Ok(Versions(spans))
            }
        }
        deserializer.deserialize_seq(ListVisitor)
    }
}

/// Text that is borrowed from the line where it has no escapes: base64 payload is not copied.
#[derive(Debug)]
pub(crate) struct Text<'a>(pub(crate) Cow<'a, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text")
            }

            fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(value)))
            }

            fn visit_str<E>(self, value: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(value.to_owned())))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// An id: text, or a number taken as its digits.
#[derive(Debug)]
pub(crate) struct Id(pub(crate) String);

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(text) => Ok(Self(text)),
            serde_json::Value::Number(number) => Ok(Self(number.to_string())),
            other => Err(D::Error::custom(format!("an id must be text or a number, not {other}"))),
        }
    }
}

/// A chunk of routed experts as it stands in the line.
#[derive(Debug)]
pub(crate) struct Chunk<'a> {
    pub(crate) data: Cow<'a, str>,
    pub(crate) row_count: usize,
    pub(crate) dtype: String,
}

impl<'de> Deserialize<'de> for Chunk<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ChunkVisitor;
        impl<'de> Visitor<'de> for ChunkVisitor {
            type Value = Chunk<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a chunk of routed experts: {data, row_count, dtype}")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Chunk<'de>, A::Error> {
                let (mut data, mut row_count, mut dtype) = (None, None, None);
                while let Some(key) = map.next_key::<Text<'de>>()? {
                    match &*key.0 {
                        "data" => data = Some(map.next_value::<Text<'de>>()?.0),
                        "row_count" => row_count = Some(map.next_value()?),
                        "dtype" => dtype = map.next_value()?,
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(Chunk {
                    data: data.ok_or_else(|| A::Error::missing_field("data"))?,
                    row_count: row_count.ok_or_else(|| A::Error::missing_field("row_count"))?,
                    // what the reference's proxy stores unless told otherwise
                    dtype: dtype.unwrap_or_else(|| "int32".to_owned()),
                })
            }
        }
        deserializer.deserialize_map(ChunkVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_read_the_same_with_both_parsers() {
        let text = "[0, 0, 1, true, 1.0, 0, 2, null]";
        for mask in [serde_json::from_str::<Mask>(text).unwrap(), sonic_rs::from_str::<Mask>(text).unwrap()] {
            assert_eq!(mask.spans.as_slice(), &[2, 3, 3]);
            assert_eq!(mask.bad, Some((6, "2".to_owned())));
        }
        let text = "[-0.5, null, 0, -1e-3]";
        for logprobs in [serde_json::from_str::<Logprobs>(text).unwrap(), sonic_rs::from_str::<Logprobs>(text).unwrap()]
        {
            assert_eq!(&logprobs.0[2..], &[0.0, -1e-3]);
            assert!(logprobs.0[1].is_nan());
        }
        let text = r#"["-1", "-1", 7, "7", null]"#;
        for versions in [serde_json::from_str::<Versions>(text).unwrap(), sonic_rs::from_str::<Versions>(text).unwrap()]
        {
            assert_eq!(versions.0.0, [("-1".into(), 2), ("7".into(), 2), ("unknown".into(), 1)]);
        }
    }
}
