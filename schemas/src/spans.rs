//! Loss masks and weight versions as run lengths, so that caps, version masking and mask sums need no payload.

/// A loss mask as alternating run lengths, beginning with masked (0) tokens: `[19, 5]` is nineteen context tokens,
/// then five that receive gradient; `[0, 3]` is three trained tokens. The lengths add up to the token count. No
/// length but the first is 0, and an empty mask is `[]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MaskSpans(Vec<i32>);

impl MaskSpans {
    /// Run lengths of a mask, one `bool` a token (true: receives gradient).
    pub fn from_mask(mask: impl IntoIterator<Item = bool>) -> Self {
        let mut spans = Self::default();
        for trained in mask {
            spans.push(trained, 1);
        }
        spans
    }

    /// The mask of a step that appended `context` tokens of context and `output` generated ones.
    pub fn context_then_output(context: usize, output: usize) -> Self {
        let mut spans = Self::default();
        spans.push(false, context);
        spans.push(true, output);
        spans
    }

    /// Adds `count` tokens of one value at the end. Counts beyond `i32::MAX` saturate; a door check refuses such
    /// steps long before.
    pub fn push(&mut self, trained: bool, count: usize) {
        if count == 0 {
            return;
        }
        let count = i32::try_from(count).unwrap_or(i32::MAX);
        if self.0.is_empty() && trained {
            self.0.push(0);
        }
        // an even number of lengths means that the last run is a trained one
        let last_trained = self.0.len().is_multiple_of(2);
        match self.0.last_mut() {
            Some(last) if last_trained == trained => *last = last.saturating_add(count),
            _ => self.0.push(count),
        }
    }

    /// The lengths as stored in `mask_spans`.
    pub fn as_slice(&self) -> &[i32] {
        &self.0
    }

    /// The stored form back, checked: lengths must not be negative, and only the first may be 0.
    pub fn from_stored(lengths: Vec<i32>) -> Option<Self> {
        let ok = lengths.iter().enumerate().all(|(i, &n)| n > 0 || (i == 0 && n == 0));
        ok.then_some(Self(lengths))
    }

    /// Number of tokens.
    pub fn n_tokens(&self) -> usize {
        self.0.iter().map(|&n| n as usize).sum()
    }

    /// Number of tokens that receive gradient: the mask sum.
    pub fn n_trained(&self) -> usize {
        self.0.iter().skip(1).step_by(2).map(|&n| n as usize).sum()
    }

    /// The mask, token by token.
    pub fn iter(&self) -> impl Iterator<Item = bool> + '_ {
        self.0.iter().enumerate().flat_map(|(i, &n)| std::iter::repeat_n(i % 2 == 1, n as usize))
    }
}

/// The weights that produced each token, as run lengths. Context tokens have the version `"-1"` as in the
/// reference (semantics 3.11).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VersionSpans(pub Vec<(String, i32)>);

impl VersionSpans {
    /// Adds `count` tokens of one version at the end, joining equal neighbours.
    pub fn push(&mut self, weight_version: &str, count: usize) {
        if count == 0 {
            return;
        }
        let count = i32::try_from(count).unwrap_or(i32::MAX);
        match self.0.last_mut() {
            Some((last, n)) if last == weight_version => *n = n.saturating_add(count),
            _ => self.0.push((weight_version.to_owned(), count)),
        }
    }

    /// Number of tokens.
    pub fn n_tokens(&self) -> usize {
        self.0.iter().map(|(_, n)| *n as usize).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn spans_give_the_mask_back(mask in proptest::collection::vec(any::<bool>(), 0..200)) {
            let spans = MaskSpans::from_mask(mask.iter().copied());
            prop_assert_eq!(spans.iter().collect::<Vec<_>>(), mask.clone());
            prop_assert_eq!(spans.n_tokens(), mask.len());
            prop_assert_eq!(spans.n_trained(), mask.iter().filter(|m| **m).count());
            prop_assert_eq!(MaskSpans::from_stored(spans.as_slice().to_vec()), Some(spans));
        }
    }

    #[test]
    fn negative_and_inner_zero_lengths_are_refused() {
        assert_eq!(MaskSpans::from_stored(vec![3, -1]), None);
        assert_eq!(MaskSpans::from_stored(vec![3, 0, 2]), None);
    }

    #[test]
    fn neighbours_of_one_version_join() {
        let mut spans = VersionSpans::default();
        spans.push("-1", 4);
        spans.push("7", 2);
        spans.push("7", 3);
        assert_eq!(spans.0, vec![("-1".into(), 4), ("7".into(), 5)]);
    }
}
