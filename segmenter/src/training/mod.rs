//! Training semantics around the SQL: the settings that choose among views, and the files that users bring.

mod settings;
mod user_sql;

pub(crate) use settings::{AGGREGATIONS, ESTIMATORS, KNOWN, default_of, find, refuse_limit, refuse_near_miss};
pub(crate) use user_sql::{Role, UserFile, UserSql, unrepeatable};

use crate::error::Error;

/// The names of the settings that say how rollouts become samples; their values are checked by
/// [`Variables::set`](crate::Variables::set).
pub fn training_settings() -> impl Iterator<Item = &'static str> {
    KNOWN.iter().map(|known| known.name).filter(|name| !matches!(*name, "run" | "grader" | "tokenizer"))
}

/// The file of that name among files.
pub(crate) fn file(files: &[(&'static str, &'static str)], name: &str) -> Option<&'static str> {
    files.iter().find(|(file, _)| *file == name).map(|(_, sql)| *sql)
}

/// What is wrong with a bare `constant` where no cap gives its c.
pub(crate) fn constant_is_missing() -> Error {
    Error::InvalidSetting {
        key: "loss_aggregation".to_owned(),
        value: "constant".to_owned(),
        expected: "write constant:c, such as constant:4096, or set max_segment_tokens, which is then c (dr_grpo takes \
                   constant unless another loss_aggregation is set)",
    }
}
