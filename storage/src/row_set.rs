//! A set of rows of one table version, by row address.

use std::sync::Arc;

/// Row addresses (fragment id in the upper 32 bits, row in the lower), sorted. Cheap to clone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowSet(Arc<[u64]>);

impl RowSet {
    /// From addresses in any order.
    pub fn from_unsorted(mut addresses: Vec<u64>) -> Self {
        addresses.sort_unstable();
        addresses.dedup();
        Self(addresses.into())
    }

    /// Whether the row is in the set.
    pub fn contains(&self, row_address: u64) -> bool {
        self.0.binary_search(&row_address).is_ok()
    }

    /// How many rows.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All addresses, ascending.
    pub fn as_slice(&self) -> &[u64] {
        &self.0
    }

    /// How many rows of the set are in a fragment.
    pub fn count_in_fragment(&self, fragment_id: u64) -> usize {
        let first = fragment_id << 32;
        let end = fragment_id.checked_add(1).and_then(|id| id.checked_mul(1 << 32));
        let from = self.0.partition_point(|a| *a < first);
        let to = end.map_or(self.0.len(), |end| self.0.partition_point(|a| *a < end));
        to - from
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_and_counted_by_fragment() {
        let set = RowSet::from_unsorted(vec![(2 << 32) | 5, 7, (2 << 32) | 5, (2 << 32) | 6]);
        assert_eq!(set.len(), 3);
        assert!(set.contains(7) && !set.contains(8));
        assert_eq!([0, 1, 2].map(|f| set.count_in_fragment(f)), [1, 0, 2]);
    }
}
