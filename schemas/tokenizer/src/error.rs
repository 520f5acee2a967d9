//! What can go wrong with a tokenizer.

use std::path::PathBuf;

use dressage_schemas::ErrorKind;

/// The result of everything here.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a tokenizer could not be loaded or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file could not be read.
    #[error("cannot read the tokenizer {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file, or what it unpacks to, is larger than any tokenizer.
    #[error("the tokenizer {} is larger than {bytes_max} bytes: give a tokenizer.json, not a checkpoint", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        bytes_max: u64,
    },
    /// The bytes are not a `tokenizer.json`.
    #[error("{name} is not a tokenizer.json")]
    NotATokenizer {
        /// Where it came from.
        name: String,
        /// The parser's reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The tokenizer's decoder does not map each token to fixed bytes.
    #[error(
        "the tokenizer {name} decodes with {decoder}, which is not byte-exact; byte-level and byte-fallback ones are"
    )]
    DecoderNotByteExact {
        /// Where it came from.
        name: String,
        /// The decoder's name in the file.
        decoder: String,
    },
    /// An id that the vocabulary does not have.
    #[error("token id {id} is not in the vocabulary of {id_count} ids: is this the tokenizer of the policy?")]
    UnknownToken {
        /// The id.
        id: i64,
        /// One more than the highest id.
        id_count: usize,
    },
    /// The model refused to encode a text.
    #[error("the tokenizer {name} cannot encode this text")]
    NotEncodable {
        /// Where it came from.
        name: String,
        /// The model's reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Unreadable { source, .. } if source.kind() == std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            Self::Unreadable { .. } => ErrorKind::Unavailable,
            Self::TooLarge { .. }
            | Self::NotATokenizer { .. }
            | Self::DecoderNotByteExact { .. }
            | Self::UnknownToken { .. }
            | Self::NotEncodable { .. } => ErrorKind::Invalid,
        }
    }
}
