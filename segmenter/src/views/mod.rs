//! The views: which `.sql` file stands for which name, and what its header says about it.
//!
//! A view with several files has one for the plain case, which costs nothing extra, and others for what needs more.
//! Which one applies is a question about the store ([`Question`]) or follows from the session's settings ([`choice`]);
//! it is decided when the view is first used.

mod choice;

use crate::error::Result;
use crate::training::Role;
pub(crate) use choice::Given;

/// A question about the store whose answer chooses between two files of a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Question {
    /// Does a reward other than the recorded one count: later verdicts, or a chosen grader?
    GradedLater,
    /// Is there a step whose segment the source did not give?
    StepsRecorded,
}

/// A built-in view.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BuiltinView {
    pub(crate) name: &'static str,
    /// Not for users: parts that other views share, in schema `internal`.
    pub(crate) internal: bool,
    pub(crate) definition: Definition,
}

/// Where a view's definition comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Definition {
    /// One file.
    One(&'static str),
    /// A file for the plain case, and one for stores of which the question is true.
    Asked(&'static str, Question, &'static str),
    /// A file that the session's settings choose, or one of the user's for this role.
    Set(Option<Role>, fn(&Given) -> Result<String>),
}

const fn view(name: &'static str, sql: &'static str) -> BuiltinView {
    BuiltinView { name, internal: false, definition: Definition::One(sql) }
}

const fn asked(name: &'static str, sql: &'static str, question: Question, otherwise: &'static str) -> BuiltinView {
    BuiltinView { name, internal: false, definition: Definition::Asked(sql, question, otherwise) }
}

const fn set(name: &'static str, role: Option<Role>, choose: fn(&Given) -> Result<String>) -> BuiltinView {
    BuiltinView { name, internal: false, definition: Definition::Set(role, choose) }
}

const fn shared(view: BuiltinView) -> BuiltinView {
    BuiltinView { internal: true, ..view }
}

/// All built-in views, in the order in which a person reads them.
pub(crate) const BUILTIN: &[BuiltinView] = &[
    asked(
        "trajectories",
        include_str!("../../sql/trajectories_recorded.sql"),
        Question::GradedLater,
        include_str!("../../sql/trajectories_graded.sql"),
    ),
    view("steps", include_str!("../../sql/steps.sql")),
    asked(
        "segments",
        include_str!("../../sql/segments_given.sql"),
        Question::StepsRecorded,
        include_str!("../../sql/segments_recorded.sql"),
    ),
    view("groups", include_str!("../../sql/groups.sql")),
    set("anchors", None, choice::anchors),
    view("samples", include_str!("../../sql/samples.sql")),
    view("drops", include_str!("../../sql/drops.sql")),
    view("messages", include_str!("../../sql/messages.sql")),
    view("rewards", include_str!("../../sql/rewards.sql")),
    view("contents", include_str!("../../sql/contents.sql")),
    view("weight_versions", include_str!("../../sql/weight_versions.sql")),
    view("snapshots", include_str!("../../sql/snapshots.sql")),
    view("plans", include_str!("../../sql/plans.sql")),
    view("batches", include_str!("../../sql/batches.sql")),
    view("streamed", include_str!("../../sql/streamed.sql")),
    view("train_metrics", include_str!("../../sql/train_metrics.sql")),
    view("checkpoints", include_str!("../../sql/checkpoints.sql")),
    view("trainer_logprobs", include_str!("../../sql/trainer_logprobs.sql")),
    view("token_mismatch", include_str!("../../sql/token_mismatch.sql")),
    view("ingest_log", include_str!("../../sql/ingest_log.sql")),
    view("quarantine", include_str!("../../sql/quarantine.sql")),
    view("tables", include_str!("../../sql/tables.sql")),
    view("columns", include_str!("../../sql/columns.sql")),
    shared(asked(
        "numbered_steps",
        include_str!("../../sql/numbered_steps_given.sql"),
        Question::StepsRecorded,
        include_str!("../../sql/numbered_steps_recorded.sql"),
    )),
    shared(view("observed_versions", include_str!("../../sql/observed_versions.sql"))),
    shared(set("candidates", None, choice::candidates)),
    shared(set("kept", Some(Role::Filter), choice::kept)),
    shared(view("kept_segments", include_str!("../../sql/kept_segments.sql"))),
    shared(set("advantages", Some(Role::Estimator), choice::advantages)),
    shared(set("rated", Some(Role::Estimator), choice::rated)),
    shared(set("weighed", None, choice::weighed)),
];

/// The built-in view of that name.
pub(crate) fn find(name: &str, internal: bool) -> Option<&'static BuiltinView> {
    BUILTIN.iter().find(|v| v.name == name && v.internal == internal)
}

/// What a view's header says: its first comment lines as one sentence, then `name  meaning` lines for its columns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) doc: String,
    pub(crate) columns: Vec<(String, String)>,
}

impl Header {
    /// Reads the comment lines at the top of a definition.
    pub(crate) fn parse(sql: &str) -> Self {
        let mut header = Self::default();
        let mut in_columns = false;
        for line in sql.lines().map_while(|l| l.trim_start().strip_prefix("--")) {
            let line = line.trim();
            if line.is_empty() {
                in_columns = true;
            } else if !in_columns {
                if !header.doc.is_empty() {
                    header.doc.push(' ');
                }
                header.doc.push_str(line);
            } else if let Some((name, meaning)) = line.split_once(char::is_whitespace)
                && crate::settings::is_plain_name(name)
            {
                header.columns.push((name.to_owned(), meaning.trim().to_owned()));
            }
        }
        header
    }

    /// What the header says about a column.
    pub(crate) fn column(&self, name: &str) -> Option<&str> {
        self.columns.iter().find(|(n, _)| n == name).map(|(_, meaning)| meaning.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_a_sentence_and_the_columns() {
        let header =
            Header::parse("-- One thing\n-- a row.\n--\n-- name   what it is\n-- n_rows how many\nSELECT 1 -- no\n");
        assert_eq!(header.doc, "One thing a row.");
        assert_eq!(header.column("name"), Some("what it is"));
        assert_eq!(header.column("n_rows"), Some("how many"));
        assert_eq!(header.columns.len(), 2);
    }

    #[test]
    fn every_view_for_users_says_what_it_is() {
        for view in BUILTIN {
            let (Definition::One(sql) | Definition::Asked(sql, ..)) = view.definition else { continue };
            let header = Header::parse(sql);
            assert!(header.doc.ends_with('.') && header.doc.len() > 20, "{}: {:?}", view.name, header.doc);
        }
    }
}
