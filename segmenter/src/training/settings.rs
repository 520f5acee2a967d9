//! The settings that training semantics read: their names, values and defaults. `setting('name')` gives the value in
//! force, so that SQL never repeats a default.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::nearest::edit_distance;

/// Estimators that ship, each a file of `sql/estimators/`.
pub(crate) const ESTIMATORS: [(&str, &str); 7] = [
    ("grpo", include_str!("../../sql/estimators/grpo.sql")),
    ("gspo", include_str!("../../sql/estimators/gspo.sql")),
    ("rloo", include_str!("../../sql/estimators/rloo.sql")),
    ("dr_grpo", include_str!("../../sql/estimators/dr_grpo.sql")),
    ("reinforce_plus_plus_baseline", include_str!("../../sql/estimators/reinforce_plus_plus_baseline.sql")),
    ("reinforce", include_str!("../../sql/estimators/reinforce.sql")),
    ("ppo", include_str!("../../sql/estimators/ppo.sql")),
];

/// Loss aggregations, each a file of `sql/aggregations/`.
pub(crate) const AGGREGATIONS: [(&str, &str); 5] = [
    ("prompt_mean", include_str!("../../sql/aggregations/prompt_mean.sql")),
    ("trajectory_mean", include_str!("../../sql/aggregations/trajectory_mean.sql")),
    ("sequence_mean", include_str!("../../sql/aggregations/sequence_mean.sql")),
    ("token_mean", include_str!("../../sql/aggregations/token_mean.sql")),
    ("constant", include_str!("../../sql/aggregations/constant.sql")),
];

/// A setting of ours.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) name: &'static str,
    default: Option<&'static str>,
    values: Values,
    expected: &'static str,
}

#[derive(Debug)]
enum Values {
    /// Any text.
    Any,
    /// One of these words.
    Words(&'static [&'static str]),
    /// `true` or `false`.
    Truth,
    /// A whole number from 1.
    Count,
    /// An estimator of ours; a file is not seen here.
    Estimator,
    /// `prompt_mean`, …, `constant:c`.
    Aggregation,
}

const fn known(name: &'static str, default: Option<&'static str>, values: Values, expected: &'static str) -> Known {
    Known { name, default, values, expected }
}

const COUNT: &str = "a whole number from 1, or none";

/// All settings that the built-in views read.
pub(crate) const KNOWN: &[Known] = &[
    known("run", None, Values::Any, "a run"),
    known("grader", None, Values::Any, "a grader"),
    known("tokenizer", None, Values::Any, "a tokenizer's file"),
    known(
        "estimator",
        Some("grpo"),
        Values::Estimator,
        "grpo, gspo, rloo, dr_grpo, reinforce_plus_plus_baseline, reinforce, ppo, or the path of a file that ends in .sql",
    ),
    known("filter", None, Values::Any, "the path of a file that ends in .sql, or none"),
    known("grpo_std_normalization", Some("true"), Values::Truth, "true or false"),
    known("rewards_normalization", Some("true"), Values::Truth, "true or false"),
    known(
        "loss_aggregation",
        None,
        Values::Aggregation,
        "prompt_mean, trajectory_mean, sequence_mean, token_mean, or constant:c with a c above 0, such as constant:4096",
    ),
    known("global_batch_size", None, Values::Count, COUNT),
    known("max_segment_tokens", None, Values::Count, COUNT),
    known(
        "anchor_rule",
        Some("last_segment"),
        Values::Words(&["last_segment", "main_lineage"]),
        "last_segment or main_lineage",
    ),
    known("null_reward", Some("exclude"), Values::Words(&["exclude", "zero"]), "exclude or zero"),
    known("whole_groups_only", Some("false"), Values::Truth, "true or false"),
    known("staleness_keep_versions", None, Values::Count, COUNT),
    known("max_version_span", None, Values::Count, COUNT),
];

/// The setting of that name, if it is one of ours.
pub(crate) fn find(name: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.name == name)
}

impl Known {
    /// The value as it is kept: trimmed, `none` as none, words in lower case.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] naming what is allowed.
    pub(crate) fn accept(&self, value: &str) -> Result<Option<String>> {
        let word = value.trim().to_ascii_lowercase();
        if self.default.is_none() && !matches!(self.values, Values::Any) && matches!(word.as_str(), "none" | "null") {
            return Ok(None);
        }
        let allowed = match self.values {
            Values::Any => return Ok(Some(value.to_owned())),
            Values::Words(words) => words.contains(&word.as_str()),
            Values::Truth => matches!(word.as_str(), "true" | "false"),
            Values::Count => word.parse::<i64>().is_ok_and(|n| n >= 1),
            Values::Estimator => ESTIMATORS.iter().any(|(name, _)| *name == word),
            Values::Aggregation => match word.split_once(':') {
                Some((name, c)) => name == "constant" && c.parse::<f64>().is_ok_and(|c| c.is_finite() && c > 0.0),
                None => AGGREGATIONS.iter().any(|(name, _)| *name == word),
            },
        };
        if !allowed {
            return Err(self.refuse(value));
        }
        Ok(Some(word))
    }

