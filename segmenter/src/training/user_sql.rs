//! Estimators and filters that users bring as a file: what the query must give, how it is joined in, and the checks
//! before it counts.
//!
//! | role | columns | meaning |
//! | --- | --- | --- |
//! | estimator | `trajectory_id` (or `trajectory_key`), `advantage` and, if wanted, `segment_index`, `run_id` | the advantage of a trajectory, or of a segment |
//! | filter | `trajectory_id`, `trajectory_key` or `group_id` and, if wanted, `run_id` | who is kept |

use std::path::Path;

use arrow::datatypes::{DataType, Schema};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::{Expr, LogicalPlan, Volatility};

use crate::error::{Error, Result};
use crate::statement::{self, Action, Statement};

/// What a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    /// Gives advantages.
    Estimator,
    /// Says who is kept.
    Filter,
}

impl Role {
    pub(crate) const ALL: [Self; 2] = [Self::Estimator, Self::Filter];

    /// The setting that names the file.
    pub(crate) fn setting(self) -> &'static str {
        match self {
            Self::Estimator => "estimator",
            Self::Filter => "filter",
        }
    }

    /// The internal view that stands for it.
    pub(crate) fn view(self) -> &'static str {
        match self {
            Self::Estimator => "advantages",
            Self::Filter => "kept",
        }
    }
}

/// A file as it was read.
#[derive(Debug, Clone)]
pub(crate) struct UserFile {
    pub(crate) role: Role,
    pub(crate) path: String,
    /// Its one query.
    pub(crate) query: String,
}

impl UserFile {
    /// Reads a file that must hold one query.
    pub(crate) fn read(role: Role, path: &str) -> Result<Self> {
        let text = std::fs::read_to_string(Path::new(path)).map_err(|source| Error::ReadSql {
            what: role.setting(),
            path: path.to_owned(),
            source,
        })?;
        let refuse = |problem: String| Error::UserSql { what: role.setting(), path: path.to_owned(), problem };
        let mut statements = statement::parse_all(&text).map_err(|error| refuse(said(&error)))?;
        let count = statements.len();
        let Some(Statement(Action::Query(query))) = statements.pop().filter(|_| count == 1) else {
            return Err(refuse(match count {
                1 => "it is no query: a SELECT is needed".to_owned(),
                count => format!("it must be one SQL statement, and holds {count}"),
            }));
        };
        // as the parser understood it: the file's own text may end in a comment or a semicolon
        Ok(Self { role, path: path.to_owned(), query: query.to_string() })
    }

    fn refuse(&self, problem: impl Into<String>) -> Error {
        Error::UserSql { what: self.role.setting(), path: self.path.clone(), problem: problem.into() }
    }
}

/// An error and its causes in one line.
fn said(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let line = error.to_string();
        if !text.contains(&line) {
            text = format!("{text}: {line}");
        }
        cause = error.source();
    }
    text
}

/// Functions of the moment: the planner takes them for constants of one query.
const OF_THE_MOMENT: [&str; 4] = ["now", "current_timestamp", "current_date", "current_time"];

/// A function of the query that gives something else each time. A plan is named by its SQL, so it must not follow from
/// anything else.
pub(crate) fn unrepeatable(plan: &LogicalPlan) -> Result<Option<String>, DataFusionError> {
    let mut found = None;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expression| {
            expression.apply(|part| {
                if let Expr::ScalarFunction(call) = part
                    && (call.func.signature().volatility == Volatility::Volatile
                        || OF_THE_MOMENT.contains(&call.name()))
                {
                    found = Some(call.name().to_owned());
                }
                Ok(if found.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
            })
        })
    })?;
    Ok(found)
}

/// The column that says whose row it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    Hashed,
    TrajectoryId,
    GroupId,
}

impl Key {
    fn column(self) -> &'static str {
        match self {
            Self::Hashed => "trajectory_key",
            Self::TrajectoryId => "trajectory_id",
            Self::GroupId => "group_id",
        }
    }
}

