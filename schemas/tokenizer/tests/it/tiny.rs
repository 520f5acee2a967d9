//! A small byte-level tokenizer, made here: all 256 bytes, a few merges, two added tokens, a gap in the ids.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use dressage_tokenizer::Tokenizer;
use serde_json::{Value, json};

/// The character that stands for a byte in byte-level vocabularies.
fn printable(byte: u8) -> char {
    let is_printable = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if is_printable(byte) {
        return char::from(byte);
    }
    let ordinal = (0..byte).filter(|&b| !is_printable(b)).count() as u32;
    char::from_u32(0x100 + ordinal).unwrap()
}

pub(crate) fn tiny_json(decoder: &Value) -> String {
    let mut vocab: BTreeMap<String, u32> = (0..=255_u8).map(|b| (printable(b).to_string(), u32::from(b))).collect();
    vocab.insert("he".into(), 256);
    vocab.insert("Ġh".into(), 257);
    // ids 261 to 399 are a gap
    vocab.insert("zz".into(), 400);
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [
            {"id": 259, "content": "<|im_start|>", "single_word": false, "lstrip": false, "rstrip": false,
             "normalized": false, "special": true},
            {"id": 260, "content": "<é>", "single_word": false, "lstrip": false, "rstrip": false,
             "normalized": false, "special": false}
        ],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        "post_processor": null,
        "decoder": decoder,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocab, "merges": [["h", "e"], ["Ġ", "h"]]}
    })
    .to_string()
}

pub(crate) fn tiny() -> &'static Tokenizer {
    static TINY: LazyLock<Tokenizer> = LazyLock::new(|| {
        let decoder = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
        Tokenizer::from_json("tiny", tiny_json(&decoder).as_bytes()).unwrap()
    });
    &TINY
}
