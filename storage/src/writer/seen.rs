//! Which keys a table has, in a few bytes a row: most rows that come in are new, and this says so without asking the
//! store.

use std::collections::HashSet;
use std::hash::Hash;

/// Keys are sorted in bulk; the ones that came since are in a small set.
const RECENT_MAX: usize = 65_536;

/// A set of keys that is filled fragment by fragment.
#[derive(Debug)]
pub(super) struct Seen<K> {
    sorted: Vec<K>,
    recent: HashSet<K>,
    fragments: HashSet<u64>,
}

impl<K: Copy + Ord + Hash> Seen<K> {
    pub(super) fn new() -> Self {
        Self { sorted: Vec::new(), recent: HashSet::new(), fragments: HashSet::new() }
    }

    pub(super) fn contains(&self, key: &K) -> bool {
        self.recent.contains(key) || self.sorted.binary_search(key).is_ok()
    }

    pub(super) fn insert(&mut self, key: K) -> bool {
        if self.contains(&key) {
            return false;
        }
        self.recent.insert(key);
        if self.recent.len() > RECENT_MAX {
            self.sorted.extend(self.recent.drain());
            self.sorted.sort_unstable();
        }
        true
    }

    /// Adds the keys of whole fragments.
    pub(super) fn extend(&mut self, keys: Vec<K>) {
        self.sorted.extend(keys);
        self.sorted.sort_unstable();
        // rows come again where fragments were compacted
        self.sorted.dedup();
    }

    /// The fragments of these that were not read yet; they count as read from now on.
    pub(super) fn unread(&mut self, fragments: impl Iterator<Item = u64>) -> Vec<u64> {
        let current: HashSet<u64> = fragments.collect();
        let unread = current.difference(&self.fragments).copied().collect();
        self.fragments = current;
        unread
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_found_across_the_merge_of_recent_ones() {
        let mut seen = Seen::new();
        seen.extend(vec![5_u64, 1, 5]);
        for key in 10..(10 + RECENT_MAX as u64 + 10) {
            assert!(seen.insert(key));
        }
        assert!(seen.contains(&5) && seen.contains(&10) && seen.contains(&(RECENT_MAX as u64 + 19)));
        assert!(!seen.contains(&7));
        assert!(!seen.insert(11));
    }

    #[test]
    fn a_fragment_is_read_once_and_a_compacted_one_again() {
        let mut seen: Seen<u64> = Seen::new();
        assert_eq!(seen.unread([1, 2].into_iter()).len(), 2);
        assert_eq!(seen.unread([1, 2, 3].into_iter()), [3]);
        assert_eq!(seen.unread([4].into_iter()), [4]);
    }
}
