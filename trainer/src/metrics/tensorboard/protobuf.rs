//! The few wire types of protocol buffers that events use: varint, 64-bit, length-delimited, 32-bit.

/// A field of a message.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value<'a> {
    Varint(u64),
    Fixed64([u8; 8]),
    Bytes(&'a [u8]),
    Fixed32([u8; 4]),
}

pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value as u8) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_key(out: &mut Vec<u8>, field: u32, wire_type: u64) {
    put_varint(out, u64::from(field) << 3 | wire_type);
}

pub(super) fn put_int(out: &mut Vec<u8>, field: u32, value: i64) {
    put_key(out, field, 0);
    // negative numbers take all ten bytes, as protocol buffers have it
    put_varint(out, value as u64);
}

pub(super) fn put_double(out: &mut Vec<u8>, field: u32, value: f64) {
    put_key(out, field, 1);
    out.extend_from_slice(&value.to_le_bytes());
}

pub(super) fn put_bytes(out: &mut Vec<u8>, field: u32, value: &[u8]) {
    put_key(out, field, 2);
    put_varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

pub(super) fn put_float(out: &mut Vec<u8>, field: u32, value: f32) {
    put_key(out, field, 5);
    out.extend_from_slice(&value.to_le_bytes());
}

/// The fields of a message, in order; `None` after the last good one where it does not parse.
pub(super) struct Fields<'a> {
    rest: &'a [u8],
    /// Whether what was read so far parsed.
    pub(super) whole: bool,
}

impl<'a> Fields<'a> {
    pub(super) fn of(message: &'a [u8]) -> Self {
        Self { rest: message, whole: true }
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for at in 0..10 {
            let (byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << (7 * at);
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn chunk<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (chunk, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*chunk)
    }

    fn field(&mut self) -> Option<(u64, Value<'a>)> {
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Value::Varint(self.varint()?),
            1 => Value::Fixed64(self.chunk()?),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                let (bytes, rest) = self.rest.split_at_checked(length)?;
                self.rest = rest;
                Value::Bytes(bytes)
            }
            5 => Value::Fixed32(self.chunk()?),
            _ => return None,
        };
        Some((key >> 3, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.rest = &[];
            self.whole = false;
        }
        field
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_they_were_written() {
        let mut message = Vec::new();
        put_int(&mut message, 2, -1);
        put_double(&mut message, 1, 0.5);
        put_bytes(&mut message, 300, b"tag");
        put_float(&mut message, 2, 2.0);
        let mut fields = Fields::of(&message);
        let found: Vec<_> = fields.by_ref().collect();
        let expected = [
            (2, Value::Varint(u64::MAX)),
            (1, Value::Fixed64(0.5_f64.to_le_bytes())),
            (300, Value::Bytes(b"tag")),
            (2, Value::Fixed32(2.0_f32.to_le_bytes())),
        ];
        assert_eq!(found, expected);
        assert!(fields.whole);
        let mut cut = Fields::of(&message[..message.len() - 1]);
        assert_eq!(cut.by_ref().count(), 3);
        assert!(!cut.whole);
    }
}
