//! The bytes of every token, worked out once from the vocabulary and the decoder's rules.

use serde::Deserialize;
use serde_json::Value;

use crate::{Error, Result};

/// How the file's decoder turns a vocabulary entry into bytes.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct DecodeRules {
    /// Each character of an entry stands for one byte (GPT-2's printable alphabet).
    byte_level: bool,
    /// Entries such as `<0x0A>` stand for one byte.
    byte_fallback: bool,
    /// Texts to replace in an entry, in order (`▁` by a space).
    replace: Vec<(String, String)>,
    /// One leading space of the whole text is the tokenizer's, not the text's.
    strip_leading_space: bool,
}

#[derive(Deserialize)]
struct DecoderOnly {
    decoder: Option<Value>,
}

impl DecodeRules {
    /// The rules of a `tokenizer.json`.
    pub(crate) fn of_json(name: &str, json: &[u8]) -> Result<Self> {
        let file: DecoderOnly = serde_json::from_slice(json)
            .map_err(|source| Error::NotATokenizer { name: name.to_owned(), source: source.into() })?;
        let mut rules = Self::default();
        match &file.decoder {
            Some(decoder) => rules.add(name, decoder)?,
            None => return Err(Error::DecoderNotByteExact { name: name.to_owned(), decoder: "no decoder".to_owned() }),
        }
        Ok(rules)
    }

    fn add(&mut self, name: &str, decoder: &Value) -> Result<()> {
        let kind = decoder.get("type").and_then(Value::as_str).unwrap_or("no decoder");
        let refused = || Error::DecoderNotByteExact { name: name.to_owned(), decoder: kind.to_owned() };
        let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        match kind {
            "ByteLevel" => self.byte_level = true,
            "ByteFallback" => self.byte_fallback = true,
            "Fuse" => {}
            "Metaspace" => {
                let mark = text(decoder, "replacement").unwrap_or_else(|| "▁".to_owned());
                self.replace.push((mark, " ".to_owned()));
                let prepends = match text(decoder, "prepend_scheme") {
                    Some(scheme) => scheme != "never",
                    None => decoder.get("add_prefix_space").and_then(Value::as_bool).unwrap_or(true),
                };
                self.strip_leading_space |= prepends;
            }
            "Replace" => {
                let pattern = decoder.get("pattern").ok_or_else(refused)?;
                let pattern = text(pattern, "String").ok_or_else(refused)?;
                self.replace.push((pattern, text(decoder, "content").unwrap_or_default()));
            }
            "Strip" => {
                let number = |key: &str| decoder.get(key).and_then(Value::as_u64).unwrap_or(0);
                let is_one_leading_space =
                    text(decoder, "content").as_deref() == Some(" ") && number("start") == 1 && number("stop") == 0;
                if !is_one_leading_space {
                    return Err(refused());
                }
                self.strip_leading_space = true;
            }
            "Sequence" => {
                let parts = decoder.get("decoders").and_then(Value::as_array).ok_or_else(refused)?;
                for part in parts {
                    self.add(name, part)?;
                }
            }
            _ => return Err(refused()),
        }
        Ok(())
    }

    fn bytes_of(&self, entry: &str) -> Vec<u8> {
        if self.byte_level {
            // an entry with a character outside the alphabet stands for its own text
            return entry.chars().map(byte_of_printable).collect::<Option<_>>().unwrap_or_else(|| entry.into());
        }
        if self.byte_fallback
            && let Some(hex) = entry.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'))
            && hex.len() == 2
            && let Ok(byte) = u8::from_str_radix(hex, 16)
        {
            return vec![byte];
        }
        let mut text = entry.to_owned();
        for (pattern, content) in &self.replace {
            text = text.replace(pattern.as_str(), content);
        }
        text.into_bytes()
    }
}

/// GPT-2's alphabet: printable bytes stand for themselves, the other 68 for U+0100 and following, in order.
fn byte_of_printable(c: char) -> Option<u8> {
    let is_printable = |b: u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let code = u32::from(c);
    if code < 0x100 {
        return is_printable(code).then_some(code as u8);
    }
    (0..0x100_u32).filter(|&b| !is_printable(b)).nth((code - 0x100) as usize).map(|b| b as u8)
}

