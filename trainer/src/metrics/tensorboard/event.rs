//! An event as it stands in a record. Field numbers are those of `event.proto` and `summary.proto`.

use super::protobuf::{Fields, Value, put_bytes, put_double, put_float, put_int};

/// The version that the first event of a file says.
const FILE_VERSION: &[u8] = b"brain.Event:2";

/// `SessionLog.START`.
const SESSION_START: i64 = 1;

/// One event.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Seconds since 1970.
    pub wall_time: f64,
    /// The optimizer step.
    pub step: i64,
    /// What it says.
    pub what: What,
}

/// What an event says.
#[derive(Debug, Clone, PartialEq)]
pub enum What {
    /// The file's version: the first event.
    FileVersion,
    /// A run goes on at its step: what an earlier attempt wrote of this and later steps no longer counts.
    Restart,
    /// Tags and their values.
    Scalars(Vec<(String, f32)>),
    /// Something that Dressage does not write.
    Other,
}

impl Event {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_double(&mut out, 1, self.wall_time);
        put_int(&mut out, 2, self.step);
        match &self.what {
            What::FileVersion => put_bytes(&mut out, 3, FILE_VERSION),
            What::Restart => {
                let mut log = Vec::new();
                put_int(&mut log, 1, SESSION_START);
                put_bytes(&mut out, 7, &log);
            }
            What::Scalars(scalars) => {
                let mut summary = Vec::new();
                for (tag, number) in scalars {
                    let mut value = Vec::new();
                    put_bytes(&mut value, 1, tag.as_bytes());
                    put_float(&mut value, 2, *number);
                    put_bytes(&mut summary, 1, &value);
                }
                put_bytes(&mut out, 5, &summary);
            }
            What::Other => {}
        }
        out
    }

    /// None where it is no event.
    pub(super) fn decode(message: &[u8]) -> Option<Self> {
        let mut event = Self { wall_time: 0.0, step: 0, what: What::Other };
        let mut fields = Fields::of(message);
        for (field, value) in fields.by_ref() {
            match (field, value) {
                (1, Value::Fixed64(bytes)) => event.wall_time = f64::from_le_bytes(bytes),
                (2, Value::Varint(step)) => event.step = step as i64,
                (3, Value::Bytes(_)) => event.what = What::FileVersion,
                (5, Value::Bytes(summary)) => event.what = What::Scalars(scalars(summary)?),
                (7, Value::Bytes(log)) if starts(log) => event.what = What::Restart,
                _ => {}
            }
        }
        fields.whole.then_some(event)
    }
}

fn starts(log: &[u8]) -> bool {
    Fields::of(log).any(|field| field == (1, Value::Varint(SESSION_START as u64)))
}

fn scalars(summary: &[u8]) -> Option<Vec<(String, f32)>> {
    let mut found = Vec::new();
    let mut values = Fields::of(summary);
    for (field, value) in values.by_ref() {
        let (1, Value::Bytes(value)) = (field, value) else { continue };
        let (mut tag, mut number) = (None, None);
        let mut fields = Fields::of(value);
        for field in fields.by_ref() {
            match field {
                (1, Value::Bytes(bytes)) => tag = std::str::from_utf8(bytes).ok(),
                (2, Value::Fixed32(bytes)) => number = Some(f32::from_le_bytes(bytes)),
                _ => {}
            }
        }
        if !fields.whole {
            return None;
        }
        // a value without a number is an image or a histogram
        found.extend(tag.zip(number).map(|(tag, number)| (tag.to_owned(), number)));
    }
    values.whole.then_some(found)
}
