//! libtorch's errors, without the C++ stack that it appends to every message.

use dressage_schemas::ErrorKind;
use tch::TchError;

/// What libtorch said: the first line, since the rest is a stack of C++ frames.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("libtorch: {message}")]
pub struct TorchError {
    message: String,
}

impl TorchError {
    pub(crate) fn of_text(text: &str) -> Self {
        let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        Self { message: line.to_owned() }
    }

    /// `Exhausted` where memory ran out, else `Internal`: shapes and types are checked before libtorch sees them.
    pub fn kind(&self) -> ErrorKind {
        // memory is the one thing that libtorch runs out of on valid input; only its text says so
        let out_of_memory = ["out of memory", "can't allocate memory", "DefaultCPUAllocator"];
        if out_of_memory.iter().any(|words| self.message.contains(words)) {
            ErrorKind::Exhausted
        } else {
            ErrorKind::Internal
        }
    }
}

impl From<TchError> for TorchError {
    fn from(error: TchError) -> Self {
        match error {
            // tch's own words in front say nothing
            TchError::Torch(text) => Self::of_text(&text),
            other => Self::of_text(&other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stack_is_left_out_and_memory_is_told_apart() {
        let error = TorchError::from(TchError::Torch("mat1 and mat2 cannot be multiplied\nframe #0: c10".to_owned()));
        assert_eq!(error.to_string().lines().count(), 1);
        assert_eq!(error.kind(), ErrorKind::Internal);
        let error = TorchError::from(TchError::Torch("CUDA out of memory. Tried to allocate 2 GiB".to_owned()));
        assert_eq!(error.kind(), ErrorKind::Exhausted);
    }
}