/// A file whose columns are known and right.
#[derive(Debug, Clone)]
pub(crate) struct UserSql {
    pub(crate) file: UserFile,
    key: Key,
    with_run: bool,
    by_segment: bool,
}

/// A question whose rows are what is wrong.
#[derive(Debug)]
pub(crate) struct Check {
    /// What is wrong with these rows.
    pub(crate) problem: &'static str,
    /// Gives one text column, the offending keys.
    pub(crate) sql: String,
}

impl UserSql {
    /// The file, if its query's columns are what its role needs.
    pub(crate) fn of(file: UserFile, columns: &Schema) -> Result<Self> {
        let find = |name: &str| columns.fields().iter().find(|f| f.name() == name).map(|f| f.data_type().clone());
        let is_text = |t: &DataType| matches!(t, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
        let needs = |name: &str, ok: bool, kind: &str| match (find(name), ok) {
            (Some(found), false) => Err(file.refuse(format!("column {name} is {found}: it must be {kind}"))),
            _ => Ok(()),
        };
        let keys: &[Key] = match file.role {
            Role::Estimator => &[Key::Hashed, Key::TrajectoryId],
            Role::Filter => &[Key::Hashed, Key::TrajectoryId, Key::GroupId],
        };
        let Some(key) = keys.iter().copied().find(|key| find(key.column()).is_some()) else {
            let wanted = keys.iter().rev().map(|key| key.column()).collect::<Vec<_>>().join(" or ");
            return Err(file.refuse(format!("it has no column {wanted}{}", given(columns))));
        };
        let key_type = find(key.column()).unwrap_or(DataType::Null);
        match key {
            Key::Hashed => needs(key.column(), key_type.is_integer(), "an integer")?,
            Key::TrajectoryId | Key::GroupId => needs(key.column(), is_text(&key_type), "text")?,
        }
        let run = find("run_id");
        needs("run_id", run.as_ref().is_some_and(is_text), "text")?;
        let segment = find("segment_index");
        needs("segment_index", segment.as_ref().is_some_and(DataType::is_integer), "an integer")?;
        if file.role == Role::Estimator {
            let Some(advantage) = find("advantage") else {
                return Err(file.refuse(format!("it has no column advantage{}", given(columns))));
            };
            needs("advantage", advantage.is_numeric(), "a number")?;
        }
        let by_segment = file.role == Role::Estimator && segment.is_some();
        Ok(Self { with_run: run.is_some() && key != Key::Hashed, by_segment, key, file })
    }

    /// Whether it gives an advantage a segment.
    pub(crate) fn by_segment(&self) -> bool {
        self.by_segment
    }

    /// `e.key = other.key`, over all columns that say whose row it is.
    fn on(&self, other: &str, with_segment: bool) -> String {
        self.key_columns(with_segment).iter().map(|c| format!("e.{c} = {other}.{c}")).collect::<Vec<_>>().join(" AND ")
    }

    fn key_columns(&self, with_segment: bool) -> Vec<&'static str> {
        let mut columns = vec![self.key.column()];
        if self.with_run {
            columns.push("run_id");
        }
        if self.by_segment && with_segment {
            columns.push("segment_index");
        }
        columns
    }

    /// The relation `advantages`.
    pub(crate) fn as_advantages(&self) -> String {
        let segment = if self.by_segment { "e.segment_index, " } else { "" };
        format!(
            "SELECT a.trajectory_key, {segment}e.advantage::double AS advantage\nFROM anchors AS a\nJOIN (\n{}\n) AS e \
             ON {}",
            self.file.query,
            self.on("a", false)
        )
    }