    pub(crate) fn refuse(&self, value: &str) -> Error {
        Error::InvalidSetting { key: self.name.to_owned(), value: value.to_owned(), expected: self.expected }
    }
}

/// Refuses a name that is nearly one of ours: a setting misspelt would silently change nothing.
pub(crate) fn refuse_near_miss(name: &str) -> Result<()> {
    let near = |known: &&Known| {
        let (a, b) = (name.replace('_', ""), known.name.replace('_', ""));
        // short names of the user's own are near to anything
        a == b || (b.len() >= 8 && edit_distance(&a, &b) <= 2)
    };
    match KNOWN.iter().find(near) {
        Some(known) => Err(Error::UnknownSetting { key: name.to_owned(), near: known.name }),
        None => Ok(()),
    }
}

/// Limits of a session, which are no variables: what to use for each.
const LIMITS: [(&str, &str); 7] = [
    ("memory_limit", "--memory-limit"),
    ("spill_limit", "a smaller query: it has no flag"),
    ("spill_dir", "the variable TMPDIR"),
    ("time_limit", "--time-limit"),
    ("row_limit", "--row-limit"),
    ("target_partitions", "nothing: it is one a core"),
    ("batch_rows", "nothing: it follows from the limits"),
];

/// Refuses the name of a limit: set as a variable it would silently change nothing.
pub(crate) fn refuse_limit(name: &str) -> Result<()> {
    let stem = name.trim_end_matches("_bytes").trim_end_matches("_ms");
    match LIMITS.iter().find(|(limit, _)| *limit == stem) {
        Some((_, instead)) => Err(Error::NotAVariable { key: name.to_owned(), instead }),
        None => Ok(()),
    }
}

/// The value in force of a setting that nobody set.
pub(crate) fn default_of(name: &str, set: &BTreeMap<String, String>) -> Option<String> {
    let known = find(name)?;
    if known.name != "loss_aggregation" {
        return known.default.map(str::to_owned);
    }
    // a file's estimator weighs trajectories alike, as the reference does for what it does not know
    let aggregation = match set.get("estimator").map_or("grpo", String::as_str) {
        "grpo" | "reinforce_plus_plus_baseline" => "prompt_mean",
        "dr_grpo" => "constant",
        _ => "trajectory_mean",
    };
    Some(aggregation.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(name: &str, value: &str) -> Option<String> {
        find(name).and_then(|known| known.accept(value).ok()).flatten()
    }

    #[test]
    fn values_are_checked_and_the_error_names_what_is_allowed() {
        assert_eq!(accepted("estimator", "GSPO"), Some("gspo".to_owned()));
        assert_eq!(accepted("loss_aggregation", "constant:4096"), Some("constant:4096".to_owned()));
        for (name, value) in [
            ("estimator", "grpoo"),
            ("loss_aggregation", "constant:0"),
            ("loss_aggregation", "token_mean:3"),
            ("global_batch_size", "0"),
            ("staleness_keep_versions", "-1"),
            ("grpo_std_normalization", "maybe"),
        ] {
            let error = find(name).and_then(|known| known.accept(value).err()).expect("it is refused");
            assert!(error.to_string().contains(value) && error.to_string().contains(" or "), "{error}");
        }
    }

    #[test]
    fn a_limit_is_no_variable_and_the_error_says_what_to_use() {
        for (name, instead) in [("memory_limit_bytes", "--memory-limit"), ("time_limit", "--time-limit")] {
            let error = refuse_limit(name).expect_err("it is refused");
            assert!(error.to_string().contains(instead), "{error}");
        }
        assert!(refuse_limit("limit").is_ok() && refuse_limit("min_reward").is_ok());
    }

    #[test]
    fn none_takes_an_optional_setting_away() {
        assert!(matches!(find("max_segment_tokens").map(|k| k.accept("none")), Some(Ok(None))));
        assert!(find("null_reward").is_some_and(|k| k.accept("none").is_err()));
    }

    #[test]
    fn a_misspelt_setting_is_refused_and_a_name_of_ones_own_is_not() {
        for name in ["estimater", "max_segments_tokens", "globalbatchsize", "lossaggregation", "null_rewards"] {
            assert!(refuse_near_miss(name).is_err(), "{name}");
        }
        for name in ["cut", "suite", "rum", "filters", "min_reward", "segment_tokens"] {
            assert!(refuse_near_miss(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn the_default_aggregation_is_the_estimators() {
        let of = |estimator: &str| {
            default_of("loss_aggregation", &BTreeMap::from([("estimator".to_owned(), estimator.to_owned())]))
        };
        assert_eq!(of("grpo").as_deref(), Some("prompt_mean"));
        assert_eq!(of("gspo").as_deref(), Some("trajectory_mean"));
        assert_eq!(of("dr_grpo").as_deref(), Some("constant"));
        assert_eq!(of("mine.sql").as_deref(), Some("trajectory_mean"));
    }
}
