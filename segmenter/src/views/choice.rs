//! Views whose file follows from the session's settings: the estimator, the loss aggregation, what drops whole groups.

use crate::error::Result;
use crate::settings::Variables;
use crate::training::{self, AGGREGATIONS, ESTIMATORS, UserSql};

/// The usual definitions, which all others agree with in their columns.
const ANCHORS: &str = include_str!("../../sql/anchors.sql");
const CANDIDATES: &str = include_str!("../../sql/candidates.sql");
const KEPT: &str = include_str!("../../sql/kept.sql");
const ADVANTAGES: &str = ESTIMATORS[0].1;
const RATED: &str = include_str!("../../sql/rated.sql");
const WEIGHED: &str = AGGREGATIONS[0].1;

/// What a choice follows from.
#[derive(Debug)]
pub(crate) struct Given {
    pub(crate) variables: Variables,
    /// The user's file for the view's role, its columns checked.
    pub(crate) user: Option<UserSql>,
}

impl Given {
    fn is_set(&self, name: &str) -> bool {
        self.variables.get(name).is_some()
    }

    fn value(&self, name: &str) -> String {
        self.variables.get(name).unwrap_or_default()
    }
}

/// Groups are looked at only where one can be dropped as a whole.
pub(super) fn anchors(given: &Given) -> Result<String> {
    let by_group = given.is_set("staleness_keep_versions") || given.value("whole_groups_only") == "true";
    let file = if by_group { include_str!("../../sql/anchors_of_kept_groups.sql") } else { ANCHORS };
    Ok(file.to_owned())
}

/// Weight versions are looked at only where they have a say.
pub(super) fn candidates(given: &Given) -> Result<String> {
    let versioned = given.is_set("staleness_keep_versions") || given.is_set("max_version_span");
    let file = if versioned { include_str!("../../sql/candidates_versioned.sql") } else { CANDIDATES };
    Ok(file.to_owned())
}

pub(super) fn kept(given: &Given) -> Result<String> {
    Ok(match &given.user {
        Some(filter) => filter.as_kept(),
        None => KEPT.to_owned(),
    })
}

pub(super) fn advantages(given: &Given) -> Result<String> {
    if let Some(estimator) = &given.user {
        return Ok(estimator.as_advantages());
    }
    Ok(training::file(&ESTIMATORS, &given.value("estimator")).unwrap_or(ADVANTAGES).to_owned())
}

/// A user's estimator may give an advantage a segment.
pub(super) fn rated(given: &Given) -> Result<String> {
    let by_segment = given.user.as_ref().is_some_and(|estimator| estimator.by_segment());
    let file = if by_segment { include_str!("../../sql/rated_by_segment.sql") } else { RATED };
    Ok(file.to_owned())
}

pub(super) fn weighed(given: &Given) -> Result<String> {
    let aggregation = given.value("loss_aggregation");
    let name = aggregation.split_once(':').map_or(aggregation.as_str(), |(name, _)| name);
    if name == "constant" && !given.is_set("loss_constant") {
        return Err(training::constant_is_missing());
    }
    Ok(training::file(&AGGREGATIONS, name).unwrap_or(WEIGHED).to_owned())
}
