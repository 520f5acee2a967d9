//! Rewards in every type that sources use.

use serde_json::{Map, Value};

use crate::rollout::RolloutReward;

/// A verdict from a JSON value; none where there is no such key or it is null with nothing to keep.
///
/// A number is the value; true and false are 1 and 0; text that is a number is that number; an object's entries are
/// parts, with the value from `reward`, `score`, `value` or `total` if it has one; a list is per-token rewards, whose
/// sum is the value. Anything but a number that a double holds exactly is also kept as it came.
pub(crate) fn reward_of(value: Option<&Value>) -> Option<RolloutReward> {
    let value = value?;
    let mut reward = RolloutReward { value: scalar(value), ..RolloutReward::default() };
    match value {
        Value::Number(number) => {
            let exact = number.as_i64().is_none_or(|n| (n as f64) as i64 == n && n.unsigned_abs() <= 1 << 53);
            if !exact {
                reward.detail = Some(value.clone());
            }
        }
        Value::Null => return None,
        Value::Object(map) => {
            reward.value = ["reward", "score", "value", "total"].iter().find_map(|key| scalar(map.get(*key)?));
            reward.parts = Some(parts(map));
            reward.detail = Some(value.clone());
        }
        Value::Array(items) => {
            let numbers: Option<Vec<f64>> = items.iter().map(Value::as_f64).collect();
            reward.value = numbers.filter(|n| !n.is_empty()).map(|n| n.iter().sum());
            reward.detail = Some(value.clone());
        }
        _ => reward.detail = Some(value.clone()),
    }
    Some(reward)
}

/// A number from a number, a truth value or numeric text.
pub(crate) fn scalar(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::Bool(truth) => Some(f64::from(u8::from(*truth))),
        Value::String(text) => text.trim().parse().ok().filter(|number: &f64| number.is_finite()),
        _ => None,
    }
}

/// The entries that are numbers or truth values, as numbers.
pub(crate) fn parts(map: &Map<String, Value>) -> Map<String, Value> {
    let numeric = |value: &Value| if value.is_string() { None } else { scalar(value) };
    map.iter().filter_map(|(key, value)| Some((key.clone(), Value::from(numeric(value)?)))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_type_of_reward_has_a_value_and_keeps_what_it_was() {
        let read = |value: Value| {
            let reward = reward_of(Some(&value)).unwrap();
            (reward.value, reward.parts.map(Value::from), reward.detail)
        };
        assert_eq!(read(json!(1)), (Some(1.0), None, None));
        assert_eq!(read(json!(1.5)), (Some(1.5), None, None));
        assert_eq!(read(json!(true)), (Some(1.0), None, Some(json!(true))));
        assert_eq!(read(json!("0.5")), (Some(0.5), None, Some(json!("0.5"))));
        let parts = json!({"acc": 1, "format": 0.2});
        assert_eq!(read(parts.clone()), (None, Some(json!({"acc": 1.0, "format": 0.2})), Some(parts)));
        assert_eq!(read(json!({"score": 0.5, "note": "x"})).0, Some(0.5));
        assert_eq!(read(json!([0.0, 0.0, 1.0])), (Some(1.0), None, Some(json!([0.0, 0.0, 1.0]))));
        assert_eq!(read(json!("pass")), (None, None, Some(json!("pass"))));
        assert_eq!(read(json!(9_007_199_254_740_993_i64)).2, Some(json!(9_007_199_254_740_993_i64)));
        assert_eq!(read(json!(-0.0)).0.map(f64::to_bits), Some((-0.0_f64).to_bits()));
    }

    #[test]
    fn no_reward_is_not_zero() {
        assert!(reward_of(None).is_none());
        assert!(reward_of(Some(&json!(null))).is_none());
    }
}