    /// The relation `kept`.
    pub(crate) fn as_kept(&self) -> String {
        let columns = self.key_columns(false).join(", ");
        format!(
            "SELECT a.trajectory_key, a.reward\nFROM anchors AS a\nJOIN (SELECT DISTINCT {columns} FROM (\n{}\n)) AS e \
             ON {}",
            self.file.query,
            self.on("a", false)
        )
    }

    /// What must hold of its rows.
    pub(crate) fn checks(&self) -> Vec<Check> {
        let query = &self.file.query;
        let columns = self.key_columns(true);
        let keys: Vec<String> = columns.iter().map(|c| format!("e.{c}")).collect();
        let keys = keys.join(", ");
        let known = match (self.key, self.by_segment) {
            (Key::GroupId, _) => "groups",
            (_, true) => "segments",
            (_, false) => "trajectories",
        };
        let mut checks = vec![Check {
            problem: "names what is not there",
            sql: self.named(&format!(
                "SELECT {keys} FROM (\n{query}\n) AS e LEFT ANTI JOIN {known} AS k ON {}",
                self.on("k", true)
            )),
        }];
        if self.file.role == Role::Filter {
            return checks;
        }
        checks.push(Check {
            problem: "gives an advantage that is null, NaN or infinite for",
            sql: self.named(&format!(
                "SELECT {keys} FROM (\n{query}\n) AS e WHERE e.advantage IS NULL OR NOT is_finite(e.advantage::double)"
            )),
        });
        checks.push(Check {
            problem: "gives more than one row for",
            sql: self.named(&format!("SELECT {keys} FROM (\n{query}\n) AS e GROUP BY {keys} HAVING count(*) > 1")),
        });
        let wanted = if self.by_segment {
            "(SELECT s.* FROM segments AS s JOIN anchors AS a ON a.trajectory_key = s.trajectory_key WHERE s.trainable)"
        } else {
            "anchors"
        };
        let named = if self.by_segment { vec!["trajectory_id", "segment_index"] } else { vec!["trajectory_id"] };
        checks.push(Check {
            problem: "gives no advantage for",
            sql: format!(
                "SELECT {} FROM {wanted} AS w LEFT ANTI JOIN (\n{query}\n) AS e ON {}",
                shown("w", &named),
                self.on("w", true)
            ),
        });
        checks
    }

    /// One text a row of offending keys; a hashed key, which nobody can look up by eye, as the id that it is of.
    fn named(&self, keys: &str) -> String {
        let columns = self.key_columns(true);
        if self.key != Key::Hashed {
            return format!("SELECT {} FROM (\n{keys}\n) AS e", shown("e", &columns));
        }
        let others: String = columns.iter().skip(1).map(|c| format!(" || ' / ' || {}", shown("e", &[c]))).collect();
        format!(
            "SELECT coalesce(t.trajectory_id, 'trajectory_key ' || e.trajectory_key::varchar, 'NULL'){others} FROM \
             (\n{keys}\n) AS e LEFT JOIN trajectories AS t ON t.trajectory_key = e.trajectory_key"
        )
    }

    /// The error for rows that a check found.
    pub(crate) fn failed(&self, check: &Check, keys: &[String], more: bool) -> Error {
        let what = match (self.by_segment, self.key) {
            (true, _) => "trajectory / segment",
            (false, Key::Hashed) => Key::TrajectoryId.column(),
            (false, key) => key.column(),
        };
        let more = if more { ", …" } else { "" };
        self.file.refuse(format!("it {} {what}: {}{more}", check.problem, keys.join(", ")))
    }
}

/// Columns of one row as one text.
fn shown(of: &str, columns: &[&str]) -> String {
    let parts: Vec<String> = columns.iter().map(|c| format!("coalesce({of}.{c}::varchar, 'NULL')")).collect();
    parts.join(" || ' / ' || ")
}

fn given(columns: &Schema) -> String {
    let names: Vec<&str> = columns.fields().iter().map(|f| f.name().as_str()).collect();
    format!(" (it has {})", names.join(", "))
}
