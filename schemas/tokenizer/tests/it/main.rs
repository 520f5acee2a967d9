//! The tokenizer crate from outside.

#![allow(clippy::unwrap_used)]

mod byte_exact;
mod kept_tokenizers;
mod tiny;
