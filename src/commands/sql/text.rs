//! A text of statements with commands of the prompt between them, as people paste it or keep it in a file.

/// A part of a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    /// Statements.
    Statements(&'a str),
    /// A line that begins with a backslash, without it.
    Command(&'a str),
}

/// Takes a text apart. A line is a command where no statement is under way.
pub(super) fn parts(text: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let (mut start, mut at) = (0, 0);
    for line in text.split_inclusive('\n') {
        let before = text.get(start..at).unwrap_or_default();
        if let Some(command) = line.trim().strip_prefix('\\')
            && is_over(before)
        {
            if !before.trim().is_empty() {
                parts.push(Part::Statements(before));
            }
            parts.push(Part::Command(command));
            start = at + line.len();
        }
        at += line.len();
    }
    let rest = text.get(start..).unwrap_or_default();
    if !rest.trim().is_empty() {
        parts.push(Part::Statements(rest));
    }
    parts
}

/// Whether statements are complete: nothing, comments, or a semicolon at the end.
fn is_over(statements: &str) -> bool {
    let said = statements.lines().map(str::trim).rfind(|line| !line.is_empty() && !line.starts_with("--"));
    said.is_none_or(|line| line.ends_with(';'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_lines_between_statements() {
        let text = "-- what is there\n\\d\nselect 1;\n\\d steps;\nselect '\n\\n' as x";
        let wanted = [
            Part::Statements("-- what is there\n"),
            Part::Command("d"),
            Part::Statements("select 1;\n"),
            Part::Command("d steps;"),
            Part::Statements("select '\n\\n' as x"),
        ];
        assert_eq!(parts(text), wanted);
        assert_eq!(parts("\\df"), [Part::Command("df")]);
        assert_eq!(parts(" \n"), []);
    }
}
