//! What the caller of a failed operation should do: one answer for every error in the project.

/// What to do about an error. Each room's `Error` maps its variants to one of these in an exhaustive match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The input or a setting is wrong: fix it.
    Invalid,
    /// The id, version, file or store does not exist: check it.
    NotFound,
    /// Somebody else changed the same thing: refresh and retry the whole operation.
    Conflict,
    /// The store or service did not answer: retry the same call with backoff.
    Unavailable,
    /// A named limit was reached: lower the load or raise the limit.
    Exhausted,
    /// Stored data is not what it should be: do not retry; look.
    Corrupt,
    /// A bug of ours: report it.
    Internal,
}

impl ErrorKind {
    /// The exit code of the command for this kind: 2 to 8, and 1 for a bug of ours.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Internal => 1,
            Self::Invalid => 2,
            Self::NotFound => 3,
            Self::Conflict => 4,
            Self::Unavailable => 6,
            Self::Exhausted => 7,
            Self::Corrupt => 8,
        }
    }
}
