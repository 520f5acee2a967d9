//! The files that travel with a model and are not the trainer's: whoever serves the weights needs them beside.

use crate::error::Result;
use crate::files::{ModelFiles, ModelSink};

/// Names of a tokenizer's files, of its chat template and of a model's generation defaults. A model has some of them.
pub const TOKENIZER_FILES: [&str; 9] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "tokenizer.model",
    "chat_template.jinja",
    "generation_config.json",
];

/// Copies those that exist byte for byte, and gives their names.
///
/// # Errors
///
/// [`Error::FileRead`](crate::Error::FileRead) and [`Error::FileWrite`](crate::Error::FileWrite), naming the file.
pub fn copy_tokenizer_files(from: &dyn ModelFiles, to: &mut dyn ModelSink) -> Result<Vec<&'static str>> {
    let mut copied = Vec::new();
    for name in TOKENIZER_FILES {
        if from.has(name)? {
            let bytes = from.open(name)?;
            to.write(name, &mut |out| out.write_all(&bytes))?;
            copied.push(name);
        }
    }
    Ok(copied)
}
