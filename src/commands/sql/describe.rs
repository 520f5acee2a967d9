//! `\d` and `\df`: what can be asked about.

use anyhow::Result;
use dressage_segmenter::Session;

use crate::failure::Failure;
use crate::output;

/// What a command of the prompt says that only looks; none where it is another one.
pub(super) async fn command(session: &Session, command: &str) -> Result<Option<String>> {
    let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    let rest = rest.trim().trim_end_matches(';');
    Ok(Some(match (name.trim_end_matches(';'), rest) {
        ("d" | "dt" | "dv", "") => tables(session).await?,
        ("d", name) => table(session, name).await?,
        ("df", _) => functions(session),
        ("set", "") => {
            let variables = session.variables().into_iter().map(|(k, v)| vec![k, v]);
            output::table(&["variable", "value"], &[], variables)
        }
        _ => return Ok(None),
    }))
}

/// All tables and views with their first sentence.
async fn tables(session: &Session) -> Result<String> {
    let tables = session.tables().await?;
    let rows = tables.into_iter().map(|table| {
        let stored = table.schema == "stored";
        let name = if stored { format!("stored.{}", table.name) } else { table.name };
        vec![name, if stored { "as it is on disk, superseded rows left out".to_owned() } else { table.doc }]
    });
    Ok(output::table(&["table", "a row is"], &[], rows))
}

/// One table's columns.
async fn table(session: &Session, name: &str) -> Result<String> {
    let Some(table) = session.table(name).await? else {
        return Err(Failure::not_found(format!("there is no table `{name}`; \\d lists them")));
    };
    let rows = table.columns.into_iter().map(|c| vec![c.name, c.data_type, c.doc]);
    let columns = output::table(&["column", "type", "meaning"], &[], rows);
    Ok(if table.doc.is_empty() { columns } else { format!("{}\n\n{columns}", table.doc) })
}

/// All functions: ours first.
fn functions(session: &Session) -> String {
    let all = session.functions();
    let named = |ours: bool| {
        let names: Vec<&str> = all.iter().filter(|(_, own)| **own == ours).map(|(name, _)| name.as_str()).collect();
        wrapped(&names.join("  "), 100)
    };
    format!("for trajectories:\n{}\n\nof the engine:\n{}", named(true), named(false))
}

/// Words on lines of at most `width` characters.
fn wrapped(text: &str, width: usize) -> String {
    let mut lines = vec![String::from(" ")];
    for word in text.split_whitespace() {
        if lines.last().is_some_and(|line| line.len() + 1 + word.len() > width) {
            lines.push(String::from(" "));
        }
        if let Some(line) = lines.last_mut() {
            line.push(' ');
            line.push_str(word);
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_wrapped_between_words() {
        let text = wrapped(&"word ".repeat(40), 30);
        assert!(text.lines().all(|line| line.len() <= 30));
        assert_eq!(text.split_whitespace().count(), 40);
    }
}
