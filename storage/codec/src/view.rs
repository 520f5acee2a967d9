//! What goes in and comes out: router choices as plain little-endian arrays.

use crate::error::{Error, Result};

/// Most rows a container holds.
pub const ROWS_MAX: usize = u32::MAX as usize;
/// Most layers a container holds.
pub const LAYERS_MAX: usize = 1_024;
/// Most ids a layer.
pub const TOPK_MAX: usize = 64;
/// Most experts: ids are at most 16 bits.
pub const EXPERTS_MAX: u32 = 65_536;

/// The type of an id in a plain array, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// One byte.
    Uint8,
    /// Two bytes.
    Uint16,
    /// Four bytes; negative ids are refused.
    Int32,
}

impl Dtype {
    /// Bytes an id.
    pub fn size(self) -> usize {
        match self {
            Self::Uint8 => 1,
            Self::Uint16 => 2,
            Self::Int32 => 4,
        }
    }

    /// `uint8`, `uint16` or `int32`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uint8 => "uint8",
            Self::Uint16 => "uint16",
            Self::Int32 => "int32",
        }
    }

    /// The narrowest type that holds ids below `n_experts`.
    pub fn narrowest(n_experts: u32) -> Self {
        match n_experts {
            0..=256 => Self::Uint8,
            257..=65_536 => Self::Uint16,
            _ => Self::Int32,
        }
    }

    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Uint8 => 1,
            Self::Uint16 => 2,
            Self::Int32 => 4,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Uint8),
            2 => Some(Self::Uint16),
            4 => Some(Self::Int32),
            _ => None,
        }
    }
}

impl std::str::FromStr for Dtype {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "uint8" => Ok(Self::Uint8),
            "uint16" => Ok(Self::Uint16),
            "int32" => Ok(Self::Int32),
            _ => Err(Error::UnknownDtype { name: name.to_owned() }),
        }
    }
}

/// What a container promises about the order inside each top-k.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The ids of a top-k come back ascending; their rank is not kept. Enough where the trainer gathers its own
    /// router's weights at those ids. The smaller one.
    Set,
    /// The ids come back in the order given.
    Ranked,
}

/// Router choices of `rows` tokens, borrowed: `[rows][layers][topk]`, little-endian.
#[derive(Debug, Clone, Copy)]
pub struct RoutedView<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) dtype: Dtype,
    pub(crate) rows: usize,
    pub(crate) layers: usize,
    pub(crate) topk: usize,
}

pub(crate) fn check_bound(what: &'static str, value: usize, min: usize, max: usize) -> Result<()> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(Error::OutOfBounds { what, value: value as u64, min: min as u64, max: max as u64 })
}

impl<'a> RoutedView<'a> {
    /// Checks that `bytes` is exactly `rows × layers × topk` ids.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] for a dimension the format does not hold, [`Error::ShapeMismatch`] for a length that is
    /// not the product of the dimensions.
    pub fn new(bytes: &'a [u8], dtype: Dtype, rows: usize, layers: usize, topk: usize) -> Result<Self> {
        check_bound("rows", rows, 0, ROWS_MAX)?;
        check_bound("layers", layers, 1, LAYERS_MAX)?;
        check_bound("topk", topk, 1, TOPK_MAX)?;
        let expected = rows.checked_mul(layers * topk * dtype.size());
        if expected != Some(bytes.len()) {
            return Err(Error::ShapeMismatch { bytes: bytes.len(), rows, layers, topk, dtype: dtype.name() });
        }
        Ok(Self { bytes, dtype, rows, layers, topk })
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of the plain array.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub(crate) fn row_ids(&self) -> usize {
        self.layers * self.topk
    }

    pub(crate) fn rows_bytes(&self, start: usize, end: usize) -> &'a [u8] {
        let row_bytes = self.row_ids() * self.dtype.size();
        &self.bytes[start * row_bytes..end * row_bytes]
    }
}

/// Router choices, owned: what decoding gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routes {
    /// `[rows][layers][topk]` ids, little-endian.
    pub bytes: Vec<u8>,
    /// Their type.
    pub dtype: Dtype,
    /// Rows.
    pub rows: usize,
    /// Layers.
    pub layers: usize,
    /// Ids a layer.
    pub topk: usize,
}

impl Routes {
    /// Borrows them, for encoding again.
    ///
    /// # Errors
    /// Those of [`RoutedView::new`], if the public fields were changed to disagree.
    pub fn view(&self) -> Result<RoutedView<'_>> {
        RoutedView::new(&self.bytes, self.dtype, self.rows, self.layers, self.topk)
    }
}
