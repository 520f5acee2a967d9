//! What can go wrong: the caller's ids, or stored bytes that are not what they should be.

/// Everything this crate refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes given are not `rows × layers × topk` ids of the type named.
    #[error("{bytes} bytes are not {rows} rows of {layers} layers of top-{topk} ids of {dtype}: check the shape")]
    ShapeMismatch {
        /// Length of the bytes.
        bytes: usize,
        /// Rows claimed.
        rows: usize,
        /// Layers claimed.
        layers: usize,
        /// Ids a layer claimed.
        topk: usize,
        /// Name of the id type.
        dtype: &'static str,
    },
    /// A dimension beyond what the format holds.
    #[error("{what} is {value}, the format holds {min} to {max}: check the shape")]
    OutOfBounds {
        /// Which dimension.
        what: &'static str,
        /// Its value.
        value: u64,
        /// Smallest value allowed.
        min: u64,
        /// Largest value allowed.
        max: u64,
    },
    /// An id type that no container holds.
    #[error("id type {name:?} is none of uint8, uint16, int32")]
    UnknownDtype {
        /// The name given.
        name: String,
    },
    /// An id that no expert has.
    #[error("expert id {id} at row {row}, layer {layer}, rank {rank} is not below {n_experts}")]
    IdOutOfRange {
        /// The id, read as unsigned.
        id: u32,
        /// Where it is.
        row: usize,
        /// Where it is.
        layer: usize,
        /// Where it is.
        rank: usize,
        /// The number of experts.
        n_experts: u32,
    },
    /// Decoded ids do not fit the type asked for.
    #[error("ids of {n_experts} experts do not fit {dtype}: ask for a wider type")]
    TooNarrow {
        /// Experts of the container.
        n_experts: u32,
        /// Type asked for.
        dtype: &'static str,
    },
    /// A slice outside the container.
    #[error("{what} {start}..{end} asked for, the container has {available}")]
    SliceOutOfRange {
        /// Rows or layers.
        what: &'static str,
        /// First asked for.
        start: usize,
        /// One past the last asked for.
        end: usize,
        /// How many there are.
        available: usize,
    },
    /// Containers that cannot be joined.
    #[error("container {index} has {what} {found}, the first has {expected}: only like shapes can be joined")]
    UnlikeShapes {
        /// 0-based position of the odd one.
        index: usize,
        /// Which property differs.
        what: &'static str,
        /// Its value there.
        found: u64,
        /// Its value in the first.
        expected: u64,
    },
    /// More bytes would be decoded than the limit allows.
    #[error("decoding gives {bytes} bytes, the limit is {bytes_max}: decode a slice, or raise the limit")]
    TooLarge {
        /// Bytes that decoding would give.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// The first bytes are not those of a container.
    #[error("not a routed-experts container: the magic is {found:02x?}")]
    NotAContainer {
        /// Up to four bytes found.
        found: Vec<u8>,
    },
    /// Written by a newer format version.
    #[error("container version {version} is newer than {supported}: read it with a newer release")]
    UnknownVersion {
        /// Version found.
        version: u8,
        /// Newest version known here.
        supported: u8,
    },
    /// The head needs more bytes than were given.
    #[error("the head takes {needed} bytes, {given} were given: read more")]
    HeadIncomplete {
        /// Bytes given.
        given: usize,
        /// Bytes needed (a lower bound where even the fixed part is missing).
        needed: usize,
    },
    /// Stored bytes that contradict themselves.
    #[error("corrupt container: {what} at byte {offset}")]
    Corrupt {
        /// What does not hold.
        what: &'static str,
        /// Byte offset in the container, or in the frame for frame contents.
        offset: u64,
    },
    /// zstd refused to compress (memory, in practice).
    #[error("zstd cannot compress: {reason}")]
    Compressor {
        /// Its own words.
        reason: &'static str,
    },
}

impl Error {
    /// Whether stored bytes are to blame, not the call.
    pub fn is_corrupt(&self) -> bool {
        match self {
            Self::NotAContainer { .. } | Self::HeadIncomplete { .. } | Self::Corrupt { .. } => true,
            Self::ShapeMismatch { .. }
            | Self::OutOfBounds { .. }
            | Self::UnknownDtype { .. }
            | Self::IdOutOfRange { .. }
            | Self::TooNarrow { .. }
            | Self::SliceOutOfRange { .. }
            | Self::UnlikeShapes { .. }
            | Self::TooLarge { .. }
            | Self::UnknownVersion { .. }
            | Self::Compressor { .. } => false,
        }
    }
}

/// This crate's result.
pub type Result<T> = std::result::Result<T, Error>;
