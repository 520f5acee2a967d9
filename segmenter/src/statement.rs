//! Which statements a session takes: queries, and what changes the session itself. Nothing that writes.

use datafusion::sql::parser::{DFParserBuilder, Statement as Parsed};
use datafusion::sql::sqlparser::ast::{
    CreateView, Expr, ObjectName, ObjectType, Set, Statement as Sql, Value, ValueWithSpan,
};
use datafusion::sql::sqlparser::dialect::{Dialect, DuckDbDialect, GenericDialect};

use crate::error::{Error, Result};

/// One parsed statement that a session takes.
#[derive(Debug)]
pub struct Statement(pub(crate) Action);

impl Statement {
    /// Whether it gives rows.
    pub fn is_query(&self) -> bool {
        matches!(self.0, Action::Query(_))
    }
}

/// What is to be done with a statement.
#[derive(Debug)]
pub(crate) enum Action {
    /// Plan it and run it.
    Query(Box<Parsed>),
    /// A view for the rest of the session.
    CreateView { name: String, or_replace: bool, query: Box<Parsed> },
    /// Takes a view of the user's away.
    DropView { names: Vec<String>, if_exists: bool },
    /// Sets one of the session's variables.
    Set { key: String, value: Option<String> },
}

/// The statements of a text; comments and empty ones are left out.
pub(crate) fn parse_all(sql: &str) -> Result<Vec<Statement>> {
    let invalid = |source| Error::InvalidQuery { source: Box::new(source) };
    // Only DuckDB's dialect reads `x -> x + 1` as a function, but it also reads `coalesce(a = 'x', false)` as a named
    // argument; so it is used for texts that have an arrow.
    let dialect: &dyn Dialect = if sql.contains("->") { &DuckDbDialect {} } else { &GenericDialect {} };
    let mut parser =
        DFParserBuilder::new(sql).with_dialect(dialect).with_recursion_limit(100).build().map_err(invalid)?;
    let statements = parser.parse_statements().map_err(invalid)?;
    statements.into_iter().map(|parsed| sort(parsed).map(Statement)).collect()
}

fn sort(statement: Parsed) -> Result<Action> {
    let refused = |verb: &str| Err(Error::ReadOnly { statement: verb.to_owned() });
    let sql = match statement {
        Parsed::CreateExternalTable(_) => return refused("CREATE EXTERNAL TABLE"),
        Parsed::CopyTo(_) => return refused("COPY"),
        Parsed::Reset(_) => return refused("RESET"),
        Parsed::Explain(_) => return Ok(Action::Query(Box::new(statement))),
        Parsed::Statement(sql) => sql,
    };
    match *sql {
        Sql::Query(_)
        | Sql::Explain { .. }
        | Sql::ExplainTable { .. }
        | Sql::ShowTables { .. }
        | Sql::ShowColumns { .. }
        | Sql::ShowVariable { .. }
        | Sql::ShowFunctions { .. } => Ok(Action::Query(Box::new(Parsed::Statement(sql)))),
        Sql::CreateView(view) => create_view(view),
        Sql::Drop { object_type: ObjectType::View, if_exists, names, .. } => {
            let names = names.iter().map(plain_name).collect::<Result<_>>()?;
            Ok(Action::DropView { names, if_exists })
        }
        Sql::Set(Set::SingleAssignment { variable, values, .. }) => set(&variable, &values),
        other => {
            let text = other.to_string();
            let verb: Vec<_> = text.split_whitespace().take(2).collect();
            refused(&verb.join(" "))
        }
    }
}

fn create_view(view: CreateView) -> Result<Action> {
    if view.materialized {
        return Err(Error::ReadOnly { statement: "CREATE MATERIALIZED VIEW".to_owned() });
    }
    let name = plain_name(&view.name)?;
    let query = Box::new(Parsed::Statement(Box::new(Sql::Query(view.query))));
    Ok(Action::CreateView { name, or_replace: view.or_replace, query })
}

/// The name of a view, which lives in the default schema.
fn plain_name(name: &ObjectName) -> Result<String> {
    let invalid = || Error::InvalidName { what: "view name", name: name.to_string() };
    let [part] = name.0.as_slice() else { return Err(invalid()) };
    let ident = part.as_ident().ok_or_else(invalid)?;
    let text = match ident.quote_style {
        Some(_) => ident.value.clone(),
        None => ident.value.to_ascii_lowercase(),
    };
    if crate::settings::is_plain_name(&text) { Ok(text) } else { Err(invalid()) }
}

/// `SET key = 'value'`; NULL and DEFAULT take the variable away.
fn set(variable: &ObjectName, values: &[Expr]) -> Result<Action> {
    let key = variable.to_string().to_ascii_lowercase();
    let value = match values {
        [Expr::Value(ValueWithSpan { value: Value::Null, .. })] => None,
        [Expr::Value(ValueWithSpan { value: Value::SingleQuotedString(text), .. })] => Some(text.clone()),
        [Expr::Value(ValueWithSpan { value, .. })] => Some(value.to_string()),
        [Expr::Identifier(word)] if word.value.eq_ignore_ascii_case("default") => None,
        [Expr::Identifier(word)] => Some(word.value.clone()),
        _ => {
            let value = values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            return Err(Error::InvalidSetting { key, value, expected: "one text or number, or NULL" });
        }
    };
    Ok(Action::Set { key, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(sql: &str) -> bool {
        matches!(parse_all(sql), Err(Error::ReadOnly { .. }))
    }

    #[test]
    fn whatever_writes_is_refused() {
        for sql in [
            "INSERT INTO trajectories VALUES (1)",
            "DELETE FROM trajectories",
            "UPDATE trajectories SET reward = 1",
            "CREATE TABLE t AS SELECT 1",
            "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '/etc/passwd'",
            "COPY (SELECT 1) TO '/tmp/x.csv'",
            "DROP TABLE trajectories",
            "CREATE MATERIALIZED VIEW v AS SELECT 1",
            "TRUNCATE TABLE trajectories",
        ] {
            assert!(refused(sql), "{sql}");
        }
    }

    #[test]
    fn queries_views_and_settings_are_sorted() {
        let statements =
            parse_all("-- a comment\nCREATE OR REPLACE VIEW Good AS SELECT 1; SET grader = 'judge'; SELECT 1;;")
                .unwrap();
        assert!(matches!(&statements[0].0, Action::CreateView { name, or_replace: true, .. } if name == "good"));
        assert!(matches!(&statements[1].0, Action::Set { key, value: Some(v) } if key == "grader" && v == "judge"));
        assert!(matches!(&statements[2].0, Action::Query(_)));
        assert_eq!(statements.len(), 3);
    }

    #[test]
    fn an_explained_query_is_a_query() {
        assert!(matches!(parse_all("EXPLAIN ANALYZE SELECT 1").unwrap().as_slice(), [Statement(Action::Query(_))]));
    }
}
