//! Router choices of one call, cut down to the rows of what it appended (semantics 8.3).

use arrow::buffer::Buffer;

use crate::importer::RecordError;
use crate::rollout::{ExpertDtype, RoutedExperts};
use crate::rule;

/// Router choices over the positions of one call's prompt and output, as raw little-endian ids
/// `[rows][layers][top_k]`. Engines give one row a position; the last position's may be missing, because nothing was
/// computed from it.
#[derive(Debug, Clone)]
pub struct CallExperts {
    /// The ids.
    pub bytes: Vec<u8>,
    /// Width of an id.
    pub dtype: ExpertDtype,
    /// Layers a row.
    pub layers: u32,
    /// Experts a layer.
    pub top_k: u32,
}

impl CallExperts {
    /// The rows of a step that appended tokens to `known` ones, of `total` in all: from the row that predicted its
    /// first token to the one that predicted its last.
    ///
    /// # Errors
    /// [`RecordError::Refused`] where the bytes do not divide into rows, or are too few.
    pub(crate) fn appended(self, known: usize, total: usize) -> Result<RoutedExperts, RecordError> {
        let row_bytes = self.layers as usize * self.top_k as usize * self.dtype.width();
        if row_bytes == 0 || !self.bytes.len().is_multiple_of(row_bytes) {
            return Err(RecordError::refused(
                rule::ROUTED_EXPERTS_SHAPE,
                format!(
                    "{} bytes are no whole rows of {} layers x {} experts of {}",
                    self.bytes.len(),
                    self.layers,
                    self.top_k,
                    self.dtype.as_str()
                ),
            ));
        }
        let rows = self.bytes.len() / row_bytes;
        let (start, end) = (known.saturating_sub(1), total.saturating_sub(1));
        // one row a position, or one less
        if rows != total && rows != end {
            return Err(RecordError::refused(
                rule::ROUTED_EXPERTS_ROWS,
                format!("{rows} rows of routed experts for {total} tokens"),
            ));
        }
        let range = Buffer::from_vec(self.bytes).slice_with_length(start * row_bytes, (end - start) * row_bytes);
        Ok(RoutedExperts {
            chunks: vec![range],
            dtype: self.dtype,
            layers: self.layers,
            top_k: self.top_k,
            rows: end - start,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experts(rows: u8) -> CallExperts {
        CallExperts {
            bytes: (0..rows).flat_map(|r| [r, r + 100]).collect(),
            dtype: ExpertDtype::Uint8,
            layers: 1,
            top_k: 2,
        }
    }

    #[test]
    fn a_new_segment_has_one_row_less_than_tokens_and_an_extension_as_many() {
        let first = experts(4).appended(0, 5).unwrap();
        assert_eq!((first.rows, first.byte_length()), (4, 8));
        let more = experts(7).appended(5, 8).unwrap();
        assert_eq!(more.rows, 3);
        assert_eq!(more.chunks[0].as_slice(), [4, 104, 5, 105, 6, 106]);
        // a row for the last position as well is cut
        assert_eq!(experts(5).appended(0, 5).unwrap().rows, 4);
    }

    #[test]
    fn rows_that_do_not_fit_the_tokens_are_refused_with_both_numbers() {
        let Err(RecordError::Refused { rule, reason, .. }) = experts(3).appended(0, 5) else { panic!("accepted") };
        assert_eq!(rule, rule::ROUTED_EXPERTS_ROWS);
        assert!(reason.contains('3') && reason.contains('5'), "{reason}");
        let odd = CallExperts { bytes: vec![0; 3], ..experts(1) };
        assert!(matches!(odd.appended(0, 2), Err(RecordError::Refused { rule: rule::ROUTED_EXPERTS_SHAPE, .. })));
    }
}
