//! What scorers said, as verdicts.

use serde_json::{Map, Value};

use crate::importers::verdict::{parts, scalar};
use crate::rollout::RolloutReward;

/// One verdict a scorer. Letters are numbers as Inspect reads them: C (correct) 1, P (partial) 0.5, I (incorrect) and
/// N (no answer) 0. A value of several entries is parts; a missing value stays missing.
pub(super) fn verdicts(scores: Option<&Value>) -> Vec<RolloutReward> {
    let mut rewards = Vec::new();
    match scores {
        Some(Value::Object(scores)) => {
            for (scorer, score) in scores {
                rewards.extend(verdict(Some(scorer.clone()), score));
            }
        }
        // before 2024-07 a sample had one nameless score
        Some(score @ Value::String(_)) => rewards.extend(verdict(None, score)),
        _ => {}
    }
    rewards
}

fn verdict(grader: Option<String>, score: &Value) -> Option<RolloutReward> {
    let given = score.get("value").unwrap_or(score);
    if score.is_null() {
        return None;
    }
    let mut reward = RolloutReward { grader, value: number(given), ..RolloutReward::default() };
    if let Value::Object(entries) = given {
        let numbers: Map<String, Value> =
            entries.iter().filter_map(|(key, value)| Some((key.clone(), Value::from(number(value)?)))).collect();
        reward.parts = Some(if numbers.is_empty() { parts(entries) } else { numbers });
    }
    // answers and explanations of the scorer; an empty history says nothing
    let mut detail = score.clone();
    if let Some(map) = detail.as_object_mut()
        && map.get("history").and_then(Value::as_array).is_some_and(Vec::is_empty)
    {
        map.remove("history");
    }
    reward.detail = Some(detail);
    Some(reward)
}

fn number(value: &Value) -> Option<f64> {
    match value.as_str() {
        Some("C") => Some(1.0),
        Some("P") => Some(0.5),
        Some("I" | "N") => Some(0.0),
        _ => scalar(value),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn letters_numbers_and_entries_are_read_and_a_missing_value_stays_missing() {
        let values = |scores: Value| {
            verdicts(Some(&scores)).into_iter().map(|v| (v.grader.unwrap(), v.value)).collect::<Vec<_>>()
        };
        assert_eq!(
            values(json!({"a": {"value": "C"}, "b": {"value": "P"}, "c": {"value": "I"}, "d": {"value": "N"},
                          "e": {"value": 0.25}, "f": {"value": true}, "g": {"value": null}, "h": {"value": "0.5"}})),
            [
                ("a".to_owned(), Some(1.0)),
                ("b".to_owned(), Some(0.5)),
                ("c".to_owned(), Some(0.0)),
                ("d".to_owned(), Some(0.0)),
                ("e".to_owned(), Some(0.25)),
                ("f".to_owned(), Some(1.0)),
                ("g".to_owned(), None),
                ("h".to_owned(), Some(0.5)),
            ]
        );
        let several = verdicts(Some(&json!({"rubric": {"value": {"style": "C", "facts": 0.5}}}))).remove(0);
        assert_eq!(several.value, None);
        assert_eq!(several.parts.map(Value::from), Some(json!({"style": 1.0, "facts": 0.5})));
        assert!(verdicts(None).is_empty());
    }
}
