//! What of a segment is trained on, computed on run lengths (semantics 4.3): the cap at the tail, where the response
//! begins, and the mask without tokens of older weights. SQL functions and the batch stream both call these.

use crate::spans::{MaskSpans, VersionSpans};
use crate::words::is_real_version;

impl MaskSpans {
    /// The first `n_tokens_max` tokens.
    pub fn capped(&self, n_tokens_max: usize) -> Self {
        capped(self.as_slice(), n_tokens_max)
    }

    /// Tokens before the first one with gradient: all of them, if there is none.
    pub fn response_start(&self) -> usize {
        response_start(self.as_slice())
    }

    /// Tokens from the first one with gradient to the end.
    pub fn response_length(&self) -> usize {
        self.n_tokens() - self.response_start()
    }

    /// Adds the mask of the next step; of a step that is not trainable, its length only.
    pub fn extend(&mut self, lengths: &[i32], trainable: bool) {
        for (i, n) in lengths.iter().enumerate() {
            self.push(trainable && i % 2 == 1, usize::try_from(*n).unwrap_or(0));
        }
    }

    /// The mask without tokens of other than the last version: see [`of_last_version`].
    pub fn of_last_version(&self, versions: &VersionSpans) -> Self {
        of_last_version(self.as_slice(), &versions.0).unwrap_or_else(|| self.clone())
    }
}

impl VersionSpans {
    /// Adds the versions of the next step; where they were not recorded, `weight_version` stands for all `n_tokens`.
    pub fn extend(&mut self, recorded: Option<&Self>, weight_version: Option<&str>, n_tokens: usize) {
        match recorded {
            Some(recorded) => recorded.0.iter().for_each(|(version, n)| {
                self.push(version, usize::try_from(*n).unwrap_or(0));
            }),
            None => self.push(weight_version.unwrap_or_default(), n_tokens),
        }
    }
}

/// The first `n_tokens_max` tokens of a mask: a cut at the tail.
pub fn capped(lengths: &[i32], n_tokens_max: usize) -> MaskSpans {
    let mut spans = MaskSpans::default();
    let mut left = n_tokens_max;
    for (i, n) in lengths.iter().enumerate() {
        let n = usize::try_from(*n).unwrap_or(0).min(left);
        spans.push(i % 2 == 1, n);
        left -= n;
    }
    spans
}

/// Tokens before the first one with gradient.
pub fn response_start(lengths: &[i32]) -> usize {
    lengths.first().map_or(0, |n| usize::try_from(*n).unwrap_or(0))
}

/// The weights that produced the tokens with gradient, in order: one a run, real versions only.
pub fn trained_versions<'a, V: AsRef<str>>(
    mask: &'a [i32],
    versions: &'a [(V, i32)],
) -> impl Iterator<Item = &'a str> + 'a {
    pieces(mask, versions).filter(|p| p.trained && is_real_version(p.version)).map(|p| p.version)
}

/// The mask that keeps only tokens of the last version, that of the last token with gradient; `None` where the mask
/// stays as it is, because its tokens have one real version or none. Tokens of unknown version go as soon as there
/// are two real ones.
///
/// Cap first: the last version is the last one after the cut.
pub fn of_last_version<V: AsRef<str>>(mask: &[i32], versions: &[(V, i32)]) -> Option<MaskSpans> {
    let last = trained_versions(mask, versions).last()?;
    if trained_versions(mask, versions).all(|version| version == last) {
        return None;
    }
    let mut spans = MaskSpans::default();
    for piece in pieces(mask, versions) {
        spans.push(piece.trained && piece.version == last, piece.n_tokens);
    }
    Some(spans)
}

/// Neighbouring tokens with the same mask and the same version.
struct Piece<'a> {
    trained: bool,
    version: &'a str,
    n_tokens: usize,
}

