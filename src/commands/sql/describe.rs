//! `\d` and `\df`: what can be asked about.

use anyhow::Result;
use dressage_segmenter::Session;

use crate::failure::Failure;
use crate::output;

/// All tables and views with their first sentence.
pub(super) async fn tables(session: &Session) -> Result<String> {
    let mut rows = Vec::new();
    for table in session.tables() {
        rows.push(vec![table.qualified_name(), table.doc.clone()]);
    }
    Ok(output::table(&["table", "a row is"], &[], rows))
}

/// One table's columns.
pub(super) async fn table(session: &Session, name: &str) -> Result<String> {
    let Some(table) = session.tables().into_iter().find(|t| t.name == name || t.qualified_name() == name) else {
        return Err(Failure::not_found(format!("there is no table `{name}`; \\d lists them")));
    };
    let columns = session.columns(&table).await?;
    let rows = columns.into_iter().map(|c| vec![c.name, c.data_type, c.doc.unwrap_or_default()]);
    Ok(format!("{}\n\n{}", table.doc, output::table(&["column", "type", "meaning"], &[], rows)))
}