/// All tokens' bytes in one buffer.
pub(crate) struct ByteTable {
    /// Where the bytes of id i begin; one entry more than ids.
    starts: Vec<u32>,
    bytes: Vec<u8>,
    /// Ids that the vocabulary has (ids may have gaps; a known token may be empty).
    known: Vec<bool>,
    special: Vec<bool>,
    strip_leading_space: bool,
}

impl ByteTable {
    pub(crate) fn build(model: &tokenizers::Tokenizer, rules: &DecodeRules) -> Self {
        let mut entries: Vec<(u32, Vec<u8>, bool)> =
            model.get_vocab(false).into_iter().map(|(entry, id)| (id, rules.bytes_of(&entry), false)).collect();
        // added tokens are written out as they are, and win over a vocabulary entry with the same id
        let added = model.get_added_tokens_decoder();
        entries.retain(|(id, ..)| !added.contains_key(id));
        entries.extend(added.into_iter().map(|(id, token)| (id, token.content.into_bytes(), token.special)));
        entries.sort_unstable_by_key(|(id, ..)| *id);
        entries.dedup_by_key(|(id, ..)| *id);

        let mut table = Self {
            starts: vec![0],
            bytes: Vec::new(),
            known: Vec::new(),
            special: Vec::new(),
            strip_leading_space: rules.strip_leading_space,
        };
        // the model was read from a bounded file, but one entry may still claim id 4 billion
        let id_max = entries.len().saturating_mul(16).max(1 << 20);
        for (id, bytes, special) in entries {
            let id = id as usize;
            if id > id_max {
                break;
            }
            while table.known.len() < id {
                table.push(&[], false, false);
            }
            table.push(&bytes, true, special);
        }
        table
    }

    fn push(&mut self, bytes: &[u8], known: bool, special: bool) {
        self.bytes.extend_from_slice(bytes);
        // bounded by the file's size
        self.starts.push(self.bytes.len() as u32);
        self.known.push(known);
        self.special.push(special);
    }

    pub(crate) fn id_count(&self) -> usize {
        self.known.len()
    }

    pub(crate) fn bytes(&self, id: i32) -> Option<&[u8]> {
        let id = usize::try_from(id).ok()?;
        if !*self.known.get(id)? {
            return None;
        }
        let (start, end) = (*self.starts.get(id)?, *self.starts.get(id + 1)?);
        self.bytes.get(start as usize..end as usize)
    }

    pub(crate) fn is_special(&self, id: i32) -> bool {
        usize::try_from(id).ok().and_then(|id| self.special.get(id).copied()).unwrap_or(false)
    }

    pub(crate) fn strips_leading_space(&self) -> bool {
        self.strip_leading_space
    }

    pub(crate) fn without_leading_space(&self, mut text: Vec<u8>) -> Vec<u8> {
        if self.strip_leading_space && text.first() == Some(&b' ') {
            text.remove(0);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use serde_json::json;

    use super::*;

    fn rules(decoder: Value) -> Result<DecodeRules> {
        DecodeRules::of_json("test", json!({ "decoder": decoder }).to_string().as_bytes())
    }

    #[test]
    fn the_printable_alphabet_names_each_byte_once() {
        let named: HashSet<u8> = (0..0x200).filter_map(char::from_u32).filter_map(byte_of_printable).collect();
        assert_eq!(named.len(), 256);
        assert_eq!(byte_of_printable('Ġ'), Some(b' '));
        assert_eq!(byte_of_printable('Ċ'), Some(b'\n'));
        assert_eq!(byte_of_printable('\u{144}'), None);
    }

    #[test]
    fn byte_fallback_and_replacement_give_bytes() {
        let rules = rules(json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}))
        .unwrap();
        assert_eq!(rules.bytes_of("<0xF0>"), [0xf0]);
        assert_eq!(rules.bytes_of("▁the▁"), b" the ");
        assert_eq!(rules.bytes_of("<0xZZ>"), b"<0xZZ>");
        assert!(rules.strip_leading_space);
    }

    #[test]
    fn decoders_that_lose_bytes_are_refused_by_name() {
        for decoder in [json!({"type": "WordPiece"}), json!({"type": "CTC"}), json!(null)] {
            assert!(matches!(rules(decoder), Err(Error::DecoderNotByteExact { .. })));
        }
        let inner = rules(json!({"type": "Sequence", "decoders": [{"type": "WordPiece"}]}));
        assert!(inner.unwrap_err().to_string().contains("WordPiece"));
    }
}
