//! Which known name a name that is not known was meant to be.

/// The name that is most like `wanted`, if one is like it: it begins with it, it differs in capitals, or at most a third
/// of its letters differ. The first of several that are alike.
///
/// ```
/// use dressage_segmenter::nearest;
///
/// assert_eq!(nearest("rewrad", ["status", "reward"]), Some("reward"));
/// assert_eq!(nearest("nothing", ["status", "reward"]), None);
/// ```
pub fn nearest<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = wanted.to_lowercase();
    if wanted.is_empty() {
        return None;
    }
    let far = |name: &str| {
        let name = name.to_lowercase();
        let distance = edit_distance(&wanted, &name);
        let likely = distance <= (wanted.chars().count().max(name.chars().count()) / 3).max(1);
        let begun = name.starts_with(&wanted) || wanted.starts_with(&name);
        // a name that only begins so is further off than any that is like it
        if likely { Some(distance) } else { begun.then_some(usize::MAX) }
    };
    let found = known.into_iter().filter(|name| !name.is_empty()).filter_map(|name| Some((far(name)?, name)));
    found.min_by_key(|(distance, _)| *distance).map(|(_, name)| name)
}

/// Letters to insert, delete or replace, and neighbours to swap, to make one text of the other.
pub(crate) fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 0..a.len() {
        let mut row = Vec::with_capacity(b.len() + 1);
        row.push(i + 1);
        for j in 0..b.len() {
            let replaced = last[j] + usize::from(a[i] != b[j]);
            let mut least = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

/// The first names of a list, for a message.
pub(crate) fn listed<'a>(names: impl IntoIterator<Item = &'a str>, at_most: usize) -> String {
    let mut names = names.into_iter();
    let mut text = names.by_ref().take(at_most).collect::<Vec<_>>().join(", ");
    if names.next().is_some() {
        text.push_str(", …");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_alike_is_meant_and_what_is_not_alike_is_nobody() {
        let known = ["trajectories", "steps", "segments", "groups", "nightly-7"];
        assert_eq!(nearest("trajectorys", known), Some("trajectories"));
        assert_eq!(nearest("segment", known), Some("segments"));
        assert_eq!(nearest("Steps", known), Some("steps"));
        assert_eq!(nearest("setps", known), Some("steps"));
        assert_eq!(nearest("nightly", known), Some("nightly-7"));
        assert_eq!(nearest("nobody", known), None);
        assert_eq!(nearest("", known), None);
    }

    #[test]
    fn a_swap_of_neighbours_is_one_change() {
        assert_eq!((edit_distance("rewrad", "reward"), edit_distance("", "ab"), edit_distance("a", "a")), (1, 2, 0));
    }

    #[test]
    fn a_long_list_says_that_it_goes_on() {
        assert_eq!((listed(["a", "b"], 2), listed(["a", "b", "c"], 2)), ("a, b".to_owned(), "a, b, …".to_owned()));
    }
}
