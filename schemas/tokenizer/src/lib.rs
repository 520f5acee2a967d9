//! Token ids to text and back, from a `tokenizer.json`: byte-exact, bounded, and safe to stream.
//!
//! Takes a Hugging Face `tokenizer.json` (plain or zstd), ids and text; gives bytes, text and ids; refuses files over
//! [`TOKENIZER_BYTES_MAX`] and decoders that do not map each token to fixed bytes (WordPiece, CTC), because those
//! cannot give back what a policy sampled.
//!
//! ```text
//!   tokenizer.json[.zst] ──▶ Tokenizer ─┬─ encode(text) ──▶ ids            (as Hugging Face encodes, no specials added)
//!                                       ├─ decode(ids)  ──▶ text           (bytes of each token, glued, then UTF-8)
//!                                       └─ stream()     ──▶ DecodeStream   (holds back the bytes of a cut character)
//!
//!   " 🏷" = f0 9f 8f b7 after a space, over three tokens:
//!     11162 ─▶ 20 f0 9f │ 237 ─▶ 8f │ 115 ─▶ b7      no single one of them is text; together they are
//! ```
//!
//! Read first: [`Tokenizer`], then [`DecodeStream`]. [`Error`] says what can go wrong.
//!
//! Invariants:
//!
//! 1. `decode_bytes(a ++ b) == decode_bytes(a) ++ decode_bytes(b)` (but for one leading space that Metaspace
//!    tokenizers drop): a character cut by a step boundary is whole again as soon as both steps are decoded together.
//! 2. Decoding never fails on ids that the vocabulary has, whatever their order.

mod byte_table;
mod error;
mod load;
mod stream;

use std::path::Path;

use byte_table::ByteTable;
pub use error::{Error, Result};
pub use load::TOKENIZER_BYTES_MAX;
pub use stream::DecodeStream;

/// A loaded tokenizer: immutable, `Send + Sync`, meant to be shared behind an `Arc`.
pub struct Tokenizer {
    name: String,
    model: tokenizers::Tokenizer,
    table: ByteTable,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("name", &self.name).field("id_count", &self.id_count()).finish()
    }
}

impl Tokenizer {
    /// Reads a `tokenizer.json`, or a folder that has one, plain or compressed with zstd (told by its first bytes).
    ///
    /// # Errors
    /// The file is missing, unreadable, too large, not a tokenizer, or of a kind whose decoder is not byte-exact.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = load::resolve(path.as_ref());
        let json = load::read_bounded(&path, TOKENIZER_BYTES_MAX)?;
        Self::from_json(&path.display().to_string(), &json)
    }

    /// A tokenizer from the text of its `tokenizer.json`; `name` is only for messages.
    ///
    /// # Errors
    /// As [`Tokenizer::load`], but for reading.
    pub fn from_json(name: &str, json: &[u8]) -> Result<Self> {
        let rules = byte_table::DecodeRules::of_json(name, json)?;
        let model = tokenizers::Tokenizer::from_bytes(json)
            .map_err(|source| Error::NotATokenizer { name: name.to_owned(), source })?;
        let table = ByteTable::build(&model, &rules);
        Ok(Self { name: name.to_owned(), model, table })
    }

    /// Where it was read from.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// One more than the highest id.
    pub fn id_count(&self) -> usize {
        self.table.id_count()
    }

    /// The id of a token by its text in the vocabulary, such as `<|im_end|>`.
    pub fn id_of(&self, token: &str) -> Option<i32> {
        self.model.token_to_id(token).and_then(|id| i32::try_from(id).ok())
    }

    /// Whether the id is a control token (`<|im_start|>`, `<|endoftext|>`, …).
    pub fn is_special(&self, id: i32) -> bool {
        self.table.is_special(id)
    }

    /// The bytes that one token stands for; none for an id that the vocabulary does not have.
    pub fn token_bytes(&self, id: i32) -> Option<&[u8]> {
        self.table.bytes(id)
    }

    /// Ids of a text. Control tokens written out in the text (`<|im_end|>`) become control tokens, as chat templates
    /// need; none is added.
    ///
    /// # Errors
    /// The model's own failure to encode.
    pub fn encode(&self, text: &str) -> Result<Vec<i32>> {
        let encoding = self
            .model
            .encode_fast(text, false)
            .map_err(|source| Error::NotEncodable { name: self.name.clone(), source })?;
        encoding
            .get_ids()
            .iter()
            .map(|&id| {
                i32::try_from(id).map_err(|_| Error::UnknownToken { id: i64::from(id), id_count: self.id_count() })
            })
            .collect()
    }

    /// The exact bytes of a run of ids, control tokens written out.
    ///
    /// # Errors
    /// An id that the vocabulary does not have.
    pub fn decode_bytes(&self, ids: &[i32]) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(ids.len() * 4);
        for &id in ids {
            let bytes = self
                .table
                .bytes(id)
                .ok_or_else(|| Error::UnknownToken { id: i64::from(id), id_count: self.id_count() })?;
            out.extend_from_slice(bytes);
        }
        Ok(self.table.without_leading_space(out))
    }

    /// The text of a run of ids, control tokens written out. Bytes that are no UTF-8 (a character cut at either end)
    /// become U+FFFD.
    ///
    /// # Errors
    /// An id that the vocabulary does not have.
    pub fn decode(&self, ids: &[i32]) -> Result<String> {
        Ok(into_text(self.decode_bytes(ids)?))
    }

    /// As [`decode`](Self::decode), with U+FFFD for ids that the vocabulary does not have: for looking at rows that
    /// may have come from another tokenizer.
    pub fn decode_lossy(&self, ids: &[i32]) -> String {
        let mut out = Vec::with_capacity(ids.len() * 4);
        for &id in ids {
            out.extend_from_slice(self.table.bytes(id).unwrap_or("\u{fffd}".as_bytes()));
        }
        into_text(self.table.without_leading_space(out))
    }

    /// A decoder that is fed id by id and gives text as soon as it is whole.
    pub fn stream(&self) -> DecodeStream<'_> {
        DecodeStream::new(self)
    }
}

fn into_text(bytes: Vec<u8>) -> String {
    // the common case gives its buffer away; only cut characters pay for a copy
    String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
}