/// A mask and versions cut at the ends of both's runs. The mask has the say about the length: versions beyond it are
/// left out, and tokens beyond the versions have none.
fn pieces<'a, V: AsRef<str>>(mask: &'a [i32], versions: &'a [(V, i32)]) -> impl Iterator<Item = Piece<'a>> + 'a {
    let count = |n: i32| usize::try_from(n).unwrap_or(0);
    let mut runs = mask.iter().enumerate().map(move |(i, n)| (i % 2 == 1, count(*n)));
    let mut names = versions.iter().map(move |(version, n)| (version.as_ref(), count(*n)));
    let (mut trained, mut run_left) = (false, 0);
    let (mut version, mut version_left) = ("", 0);
    std::iter::from_fn(move || {
        while run_left == 0 {
            (trained, run_left) = runs.next()?;
        }
        while version_left == 0 {
            (version, version_left) = names.next().unwrap_or(("", usize::MAX));
        }
        let n_tokens = run_left.min(version_left);
        run_left -= n_tokens;
        version_left -= n_tokens;
        Some(Piece { trained, version, n_tokens })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mask(bits: &[u8]) -> MaskSpans {
        MaskSpans::from_mask(bits.iter().map(|b| *b == 1))
    }

    fn versions(names: &[&str]) -> VersionSpans {
        let mut spans = VersionSpans::default();
        names.iter().for_each(|name| spans.push(name, 1));
        spans
    }

    fn ends<'a>(mask: &'a MaskSpans, versions: &'a VersionSpans) -> (Option<&'a str>, Option<&'a str>) {
        let trained = || trained_versions(mask.as_slice(), &versions.0);
        (trained().next(), trained().last())
    }

    #[test]
    fn the_response_begins_at_the_first_trained_token() {
        let mask = mask(&[0, 0, 1, 1, 1]);
        assert_eq!((mask.response_start(), mask.response_length(), mask.n_trained()), (2, 3, 3));
    }

    #[test]
    fn a_cap_that_cuts_all_trained_tokens_leaves_no_response() {
        let capped = MaskSpans::context_then_output(10, 10).capped(8);
        assert_eq!((capped.n_tokens(), capped.response_length(), capped.n_trained()), (8, 0, 0));
    }

    #[test]
    fn version_masking_keeps_the_last_version_and_the_length_of_the_response() {
        let mask = mask(&[0, 1, 1, 0, 1]);
        let versions = versions(&["-1", "v0", "v1", "-1", "v1"]);
        let training = mask.of_last_version(&versions);
        assert_eq!(training.iter().skip(mask.response_start()).collect::<Vec<_>>(), [false, true, false, true]);
        assert_eq!(mask.response_length(), 4);
        assert_eq!(ends(&mask, &versions), (Some("v0"), Some("v1")));
    }

    #[test]
    fn versions_of_context_do_not_count() {
        let mask = mask(&[0, 0, 1, 0, 1]);
        let versions = versions(&["v0", "v0", "v1", "v0", "v2"]);
        assert_eq!(mask.response_length(), 3);
        assert_eq!(ends(&mask, &versions), (Some("v1"), Some("v2")));
    }

    #[test]
    fn the_last_version_is_the_last_one_after_the_cap() {
        let versions = versions(&["1", "1", "2", "3"]);
        let capped = mask(&[0, 1, 1, 1]).capped(3);
        assert_eq!(capped.of_last_version(&versions), mask(&[0, 0, 1]));
    }

    #[test]
    fn tokens_of_unknown_version_stay_while_there_is_one_real_version() {
        let bits = mask(&[1, 1, 1]);
        assert_eq!(bits.of_last_version(&versions(&["unknown", "5", "None"])), bits);
        assert_eq!(bits.of_last_version(&versions(&["unknown", "5", "6"])), mask(&[0, 0, 1]));
        assert_eq!(bits.of_last_version(&versions(&["", " -1 ", "UNKNOWN"])), bits);
    }

    #[test]
    fn a_step_that_is_not_trainable_adds_context_only() {
        let mut segment = MaskSpans::default();
        segment.extend(&[2, 3], true);
        segment.extend(&[1, 4], false);
        segment.extend(&[0, 2], true);
        assert_eq!(segment.as_slice(), [2, 3, 5, 2]);
    }

    #[test]
    fn a_step_without_token_versions_has_the_one_that_answered() {
        let mut segment = VersionSpans::default();
        segment.extend(None, Some("3"), 2);
        segment.extend(Some(&versions(&["3", "4"])), Some("4"), 2);
        segment.extend(None, None, 1);
        assert_eq!(segment.0, [("3".to_owned(), 3), ("4".to_owned(), 1), (String::new(), 1)]);
    }

    /// Semantics 4.3, steps 2 to 4, token by token: the response's start, the training mask, first and last version.
    fn token_by_token(
        tokens: &[(bool, &str)],
        cap: usize,
        masks_older: bool,
    ) -> (usize, Vec<bool>, Option<String>, Option<String>) {
        let tokens = &tokens[..tokens.len().min(cap)];
        let real: Vec<&str> =
            tokens.iter().filter(|(trained, version)| *trained && is_real_version(version)).map(|t| t.1).collect();
        let several = real.iter().any(|version| version != &real[0]);
        let last = real.last().copied();
        let keeps =
            |(trained, version): &(bool, &str)| *trained && (!masks_older || !several || Some(*version) == last);
        let start = tokens.iter().position(|t| t.0).unwrap_or(tokens.len());
        let text = |version: Option<&&str>| version.map(|v| (*v).to_owned());
        (start, tokens.iter().map(keeps).collect(), text(real.first()), text(real.last()))
    }

    proptest! {
        #[test]
        fn runs_say_the_same_as_tokens(
            tokens in proptest::collection::vec(
                (any::<bool>(), proptest::sample::select(vec!["", "-1", "unknown", "1", "2", "3"])), 0..40,
            ),
            cap in 0..45_usize,
            masks_older in any::<bool>(),
        ) {
            let whole = MaskSpans::from_mask(tokens.iter().map(|t| t.0));
            let versions = versions(&tokens.iter().map(|t| t.1).collect::<Vec<_>>());
            let mask = whole.capped(cap);
            let training = if masks_older { mask.of_last_version(&versions) } else { mask.clone() };
            let (start, expected, first, last) = token_by_token(&tokens, cap, masks_older);
            prop_assert_eq!(mask.response_start(), start);
            prop_assert_eq!(training.iter().collect::<Vec<_>>(), expected);
            let found = ends(&mask, &versions);
            prop_assert_eq!((found.0.map(str::to_owned), found.1.map(str::to_owned)), (first, last));
            prop_assert_eq!(MaskSpans::from_stored(training.as_slice().to_vec()), Some(training));
        }

        #[test]
        fn the_steps_of_a_segment_join_to_its_mask(
            steps in proptest::collection::vec((proptest::collection::vec(any::<bool>(), 0..9), any::<bool>()), 0..6),
        ) {
            let mut joined = MaskSpans::default();
            for (bits, trainable) in &steps {
                joined.extend(MaskSpans::from_mask(bits.iter().copied()).as_slice(), *trainable);
            }
            let tokens = steps.iter().flat_map(|(bits, trainable)| bits.iter().map(move |bit| *bit && *trainable));
            prop_assert_eq!(joined, MaskSpans::from_mask(tokens));
        }
    }
}
