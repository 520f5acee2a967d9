//! Which settings of a checkpoint are others than those of a trainer.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::settings::TrainerSettings;

/// One line a setting that differs, in the order of their names: `[loss] clip_high: 0.28 in the checkpoint, 0.2 now`. Whether a
/// run may go on with it is the caller's to decide; a changed `kind` of the model is refused by
/// [`Trainer::restore`](crate::Trainer::restore) itself.
pub fn differences(saved: &TrainerSettings, now: &TrainerSettings) -> Vec<String> {
    let (saved, now) = (flat(saved), flat(now));
    let keys: std::collections::BTreeSet<&String> = saved.keys().chain(now.keys()).collect();
    let shown = |value: Option<&Value>| value.map_or_else(|| "not set".to_owned(), Value::to_string);
    let differs = |key: &&String| !same(saved.get(*key), now.get(*key));
    let line =
        |key: &String| format!("{key}: {} in the checkpoint, {} now", shown(saved.get(key)), shown(now.get(key)));
    keys.into_iter().filter(differs).map(line).collect()
}

/// Values by `[section] key`.
pub(crate) fn flat(settings: &TrainerSettings) -> BTreeMap<String, Value> {
    // settings are numbers, words and switches, which JSON can hold
    let Ok(Value::Object(sections)) = serde_json::to_value(settings) else { return BTreeMap::new() };
    let of_section = |(section, keys): (String, Value)| {
        let Value::Object(keys) = keys else { return Vec::new() };
        keys.into_iter().map(|(key, value)| (format!("[{section}] {key}"), value)).collect()
    };
    sections.into_iter().flat_map(of_section).collect()
}

fn same(saved: Option<&Value>, now: Option<&Value>) -> bool {
    match (saved.and_then(Value::as_f64), now.and_then(Value::as_f64)) {
        // what was read back from JSON may be another number in its last bit
        (Some(saved), Some(now)) => (saved - now).abs() <= 1e-14 * saved.abs().max(now.abs()),
        _ => saved == now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_differ_are_named_with_both_values() {
        let read = |text: &str| toml::from_str::<TrainerSettings>(text).unwrap();
        let saved = read("[loss]\nclip_high = 0.28\n[optimizer]\nlearning_rate = 1e-5");
        let now =
            read("[loss]\nkind = \"reinforce\"\n[optimizer]\nlearning_rate = 1e-5\n[step]\non_not_finite = \"skip\"");
        assert_eq!(
            differences(&saved, &now),
            [
                "[loss] clip_high: 0.28 in the checkpoint, not set now",
                "[loss] clip_low: 0.2 in the checkpoint, not set now",
                "[loss] kind: \"ppo_clip\" in the checkpoint, \"reinforce\" now",
                "[loss] old_logprobs: \"recomputed\" in the checkpoint, not set now",
                "[step] on_not_finite: \"stop\" in the checkpoint, \"skip\" now",
            ]
        );
        assert_eq!(differences(&now, &now), Vec::<String>::new());
    }
}
