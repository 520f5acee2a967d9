//! The tokenizer crate from outside.

mod byte_exact;
mod kept_tokenizers;
mod tiny;
