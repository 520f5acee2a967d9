//! Completion and multi-line input of the prompt.

use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Helper, Highlighter, Hinter};

/// Words that start or shape a query, offered beside the names of the store.
const KEYWORDS: [&str; 40] = [
    "select",
    "from",
    "where",
    "group by",
    "order by",
    "having",
    "limit",
    "join",
    "left join",
    "using",
    "on",
    "as",
    "and",
    "or",
    "not",
    "in",
    "between",
    "like",
    "is null",
    "is not null",
    "distinct",
    "union all",
    "with",
    "case",
    "when",
    "then",
    "else",
    "end",
    "over",
    "partition by",
    "desc",
    "asc",
    "count(*)",
    "explain",
    "explain analyze",
    "create view",
    "drop view",
    "show tables",
    "filter",
    "unnest",
];

/// What can be completed, and when a line is finished.
#[derive(Helper, Hinter, Highlighter)]
pub(super) struct PromptHelper {
    words: Vec<String>,
}

impl PromptHelper {
    /// Completes these names besides the words of SQL.
    pub(super) fn new(names: impl IntoIterator<Item = String>) -> Self {
        let mut words: Vec<String> = KEYWORDS.iter().map(|k| (*k).to_owned()).chain(names).collect();
        words.sort();
        words.dedup();
        Self { words }
    }

    fn matches(&self, line: &str, end: usize) -> (usize, Vec<&str>) {
        let before = &line[..end];
        let start = before
            .rfind(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.' || c == '\\'))
            .map_or(0, |at| at + before[at..].chars().next().map_or(1, char::len_utf8));
        let mut prefix = before[start..].to_ascii_lowercase();
        let mut offset = start;
        // `t.rew` completes the column behind the alias, `stored.st` the table with its schema
        if let Some((qualifier, rest)) = prefix.clone().rsplit_once('.')
            && !self.words.iter().any(|w| w.starts_with(&format!("{qualifier}.")))
        {
            offset = start + qualifier.len() + 1;
            prefix = rest.to_owned();
        }
        if prefix.is_empty() {
            return (offset, Vec::new());
        }
        let found = self.words.iter().map(String::as_str).filter(|word| word.starts_with(&prefix)).collect();
        (offset, found)
    }
}

impl Completer for PromptHelper {
    type Candidate = Pair;

    fn complete(&self, line: &str, pos: usize, _: &Context<'_>) -> Result<(usize, Vec<Pair>), ReadlineError> {
        let (start, words) = self.matches(line, pos);
        let pairs = words.into_iter().map(|w| Pair { display: w.to_owned(), replacement: w.to_owned() }).collect();
        Ok((start, pairs))
    }
}

impl Validator for PromptHelper {
    fn validate(&self, ctx: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if is_finished(ctx.input()) { ValidationResult::Valid(None) } else { ValidationResult::Incomplete })
    }
}

/// A command of the prompt is one line; a query goes on until its semicolon.
pub(super) fn is_finished(input: &str) -> bool {
    let text = input.trim();
    text.is_empty() || text.starts_with('\\') || text.ends_with(';') || matches!(text, "exit" | "quit" | "help")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn helper() -> PromptHelper {
        PromptHelper::new(["trajectories", "reward", "recorded_reward", "stored.steps"].map(str::to_owned))
    }

    #[test]
    fn names_complete_after_an_alias_and_within_a_schema() {
        assert_eq!(helper().matches("select rew", 10), (7, vec!["reward"]));
        assert_eq!(helper().matches("select t.rew", 12), (9, vec!["reward"]));
        assert_eq!(helper().matches("from stored.s", 13), (5, vec!["stored.steps"]));
        assert_eq!(helper().matches("select ", 7).1, Vec::<&str>::new());
    }

    #[test]
    fn queries_end_with_a_semicolon_and_commands_with_the_line() {
        assert!(!is_finished("select 1"));
        assert!(is_finished("select 1;"));
        assert!(is_finished("\\d steps"));
        assert!(is_finished("exit"));
    }
}
