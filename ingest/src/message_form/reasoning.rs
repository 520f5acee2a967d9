//! Reasoning that came inside the text, between `<think>` marks.

/// Splits an assistant's text into reasoning and the rest. Takes marks at the beginning only, with or without the
/// opening one (templates that put `<think>` into the prompt leave only `</think>` in the output); marks further on
/// are text that speaks of them. A thought without an end (cut by a length limit) is all reasoning.
pub(crate) fn split_think(text: &str) -> Option<(String, String)> {
    let (thought, rest) = match text.trim_start().strip_prefix("<think>") {
        Some(opened) => opened.split_once("</think>").unwrap_or((opened, "")),
        None => {
            let (before, after) = text.split_once("</think>")?;
            if before.contains("<think>") {
                return None;
            }
            (before, after)
        }
    };
    Some((thought.trim().to_owned(), rest.trim_start_matches(['\n', '\r']).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_at_the_beginning_are_reasoning() {
        let split = |text| split_think(text).map(|(a, b)| format!("{a}|{b}"));
        assert_eq!(split("<think>\nthink C\n</think>\n\nx").as_deref(), Some("think C|x"));
        assert_eq!(split("think F\n</think>\n\nx").as_deref(), Some("think F|x"));
        assert_eq!(split("<think>cut here").as_deref(), Some("cut here|"));
        assert_eq!(split("no marks"), None);
        assert_eq!(split("the tag <think>a</think> is text here"), None);
    }
}
